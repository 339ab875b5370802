//! A prompt as a world plays it: where the cache looks for entries, and how much there is up to each place.

use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::cache::entry::{EntryKey, LOOKBACK_POSITIONS, Probe, Probes, Scope, is_position};
use crate::engine::request::anatomy::{Anatomy, Form};
use crate::engine::request::prefix::Chain;
use crate::engine::request::recall::Reading;
use crate::engine::words::{Layer, Ttl};

/// An image counts as this many bytes of a kind of its own: its length says nothing about its tokens.
const IMAGE_BYTES: f64 = 4_000.0;

/// Bytes by kind of block: definitions of tools, prose, data, images. Layers are not distinguished, since a text may
/// move from one to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sizes(pub [f64; 4]);

impl Sizes {
    /// Counts the first `pieces` pieces of a prompt.
    pub fn of(anatomy: &Anatomy, chain: &Chain, pieces: usize) -> Sizes {
        let mut sizes = Sizes::default();
        (0..pieces.min(anatomy.pieces.len())).for_each(|piece| sizes.add(anatomy, chain, piece));
        sizes
    }

    /// Adds a piece of a prompt.
    fn add(&mut self, anatomy: &Anatomy, chain: &Chain, piece: usize) {
        if !is_position(chain, piece) {
            return;
        }
        let block = &anatomy.pieces[piece];
        let [definitions, prose, data, images] = &mut self.0;
        if block.shows_image || block.has_payload {
            *images += IMAGE_BYTES;
            return;
        }
        let of_kind = if anatomy.layer(piece) == Layer::Tools {
            definitions
        } else if block.form == Form::Text || block.text().is_some() {
            prose
        } else {
            data
        };
        *of_kind += block.prompt_bytes() as f64;
    }

    pub fn plus(self, other: Sizes) -> Sizes {
        Sizes(std::array::from_fn(|kind| self.0[kind] + other.0[kind]))
    }

    pub fn minus(self, other: Sizes) -> Sizes {
        Sizes(std::array::from_fn(|kind| self.0[kind] - other.0[kind]))
    }

    pub fn bytes(self) -> f64 {
        self.0.iter().sum()
    }

    pub fn has_images(self) -> bool {
        self.0[3] > 0.0
    }
}

/// A place where the cache looks for an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    pub key: EntryKey,
    pub piece: usize,
    /// Of the prompt up to and including this piece.
    pub bytes: u64,
    pub sizes: Sizes,
    /// The lifetime that a breakpoint here asks for.
    pub marker: Option<Ttl>,
}

/// A prompt as a world plays it. It holds keys and sizes, and none of the prompt's bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorldPrompt {
    /// The deepest first.
    pub positions: Vec<Position>,
    /// Of the whole prompt.
    pub sizes: Sizes,
}

impl WorldPrompt {
    pub fn of(reading: &Reading, breakpoints: &[Breakpoint], scope: &Scope) -> WorldPrompt {
        let (anatomy, chain) = (reading.anatomy(), reading.chain());
        let mut sizes = Sizes::default();
        let mut positions = Vec::with_capacity(breakpoints.len() * LOOKBACK_POSITIONS);
        positions.extend(Probes::of(anatomy, chain, breakpoints).filter_map(|probe| {
            let Probe { piece, bytes, marker } = probe;
            let key = EntryKey::of(scope, chain, piece, anatomy.layer(piece))?;
            Some(Position { key, piece, bytes, sizes, marker })
        }));
        let mut next = 0;
        for position in positions.iter_mut().rev() {
            (next..=position.piece).for_each(|piece| sizes.add(anatomy, chain, piece));
            next = position.piece + 1;
            position.sizes = sizes;
        }
        (next..anatomy.pieces.len()).for_each(|piece| sizes.add(anatomy, chain, piece));
        WorldPrompt { positions, sizes }
    }

    /// A prompt with fewer breakpoints: each of its places is known.
    pub fn with_fewer(&self, reading: &Reading, breakpoints: &[Breakpoint]) -> WorldPrompt {
        let mut known = self.positions.iter();
        let probes = Probes::of(reading.anatomy(), reading.chain(), breakpoints);
        let mut positions = Vec::with_capacity(self.positions.len());
        positions.extend(probes.filter_map(|Probe { piece, marker, .. }| {
            let position = known.find(|position| position.piece == piece)?;
            Some(Position { marker, ..*position })
        }));
        WorldPrompt { positions, sizes: self.sizes }
    }
}
