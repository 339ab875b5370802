//! The tokens to a byte of each model's prompts, learned from the bills of all tenants.

use std::sync::{PoisonError, RwLock};

use crate::engine::cache::worlds::{Segment, TokenWeights, Weights};
use crate::engine::durable::{restore_weights, take_weights};
use crate::engine::records::{Change, Times};

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

    /// Takes what bills have shown since the last call, as records.
    pub fn take(&self, times: Times) -> Vec<Change> {
        take_weights(&mut self.0.write().unwrap_or_else(PoisonError::into_inner), times)
    }

    /// Takes over what other processes have learned.
    pub fn restore(&self, changes: &[Change], times: Times) {
        restore_weights(&mut self.0.write().unwrap_or_else(PoisonError::into_inner), changes, times);
    }
}
