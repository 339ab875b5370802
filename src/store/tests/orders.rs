//! The hand-off of wakers under `shuttle`, which runs threads one step at a time in many orders. No deadline comes,
//! so a wake-up that is lost leaves somebody waiting for ever, and that is found.

use std::future::poll_fn;
use std::task::Poll;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::{future, thread};

use crate::engine::cache::entry::EntryKey;
use crate::engine::cache::ledger::{EntryWrite, Prediction};
use crate::engine::cache::worlds::{Segment, Weights};
use crate::engine::family::fanout::ForkId;
use crate::engine::gate::{GateArrival, GateSettings, GateVerdict, GateWrite, LetGo};
use crate::engine::respell::canonical::{Limits, News, Table};
use crate::engine::tenant::tests::{FORK_MESSAGE, TENANT, policy, small_parent, state};
use crate::engine::tenant::{TenantAccess, TenantState, settle};
use crate::engine::words::{GateOutcome, Moment, Ticket, Ttl};

#[expect(clippy::duplicate_mod, reason = "it is built again, with the lock below")]
#[path = "../shared.rs"]
mod shared;

mod sync {
    pub use shuttle::sync::{Mutex, MutexGuard};
}

use shared::SharedState;

const NOW: Moment = Moment(0);
const UNTIL: Moment = Moment(1);
const ORDERS: usize = 1_500;

/// The state of one tenant, and where its tickets come from.
struct Shop {
    shared: SharedState,
    next: AtomicU64,
}

impl TenantAccess for Shop {
    fn look<T>(&self, look: impl FnOnce(&mut TenantState) -> T) -> T {
        self.shared.look(look)
    }

    fn spellings<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&Table::new(Limits::TENANT))
    }

    fn learn(&self, _news: News) {}

    fn weights(&self, _model: &str) -> Weights {
        Weights::default()
    }

    fn weigh(&self, _model: &str, _segments: &[Segment]) {}
}

impl Shop {
    fn new() -> Arc<Shop> {
        Arc::new(Shop { shared: SharedState::new(state()), next: AtomicU64::new(1) })
    }

    fn ticket(&self) -> Ticket {
        Ticket(self.next.fetch_add(1, SeqCst))
    }

    /// A request takes its place at the gate.
    fn arrive(&self, entries: &[u64], streams: bool) -> GateArrival {
        let write = |entry: &u64| GateWrite { write: write(*entry), tokens: 40_000 };
        let (ticket, writes) = (self.ticket(), entries.iter().map(write).collect());
        let arrival = GateArrival { ticket, writes, streams, deadline: UNTIL, model: "m".to_owned() };
        self.proceed(&arrival);
        arrival
    }

    /// Does what the verdict says, in one step with it.
    fn proceed(&self, arrival: &GateArrival) -> GateVerdict {
        self.look(|state| {
            let verdict = state.gate.verdict(arrival, &state.worlds.billed, NOW);
            state.enter_gate(arrival.clone(), NOW);
            verdict
        })
    }

    fn sent(&self, ticket: Ticket, entries: &[u64], streams: bool) {
        let breakpoints = entries.iter().map(|entry| write(*entry)).collect();
        let prediction = Prediction { breakpoints, ..Prediction::default() };
        self.look(|state| state.begin_entries(ticket, &prediction, streams, NOW));
    }

    fn begun(&self, ticket: Ticket) {
        self.look(|state| state.entries_readable(ticket, NOW));
    }

    fn gone(&self, ticket: Ticket) {
        self.shared.forget_waker(ticket);
        self.look(|state| state.stop_waiting(ticket, NOW));
    }

    /// Waits as the shell does, less the clock: until it does not wait any more, and looks again.
    async fn let_go(&self, arrival: &GateArrival) -> LetGo {
        loop {
            match self.proceed(arrival) {
                GateVerdict::Go(let_go) => return let_go,
                GateVerdict::Wait(wait) => self.wait(arrival.ticket, wait.until).await,
            }
        }
    }

    async fn wait(&self, ticket: Ticket, until: Moment) {
        poll_fn(|cx| self.shared.poll_wait(ticket, until, cx)).await;
        self.shared.forget_waker(ticket);
    }

    /// Looks once and leaves a waker behind, if it has to wait.
    fn look_once(&self, ticket: Ticket) {
        future::block_on(poll_fn(|cx| {
            let _pending = self.shared.poll_wait(ticket, UNTIL, cx);
            Poll::Ready(())
        }));
    }

