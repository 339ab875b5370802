//! The promises of the gate, one by one and on random schedules.

use std::collections::HashSet;

use super::*;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::entry::EntryKey;
use crate::engine::cache::ledger::{CacheLedger, LedgerBill, Prediction};
use crate::engine::words::Ttl;

mod schedules;

const HOLD_MS: u64 = 5_000;
const MODEL: &str = "m";

/// A gate with its ledger, for an upstream that keeps nothing: what was written is cold again when everybody who
/// waited for it was let go.
#[derive(Clone)]
struct TestGate {
    gate: Gate,
    ledger: CacheLedger,
    next: Ticket,
}

fn gate() -> TestGate {
    TestGate::new(GateSettings::default())
}

/// The write of an entry that is named by at most eight letters.
fn write(entry: &str) -> EntryWrite {
    let mut number = [0; 8];
    number[..entry.len()].copy_from_slice(entry.as_bytes());
    numbered(u64::from_be_bytes(number))
}

fn numbered(number: u64) -> EntryWrite {
    EntryWrite { key: EntryKey::numbered(number), piece: 0, bytes: 160_000, ttl: Ttl::FiveMinutes }
}

fn arrival(entries: &[&str], streams: bool, now: u64) -> GateArrival {
    let writes = entries.iter().map(|entry| GateWrite { write: write(entry), tokens: 40_000 }).collect();
    GateArrival {
        ticket: Ticket(0),
        writes,
        streams,
        deadline: Moment(now + HOLD_MS),
        model: MODEL.to_owned(),
    }
}

impl TestGate {
    fn new(settings: GateSettings) -> TestGate {
        TestGate { gate: Gate::new(settings), ledger: CacheLedger::default(), next: Ticket(0) }
    }

    fn next_ticket(&mut self) -> Ticket {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        ticket
    }

    /// Gives the request a ticket.
    fn arrive(&mut self, arrival: GateArrival, now: Moment) -> (Ticket, GateVerdict) {
        let ticket = self.next_ticket();
        (ticket, self.gate.arrive(GateArrival { ticket, ..arrival }, &mut self.ledger, now))
    }

    fn look(&mut self, ticket: Ticket, now: Moment) -> GateVerdict {
        let (writes, model) = (Vec::new(), String::new());
        let again = GateArrival { ticket, writes, streams: true, deadline: now, model };
        self.gate.arrive(again, &mut self.ledger, now)
    }

    fn begun(&mut self, ticket: Ticket, now: Moment) -> Vec<Ticket> {
        self.ledger.readable(ticket, now, None);
        let woken = self.gate.begun(ticket, &mut self.ledger, now);
        let nothing = LedgerBill { usage: Usage::default(), minimum_tokens: None, has_payload: false };
        self.ledger.settle(ticket, &nothing, now);
        woken
    }

    fn gone(&mut self, ticket: Ticket, now: Moment) -> Vec<Ticket> {
        self.gate.gone(ticket, &mut self.ledger, now)
    }

    /// A request goes out that has not asked.
    fn sent_unasked(&mut self, entries: &[&str], streams: bool, now: u64) -> Ticket {
        let ticket = self.next_ticket();
        assert!(self.sent(ticket, entries, streams, now).is_empty());
        ticket
    }

    fn sent(&mut self, ticket: Ticket, entries: &[&str], streams: bool, now: u64) -> Vec<Ticket> {
        let breakpoints = entries.iter().map(|entry| write(entry)).collect();
        let prediction = Prediction { breakpoints, ..Prediction::default() };
        self.gate.sent(ticket, &prediction, streams, &mut self.ledger, Moment(now))
    }

    fn learned(&mut self, lesson: Lesson, was_enough: bool) {
        self.gate.learned(lesson, was_enough, self.next);
    }

    fn streaming(&mut self, entries: &[&str], now: u64) -> (Ticket, GateVerdict) {
        self.arrive(arrival(entries, true, now), Moment(now))
    }

    fn whole(&mut self, entries: &[&str], now: u64) -> (Ticket, GateVerdict) {
        self.arrive(arrival(entries, false, now), Moment(now))
    }

