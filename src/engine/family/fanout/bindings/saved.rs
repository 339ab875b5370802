//! Children that other processes have bound, and those that are to be written.

use std::sync::Arc;

use super::super::saved::{SavedMarks, UnsavedChild};
use super::{Bindable, Binding, BindingSlot, Bindings, ChildName, ForkPoint, Holdings};
use crate::engine::words::Moment;

impl<B> Bindings<B> {
    /// Binds a child that another process has bound; none if it is known here. Its record lives for `left_ms`.
    pub(in super::super) fn restore(
        &mut self,
        name: ChildName,
        child: Bindable<B>,
        left_ms: u64,
        now: Moment,
        holdings: &mut Holdings,
    ) -> Option<Binding> {
        if self.names.contains_key(&name) {
            return None;
        }
        let binding = self.bind_as(name, child, now, holdings);
        if let Some(slot) = self.slots.get_mut(&binding) {
            slot.due = Some(now.after(left_ms.saturating_sub(self.life.ttl_s.saturating_mul(1_000))));
        }
        Some(binding)
    }

    /// Takes over the marks that another process knows of a child. Every call names it; of its start and rest the later
    /// count, and those of a child that was just read. Returns true if those were taken.
    pub(in super::super) fn restore_marks(
        &mut self,
        binding: Binding,
        saved: &SavedMarks,
        is_first: bool,
        holdings: &mut Holdings,
    ) -> bool {
        let Some(slot) = self.slots.get(&binding) else { return false };
        let (known, lacks_start) = (slot.revision, slot.start.is_none());
        let is_later = match saved.revision {
            // The version before did not count them.
            0 => saved.used > slot.used,
            revision => revision > known,
        };
        let is_taken = is_first || is_later;
        saved.calls.iter().for_each(|id| self.called(binding, id, holdings));
        if saved.start.is_some() && (is_taken || lacks_start) {
            self.answered(binding, saved.start);
        }
        let Some(slot) = self.slots.get_mut(&binding) else { return false };
        slot.revision = known.max(saved.revision);
        if is_taken {
            slot.rests = saved.rests;
        }
        if is_first || saved.used > slot.used {
            self.uses.remove(&(slot.used, binding));
            slot.used = saved.used;
            self.uses.insert((slot.used, binding));
        }
        is_taken
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

    /// A child to be written; none if it is gone. The record of its prefix lives for half as long again as it does itself, so
    /// that there is time to write it again.
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
        let is_new = is_new || slot.due.is_none_or(|due| now > due);
        if is_new {
            slot.due = Some(now.after(ttl_ms / 2));
        }
        let calls = slot.calls.iter().map(|id| id.to_string()).collect();
        let BindingSlot { start, rests, used, revision, .. } = *slot;
        let marks = SavedMarks { calls, start, rests, used, revision };
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
