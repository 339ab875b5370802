//! Digests of what values say, for comparing parents with children and turns with turns.

use crate::engine::request::anatomy::{Form, Piece};
use crate::engine::request::meaning::Meaning;

/// A value is compared by its bytes if reading its meaning may take more work ([`Meaning::work`]). Room for a long
/// text, and for any real tool.
const WORK_MAX: usize = 16 << 20;

/// The digest of what something says: of its meaning or, where it has none, of its bytes.
pub type Said = [u8; 32];

/// Returns true if two values say the same.
pub fn same(one: &[u8], two: &[u8]) -> bool {
    one == two || value(one) == value(two)
}

pub fn value(value: &[u8]) -> Said {
    digest(value, Meaning::of, value)
}

/// Returns the digest of a piece: markers do not count, and a string says what one text block says.
pub fn piece(body: &[u8], piece: &Piece) -> Said {
    let bytes = &body[piece.span.clone()];
    match piece.form {
        Form::Text => digest(bytes, Meaning::of_text, bytes),
        Form::Block => {
            let (before, after) = piece.unmarked(body);
            match after {
                [] => digest(bytes, Meaning::of_block, before),
                _ => digest(bytes, Meaning::of_block, &[before, after].concat()),
            }
        }
        Form::Other => value(bytes),
    }
}

/// Returns the digest of several values in this order.
pub fn all(parts: impl IntoIterator<Item = Said>) -> Said {
    let mut hasher = blake3::Hasher::new();
    parts.into_iter().for_each(|part| {
        hasher.update(&part);
    });
    *hasher.finalize().as_bytes()
}

fn digest(bytes: &[u8], meaning: impl Fn(&[u8]) -> Option<Meaning>, else_of: &[u8]) -> Said {
    let meaning = if Meaning::work(bytes) <= WORK_MAX { meaning(bytes) } else { None };
    Meaning::or_bytes(meaning, else_of)
}
