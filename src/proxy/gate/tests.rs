//! Waiting, on a paused clock: time moves only when everybody waits.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::advance;

use super::*;
use crate::engine::gate::Write;
use crate::engine::words::GateOutcome;

mod orders;

type TestGate = Gate<&'static str, u8>;

fn gate() -> TestGate {
    Gate::new(Settings::default(), Arc::new(Clock::new()))
}

fn sibling(gate: &TestGate, entry: &'static str) -> Arrival<&'static str, u8> {
    let writes = vec![Write { entry, tokens: 40_000 }];
    Arrival { writes, streams: true, deadline: gate.shared.clock.now().after(5_000), group: 0 }
}

/// Enters where nobody waits.
fn at_once(gate: &TestGate, arrival: Arrival<&'static str, u8>) -> Pass<&'static str, u8> {
    gate.enter(arrival).now_or_never().expect("it waits")
}

#[tokio::test(start_paused = true)]
async fn sixty_four_siblings_pay_for_one_write() {
    let gate = gate();
    let mut leader = at_once(&gate, sibling(&gate, "prefix"));
    let followers: Vec<_> = (1..64).map(|_| tokio::spawn(gate.enter(sibling(&gate, "prefix")))).collect();
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
    let leader = at_once(&gate, sibling(&gate, "prefix"));
    let follower = tokio::spawn(gate.enter(sibling(&gate, "prefix")));
    tokio::task::yield_now().await;
    assert_eq!(gate.waiting(), 1);
    gate.shared.clock.skip(4_999);
    tokio::task::yield_now().await;
    assert!(!follower.is_finished());
    gate.shared.clock.skip(1);
    let pass = follower.await.unwrap();
    assert_eq!((pass.let_go.outcome, pass.held.as_millis()), (GateOutcome::TimedOut, 5_000));
    drop((leader, pass));
    assert_eq!((gate.requests(), gate.waiting()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn time_that_is_stopped_passes_only_by_being_skipped() {
    let gate = gate();
    let _leader = at_once(&gate, sibling(&gate, "prefix"));
    gate.shared.clock.stop();
    let follower = tokio::spawn(gate.enter(sibling(&gate, "prefix")));
    advance(Duration::from_secs(3_600)).await;
    assert!(!follower.is_finished());
    assert_eq!((gate.waiting(), gate.next_due()), (1, Some(gate.shared.clock.now().after(5_000))));
    gate.shared.clock.skip(5_000);
    assert_eq!(gate.waiting(), 0, "its time has come, whether it has looked or not");
    let pass = follower.await.unwrap();
    assert_eq!((pass.let_go.outcome, pass.held.as_millis()), (GateOutcome::TimedOut, 5_000));
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_is_dropped_or_failed_goes_to_the_next() {
    let gate = gate();
    let leader = at_once(&gate, sibling(&gate, "prefix"));
    let [second, third] = [(); 2].map(|()| tokio::spawn(gate.enter(sibling(&gate, "prefix"))));
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
    let _stalled = at_once(&gate, sibling(&gate, "prefix"));
    advance(Duration::from_millis(300)).await;
    let late = gate.enter(Arrival { deadline: Moment(5_000), ..sibling(&gate, "prefix") }).await;
    assert_eq!((late.let_go.outcome, late.held.as_millis()), (GateOutcome::TimedOut, 4_700));
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_is_dropped_is_forgotten() {
    let gate = gate();
    let leader = at_once(&gate, sibling(&gate, "prefix"));
    let mut leaves = Box::pin(gate.enter(sibling(&gate, "prefix")));
    let never_awaited = gate.enter(sibling(&gate, "prefix"));
    let stays = tokio::spawn(gate.enter(sibling(&gate, "prefix")));
    assert!(leaves.as_mut().now_or_never().is_none());
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
    let mut leader = at_once(&gate, sibling(&gate, "prefix"));
    let mut follower = Box::pin(gate.enter(sibling(&gate, "prefix")));
    let bells = [Arc::new(Bell::default()), Arc::new(Bell::default())];
    for bell in &bells {
        let waker = Waker::from(bell.clone());
        assert!(follower.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    leader.begun();
    assert_eq!(bells.map(|bell| bell.0.load(Relaxed)), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn places_are_taken_when_entering_not_when_awaiting() {
    let gate = gate();
    let leader = at_once(&gate, sibling(&gate, "prefix"));
    let second = gate.enter(sibling(&gate, "prefix"));
    let third = tokio::spawn(gate.enter(sibling(&gate, "prefix")));
    drop(leader);
    assert_eq!(second.await.let_go.outcome, GateOutcome::Succeeded);
    assert_eq!(third.await.unwrap().let_go.outcome, GateOutcome::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn waiting_gets_shorter_when_the_new_leader_does_not_stream() {
    let gate = gate();
    let whole = |gate: &TestGate| Arrival { streams: false, ..sibling(gate, "prefix") };
    let leader = at_once(&gate, sibling(&gate, "prefix"));
    let [second, third] = [(); 2].map(|()| tokio::spawn(gate.enter(whole(&gate))));
    advance(Duration::from_millis(100)).await;
    leader.failed();
    let mut second = second.await.unwrap();
    let third = third.await.unwrap();
    assert_eq!((third.let_go.outcome, third.held.as_millis()), (GateOutcome::Presumed, 2_600));
    let lesson = third.let_go.lesson.clone().unwrap();
    assert_eq!(lesson.leader, second.ticket);
    gate.learned(lesson, false);
    second.begun();
    let _again = at_once(&gate, whole(&gate));
    let longer = gate.enter(whole(&gate)).await;
    assert_eq!((longer.let_go.outcome, longer.held.as_millis()), (GateOutcome::Presumed, 5_000));
}

#[tokio::test(start_paused = true)]
async fn fan_outs_do_not_wait_for_each_other() {
    let gate = gate();
    let mut stalled = at_once(&gate, sibling(&gate, "one"));
    let one = tokio::spawn(gate.enter(sibling(&gate, "one")));
    let mut quick = at_once(&gate, sibling(&gate, "another"));
    let another = tokio::spawn(gate.enter(sibling(&gate, "another")));
    quick.begun();
    assert_eq!(another.await.unwrap().let_go.outcome, GateOutcome::Released);
    assert!(!one.is_finished());
    stalled.begun();
    assert_eq!(one.await.unwrap().held, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_gates_come_and_gone_leave_nobody() {
    let gate = Gate::<usize, u8>::new(Settings::default(), Arc::new(Clock::new()));
    let arrival = |entry| Arrival {
        writes: vec![Write { entry, tokens: 40_000 }],
        streams: true,
        deadline: Moment(5_000),
        group: 0,
    };
    let mut cx = Context::from_waker(Waker::noop());
    for entry in 0..10_000 {
        let mut leader = gate.enter(arrival(entry)).await;
        let mut follower = Box::pin(gate.enter(arrival(entry)));
        assert!(follower.as_mut().poll(&mut cx).is_pending());
        match entry % 3 {
            0 => leader.begun(),
            1 => drop(leader),
            _ => drop(follower),
        }
    }
    assert_eq!(gate.requests(), 0);
}
