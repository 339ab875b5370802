//! Waiting, on a paused clock: time moves only when everybody waits.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;

use super::*;
use crate::config::Mode;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::entry::EntryKey;
use crate::engine::cache::ledger::{EntryWrite, LedgerBill};
use crate::engine::durable::{Origin, Pace, restore, take_unsaved};
use crate::engine::family::fanout::{ForkId, Rules};
use crate::engine::gate::{GateArrival, GateSettings, GateVerdict, GateWrite, LetGo};
use crate::engine::records::{Times, Writer};
use crate::engine::tenant::settle;
use crate::engine::tenant::tests::{FORK_MESSAGE, TENANT, policy, small_parent};
use crate::engine::words::{Endpoint, Moment, Ttl};
use crate::metrics::Metrics;
use crate::proxy::caller::{Caller, Modes};
use crate::proxy::clock::START;
use crate::proxy::record::Facts;
use crate::report::ExchangeSinks;
use crate::store::{Limits, Store};

/// A tenant whose requests write entries, at an upstream that keeps nothing: what was written is cold again when
/// everybody who waited for it was let go.
struct TestGate {
    store: Store,
    tenant: Arc<Tenant>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
}

/// A request that was let go. If it is dropped before its answer begins, nothing comes of it.
struct Pass {
    gate: Arc<TestGate>,
    ticket: Ticket,
    let_go: LetGo,
    held: Duration,
    has_begun: bool,
}

fn gate() -> Arc<TestGate> {
    let limits = Limits { max_bytes: 1 << 26, recent_bytes: 1 << 26, tenant_share: 1.0 };
    let store = Store::new(limits, Rules::default(), GateSettings::default());
    let tenant = store.admit(&TENANT, &store.tenant(&TENANT));
    let (clock, metrics) = (Arc::new(Clock::new()), Arc::new(Metrics::new().unwrap()));
    Arc::new(TestGate { store, tenant, clock, metrics })
}

/// A request that writes this entry, and streams.
fn sibling(gate: &TestGate, entry: u64) -> GateArrival {
    let write =
        EntryWrite { key: EntryKey::numbered(entry), piece: 0, bytes: 160_000, ttl: Ttl::FiveMinutes };
    GateArrival {
        ticket: gate.store.ticket(),
        writes: vec![GateWrite { write, tokens: 40_000 }],
        streams: true,
        deadline: gate.clock.now().after(5_000),
        model: "m".to_owned(),
    }
}

impl TestGate {
    fn exchange(&self) -> Exchange {
        let caller = Caller::unnamed(Modes { asked: None, in_force: Mode::Fork });
        let (metrics, clock) = (Arc::clone(&self.metrics), Arc::clone(&self.clock));
        let facts = Facts::new(Endpoint::Messages, 1);
        Exchange::new(metrics, clock, ExchangeSinks::default(), caller, facts)
    }

    fn waiter(&self, ticket: Ticket) -> Waiter<'_> {
        Waiter { tenant: &self.tenant, store: &self.store, clock: &self.clock, ticket }
    }

    /// Proceeds and waits as a request does, until it may go.
    async fn enter(self: Arc<Self>, arrival: GateArrival) -> Pass {
        let (mut waits, mut exchange, ticket) = (Waits::default(), self.exchange(), arrival.ticket);
        loop {
            let now = self.clock.now();
            let verdict = self.tenant.look(|state| {
                let verdict = state.gate.verdict(&arrival, &state.worlds.billed, now);
                state.enter_gate(arrival.clone(), now);
                verdict
            });
            match verdict {
                GateVerdict::Go(let_go) => {
                    let pass = GatePass { arrival: None, let_go, underway_tokens: 0 };
                    let held = waits.held(ticket, &pass).time;
                    return Pass { gate: self, ticket, let_go: pass.let_go, held, has_begun: false };
                }
                GateVerdict::Wait(wait) => {
                    let wait = Wait { until: wait.until, underway_tokens: Some(40_000) };
                    waits.wait(wait, self.waiter(ticket), &mut exchange).await;
                }
            }
        }
    }

    /// Enters where nobody is waited for.
    fn at_once(self: &Arc<Self>, arrival: GateArrival) -> Pass {
        self.clone().enter(arrival).now_or_never().expect("it waits")
    }

    fn spawn(self: &Arc<Self>, arrival: GateArrival) -> JoinHandle<Pass> {
        tokio::spawn(self.clone().enter(arrival))
    }

    fn requests(&self) -> usize {
        self.store.at_gate()
    }

    fn waiting(&self) -> usize {
        self.store.waiting(self.clock.now())
    }
}