    /// A request of any sort, from its arrival to its end.
    fn live(&self, entries: &[u64]) {
        let mut rng = thread_rng();
        let streams = rng.gen_bool(0.7);
        if rng.gen_bool(0.2) {
            let unasked = self.ticket();
            self.sent(unasked, entries, streams);
            return self.end(unasked);
        }
        let arrival = self.arrive(entries, streams);
        let ticket = arrival.ticket;
        if let GateVerdict::Wait(_) = self.proceed(&arrival)
            && rng.gen_bool(0.2)
        {
            self.look_once(ticket);
            return self.gone(ticket);
        }
        let let_go = future::block_on(self.let_go(&arrival));
        assert_eq!(self.proceed(&arrival), GateVerdict::Go(let_go.clone()));
        if let Some(lesson) = let_go.lesson {
            let next = Ticket(self.next.load(SeqCst));
            self.look(|state| state.gate.learned(lesson, rng.gen_bool(0.5), next));
        }
        if rng.gen_bool(0.1) {
            let settings = GateSettings { max_hold_ms: rng.gen_range(1..3), ..GateSettings::default() };
            self.look(|state| state.gate.configure(settings));
        }
        if rng.gen_bool(0.5) {
            let fewer = rng.gen_range(0..=entries.len());
            self.sent(ticket, &entries[fewer..], streams);
        }
        self.end(ticket);
    }

    fn end(&self, ticket: Ticket) {
        if thread_rng().gen_bool(0.5) { self.begun(ticket) } else { self.gone(ticket) }
    }

    /// A child takes its place among those that wait for the seal, if its parent's answer has not ended. Returns true
    /// if it waits.
    fn await_seal(&self, ticket: Ticket, fork: ForkId) -> bool {
        self.look(|state| {
            let is_pending = state.fan_outs.points().get(fork).is_some_and(|point| !point.is_sealed());
            if is_pending {
                state.await_seal(ticket, fork, UNTIL);
            }
            is_pending
        })
    }
}

fn write(entry: u64) -> EntryWrite {
    EntryWrite { key: EntryKey::numbered(entry), piece: 0, bytes: 160_000, ttl: Ttl::FiveMinutes }
}

fn at_gate(shop: &Shop) -> (usize, usize, Option<Moment>) {
    shop.look(|state| (state.gate.requests(), state.gate.waiting(NOW), state.next_due()))
}

/// Runs a scenario in orders that are random, and in orders that are chosen to be unlikely.
fn in_many_orders(scenario: fn()) {
    shuttle::check_random(scenario, ORDERS);
    shuttle::check_pct(scenario, ORDERS, 3);
}

#[test]
fn nobody_is_lost_whatever_the_order() {
    in_many_orders(|| {
        let shop = Shop::new();
        let entries: [&[u64]; 4] = [&[1], &[1, 2], &[2], &[1, 2]];
        let threads = entries.map(|entries| {
            let shop = shop.clone();
            thread::spawn(move || shop.live(entries))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(at_gate(&shop), (0, 0, None));
    });
}

#[test]
fn a_lead_handed_to_one_that_leaves_goes_on_to_the_next() {
    in_many_orders(|| {
        let shop = Shop::new();
        let [leader, leaves, stays] = [(); 3].map(|()| shop.arrive(&[1], true));
        assert!(matches!(shop.proceed(&leaves), GateVerdict::Wait(_)));
        let [first, second] = [shop.clone(), shop.clone()];
        let fails = thread::spawn(move || first.gone(leader.ticket));
        let drops = thread::spawn(move || {
            second.look_once(leaves.ticket);
            second.gone(leaves.ticket);
        });
        let let_go = future::block_on(shop.let_go(&stays));
        assert_eq!(let_go.outcome, GateOutcome::Succeeded);
        [fails, drops].into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(at_gate(&shop), (1, 0, None));
        shop.begun(stays.ticket);
        assert_eq!(at_gate(&shop), (0, 0, None));
    });
}

#[test]
fn every_child_hears_of_the_seal_whatever_the_order() {
    in_many_orders(|| {
        let (shop, policy) = (Shop::new(), policy());
        let (mut accepted, turn) = small_parent(&*shop, &policy, shop.ticket(), NOW);
        let fork = ForkId::of(TENANT, FORK_MESSAGE);
        let stays = [(); 2].map(|()| {
            let shop = shop.clone();
            thread::spawn(move || {
                let ticket = shop.ticket();
                if shop.await_seal(ticket, fork) {
                    future::block_on(shop.wait(ticket, UNTIL));
                }
                let is_pending = |state: &mut TenantState| {
                    state.fan_outs.points().get(fork).is_some_and(|point| !point.is_sealed())
                };
                assert!(!shop.look(is_pending), "it was woken too early");
            })
        });
        let leaving = shop.clone();
        let leaves = thread::spawn(move || {
            let ticket = leaving.ticket();
            leaving.await_seal(ticket, fork);
            leaving.look_once(ticket);
            leaving.gone(ticket);
        });
        let ending = shop.clone();
        let ends = thread::spawn(move || {
            let turn = thread_rng().gen_bool(0.7).then_some(&turn);
            settle(&*ending, &mut accepted, turn, &policy, NOW);
        });
        stays.into_iter().chain([leaves, ends]).for_each(|thread| thread.join().unwrap());
        assert_eq!(shop.look(|state| (state.awaiting_seal(NOW), state.next_due())), (0, None));
    });
}