    fn outcome(&mut self, ticket: Ticket, now: u64) -> Option<GateOutcome> {
        self.look(ticket, Moment(now)).outcome()
    }

    fn requests(&self) -> usize {
        self.gate.requests()
    }

    /// How many entries somebody writes, and how many there is room for.
    fn entries(&self) -> (usize, usize) {
        (self.ledger.len(), self.ledger.capacity())
    }
}

impl GateVerdict {
    fn outcome(&self) -> Option<GateOutcome> {
        match self {
            GateVerdict::Go(let_go) => Some(let_go.outcome),
            GateVerdict::Wait(_) => None,
        }
    }

    fn until(&self) -> Option<u64> {
        match self {
            GateVerdict::Go(_) => None,
            GateVerdict::Wait(wait) => Some(wait.until.0),
        }
    }
}

#[test]
fn every_outcome_has_its_own_spelling() {
    let spellings: HashSet<_> = GateOutcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    assert_eq!(spellings.len(), GateOutcome::ALL.len());
}

#[test]
fn followers_go_together_when_the_answer_begins() {
    let mut gate = gate();
    let (leader, led) = gate.streaming(&["tools", "prefix"], 0);
    assert_eq!(led.outcome(), Some(GateOutcome::Led));
    let followers = ["a", "b", "c"].map(|own| gate.streaming(&["tools", "prefix", own], 10));
    for (_, verdict) in &followers {
        assert_eq!(*verdict, GateVerdict::Wait(GateWait { until: Moment(10 + HOLD_MS), leader }));
    }
    assert_eq!(gate.begun(leader, Moment(900)), followers.clone().map(|(ticket, _)| ticket));
    for (ticket, _) in followers {
        assert_eq!(gate.outcome(ticket, 900), Some(GateOutcome::Released));
        assert!(gate.begun(ticket, Moment(1_000)).is_empty());
    }
    assert_eq!((gate.requests(), gate.entries().0), (0, 0));
}

#[test]
fn small_and_unrelated_writes_make_nobody_wait() {
    let mut gate = gate();
    gate.streaming(&["prefix"], 0);
    let mut small = arrival(&["prefix"], true, 1);
    small.writes[0].tokens = 1_023;
    let (_, verdict) = gate.arrive(small.clone(), Moment(1));
    assert_eq!(verdict.outcome(), Some(GateOutcome::Unneeded));
    small.writes[0].tokens = 1_024;
    let (_, verdict) = gate.arrive(small, Moment(1));
    assert_eq!(verdict.until(), Some(1 + HOLD_MS));
    let (_, verdict) = gate.streaming(&["another"], 1);
    assert_eq!(verdict.outcome(), Some(GateOutcome::Led));
    let (_, verdict) = gate.streaming(&[], 1);
    assert_eq!(verdict.outcome(), Some(GateOutcome::Unneeded));
}

#[test]
fn if_a_leader_comes_to_nothing_the_next_in_order_leads_and_the_rest_waits_for_it() {
    let mut gate = gate();
    let (leader, _) = gate.streaming(&["prefix"], 0);
    let [second, third, fourth] = [1, 2, 3].map(|now| gate.streaming(&["prefix"], now).0);
    assert_eq!(gate.gone(leader, Moment(100)), [second]);
    let let_go = LetGo { outcome: GateOutcome::Succeeded, leader: Some(leader), lesson: None };
    assert_eq!(gate.look(second, Moment(100)), GateVerdict::Go(let_go));
    let wait = GateWait { until: Moment(2 + HOLD_MS), leader: second };
    assert_eq!(gate.look(third, Moment(100)), GateVerdict::Wait(wait));
    assert!(gate.gone(third, Moment(150)).is_empty(), "its client left");
    assert_eq!(gate.gone(second, Moment(200)), [fourth]);
    assert_eq!(gate.outcome(fourth, 200), Some(GateOutcome::Succeeded));
}

