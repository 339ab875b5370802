//! A prompt as a world plays it: where the cache looks for entries, and how much there is up to each place.

use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::cache::entry::{EntryKey, Probes, Scope, is_position};
use crate::engine::request::anatomy::{Anatomy, Form};
use crate::engine::request::prefix::Chain;
use crate::engine::request::recall::Reading;
use crate::engine::words::{Layer, Ttl};

/// An image counts as so many bytes of a kind of its own: its length says nothing about its tokens.
const IMAGE_BYTES: f64 = 4_000.0;

/// Bytes by kind of block: definitions of tools, prose, data, images. Layers are not told apart, since a text may move
/// from one to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sizes(pub [f64; 4]);

impl Sizes {
    fn of_piece(anatomy: &Anatomy, chain: &Chain, piece: usize) -> Sizes {
        let mut sizes = Sizes::default();
        let block = &anatomy.pieces[piece];
        let [definitions, prose, data, images] = &mut sizes.0;
        let bytes = block.prompt_bytes() as f64;
        if !is_position(chain, piece) {
            return sizes;
        }
        if block.shows_image || block.has_payload {
            *images = IMAGE_BYTES;
        } else if anatomy.layer(piece) == Layer::Tools {
            *definitions = bytes;
        } else if block.form == Form::Text || block.text().is_some() {
            *prose = bytes;
        } else {
            *data = bytes;
        }
        sizes
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
        let size = |piece: usize| Sizes::of_piece(anatomy, chain, piece);
        let whole = (0..anatomy.pieces.len()).map(size).fold(Sizes::default(), Sizes::plus);
        let (mut left, mut next) = (whole, anatomy.pieces.len());
        let mut positions = Vec::new();
        for probe in Probes::of(anatomy, chain, breakpoints) {
            while next > probe.piece + 1 {
                next -= 1;
                left = left.minus(size(next));
            }
            let Some(key) = EntryKey::of(scope, chain, probe.piece, anatomy.layer(probe.piece)) else {
                continue;
            };
            let (piece, bytes, marker) = (probe.piece, probe.bytes, probe.marker);
            positions.push(Position { key, piece, bytes, sizes: left, marker });
        }
        WorldPrompt { positions, sizes: whole }
    }
}
