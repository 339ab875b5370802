//! The key of a cache entry: everything that it depends on.
//!
//! Two requests share an entry if the same tenant says the same up to a piece, under the same parameters. Which
//! parameters count depends on the layer: the entry of a tool outlives a change of `thinking`, that of a message
//! does not. So a request has one *scope* per layer, and a key ties a prefix hash to the scope of its layer.
//!
//! ```
//! use forkpoint::engine::request::anatomy::Anatomy;
//! use forkpoint::engine::cache::entry::{EntryKey, Parameters};
//! use forkpoint::engine::request::prefix::{Attribution, Chain};
//! use forkpoint::engine::words::TenantId;
//!
//! let keys = |body: &[u8]| {
//!     let anatomy = Anatomy::read(body).unwrap();
//!     let chain = Chain::of(body, &anatomy, Attribution::Counted);
//!     let parameters = Parameters::read(TenantId([0; 32]), body, &anatomy, [].into_iter());
//!     [0, 1].map(|piece| EntryKey::of(parameters.scope(), &chain, piece, anatomy.layer(piece)))
//! };
//! let one = keys(br#"{"system":"s","messages":[{"role":"user","content":"hi"}]}"#);
//! let two = keys(br#"{"system":"s","messages":[{"role":"user","content":"hi"}],"thinking":{"type":"adaptive"}}"#);
//! assert_eq!(one[0], two[0]);
//! assert_ne!(one[1], two[1]);
//! ```

mod parameters;
mod probes;

pub use parameters::{BetaChange, Parameters, SavedParameters};
pub use probes::{LOOKBACK_POSITIONS, Probe, Probes, is_position, prefix_bytes};

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use parameters::ParameterValues;

use crate::engine::request::prefix::Chain;
use crate::engine::words::{Layer, TenantId, digits, first};

/// Names one cache entry; shown as 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryKey(#[serde(with = "digits")] [u8; 32]);

impl Hash for EntryKey {
    /// Eight bytes of a digest tell keys apart as well as all of them, and a request looks up dozens.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from_be_bytes(first(&self.0)));
    }
}

impl EntryKey {
    /// The key of the entry that ends with this piece, if there is such a piece.
    pub fn of(scope: &Scope, chain: &Chain, piece: usize, layer: Layer) -> Option<EntryKey> {
        let (scope, prefix) = (scope.layer(layer), chain.pieces.get(piece)?.as_bytes());
        // Both are digests already, each of something else, so that laying one over the other is enough.
        let mut key = *scope;
        key.iter_mut().zip(prefix).for_each(|(byte, of_prefix)| *byte ^= of_prefix);
        Some(EntryKey(key))
    }

    /// The part of a ledger that it is saved with.
    pub fn part(&self) -> u32 {
        u32::from(self.0[0] >> 2)
    }

    /// A key of its own for each number.
    #[cfg(test)]
    pub fn numbered(number: u64) -> EntryKey {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        EntryKey(key)
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(first(&self.0)))
    }
}

/// Everything that the entries of one request depend on besides its prefix: tenant and parameters, per layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    tools: [u8; 32],
    system: [u8; 32],
    messages: [u8; 32],
}

impl Scope {
    fn of(tenant: &TenantId, parameters: &ParameterValues) -> Scope {
        let derive = blake3::Hasher::new_derive_key("forkpoint entry v1");
        let layer = |layer: Layer| {
            let mut input = Vec::with_capacity(512);
            input.extend_from_slice(&tenant.0);
            parameters.push(&mut input, layer);
            *derive.clone().update(&input).finalize().as_bytes()
        };
        Scope { tools: layer(Layer::Tools), system: layer(Layer::System), messages: layer(Layer::Messages) }
    }

    fn layer(&self, layer: Layer) -> &[u8; 32] {
        match layer {
            Layer::Model | Layer::Tools => &self.tools,
            Layer::System => &self.system,
            Layer::Messages => &self.messages,
        }
    }
}

#[cfg(test)]
mod tests;
