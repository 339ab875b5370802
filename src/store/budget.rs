//! The bytes that are remembered, in one budget. What requests take while they are under way has accounts of its own, in
//! the proxy.
//!
//! | kind | limit | over the limit |
//! |---|---|---|
//! | recent requests | `store.recent_bytes` | the oldest of the tenant that holds most is forgotten |
//! | fan-outs and spellings | `store.max_bytes` | fork points and snapshots that no child needs are forgotten, then tenants without forked children, then spellings, then children with nothing to do |

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The kinds of bytes that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteKind {
    /// The last request of each conversation.
    Recent,
    /// Fork points, snapshots and children, with the parents' requests.
    FanOuts,
    /// The spellings that were seen first.
    Spellings,
}

/// The bytes of all tenants, by kind.
#[derive(Debug, Default)]
pub struct Budget {
    bytes: [AtomicUsize; 3],
}

impl Budget {
    /// The number of bytes of a kind that are held.
    pub fn held(&self, kind: ByteKind) -> usize {
        self.of(kind).load(Relaxed)
    }

    /// The number of bytes that `store.max_bytes` bounds.
    pub fn kept(&self) -> usize {
        self.held(ByteKind::FanOuts) + self.held(ByteKind::Spellings)
    }

    /// A part of a kind has changed its size.
    pub fn change(&self, kind: ByteKind, before: usize, after: usize) {
        change(self.of(kind), before, after);
    }

    fn of(&self, kind: ByteKind) -> &AtomicUsize {
        &self.bytes[kind as usize]
    }
}

/// Adds the difference of two sizes to a total. Mostly there is none: every look at a tenant ends here.
pub(super) fn change(total: &AtomicUsize, before: usize, after: usize) {
    if after > before {
        total.fetch_add(after - before, Relaxed);
    } else if after < before {
        total.fetch_sub(before - after, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_do_not_mix() {
        let budget = Budget::default();
        budget.change(ByteKind::FanOuts, 0, 7);
        budget.change(ByteKind::Spellings, 0, 5);
        budget.change(ByteKind::Spellings, 5, 2);
        assert_eq!((budget.kept(), budget.held(ByteKind::Recent)), (9, 0));
    }
}
