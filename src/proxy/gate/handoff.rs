//! The gatekeeper and the bells of those that wait, under one lock.
//!
//! A request looks and leaves its bell in one step, and a change is made and the bells taken in another, so
//! no change can fall between a look and its bell. Bells are rung, and thrown away, only after the lock is
//! free: what they call may come back here.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use super::sync::Mutex;
use crate::engine::gate::{Arrival, Gatekeeper, Lesson, Settings, Ticket, Verdict, Wait};
use crate::engine::words::Moment;

pub struct Handoff<K, G> {
    desk: Mutex<Desk<K, G>>,
}

struct Desk<K, G> {
    keeper: Gatekeeper<K, G>,
    bells: BTreeMap<Ticket, Waker>,
}

impl<K: Clone + Eq + Hash, G: Clone + Eq + Hash> Handoff<K, G> {
    pub fn new(settings: Settings) -> Handoff<K, G> {
        let desk = Desk { keeper: Gatekeeper::new(settings), bells: BTreeMap::new() };
        Handoff { desk: Mutex::new(desk) }
    }

    pub fn arrive(&self, arrival: Arrival<K, G>, now: Moment) -> (Ticket, Verdict<G>) {
        self.at_desk(|desk| desk.keeper.arrive(arrival, now))
    }

    pub fn look(&self, ticket: Ticket, now: Moment) -> Verdict<G> {
        self.at_desk(|desk| desk.keeper.look(ticket, now))
    }

    /// Ready as soon as the verdict is another one than to wait until then.
    pub fn poll(&self, ticket: Ticket, wait: Wait, now: Moment, cx: &mut Context<'_>) -> Poll<Verdict<G>> {
        let (answer, _old_bell) = self.at_desk(|desk| match desk.keeper.look(ticket, now) {
            Verdict::Wait(Wait { until, .. }) if until == wait.until => {
                (Poll::Pending, desk.bells.insert(ticket, cx.waker().clone()))
            }
            verdict => (Poll::Ready(verdict), desk.bells.remove(&ticket)),
        });
        answer
    }

    pub fn begun(&self, ticket: Ticket, now: Moment) {
        self.change(ticket, |keeper| keeper.begun(ticket, now));
    }

    pub fn gone(&self, ticket: Ticket, now: Moment) {
        self.change(ticket, |keeper| keeper.gone(ticket, now));
    }

    pub fn learned(&self, lesson: Lesson<G>, was_enough: bool) {
        self.at_desk(|desk| desk.keeper.learned(lesson, was_enough));
    }

    pub fn waiting(&self, now: Moment) -> usize {
        self.at_desk(|desk| desk.keeper.waiting(now))
    }

    pub fn next_due(&self) -> Option<Moment> {
        self.at_desk(|desk| desk.keeper.next_due())
    }

    pub fn configure(&self, settings: Settings) {
        self.at_desk(|desk| desk.keeper.configure(settings));
    }

    pub fn requests(&self) -> usize {
        self.at_desk(|desk| {
            let requests = desk.keeper.requests();
            debug_assert!(desk.bells.len() <= requests, "a bell outlived its request");
            requests
        })
    }

    fn change(&self, ticket: Ticket, make: impl FnOnce(&mut Gatekeeper<K, G>) -> Vec<Ticket>) {
        let (_own_bell, bells) = self.at_desk(|desk| {
            let own_bell = desk.bells.remove(&ticket);
            let woken = make(&mut desk.keeper);
            // One without a bell has not looked yet, and will.
            let bells: Vec<_> = woken.iter().filter_map(|ticket| desk.bells.remove(ticket)).collect();
            (own_bell, bells)
        });
        bells.into_iter().for_each(Waker::wake);
    }

    fn at_desk<R>(&self, act: impl FnOnce(&mut Desk<K, G>) -> R) -> R {
        act(&mut self.desk.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
