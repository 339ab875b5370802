//! The parts that two requests have in common.

use std::sync::Arc;

use super::Remembered;
use crate::engine::request::anatomy::Anatomy;

/// The request that another was compared with: most likely the one that it continues.
#[derive(Clone, Debug)]
pub struct Like {
    pub request: Arc<Remembered>,
    pub same: SharedParts,
}

/// Which parts of a request are byte for byte those of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedParts {
    pub tools: bool,
    pub system: bool,
    /// The number of messages from the first on, each in its place.
    pub messages: usize,
}

impl SharedParts {
    /// Returns the number of equal pieces from the first on. Both requests have as many in each layer.
    pub fn pieces(&self, anatomy: &Anatomy) -> usize {
        let SharedParts { tools, system, messages } = *self;
        let statics = anatomy.tools + anatomy.system;
        match (tools || anatomy.tools == 0, system || anatomy.system == 0) {
            (false, _) => 0,
            (true, false) => anatomy.tools,
            (true, true) => anatomy.messages[..messages].last().map_or(statics, |last| last.pieces.end),
        }
    }
}