impl Pass {
    fn begun(&mut self) {
        let (ticket, now) = (self.ticket, self.gate.clock.now());
        self.has_begun = true;
        self.gate.tenant.look(|state| {
            state.entries_readable(ticket, now);
            let nothing = LedgerBill { usage: Usage::default(), minimum_tokens: None, has_payload: false };
            state.worlds.billed.settle(ticket, &nothing, now);
        });
    }

    fn failed(self) {}
}

impl Drop for Pass {
    fn drop(&mut self) {
        if !self.has_begun {
            let now = self.gate.clock.now();
            self.gate.tenant.look(|state| state.stop_waiting(self.ticket, now));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sixty_four_siblings_pay_for_one_write() {
    let gate = gate();
    let mut leader = gate.at_once(sibling(&gate, 1));
    let followers: Vec<_> = (1..64).map(|_| gate.spawn(sibling(&gate, 1))).collect();
    while gate.waiting() < 63 {
        yield_now().await;
    }
    advance(Duration::from_millis(700)).await;
    leader.begun();
    for follower in join_all(followers).await {
        let mut pass = follower.unwrap();
        assert_eq!(pass.let_go.outcome, GateOutcome::Released);
        assert_eq!((pass.let_go.leader, pass.held.as_millis()), (Some(leader.ticket), 700));
        pass.begun();
    }
    assert_eq!(gate.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn time_that_is_skipped_counts_as_waited() {
    let gate = gate();
    let leader = gate.at_once(sibling(&gate, 1));
    let follower = gate.spawn(sibling(&gate, 1));
    yield_now().await;
    assert_eq!(gate.waiting(), 1);
    gate.clock.skip(4_999);
    yield_now().await;
    assert!(!follower.is_finished());
    gate.clock.skip(1);
    let pass = follower.await.unwrap();
    assert_eq!((pass.let_go.outcome, pass.held.as_millis()), (GateOutcome::TimedOut, 5_000));
    drop((leader, pass));
    assert_eq!((gate.requests(), gate.waiting()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn time_that_is_stopped_passes_only_by_being_skipped() {
    let gate = gate();
    let _leader = gate.at_once(sibling(&gate, 1));
    gate.clock.stop();
    let follower = gate.spawn(sibling(&gate, 1));
    yield_now().await;
    advance(Duration::from_secs(3_600)).await;
    assert!(!follower.is_finished());
    assert_eq!((gate.waiting(), gate.store.next_due()), (1, Some(gate.clock.now().after(5_000))));
    gate.clock.skip(5_000);
    assert_eq!(gate.waiting(), 0, "its time has come, whether it has looked or not");
    let pass = follower.await.unwrap();
    assert_eq!((pass.let_go.outcome, pass.held.as_millis()), (GateOutcome::TimedOut, 5_000));
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_is_dropped_or_failed_goes_to_the_next() {
    let gate = gate();
    let leader = gate.at_once(sibling(&gate, 1));
    let [second, third] = [(); 2].map(|()| gate.spawn(sibling(&gate, 1)));
    yield_now().await;
    drop(leader);
    let second = second.await.unwrap();
    assert_eq!(second.let_go.outcome, GateOutcome::Succeeded);
    assert!(!third.is_finished());
    second.failed();
    assert_eq!(third.await.unwrap().let_go.outcome, GateOutcome::Succeeded);
    assert_eq!(gate.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_past_the_deadline() {
    let gate = gate();
    let _stalled = gate.at_once(sibling(&gate, 1));
    advance(Duration::from_millis(300)).await;
    let late = gate.clone().enter(GateArrival { deadline: START.after(5_000), ..sibling(&gate, 1) }).await;
    assert_eq!((late.let_go.outcome, late.held.as_millis()), (GateOutcome::TimedOut, 4_700));
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_dropped_is_forgotten() {
    let gate = gate();
    let leader = gate.at_once(sibling(&gate, 1));
    let mut leaves = Box::pin(gate.clone().enter(sibling(&gate, 1)));
    let never_awaited = gate.clone().enter(sibling(&gate, 1));
    let stays = gate.spawn(sibling(&gate, 1));
    yield_now().await;
    assert!(leaves.as_mut().now_or_never().is_none());
    assert_eq!(gate.requests(), 3);
    drop((leaves, never_awaited));
    assert_eq!(gate.requests(), 2);
    drop(leader);
    assert_eq!(stays.await.unwrap().let_go.outcome, GateOutcome::Succeeded);
}

/// Counts how often it is rung.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_looked_last_is_woken() {
    let gate = gate();
    let mut leader = gate.at_once(sibling(&gate, 1));
    let mut follower = Box::pin(gate.clone().enter(sibling(&gate, 1)));
    let bells = [Arc::new(Bell::default()), Arc::new(Bell::default())];
    for bell in &bells {
        let waker = Waker::from(bell.clone());
        assert!(follower.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    leader.begun();
    assert_eq!(bells.each_ref().map(|bell| bell.0.load(Relaxed)), [0, 1]);
    drop(follower);
    assert_eq!(bells.each_ref().map(Arc::strong_count), [1, 1], "no waker is left behind");
}

#[tokio::test(start_paused = true)]
async fn places_are_taken_in_the_order_of_arrival_whoever_is_awaited_first() {
    let gate = gate();
    let leader = gate.at_once(sibling(&gate, 1));
    let mut second = Box::pin(gate.clone().enter(sibling(&gate, 1)));
    assert!(second.as_mut().now_or_never().is_none());
    let third = gate.spawn(sibling(&gate, 1));
    yield_now().await;
    drop(leader);
    yield_now().await;
    assert!(!third.is_finished());
    assert_eq!(second.await.let_go.outcome, GateOutcome::Succeeded);
    assert_eq!(third.await.unwrap().let_go.outcome, GateOutcome::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn waiting_gets_shorter_when_the_new_leader_does_not_stream() {
    let gate = gate();
    let whole = |gate: &TestGate| GateArrival { streams: false, ..sibling(gate, 1) };
    let leader = gate.at_once(sibling(&gate, 1));
    let [second, third] = [(); 2].map(|()| gate.spawn(whole(&gate)));
    yield_now().await;
    advance(Duration::from_millis(100)).await;
    leader.failed();
    let mut second = second.await.unwrap();
    let third = third.await.unwrap();
    assert_eq!((third.let_go.outcome, third.held.as_millis()), (GateOutcome::Presumed, 2_600));
    let lesson = third.let_go.lesson.clone().unwrap();
    assert_eq!(lesson.leader, second.ticket);
    let next = gate.store.ticket();
    gate.tenant.look(|state| state.gate.learned(lesson, false, next));
    second.begun();
    let _again = gate.at_once(whole(&gate));
    let longer = gate.clone().enter(whole(&gate)).await;
    assert_eq!((longer.let_go.outcome, longer.held.as_millis()), (GateOutcome::Presumed, 5_000));
}

#[tokio::test(start_paused = true)]
async fn fan_outs_do_not_wait_for_each_other() {
    let gate = gate();
    let mut stalled = gate.at_once(sibling(&gate, 1));
    let one = gate.spawn(sibling(&gate, 1));
    let mut quick = gate.at_once(sibling(&gate, 2));
    let another = gate.spawn(sibling(&gate, 2));
    yield_now().await;
    quick.begun();
    assert_eq!(another.await.unwrap().let_go.outcome, GateOutcome::Released);
    assert!(!one.is_finished());
    stalled.begun();
    assert_eq!(one.await.unwrap().held, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_gates_come_and_gone_leave_nobody() {
    let gate = gate();
    let mut cx = Context::from_waker(Waker::noop());
    for entry in 0..10_000 {
        let mut leader = gate.at_once(sibling(&gate, entry));
        let mut follower = Box::pin(gate.clone().enter(sibling(&gate, entry)));
        assert!(follower.as_mut().poll(&mut cx).is_pending());
        match entry % 3 {
            0 => leader.begun(),
            1 => drop(leader),
            _ => drop(follower),
        }
    }
    assert_eq!(gate.requests(), 0);
}

/// A child waits for the end of its parent's answer, until then at most. Returns how long, and if the gate was charged.
async fn awaits_seal(gate: &TestGate, until: Moment) -> (u128, u128) {
    let (mut waits, mut exchange, ticket) = (Waits::default(), gate.exchange(), gate.store.ticket());
    let fork = ForkId::of(TENANT, FORK_MESSAGE);
    gate.tenant.look(|state| state.await_seal(ticket, fork, until));
    let wait = Wait { until, underway_tokens: None };
    waits.wait(wait, gate.waiter(ticket), &mut exchange).await;
    (exchange.facts.awaited.as_millis(), waits.at_gate.as_millis())
}

#[tokio::test(start_paused = true)]
async fn a_child_waits_for_the_seal_or_until_its_time_has_come() {
    let (gate, policy) = (gate(), policy());
    let now = gate.clock.now();
    let (mut parent, turn) = small_parent(&*gate.tenant, &policy, gate.store.ticket(), now);
    let spawn = |until: u64| {
        let gate = gate.clone();
        tokio::spawn(async move { awaits_seal(&gate, START.after(until)).await })
    };
    let [patient, hasty] = [2_000, 300].map(spawn);
    yield_now().await;
    assert_eq!((gate.store.awaiting_seal(), gate.store.next_due()), (2, Some(START.after(300))));
    assert_eq!(hasty.await.unwrap(), (300, 0));
    advance(Duration::from_millis(400)).await;
    assert!(!patient.is_finished());

    settle(&*gate.tenant, &mut parent, Some(&turn), &policy, gate.clock.now());
    assert_eq!(patient.await.unwrap(), (700, 0));
    assert_eq!(gate.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_child_goes_on_once_another_process_tells_that_the_answer_has_ended_or_has_come_to_nothing() {
    for is_sealed in [true, false] {
        let ([here, there], policy) = ([gate(), gate()], policy());
        there.tenant.look(|state| state.save_as(Writer([0xf1; 8])));
        let times = |gate: &TestGate| Times { now: gate.clock.now(), unix_ms: 1_700_000_000_000 };
        let hear = |origin| {
            let told = take_unsaved(&*there.tenant, Pace::Soon, times(&there));
            restore(&*here.tenant, &told, origin, times(&here))
        };
        let now = there.clock.now();
        let (mut parent, turn) = small_parent(&*there.tenant, &policy, there.store.ticket(), now);
        assert_eq!(hear(Origin::Everything { is_shared: true }).unreadable, 0);
        let waits = tokio::spawn({
            let here = here.clone();
            async move { awaits_seal(&here, START.after(2_000)).await }
        });
        yield_now().await;
        advance(Duration::from_millis(400)).await;
        let turn = is_sealed.then_some(&turn);
        settle(&*there.tenant, &mut parent, turn, &policy, there.clock.now());
        hear(Origin::Since);
        assert_eq!(waits.await.unwrap(), (400, 0), "sealed: {is_sealed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_leaves_before_the_seal_is_forgotten() {
    let (gate, policy) = (gate(), policy());
    let now = gate.clock.now();
    let _parent = small_parent(&*gate.tenant, &policy, gate.store.ticket(), now);
    {
        let mut leaves = pin!(awaits_seal(&gate, START.after(2_000)));
        assert!(poll_fn(|cx| Poll::Ready(leaves.as_mut().poll(cx).is_pending())).await);
        assert_eq!((gate.store.awaiting_seal(), gate.waiting()), (1, 1));
    }
    assert_eq!((gate.store.awaiting_seal(), gate.store.next_due()), (0, None));
}
