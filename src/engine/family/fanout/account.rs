//! Counts the memory of the fork points, snapshots and children of one tenant, all in one account.
//!
//! A parent's request is shared by its fork point, by a snapshot and by every child that stands on it, and lives as
//! long as one of them does. So the thing itself is charged, once, when it is first kept; whoever lets go of it last
//! takes the charge back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The bytes that one tenant holds, and may hold.
#[derive(Clone, Debug)]
pub struct Account {
    own: Arc<AtomicUsize>,
    /// Of all tenants.
    all: Arc<AtomicUsize>,
    limit: usize,
}

impl Account {
    /// `all` counts what every tenant holds.
    pub fn new(limit: usize, all: Arc<AtomicUsize>) -> Account {
        Account { own: Arc::default(), all, limit }
    }

    /// Of somebody who shares with nobody.
    pub fn alone(limit: usize) -> Account {
        Account::new(limit, Arc::default())
    }

    pub fn bytes(&self) -> usize {
        self.own.load(Relaxed)
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns true if so many bytes more are within the limit.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.bytes().saturating_add(bytes) <= self.limit
    }

    pub(super) fn is_overdrawn(&self) -> bool {
        !self.has_room_for(0)
    }

    pub(super) fn charge(&self, bytes: usize) -> Charge {
        let mut charge = Charge { account: self.clone(), bytes: 0 };
        charge.grow(bytes);
        charge
    }
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Account,
    bytes: usize,
}

impl Charge {
    pub(super) fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.account.own.fetch_add(bytes, Relaxed);
        self.account.all.fetch_add(bytes, Relaxed);
    }

    pub(super) fn shrink(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.account.own.fetch_sub(bytes, Relaxed);
        self.account.all.fetch_sub(bytes, Relaxed);
    }
}

impl Clone for Charge {
    /// Charges the bytes again: what is copied is held twice.
    fn clone(&self) -> Charge {
        self.account.charge(self.bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}
