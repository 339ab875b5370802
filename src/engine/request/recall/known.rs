//! The knowledge that a request is read by.

use std::sync::Arc;

use super::{FirstAnswer, KnownLayer, Opening, Remembered, SharedParts};
use crate::engine::words::Layer;

/// The knowledge of one tenant before a request is read. Each question may be answered with nothing.
pub trait Known {
    /// The latest request of what the headers say is the same conversation.
    fn hinted(&self) -> Option<Arc<Remembered>> {
        None
    }

    /// Recent requests that open like this one, the likeliest first; [`super::CANDIDATES_MAX`] are looked at. Asked
    /// only if the hinted request has another first message.
    fn opened(&self, _opening: Opening) -> Vec<Arc<Remembered>> {
        Vec::new()
    }

    /// Those of them whose first answer is this one, or that have none yet. Asked only if more open alike than
    /// are looked at.
    fn answered(&self, _opening: Opening, _answer: Option<FirstAnswer>) -> Vec<Arc<Remembered>> {
        Vec::new()
    }

    /// The parts of the hinted request that this one is known to repeat; of its messages, with the bytes between them.
    /// Comparing those parts a second time would make reading a request that was put back into its spelling 10 %
    /// slower at 200 KB (46 to 50 µs), and 16 % at 1 MB (127 to 148 µs).
    fn repeated(&self) -> SharedParts {
        SharedParts::default()
    }

    /// A request whose messages may follow those of the hinted one.
    fn following(&self) -> Option<&Remembered> {
        None
    }

    /// Recent values of `tools` or `system`, the likeliest first; [`super::CANDIDATES_MAX`] are looked at. Asked
    /// only if the predecessor's value is another one, or the predecessor is not known yet.
    fn layers(&self, _layer: Layer) -> Vec<Arc<KnownLayer>> {
        Vec::new()
    }
}

/// Nothing is known: every byte is walked and hashed.
pub struct Nothing;

impl Known for Nothing {}

/// One request is known: the one before.
pub struct Last<'a> {
    pub request: &'a Arc<Remembered>,
    /// The parts that are known to be repeated: [`Known::repeated`].
    pub repeated: SharedParts,
}

impl Known for Last<'_> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        Some(Arc::clone(self.request))
    }

    fn repeated(&self) -> SharedParts {
        self.repeated
    }
}