#[test]
fn a_successor_that_left_before_it_could_go_is_succeeded_too() {
    let mut gate = gate();
    let (leader, _) = gate.streaming(&["prefix"], 0);
    let [second, third] = [1, 2].map(|now| gate.streaming(&["prefix"], now).0);
    assert_eq!(gate.gone(leader, Moment(100)), [second]);
    assert_eq!(gate.gone(second, Moment(100)), [third]);
    assert_eq!(gate.outcome(third, 100), Some(GateOutcome::Succeeded));
}

#[test]
fn nobody_waits_past_the_deadline() {
    let mut gate = gate();
    let (stalled, _) = gate.streaming(&["prefix"], 0);
    let (follower, _) = gate.streaming(&["prefix"], 10);
    let (late, _) = gate.streaming(&["prefix"], 4_000);
    assert_eq!(gate.outcome(follower, 9 + HOLD_MS), None);
    assert_eq!(gate.outcome(follower, 10 + HOLD_MS), Some(GateOutcome::TimedOut));
    assert_eq!(gate.begun(follower, Moment(6_000)), [late], "whoever begins first has warmed the entry");
    assert_eq!(gate.outcome(late, 6_000), Some(GateOutcome::Released));
    let (_, verdict) = gate.streaming(&["prefix"], 7_000);
    assert_eq!(verdict.outcome(), Some(GateOutcome::Led), "nobody waits for the stalled one any more");
    let spent = GateArrival { deadline: Moment(9_000), ..arrival(&["prefix"], true, 0) };
    let (_, verdict) = gate.arrive(spent, Moment(9_000));
    assert_eq!(verdict.outcome(), Some(GateOutcome::TimedOut), "no time is left to wait");
    assert!(gate.begun(stalled, Moment(9_000)).is_empty());
}

#[test]
fn a_follower_that_shares_more_than_the_leader_wrote_waits_on() {
    let mut gate = gate();
    let (first, _) = gate.streaming(&["tools"], 0);
    let [second, third] = [1, 2].map(|now| gate.streaming(&["tools", "prefix"], now).0);
    assert_eq!(gate.begun(first, Moment(500)), [second]);
    assert_eq!(gate.look(third, Moment(500)).until(), Some(2 + HOLD_MS));
    assert_eq!(gate.begun(second, Moment(900)), [third]);
    assert_eq!(gate.outcome(third, 900), Some(GateOutcome::Released));
}

#[test]
fn a_streaming_sibling_overtakes_one_that_does_not_stream() {
    let mut gate = gate();
    let (whole, _) = gate.whole(&["prefix"], 0);
    let (follower, verdict) = gate.whole(&["prefix"], 10);
    assert_eq!(verdict.until(), Some(2_500));
    let (streaming, verdict) = gate.streaming(&["prefix"], 100);
    let GateVerdict::Go(let_go) = verdict else { panic!("it waits") };
    assert_eq!((let_go.outcome, let_go.leader), (GateOutcome::Overtook, Some(whole)));
    let (second, verdict) = gate.streaming(&["prefix"], 200);
    assert_eq!(verdict, GateVerdict::Wait(GateWait { until: Moment(200 + HOLD_MS), leader: streaming }));
    assert_eq!(gate.look(follower, Moment(2_500)).until(), Some(10 + HOLD_MS), "it waits for content now");
    assert_eq!(gate.begun(streaming, Moment(2_600)), [second, follower]);
    assert!(gate.begun(whole, Moment(9_000)).is_empty());
}

#[test]
fn a_streaming_follower_succeeds_before_earlier_ones_that_do_not_stream() {
    let mut gate = gate();
    let (leader, _) = gate.streaming(&["prefix"], 0);
    let (whole, _) = gate.whole(&["prefix"], 1);
    let (streaming, _) = gate.streaming(&["prefix"], 2);
    assert_eq!(gate.gone(leader, Moment(100)), [streaming]);
    assert_eq!(gate.gone(streaming, Moment(200)), [whole]);
    assert_eq!(gate.outcome(whole, 200), Some(GateOutcome::Succeeded));
}

