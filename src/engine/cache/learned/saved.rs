//! The lessons of a tenant's traffic, as they are kept beyond this process.

use serde::{Deserialize, Serialize};

use super::{Learned, MODELS_MAX, Ratio};
use crate::engine::cache::habits::ReadHabits;
use crate::engine::cache::ledger::Harmless;
use crate::engine::cache::prefixes::SavedPrefixes;
use crate::engine::words::{Layer, Moment};

/// Lessons that later requests depend on. Of prefixes only those of tools and system prompts that may still be there to
/// be read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedLearned {
    tools: SavedPrefixes,
    system: SavedPrefixes,
    ratios: Vec<(String, Ratio)>,
    habits: ReadHabits,
    slow_from: Vec<(String, u64)>,
    betas: Harmless,
}

impl Learned {
    pub fn save(&self, now: Moment) -> SavedLearned {
        let [_, tools, system, _] = &self.prefixes;
        SavedLearned {
            tools: tools.save(now),
            system: system.save(now),
            ratios: self.ratios.iter().map(|(model, ratio)| (model.clone(), *ratio)).collect(),
            habits: self.habits.clone(),
            slow_from: self.slow_from.iter().map(|(model, tokens)| (model.clone(), *tokens)).collect(),
            betas: self.betas.clone(),
        }
    }

    /// Takes over what another process has learned, where it has seen more.
    pub fn restore(&mut self, saved: SavedLearned) {
        for (layer, prefixes) in [(Layer::Tools, saved.tools), (Layer::System, saved.system)] {
            self.prefixes[layer as usize].restore(prefixes);
        }
        for (model, ratio) in saved.ratios {
            let is_more = self.ratios.get(&model).is_none_or(|known| known.bytes < ratio.bytes);
            if is_more
                && ratio.is_sound()
                && (self.ratios.contains_key(&model) || self.ratios.len() < MODELS_MAX)
            {
                self.ratios.insert(model, ratio);
            }
        }
        self.habits.restore(saved.habits);
        for (model, tokens) in saved.slow_from {
            if self.slow_from.len() < MODELS_MAX {
                self.slow_from.entry(model).or_insert(tokens);
            }
        }
        self.betas.restore(saved.betas);
    }
}

impl Ratio {
    fn is_sound(&self) -> bool {
        self.tokens > 0.0 && self.bytes > 0.0
    }
}
