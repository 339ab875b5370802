//! The prefix of a child as it is kept beyond this process.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::ChildPrefix;
use crate::engine::family::fanout::{ForkPoint, Parent};
use crate::engine::fork::blocks::Blocks;
use crate::engine::fork::opening::Record;
use crate::engine::fork::parent_prefix::{ParentPrefix, SavedParentPrefix, Sources};
use crate::engine::fork::said::Said;
use crate::engine::words::digits;

/// A child's prefix beside the bytes that it is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedChildPrefix {
    parent: SavedParentPrefix,
    /// The offset of its blocks' bytes among its own.
    own_from: usize,
    /// Each block, and where a marker goes in it.
    blocks: Vec<(Range<usize>, Option<usize>)>,
    instructions: Range<usize>,
    #[serde(with = "digits")]
    system: Said,
    record: Record,
    lenient: bool,
    inherit: Vec<String>,
}

impl ChildPrefix {
    /// Returns it beside the bytes that are neither in the parent's request nor in its turn.
    pub fn save(&self, point: &ForkPoint) -> (SavedChildPrefix, Bytes) {
        let mut own = Vec::new();
        let parent = self.parent_prefix.save(point, &mut own);
        let own_from = own.len();
        let (bytes, blocks) = self.blocks.save();
        own.extend_from_slice(bytes);
        let saved = SavedChildPrefix {
            parent,
            own_from,
            blocks,
            instructions: self.instructions.clone(),
            system: self.system,
            record: self.record.clone(),
            lenient: self.lenient,
            inherit: self.inherit.clone(),
        };
        (saved, own.into())
    }
}

impl SavedChildPrefix {
    /// Restores it. `known`: the parent prefix of its siblings, which it shares if that is the same.
    pub fn restore(
        self,
        parent: &Arc<Parent>,
        sources: &Sources<'_>,
        known: Option<Arc<ParentPrefix>>,
    ) -> Option<ChildPrefix> {
        let made = self.parent.restore(parent, sources)?;
        let parent_prefix = known.filter(|known| known.is_like(&made)).unwrap_or_else(|| Arc::new(made));
        // The parent prefix shares the other bytes with the parent, and lives as long as any sibling does.
        let own = sources.own.get(self.own_from..)?;
        let blocks = Blocks::restore(Bytes::copy_from_slice(own), self.blocks)?;
        if self.instructions.start > self.instructions.end || self.instructions.end >= blocks.len() {
            return None;
        }
        Some(ChildPrefix {
            parent_prefix,
            blocks,
            instructions: self.instructions,
            system: self.system,
            record: self.record,
            lenient: self.lenient,
            inherit: self.inherit,
        })
    }
}