#[test]
fn those_behind_a_new_leader_that_does_not_stream_learn_that_they_wait_less() {
    let mut gate = gate();
    let (leader, _) = gate.streaming(&["prefix"], 0);
    let [second, third] = [1, 2].map(|now| gate.whole(&["prefix"], now).0);
    assert_eq!(gate.gone(leader, Moment(100)), [second, third]);
    assert_eq!(gate.look(third, Moment(100)).until(), Some(100 + 2_500));
}

#[test]
fn an_answer_in_one_piece_releases_its_followers() {
    let mut gate = gate();
    let (leader, _) = gate.whole(&["prefix"], 0);
    let (follower, _) = gate.whole(&["prefix"], 10);
    assert_eq!(gate.begun(leader, Moment(1_000)), [follower]);
    assert_eq!(gate.outcome(follower, 1_000), Some(GateOutcome::Released));
}

#[test]
fn after_its_hold_an_entry_is_presumed_warm_and_usage_tells() {
    let mut gate = gate();
    let mut lead = |now| {
        let (leader, _) = gate.whole(&["prefix"], now);
        let (follower, verdict) = gate.whole(&["prefix"], now + 10);
        let Some(until) = verdict.until() else { return (gate.gone(leader, Moment(now)).len(), verdict) };
        let GateVerdict::Go(let_go) = gate.look(follower, Moment(until)) else { panic!("it waits on") };
        assert_eq!((let_go.outcome, let_go.leader), (GateOutcome::Presumed, Some(leader)));
        let (_, at_once) = gate.whole(&["prefix"], until + 1);
        assert_eq!(at_once.outcome(), Some(GateOutcome::Presumed));
        gate.learned(let_go.lesson.unwrap(), false);
        gate.gone(leader, Moment(until + 2));
        (until as usize - now as usize, verdict)
    };
    assert_eq!([lead(0).0, lead(10_000).0, lead(20_000).0], [2_500, 5_000, 5_000]);
    let (_, verdict) = lead(30_000);
    assert_eq!(verdict.outcome(), Some(GateOutcome::GivenUp));
}

#[test]
fn whoever_runs_out_of_time_behind_an_unfinished_answer_also_tells() {
    let mut gate = gate();
    let (leader, _) = gate.whole(&["prefix"], 0);
    let hurried = GateArrival { deadline: Moment(1_000), ..arrival(&["prefix"], false, 0) };
    let (follower, verdict) = gate.arrive(hurried, Moment(10));
    assert_eq!(verdict.until(), Some(1_000));
    let GateVerdict::Go(let_go) = gate.look(follower, Moment(1_000)) else { panic!("it waits on") };
    assert_eq!(let_go.outcome, GateOutcome::TimedOut);
    assert_eq!(let_go.lesson, Some(Lesson { model: MODEL.to_owned(), leader }));
}

#[test]
fn over_a_limit_requests_go_at_once() {
    let limits = GateLimits { requests: 4, followers: 2, ..GateLimits::default() };
    let mut gate = TestGate::new(GateSettings { limits, ..GateSettings::default() });
    let (leader, _) = gate.streaming(&["prefix"], 0);
    let [second, third] = [1, 2].map(|now| gate.streaming(&["prefix"], now).0);
    let (fourth, verdict) = gate.streaming(&["prefix"], 3);
    let GateVerdict::Go(let_go) = verdict else { panic!("it waits") };
    assert_eq!((let_go.outcome, let_go.leader), (GateOutcome::Full, Some(leader)));
    let (unknown, verdict) = gate.streaming(&["another"], 4);
    assert_eq!(verdict, GateVerdict::Go(GateOutcome::Full.into()));
    assert!(gate.begun(unknown, Moment(5)).is_empty());
    assert_eq!(gate.begun(fourth, Moment(5)), [second, third]);
}

