//! The tokens to a byte of each model's prompts, learned from the bills of all tenants.

use std::sync::{PoisonError, RwLock};

use crate::engine::cache::worlds::{Segment, TokenWeights, Weights};

#[derive(Debug, Default)]
pub struct SharedWeights(RwLock<TokenWeights>);

impl SharedWeights {
    pub fn of(&self, model: &str) -> Weights {
        self.0.read().unwrap_or_else(PoisonError::into_inner).of(model)
    }

    pub fn learn(&self, model: &str, segments: &[Segment]) {
        if !segments.is_empty() {
            self.0.write().unwrap_or_else(PoisonError::into_inner).learn(model, segments);
        }
    }
}
