//! Children that other processes have bound, and those that are to be written.

use std::sync::Arc;

use super::super::saved::{SavedMarks, UnsavedChild};
use super::{Bindable, Binding, Bindings, ChildName, ForkPoint, Holdings};
use crate::engine::words::Moment;

impl<B> Bindings<B> {
    /// Binds a child that another process has bound; none if it is known here.
    pub(in super::super) fn restore(
        &mut self,
        name: ChildName,
        child: Bindable<B>,
        now: Moment,
        holdings: &mut Holdings,
    ) -> Option<Binding> {
        if self.names.contains_key(&name) {
            return None;
        }
        let binding = self.bind_as(name, child, now, holdings);
        if let Some(slot) = self.slots.get_mut(&binding) {
            slot.written = Some(now);
        }
        Some(binding)
    }

    /// Another process has seen this child last at this moment.
    pub(in super::super) fn restore_use(&mut self, binding: Binding, rests: bool, used: Moment) {
        let Some(slot) = self.slots.get_mut(&binding) else { return };
        slot.rests = rests;
        self.uses.remove(&(slot.used, binding));
        slot.used = used;
        self.uses.insert((used, binding));
    }

    pub(in super::super) fn name(&self, binding: Binding) -> Option<ChildName> {
        self.slots.get(&binding).map(|slot| slot.name)
    }

    pub(in super::super) fn names(&self) -> impl Iterator<Item = ChildName> {
        self.slots.values().map(|slot| slot.name)
    }

    pub(in super::super) fn by_name(&self, name: ChildName) -> Option<Binding> {
        self.names.get(&name).copied()
    }

    /// The fork points that children hold.
    pub(in super::super) fn points(&self) -> impl Iterator<Item = &Arc<ForkPoint>> {
        self.slots.values().filter_map(|slot| slot.point.as_ref())
    }

    /// A child to be written; none if it is gone. Its prefix is written again before what was written of it ends.
    pub(in super::super) fn unsaved(
        &mut self,
        name: ChildName,
        is_new: bool,
        now: Moment,
    ) -> Option<UnsavedChild<B>>
    where
        B: Clone,
    {
        let ttl_ms = self.life.ttl_s.saturating_mul(1_000);
        let slot = self.slots.get_mut(self.names.get(&name)?)?;
        let is_new = is_new || slot.written.is_none_or(|written| now.since(written) > ttl_ms / 2);
        if is_new {
            slot.written = Some(now);
        }
        let calls = slot.calls.iter().map(|id| id.to_string()).collect();
        let marks = SavedMarks { calls, start: slot.start, rests: slot.rests, used: slot.used };
        Some(UnsavedChild {
            value: slot.value.clone(),
            who: slot.who,
            tools: slot.tools,
            marks,
            is_new,
            ttl_ms,
        })
    }

    /// Every child.
    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = &B> {
        self.slots.values().map(|slot| &slot.value)
    }
}