#[test]
fn ten_thousand_gates_come_and_gone_leave_no_memory() {
    let mut gate = gate();
    let sibling = |entry| GateArrival {
        writes: vec![GateWrite { write: numbered(entry), tokens: 40_000 }],
        ..arrival(&[], entry % 3 > 0, 0)
    };
    // 2,000 at a time, so that there is something to give back.
    for lot in 0..5 {
        let entries = lot * 2_000..(lot + 1) * 2_000;
        let leaders: Vec<_> = entries.clone().map(|entry| gate.arrive(sibling(entry), Moment(0)).0).collect();
        let others: Vec<_> = entries.map(|entry| gate.arrive(sibling(entry), Moment(0)).0).collect();
        assert_eq!((gate.requests(), gate.entries().0), (4_000, 2_000));
        for (i, (leader, other)) in leaders.into_iter().zip(others).enumerate() {
            match i % 4 {
                0 => assert!(gate.gone(other, Moment(1)).is_empty()),
                1 => assert_eq!(gate.gone(leader, Moment(1)).len(), 1),
                2 => assert!(gate.look(other, Moment(HOLD_MS)).outcome().is_some()),
                _ => {}
            }
            gate.begun(leader, Moment(2));
            gate.begun(other, Moment(3));
        }
        assert_eq!((gate.requests(), gate.entries().0), (0, 0));
        assert!(gate.entries().1 <= 64, "there is room for {} entries", gate.entries().1);
    }
}

#[test]
fn one_that_never_asked_is_waited_for_once_it_is_sent() {
    let mut gate = gate();
    let plain = gate.sent_unasked(&["prefix"], true, 0);
    let (first, verdict) = gate.streaming(&["prefix"], 10);
    assert_eq!(verdict, GateVerdict::Wait(GateWait { until: Moment(10 + HOLD_MS), leader: plain }));
    let (second, _) = gate.streaming(&["prefix"], 20);
    assert_eq!(gate.requests(), 2, "it is not at the gate");
    assert_eq!(gate.gone(plain, Moment(100)), [first]);
    assert_eq!(gate.outcome(first, 100), Some(GateOutcome::Succeeded));
    assert_eq!(gate.begun(first, Moment(200)), [second]);
    let whole = gate.sent_unasked(&["prefix"], false, 300);
    let (fourth, verdict) = gate.whole(&["prefix"], 310);
    assert_eq!(verdict.until(), Some(300 + 2_500));
    let (third, verdict) = gate.streaming(&["prefix"], 320);
    assert_eq!(verdict.outcome(), Some(GateOutcome::Overtook));
    assert_eq!(gate.gone(whole, Moment(340)), [fourth], "it waits for content now");
    assert_eq!(gate.begun(third, Moment(350)), [fourth]);
}

#[test]
fn whoever_is_let_go_writes_from_then_on_and_not_only_when_it_is_sent() {
    let mut gate = gate();
    let (leader, _) = gate.whole(&["prefix", "tools"], 0);
    let (follower, _) = gate.whole(&["prefix"], 10);
    assert!(gate.sent(leader, &["prefix", "tools"], false, 500).is_empty());
    assert_eq!(gate.look(follower, Moment(500)).until(), Some(2_500), "it went at 0");
    let (other, _) = gate.whole(&["tools"], 600);
    assert_eq!(gate.sent(leader, &["prefix"], false, 700), [other], "it has found the tools meanwhile");
    assert_eq!(gate.outcome(other, 700), Some(GateOutcome::Succeeded));
    assert_eq!(gate.outcome(follower, 700), None);
}

#[test]
fn whoever_presumes_an_entry_warm_is_not_waited_for_when_it_is_sent() {
    let mut gate = gate();
    let (leader, _) = gate.whole(&["prefix"], 0);
    let (presumes, verdict) = gate.streaming(&["prefix", "own"], 2_500);
    assert_eq!(verdict.outcome(), Some(GateOutcome::Presumed));
    assert!(gate.sent(presumes, &["prefix", "own"], true, 2_510).is_empty());
    assert_eq!(gate.ledger.leader(&write("prefix").key).unwrap().ticket, leader);
    assert_eq!(gate.ledger.leader(&write("own").key).unwrap().ticket, presumes);
    assert_eq!(gate.streaming(&["prefix"], 2_520).1.outcome(), Some(GateOutcome::Presumed));
}
