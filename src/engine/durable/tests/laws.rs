//! Whatever a tenant has seen, what matters of it is the same in another process.

use proptest::prelude::*;

use super::*;
use crate::engine::cache::ledger::Prediction;
use crate::engine::fork::experiment::ChildKind;
use crate::engine::tenant::tests::transitions::find;
use crate::engine::tenant::tests::{MODEL, parent_body};
use crate::engine::tenant::{TenantState, abandon};
use crate::engine::words::{CostUnit, Layer, Skip, Why};

/// Something that happens to a tenant.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A turn of one of three conversations.
    Plain(usize),
    /// A parent fans out.
    Parent,
    /// A child's first turn, and its second.
    Child(usize),
    ChildAgain(usize),
    /// So many milliseconds pass.
    Wait(u64),
    Save(Pace),
}

const TOPICS: [&str; 2] = ["a", "b"];
const SYSTEMS: [&str; 3] = ["Be brief.", "Be kind.", "Be just."];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..3usize).prop_map(Step::Plain),
        2 => Just(Step::Parent),
        3 => (0..2usize).prop_map(Step::Child),
        3 => (0..2usize).prop_map(Step::ChildAgain),
        2 => (1..400_000u64).prop_map(Step::Wait),
        2 => prop_oneof![Just(Pace::Soon), Just(Pace::All)].prop_map(Step::Save),
    ];
    prop::collection::vec(step, 1..24)
}

/// A tenant that lives through these steps: its requests, its records, and the time at the end.
fn live(steps: &[Step]) -> (TestTenant, Vec<Flight>, Kept, u64) {
    let (tenant, mut now, mut kept) = (saving(), 1_000, Kept::default());
    let (mut questions, mut flights) = ([0; 3], Vec::new());
    for step in steps {
        now += 1_000;
        match *step {
            Step::Plain(one) => {
                questions[one] += 1;
                let said: Vec<String> = (0..questions[one]).map(|number| format!("Why {number}?")).collect();
                let said: Vec<&str> = said.iter().map(String::as_str).collect();
                tenant.exchange(&plain_body(SYSTEMS[one], &said), yes, now);
                flights.push(*tenant.send(&plain_body(SYSTEMS[one], &said), now + 500));
            }
            Step::Parent => {
                tenant.parent_has_called(now);
                flights.push(*tenant.send(&parent_body(), now + 500));
            }
            Step::Child(one) => {
                tenant.exchange(&child_body(TOPICS[one]), reads, now);
            }
            Step::ChildAgain(one) => {
                tenant.exchange(&child_again(TOPICS[one]), yes, now);
            }
            Step::Wait(ms) => now += ms,
            Step::Save(pace) => kept.write(take_unsaved(&tenant, pace, times(now))),
        }
        // What was only looked at comes to nothing.
        if matches!(step, Step::Plain(_) | Step::Parent)
            && let Some(looked_at) = flights.last()
        {
            abandon(&tenant, looked_at, Moment(now + 600));
        }
    }
    kept.write(take_unsaved(&tenant, Pace::Last, times(now)));
    (tenant, flights, kept, now)
}

