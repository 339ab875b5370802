//! The state of one tenant under its one lock, with the wakers of the requests that wait for a change of it.
//!
//! A request looks and leaves its waker in one step, and a change is made and the wakers taken in another, so no change
//! can fall between a look and its waker. Wakers are called, and dropped, only after the lock is free: what they call may
//! come back here.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use super::sync::{Mutex, MutexGuard};
use crate::engine::tenant::TenantState;
use crate::engine::words::{Moment, Ticket};

#[derive(Debug)]
pub struct SharedState {
    locked: Mutex<Locked>,
}

#[derive(Debug)]
struct Locked {
    state: TenantState,
    wakers: BTreeMap<Ticket, Waker>,
}

impl SharedState {
    pub fn new(state: TenantState) -> SharedState {
        SharedState { locked: Mutex::new(Locked { state, wakers: BTreeMap::new() }) }
    }

    /// Looks into the state, or changes it, and wakes those that have to look again.
    pub fn look<T>(&self, look: impl FnOnce(&mut TenantState) -> T) -> T {
        let mut locked = self.lock();
        let out = look(&mut locked.state);
        let Locked { state, wakers } = &mut *locked;
        // One without a waker has not looked yet, and will.
        let woken: Vec<Waker> = state.take_woken().filter_map(|ticket| wakers.remove(&ticket)).collect();
        drop(locked);
        woken.into_iter().for_each(Waker::wake);
        out
    }

    /// Ready as soon as a request does not wait until this moment any more: it may go, or has to wait until another.
    pub fn poll_wait(&self, ticket: Ticket, until: Moment, cx: &mut Context<'_>) -> Poll<()> {
        let mut locked = self.lock();
        let (poll, old_waker) = if locked.state.waits_until(ticket) == Some(until) {
            (Poll::Pending, locked.wakers.insert(ticket, cx.waker().clone()))
        } else {
            (Poll::Ready(()), locked.wakers.remove(&ticket))
        };
        drop(locked);
        drop(old_waker);
        poll
    }

    /// Throws the waker of a request away that does not wait any more.
    pub fn forget_waker(&self, ticket: Ticket) {
        let waker = self.lock().wakers.remove(&ticket);
        drop(waker);
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
