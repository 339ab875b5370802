//! What became of a tenant's children, as it is kept beyond this process: one record for each tool.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::life::Life;
use super::{ForkExperiment, OPEN_MAX, OpenLife, QUIET_MS, RUNNING_MAX, TOOLS_MAX, ToolExperience};
use crate::engine::family::fanout::Binding;
use crate::engine::words::Moment;

/// Longer than any name of a tool.
const NAME_BYTES_MAX: usize = 256;

/// The knowledge about the children of one tool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedTool {
    name: String,
    tool: ToolExperience,
}

/// A child that has not ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SavedLife {
    heard: Moment,
    life: Life,
}

impl SavedTool {
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl ForkExperiment {
    /// Returns true if anything has changed.
    pub fn has_unsaved(&self) -> bool {
        self.tools.values().any(|tool| tool.is_changed)
    }

    /// Takes the tools that have changed. `all`: every tool.
    pub fn take_unsaved(&mut self, all: bool) -> Vec<SavedTool> {
        let changed = self.tools.iter_mut().filter(|(_, tool)| tool.is_changed || all);
        changed
            .map(|(name, tool)| {
                tool.is_changed = false;
                SavedTool { name: name.to_string(), tool: tool.clone() }
            })
            .collect()
    }

    /// Takes over what another process knows of a tool, if that has seen more of it. That forking stands down is taken
    /// over, and kept, whoever has seen more: all processes write one record.
    pub fn restore(&mut self, saved: SavedTool, now: Moment) {
        let SavedTool { name, mut tool } = saved;
        if name.len() > NAME_BYTES_MAX {
            return;
        }
        while tool.running.len() > RUNNING_MAX {
            tool.running.pop_first();
        }
        tool.is_changed = false;
        let Some(known) = self.tools.get_mut(&*name) else {
            if self.tools.len() < TOOLS_MAX {
                self.tools.insert(Arc::from(name), tool);
            }
            return;
        };
        let is_more = known.turns_seen < tool.turns_seen;
        if is_more {
            let mut net = std::mem::take(&mut known.net);
            let stays = net.merge(std::mem::take(&mut tool.net), now);
            *known = tool;
            (known.net, known.is_changed) = (net, stays);
        } else {
            let own = std::mem::replace(&mut known.net, tool.net);
            known.net.merge(own, now);
        }
    }

    /// The life of a child so far, if it has not ended.
    pub fn save_life(&self, child: Binding) -> Option<SavedLife> {
        self.open.get(&child).map(|open| SavedLife { heard: open.heard, life: open.life })
    }

    /// Takes over the life of a child that was restored, unless more has been heard of it here.
    pub fn restore_life(&mut self, child: Binding, tool: &Arc<str>, saved: SavedLife, now: Moment) {
        let is_later = self.open.get(&child).is_none_or(|open| open.heard < saved.heard);
        // One that was silent for so long has been counted.
        if is_later && self.open.len() < OPEN_MAX && now.since(saved.heard) <= QUIET_MS {
            self.forget(child);
            self.keep(child, OpenLife { tool: Arc::clone(tool), heard: saved.heard, life: saved.life });
        }
    }
}

/// Children that were not forked, as a list: a key of JSON is a string.
pub(super) mod pairs {
    use std::collections::HashMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::engine::fork::experiment::Declined;
    use crate::engine::words::Refusal;

    pub fn serialize<S: Serializer>(
        declined: &HashMap<Option<Refusal>, Declined>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(declined)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<HashMap<Option<Refusal>, Declined>, D::Error> {
        Ok(Vec::deserialize(from)?.into_iter().collect())
    }
}
