//! Panics on demand, for tests.
//!
//! Where the request path guards itself against a panic, nothing that a client could send leads to one: whatever did
//! would be mended. So a test orders one. Only builds with the feature `panic-injection` can: elsewhere a step does
//! nothing here, and there is no setting and no header for it.

#[cfg(feature = "panic-injection")]
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

pub use crate::engine::words::Step;

/// The step that panics, if one was chosen.
#[derive(Debug, Default)]
pub struct PanicInjection {
    #[cfg(feature = "panic-injection")]
    step: AtomicU8,
}

#[cfg(feature = "panic-injection")]
impl PanicInjection {
    /// From now on this step panics for everybody.
    pub fn inject(&self, step: Step) {
        self.step.store(step as u8 + 1, Relaxed);
    }

    /// A step begins.
    pub(super) fn at(&self, step: Step) {
        if self.step.load(Relaxed) == step as u8 + 1 {
            std::panic::resume_unwind(Box::new("injected"));
        }
    }
}

#[cfg(not(feature = "panic-injection"))]
impl PanicInjection {
    /// A step begins.
    pub(super) fn at(&self, _: Step) {}
}
