//! The hand-off under `shuttle`, which runs threads one step at a time in many orders. No deadline comes, so
//! a wake-up that is lost leaves somebody waiting for ever, and that is found.

use std::future::poll_fn;
use std::task::Poll;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::{future, thread};

use crate::engine::gate::{Arrival, LetGo, Settings, Ticket, Verdict, Wait, Write};
use crate::engine::words::{GateOutcome, Moment};

#[expect(clippy::duplicate_mod, reason = "it is built again, with the lock below")]
#[path = "../handoff.rs"]
mod handoff;

mod sync {
    pub use shuttle::sync::Mutex;
}

use handoff::Handoff;

const NOW: Moment = Moment(0);
const ORDERS: usize = 1_500;

fn arrival(entries: &[u8], streams: bool) -> Arrival<u8, u8> {
    let writes = entries.iter().map(|entry| Write { entry: *entry, tokens: 40_000 }).collect();
    Arrival { writes, streams, deadline: Moment(1), group: 0 }
}

fn new() -> Arc<Handoff<u8, u8>> {
    Arc::new(Handoff::new(Settings::default()))
}

/// Waits as the shell does, less the clock.
async fn let_go(handoff: &Handoff<u8, u8>, ticket: Ticket, mut verdict: Verdict<u8>) -> LetGo<u8> {
    loop {
        let wait = match verdict {
            Verdict::Go(let_go) => return let_go,
            Verdict::Wait(wait) => wait,
        };
        verdict = poll_fn(|cx| handoff.poll(ticket, wait, NOW, cx)).await;
    }
}

/// Looks once and leaves a bell behind, if it has to wait.
fn look_once(handoff: &Handoff<u8, u8>, ticket: Ticket, wait: Wait) {
    future::block_on(poll_fn(|cx| {
        let _pending = handoff.poll(ticket, wait, NOW, cx);
        Poll::Ready(())
    }));
}

/// A request of any sort, from its arrival to its end.
fn live(handoff: &Handoff<u8, u8>, entries: &[u8]) {
    let mut rng = thread_rng();
    let (ticket, verdict) = handoff.arrive(arrival(entries, rng.gen_bool(0.7)), NOW);
    if let Verdict::Wait(wait) = &verdict
        && rng.gen_bool(0.2)
    {
        look_once(handoff, ticket, *wait);
        return handoff.gone(ticket, NOW);
    }
    let let_go = future::block_on(let_go(handoff, ticket, verdict));
    assert_eq!(handoff.look(ticket, NOW), Verdict::Go(let_go.clone()));
    if let Some(lesson) = let_go.lesson {
        handoff.learned(lesson, rng.gen_bool(0.5));
    }
    if rng.gen_bool(0.1) {
        handoff.configure(Settings { max_hold_ms: rng.gen_range(1..3), ..Settings::default() });
    }
    if rng.gen_bool(0.5) { handoff.begun(ticket, NOW) } else { handoff.gone(ticket, NOW) }
}

/// Runs a scenario in orders that are random, and in orders that are chosen to be unlikely.
fn in_many_orders(scenario: fn()) {
    shuttle::check_random(scenario, ORDERS);
    shuttle::check_pct(scenario, ORDERS, 3);
}

#[test]
fn nobody_is_lost_whatever_the_order() {
    in_many_orders(|| {
        let handoff = new();
        let entries: [&[u8]; 4] = [&[1], &[1, 2], &[2], &[1, 2]];
        let threads = entries.map(|entries| {
            let handoff = handoff.clone();
            thread::spawn(move || live(&handoff, entries))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(handoff.requests(), 0);
    });
}

#[test]
fn a_lead_handed_to_one_that_leaves_goes_on_to_the_next() {
    in_many_orders(|| {
        let handoff = new();
        let enter = || handoff.arrive(arrival(&[1], true), NOW);
        let ((leader, _), (leaves, wait), (stays, waits)) = (enter(), enter(), enter());
        let Verdict::Wait(wait) = wait else { panic!("it goes") };
        let [first, second] = [handoff.clone(), handoff.clone()];
        let fails = thread::spawn(move || first.gone(leader, NOW));
        let drops = thread::spawn(move || {
            look_once(&second, leaves, wait);
            second.gone(leaves, NOW);
        });
        let let_go = future::block_on(let_go(&handoff, stays, waits));
        assert_eq!(let_go.outcome, GateOutcome::Succeeded);
        [fails, drops].into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((handoff.waiting(NOW), handoff.next_due()), (0, None));
        handoff.begun(stays, NOW);
        assert_eq!(handoff.requests(), 0);
    });
}
