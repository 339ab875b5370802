//! Bugs on demand: that a bug of ours costs no client its answer is rehearsed, not hoped for.
//!
//! Where the request path guards itself against a panic, nothing that a client could send leads to one: whatever did
//! would be mended. So a test orders one. Nothing else does: there is no setting and no header for it.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Where the request path guards itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The body is read.
    Read = 1,
    /// The request to send instead is planned.
    Align,
    /// A child is put on its parent's prefix.
    Fork,
}

/// The step that fails, if one was ordered to.
#[derive(Debug, Default)]
pub struct Drill(AtomicU8);

impl Drill {
    /// From now on this step fails for everybody.
    pub fn fail(&self, step: Step) {
        self.0.store(step as u8, Relaxed);
    }

    /// A step begins.
    pub(super) fn begins(&self, step: Step) {
        if self.0.load(Relaxed) == step as u8 {
            std::panic::resume_unwind(Box::new("ordered"));
        }
    }
}