/// What a request would read in each world.
fn predicted(state: &TenantState, flight: &Flight, now: u64) -> [Prediction; 3] {
    let worlds = &state.worlds;
    [&worlds.billed, &worlds.sent, &worlds.aligned].map(|world| find(world, flight, now))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        rng_seed: proptest::test_runner::RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_restored_tenant_predicts_and_decides_as_before(steps in steps()) {
        let (tenant, flights, kept, now) = live(&steps);
        let other = restored(&kept.0, now);
        for flight in &flights {
            for ahead in [1_000, 299_000, 301_000] {
                let here = tenant.look(|state| predicted(state, flight, now + ahead));
                let there = other.look(|state| predicted(state, flight, now + ahead + APART_MS));
                prop_assert_eq!(here, there);
            }
        }
        let figures = |tenant: &TestTenant, now: u64| tenant.look(|state| {
            let learned: Vec<_> = flights.iter().map(|flight| {
                let tools = flight.own.chain().layer(flight.own.anatomy(), Layer::Tools);
                let kind = ChildKind { tool: "Agent", tools };
                let bills = [CostUnit::Dollars, CostUnit::Tokens].map(|unit| state.experiment.bills(kind, unit));
                (bills, state.experiment.habits(kind, 4))
            }).collect();
            let verdict = state.experiment.verdict("Agent", TestTenant::new().fork_id(), Moment(now));
            (learned, verdict, state.learned.tokens_per_byte(MODEL))
        });
        prop_assert_eq!(figures(&tenant, now), figures(&other, now + APART_MS));
        // Then both go on alike. What the bodies of recent requests show is forgotten with them, and never stored: whether
        // a conversation pauses for long, by which a request that comes late is left without breakpoints.
        while tenant.look(TenantState::forget_oldest_body) {}
        for (number, topic) in TOPICS.into_iter().enumerate() {
            let at = now + 2_000 + 1_000 * number as u64;
            for body in [child_again(topic), child_body(topic)] {
                let (here, there) = (tenant.send(&body, at), other.send(&body, at + APART_MS));
                prop_assert_eq!(here.plan, there.plan);
                prop_assert_eq!((&here.relation.why, here.relation.role()), (&there.relation.why, there.relation.role()));
                prop_assert!(!here.is_forked() || sent(&here) == sent(&there));
                for (tenant, flight, at) in [(&tenant, &here, at), (&other, &there, at + APART_MS)] {
                    abandon(tenant, flight, Moment(at));
                }
            }
        }
    }
}

#[test]
fn only_the_process_that_has_seen_a_conversation_pause_knows_that_it_seldom_continues_in_time() {
    let (tenant, _, kept, now) = live(&[Step::Child(0), Step::Wait(300_000)]);
    let other = restored(&kept.0, now);
    let plan = |tenant: &TestTenant, at: u64| {
        let flight = tenant.send(&child_again(TOPICS[0]), at);
        abandon(tenant, &flight, Moment(at));
        flight.plan
    };
    let at = now + 2_000;
    assert_eq!(plan(&tenant, at), Plan::Aligned(Why::Skipped(Skip::SeldomContinues)));
    assert_eq!(plan(&other, at + APART_MS), Plan::Aligned(Why::NotAChild));
    while tenant.look(TenantState::forget_oldest_body) {}
    assert_eq!(plan(&tenant, at), Plan::Aligned(Why::NotAChild));
}

#[test]
fn a_tenant_whose_last_seconds_are_lost_shows_no_saving_for_a_while() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    tenant.exchange(&child_body("a"), reads, 1_100);
    let mut kept = Kept::default();
    kept.write(take_unsaved(&tenant, Pace::All, times(1_200)));
    let saved = |kept: &Kept, at: u64, forget: bool| {
        let records: Vec<Change> = kept
            .0
            .iter()
            .filter(|change| !forget || change.key().kind != RecordKind::Worlds)
            .cloned()
            .collect();
        let other = restored(&records, 1_200);
        other.exchange(&child_again("a"), yes, APART_MS + at).bills.unwrap().sent
    };
    assert_eq!([saved(&kept, 1_300, false), saved(&kept, 1_300, true)], [None; 2]);
    assert!(saved(&kept, 302_000, true).is_some(), "what was written before has ended");
    kept.write(take_unsaved(&tenant, Pace::Last, times(1_200)));
    assert!(saved(&kept, 1_300, false).is_some(), "it has ended in order");
}

#[test]
fn an_entry_that_another_process_has_written_is_predicted() {
    let [tenant, other] = [saving(), TestTenant::new()];
    other.look(|state| state.save_as(Writer([0xf2; 8])));
    let body = plain_body("Be brief.", &["Why?"]);
    tenant.exchange(&body, yes, 1_000);
    let changes = take_unsaved(&tenant, Pace::All, times(1_100));
    restore(&other, &changes, Origin::Since, later(1_100));
    let flight = other.send(&body, APART_MS + 1_200);
    assert!(flight.prediction().tokens() > 9_000);
    let own = tenant.look(|state| state.worlds.billed.len());
    restore(&tenant, &changes, Origin::Since, times(1_200));
    assert_eq!(tenant.look(|state| state.worlds.billed.len()), own);
}
