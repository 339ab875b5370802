//! Counts the memory of the fork points, snapshots and children of one tenant, all in one account.
//!
//! A parent's request is shared by its fork point, by a snapshot and by every child that is put on it. So it is
//! counted once, from when the first of them holds it until the last lets go of it. What only a request in flight
//! holds any more ends with that request, and is not counted.

use std::collections::HashMap;

use super::point::ForkPoint;

/// The number by which something held is counted; never used twice in one tenant. Zero is never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HoldingNumber(u64);

/// The bytes that one tenant holds, and may hold.
#[derive(Debug)]
pub(super) struct Holdings {
    limit: usize,
    bytes: usize,
    held: HashMap<HoldingNumber, HeldItem>,
    next: u64,
}

#[derive(Debug)]
struct HeldItem {
    holders: usize,
    bytes: usize,
}

impl Holdings {
    pub fn new(limit: usize) -> Holdings {
        Holdings { limit, bytes: 0, held: HashMap::new(), next: 0 }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns true if this many bytes more are within the limit.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes.saturating_add(bytes) <= self.limit
    }

    pub fn is_overdrawn(&self) -> bool {
        !self.has_room_for(0)
    }

    /// Returns a number for something that may be held from now on.
    pub fn number(&mut self) -> HoldingNumber {
        self.next += 1;
        HoldingNumber(self.next)
    }

    /// Somebody more holds this fork point, and its parent.
    pub fn hold(&mut self, point: &ForkPoint) {
        self.hold_one(point.parent_number, || point.parent.memory_bytes());
        self.hold_one(point.number, || point.own_bytes());
    }

    /// Takes back one [`Holdings::hold`].
    pub fn release(&mut self, point: &ForkPoint) {
        self.release_one(point.number);
        self.release_one(point.parent_number);
    }

    /// Counts bytes that are not shared.
    pub fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    pub fn shrink(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    fn hold_one(&mut self, number: HoldingNumber, bytes: impl FnOnce() -> usize) {
        if let Some(held) = self.held.get_mut(&number) {
            held.holders += 1;
            return;
        }
        let bytes = bytes();
        self.held.insert(number, HeldItem { holders: 1, bytes });
        self.grow(bytes);
    }

    fn release_one(&mut self, number: HoldingNumber) {
        let Some(held) = self.held.get_mut(&number) else { return };
        held.holders -= 1;
        if held.holders == 0 {
            let bytes = held.bytes;
            self.held.remove(&number);
            self.shrink(bytes);
        }
    }
}
