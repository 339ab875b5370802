use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::*;
use crate::engine::align::{self, untouched};
use crate::engine::answer::turn::{Turn, TurnLimits};
use crate::engine::cache::breakpoints::Profile;
use crate::engine::family::arrival::Arrival;
use crate::engine::family::conversation::{Outcome, Trace};
use crate::engine::family::fanout::{
    Bindable, Binding, Child, Draft, FanOuts, ForkPoint, Parent, Rules, Toolset, Who,
};
use crate::engine::family::recent::{AcceptedRequest, Hint};
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{Known, Nothing, Opening, Remembered, SharedParts};
use crate::engine::respell::canonical::{Order, Pins, Table};
use crate::engine::respell::echo::Spelling;
use crate::engine::respell::system_block::SystemForm;
use crate::engine::tenant::{BoundChild, Fate, FirstSeen, ReadMode, View};
use crate::engine::words::{IdDigest, Layer, Moment, Rank, Why};

pub(crate) mod conformance;
pub(crate) mod memory_records;
mod orders;

const MIB: usize = 1 << 20;

fn memory(recent_bytes: usize) -> Store {
    let limits = Limits { max_bytes: 64 * MIB, recent_bytes, tenant_share: 0.5 };
    Store::new(limits, Rules::default(), GateSettings::default())
}

fn id(number: u8) -> TenantId {
    TenantId([number; 32])
}

/// A conversation of so many messages that opens with these words.
fn body(opening: &str, messages: usize, filler: usize) -> Bytes {
    let filler = "x".repeat(filler);
    let messages: Vec<String> = (0..messages)
        .map(|n| match n % 2 {
            0 => format!(r#"{{"role":"user","content":"{opening} {n} {filler}"}}"#),
            _ => format!(r#"{{"role":"assistant","content":[{{"type":"text","text":"answer {n}"}}]}}"#),
        })
        .collect();
    let system = r#"[{"type":"text","text":"Be brief."}]"#;
    Bytes::from(format!(
        r#"{{"model":"m","tools":[{{"name":"a"}}],"system":{system},"messages":[{}]}}"#,
        messages.join(",")
    ))
}

/// The tenant of this name, from now on known.
fn admit(memory: &Store, tenant: &TenantId) -> Arc<Tenant> {
    memory.admit(tenant, &memory.tenant(tenant))
}

/// Makes room until there is enough.
fn shrink(memory: &Store) {
    let mut eviction = Eviction::default();
    while !memory.shrink(&mut eviction) {}
}

/// Remembers a request that was accepted, in the place of the one that it continues.
fn remember(tenant: &Tenant, arrival: &Arrival, accepted: AcceptedRequest) {
    tenant.look(|state| state.remember(accepted, arrival.predecessor()));
}

/// What one request finds, and then leaves behind.
fn visit(memory: &Store, tenant: &TenantId, hint: Option<Hint>, body: Bytes) -> Arrival {
    let arrival = leave_behind(memory, tenant, hint, body);
    shrink(memory);
    arrival
}

/// The same without making room afterwards.
fn leave_behind(memory: &Store, tenant: &TenantId, hint: Option<Hint>, body: Bytes) -> Arrival {
    let known = memory.tenant(tenant);
    let view = View { tenant: &*known, hint };
    let arrival = view.read(&body, Attribution::Counted, ReadMode::AsItCame, [].into_iter()).unwrap();
    let trace = Arc::new(untouched(&arrival));
    let layer = |layer| Some((layer, trace.whole()?.layer(layer)?));
    let layers = [Layer::Tools, Layer::System].into_iter().filter_map(layer).collect();
    let conversation = arrival.conversation().cloned().unwrap_or_else(|| arrival.start(None));
    let (outcome, pins) = (Outcome::default(), Pins::default());
    let faded = arrival.faded.as_ref().map(|faded| faded.id);
    let accepted = AcceptedRequest {
        trace,
        resumes: false,
        outcome,
        conversation,
        pins,
        hint,
        spelling: None,
        layers,
        faded,
    };
    remember(&admit(memory, tenant), &arrival, accepted);
    arrival
}

fn hint(session: u8) -> Option<Hint> {
    Some(Hint { session: IdDigest([session; 16]), agent: None })
}

fn messages(trace: &Trace) -> usize {
    trace.received.anatomy().messages.len()
}

#[test]
fn a_conversation_is_found_by_how_it_opens_and_each_turn_replaces_the_last() {
    let memory = memory(MIB);
    assert!(visit(&memory, &id(1), None, body("one", 1, 0)).before.is_none());
    for turn in 1..20 {
        let arrival = visit(&memory, &id(1), None, body("one", 2 * turn + 1, 0));
        assert_eq!(messages(&arrival.predecessor().unwrap().trace), 2 * turn - 1);
        assert!(arrival.conversation().is_some());
    }
    let last = body("one", 39, 0);
    assert!(memory.bytes() < 3 * last.len() + 39 * 1024, "one body is kept: {}", memory.bytes());
}

#[test]
fn a_hint_finds_a_conversation_whose_first_message_changed() {
    let memory = memory(MIB);
    visit(&memory, &id(1), hint(1), body("one", 5, 0));
    let arrival = visit(&memory, &id(1), hint(1), body("other", 7, 0));
    assert_eq!(messages(&arrival.predecessor().unwrap().trace), 5);
    assert!(visit(&memory, &id(1), hint(2), body("third", 7, 0)).before.is_none());
}

#[test]
fn what_starts_anew_is_another_conversation() {
    let memory = memory(MIB);
    visit(&memory, &id(1), hint(1), body("one", 5, 0));
    let again = visit(&memory, &id(1), hint(1), body("one", 1, 0));
    assert!(again.predecessor().is_none() && again.conversation().is_none());
    let rewound = visit(&memory, &id(1), hint(1), body("one", 3, 0));
    assert!(rewound.conversation().is_some(), "an earlier turn of a known conversation");
}

#[test]
fn one_question_put_to_several_agents_is_as_many_conversations() {
    let memory = memory(MIB);
    let agent = |system: &str, messages| {
        let body = String::from_utf8(body("one", messages, 0).to_vec()).unwrap();
        Bytes::from(body.replace("Be brief.", system).replace("answer", &format!("{system} Answer")))
    };
    for system in ["Be kind.", "Be just.", "Be calm."] {
        visit(&memory, &id(1), None, agent(system, 1));
    }
    for system in ["Be kind.", "Be calm.", "Be just."] {
        let arrival = visit(&memory, &id(1), None, agent(system, 3));
        assert_eq!(arrival.predecessor().unwrap().trace.received.body(), &agent(system, 1));
    }
    let changed =
        String::from_utf8(agent("Be calm.", 5).to_vec()).unwrap().replacen("Be calm.", "Be kind.", 1);
    let arrival = visit(&memory, &id(1), None, changed.into());
    let before = arrival.predecessor().unwrap().trace.received.body();
    assert_eq!(before, &agent("Be calm.", 3), "the words that were said count more than the system prompt");
}

#[test]
fn tenants_do_not_see_each_other() {
    let memory = memory(MIB);
    visit(&memory, &id(1), hint(1), body("one", 3, 0));
    assert!(visit(&memory, &id(2), hint(1), body("one", 5, 0)).before.is_none());
    assert_eq!(memory.tenants(), 2);
}

#[test]
fn nothing_is_known_of_a_tenant_that_was_not_admitted() {
    let memory = memory(MIB);
    assert!(memory.known_tenant(&id(1)).is_none());
    drop(memory.tenant(&id(1)));
    assert_eq!((memory.tenants(), memory.bytes()), (0, 0));
}

#[test]
fn one_tenant_takes_its_share_and_no_more() {
    let memory = memory(MIB);
    for number in 0..100 {
        visit(&memory, &id(1), None, body(&format!("conversation {number}"), 1, 32 * 1024));
        assert!(memory.bytes() <= MIB / 2, "{number}: {}", memory.bytes());
    }
    assert!(memory.bytes() > MIB / 4, "it is used: {}", memory.bytes());
    let newest = visit(&memory, &id(1), None, body("conversation 99", 3, 32 * 1024));
    assert!(newest.predecessor().is_some());
    assert!(visit(&memory, &id(1), None, body("conversation 0", 3, 32 * 1024)).before.is_none());
}

#[test]
fn the_largest_makes_room_and_the_small_keep_theirs() {
    let memory = memory(MIB);
    visit(&memory, &id(0), None, body("quiet", 1, 1024));
    for tenant in 1..5 {
        for number in 0..20 {
            visit(&memory, &id(tenant), None, body(&format!("busy {number}"), 1, 32 * 1024));
            assert!(memory.bytes() <= MIB + MIB / 8, "{}", memory.bytes());
        }
    }
    assert!(visit(&memory, &id(0), None, body("quiet", 3, 1024)).predecessor().is_some());
}

#[test]
fn a_body_that_is_too_large_is_not_kept() {
    let memory = memory(MIB);
    visit(&memory, &id(1), None, body("huge", 1, MIB));
    assert!(visit(&memory, &id(1), None, body("huge", 3, MIB)).before.is_none());
    assert!(memory.bytes() < 4096, "the layers alone: {}", memory.bytes());
}

#[test]
fn a_tenant_that_was_forgotten_does_not_come_back_with_a_request_on_its_way() {
    let memory = memory(MIB);
    visit(&memory, &id(1), None, body("one", 1, 0));
    let on_its_way = memory.tenant(&id(1));
    assert!(Arc::ptr_eq(&on_its_way, &memory.admit(&id(1), &on_its_way)));
    assert!(memory.forget(&id(1)) && !memory.forget(&id(1)));
    let admitted = memory.admit(&id(1), &on_its_way);
    assert!(!Arc::ptr_eq(&on_its_way, &admitted));
    assert!(Arc::ptr_eq(&admitted, &memory.tenant(&id(1))));
    assert!(visit(&memory, &id(1), None, body("one", 3, 0)).before.is_none());
}

/// A turn of one of several agents that were all sent off with the same words.
fn agent(number: usize, messages: usize, system: &str) -> Bytes {
    let body = String::from_utf8(body("Go.", messages, 0).to_vec()).unwrap();
    body.replace("answer", &format!("I am number {number}, and this is answer"))
        .replace("Be brief.", system)
        .into()
}

#[test]
fn sixteen_that_open_alike_and_take_turns_keep_their_predecessors() {
    let memory = memory(MIB);
    let hints: [fn(usize) -> Option<Hint>; 2] = [|_| None, |number| hint(100 + number as u8)];
    let systems: [fn(usize) -> String; 2] = [|_| "Be brief.".to_owned(), |number| format!("Be {number}.")];
    for (round, (hint, system)) in
        hints.iter().flat_map(|hint| systems.iter().map(move |s| (hint, s))).enumerate()
    {
        let tenant = id(round as u8);
        for turn in 0..6 {
            for number in 0..16 {
                let body = agent(number, 2 * turn + 1, &system(number));
                let arrival = visit(&memory, &tenant, hint(number), body);
                let before = arrival.predecessor().map(|before| before.trace.received.body().clone());
                let last = (turn > 0).then(|| agent(number, 2 * turn - 1, &system(number)));
                assert_eq!(before, last, "round {round}, turn {turn}, agent {number}");
            }
        }
    }
}

#[test]
fn of_many_that_open_alike_few_are_looked_at_and_their_bytes_are_bounded() {
    let memory = memory(MIB);
    for _ in 0..100 {
        visit(&memory, &id(1), None, body("same", 1, 32 * 1024));
        assert!(memory.bytes() <= MIB / 2, "{}", memory.bytes());
    }
    let (tenant, opening) = (memory.tenant(&id(1)), body("same", 3, 32 * 1024));
    let view = View { tenant: &*tenant, hint: None };
    let read = Remembered::read(opening, &view, Attribution::Counted).unwrap();
    let few = crate::engine::request::recall::CANDIDATES_MAX;
    assert_eq!(view.opened(read.opening().unwrap()).len(), few);
    assert!(view.answered(read.opening().unwrap(), read.answer_key()).len() <= few);
}

#[test]
fn room_is_made_in_small_steps_however_many_tenants_there_are() {
    const WAIT_MAX: Duration = Duration::from_millis(500);
    let (memory, filler) = (memory(4 * MIB), 2_000);
    let id = |n: usize| TenantId(*blake3::hash(&n.to_le_bytes()).as_bytes());
    let mut number = 0;
    let held = || memory.budget.held(ByteKind::Recent);
    let mut first_step = || {
        // More at once than a request brings, so that one step is not enough.
        while held() <= memory.limits.recent_bytes + MIB {
            number += 1;
            leave_behind(&memory, &id(number % TENANTS_MAX), None, body(&number.to_string(), 1, filler));
        }
        let started = Instant::now();
        let is_done = memory.shrink(&mut Eviction::default());
        (started.elapsed(), is_done)
    };
    // A machine that is busy with something else makes one step slow, and not each of several.
    let steps: Vec<_> = (0..3).map(|_| first_step()).collect();
    assert!(steps.iter().any(|(took, _)| *took < WAIT_MAX), "{steps:?}");
    assert!(steps.iter().all(|(_, is_done)| !is_done), "there is more to do: {steps:?}");
    shrink(&memory);
    assert!(held() <= memory.limits.recent_bytes);
}

#[test]
fn tenants_are_bounded_and_the_one_longest_away_goes() {
    let memory = memory(MIB);
    let id = |n: usize| TenantId(*blake3::hash(&n.to_le_bytes()).as_bytes());
    for number in 0..TENANTS_MAX + 10 {
        admit(&memory, &id(number));
    }
    assert_eq!(memory.tenants(), TENANTS_MAX);
    assert!(memory.known_tenant(&id(0)).is_none() && memory.known_tenant(&id(TENANTS_MAX)).is_some());
}

/// The request of a parent, and its answer: two calls with a directive each.
fn fan_out(number: usize, filler: usize) -> (Arc<Parent>, Turn) {
    let body = body(&format!("parent {number}"), 1, filler);
    let (request, _) = Remembered::recall(body, &Nothing, Attribution::Counted).unwrap();
    let parent = Parent::new(Arc::new(request), Who::default());
    let calls = ["a", "b"].map(|part| {
        let prompt = format!("Investigate part {part} of {number} and report what you found, in all detail.");
        format!(
            r#"{{"type":"tool_use","id":"{number}{part}","name":"Agent","input":{{"prompt":"{prompt}"}}}}"#
        )
    });
    let answer = format!(r#"{{"id":"m{number}","stop_reason":"tool_use","content":[{}]}}"#, calls.join(","));
    (Arc::new(parent), Turn::from_json(answer.as_bytes(), TurnLimits { bytes: MIB, tool_uses: 10 }))
}

fn seal(tenant: &Tenant, number: usize, filler: usize) -> Arc<ForkPoint> {
    let (parent, turn) = fan_out(number, filler);
    let draft = Draft::begin(parent, false);
    let ended = draft.end(&turn, &Rules::default());
    tenant.look(|state| state.fan_outs.seal(ended, Moment(number as u64))).unwrap()
}

fn bind(tenant: &Tenant, first: &FirstSeen, bound: BoundChild) -> Binding {
    let (bytes, point) = (bound.memory_bytes(), bound.point().cloned());
    let child = Bindable { tools: first.tools, who: Who::default(), value: bound, bytes, point };
    tenant.look(|state| state.fan_outs.bind(child, Moment(0)))
}

fn small(max_bytes: usize) -> Store {
    let limits = Limits { max_bytes, recent_bytes: max_bytes, tenant_share: 1.0 };
    Store::new(limits, Rules::default(), GateSettings::default())
}

#[test]
fn a_child_that_was_left_on_its_own_holds_nothing_of_its_parent() {
    let memory = small(MIB);
    let tenant = admit(&memory, &id(1));
    let fork = seal(&tenant, 1, 100 << 10);
    let tools = Toolset::of(&fork.parent.request, |_| None);
    let child = Child { fork, call: Some(0), rank: Rank::Whole };
    let (id, before) = (child.fork.id, memory.bytes());
    let first = FirstSeen { child, tools, is_snapshot: false, claim: None };
    let bound = BoundChild::new(&first, Fate::Own(Why::Mode), None, Moment(0));
    let binding = bind(&tenant, &first, bound);
    assert!((before..before + 2_048).contains(&memory.bytes()));
    drop(first);
    assert!(tenant.look(|state| state.fan_outs.forget_oldest_point()));
    let fork = tenant.look(|state| state.fan_outs.children().get(binding).unwrap().fork);
    assert!(fork == id && memory.bytes() < 2_048, "{}", memory.bytes());
    drop(tenant);
    memory.forget(&self::id(1));
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn a_request_that_is_a_fork_point_and_a_snapshot_counts_once() {
    let memory = small(MIB);
    let tenant = admit(&memory, &id(1));
    let (parent, turn) = fan_out(1, 100 << 10);
    let mut draft = Draft::begin(parent, false);
    let alone = {
        let snapshot = draft.snapshot(&turn, &Rules::default()).unwrap();
        let record = |fan_outs: &mut FanOuts<_>| fan_outs.record(&mut draft, snapshot, None, Moment(0));
        tenant.look(|state| record(&mut state.fan_outs)).unwrap();
        memory.bytes()
    };
    let ended = draft.end(&turn, &Rules::default());
    let fork = tenant.look(|state| state.fan_outs.seal(ended, Moment(0))).unwrap();
    assert!((alone..alone + (10 << 10)).contains(&memory.bytes()), "{} and {alone}", memory.bytes());
    // What is held by somebody else is counted as long as it is known.
    let forget = || tenant.look(|state| state.fan_outs.forget_oldest_point());
    assert!(forget() && !forget());
    assert!(memory.bytes() > 100 << 10);
    drop(fork);
    assert!(forget());
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn snapshots_and_fork_points_go_by_age_before_anybody_is_forgotten() {
    let memory = small(MIB / 2);
    visit(&memory, &id(2), None, body("quiet", 1, 1024));
    let tenant = admit(&memory, &id(1));
    let snapshot = |number: usize| {
        let (parent, turn) = fan_out(number, 100 << 10);
        let mut draft = Draft::begin(parent, false);
        let snapshot = draft.snapshot(&turn, &Rules::default()).unwrap();
        let now = Moment(number as u64);
        tenant.look(|state| state.fan_outs.record(&mut draft, snapshot, None, now)).map(drop)
    };
    let known = |number: usize| {
        let message = format!("m{number}");
        tenant.look(|state| state.fan_outs.points().by_message(&message).is_some())
    };
    let snapshots = || tenant.look(|state| state.fan_outs.snapshots().len());
    seal(&tenant, 1, 100 << 10);
    snapshot(2).unwrap();
    seal(&tenant, 3, 100 << 10);
    snapshot(4).unwrap();
    assert!(known(1) && known(3) && snapshots() == 2);
    for (number, left) in [(5, (false, true, 2)), (6, (false, true, 1)), (7, (false, true, 1))] {
        // The one that takes most gives up its oldest: in the end that is the other.
        let other = admit(&memory, &id(3));
        seal(&other, number, 110 << 10);
        shrink(&memory);
        assert!(memory.bytes() <= MIB / 2 + (8 << 10), "{number}: {}", memory.bytes());
        assert_eq!((known(1), known(3), snapshots()), left, "{number}");
    }
    assert_eq!(memory.tenants(), 3);
}

/// A turn of a conversation whose thinking is bound to its spelling, sent so many milliseconds after the start: what
/// goes out.
fn bound_turn(memory: &Store, body: &str, sent_ms: u64) -> String {
    aligned_turn(memory, body, sent_ms, true)
}

fn aligned_turn(memory: &Store, body: &str, sent_ms: u64, bound_thinking: bool) -> String {
    let tenant = admit(memory, &id(1));
    let view = View { tenant: &*tenant, hint: None };
    let body = Bytes::copy_from_slice(body.as_bytes());
    let attribution = Attribution::Counted;
    let arrival = view.read(&body, attribution, ReadMode::Spelt(Order::FirstSeen), [].into_iter()).unwrap();
    let rules = align::Rules {
        order: Order::FirstSeen,
        profile: Profile::Automatic,
        attribution,
        system: SystemForm::Auto,
        diagnose: false,
    };
    let facts = align::Facts { bound_thinking, ..align::Facts::default() };
    let spelt = tenant.spellings(|table| align::spell(&arrival, table, &view, rules, &facts)).unwrap();
    let align::Marked { trace, body, .. } =
        align::mark(&arrival, &spelt, rules, &facts, &align::Habits::default());
    tenant.learn(spelt.interns);
    let forwarded = trace.forwarded();
    let alone = Remembered::read(forwarded.body().clone(), &Nothing, attribution).unwrap();
    assert!(*forwarded == alone, "however it came, it is known by its true digests");
    let layer = |layer| Some((layer, trace.whole()?.layer(layer)?));
    let accepted = AcceptedRequest {
        resumes: false,
        outcome: Outcome { sent: Moment(sent_ms), ..Outcome::default() },
        layers: [Layer::Tools, Layer::System].into_iter().filter_map(layer).collect(),
        spelling: (!trace.is_as_it_came()).then(|| Spelling::of(&forwarded)),
        trace,
        conversation: spelt.conversation,
        pins: spelt.pins,
        hint: None,
        faded: None,
    };
    remember(&tenant, &arrival, accepted);
    String::from_utf8(body.pieces.concat()).unwrap()
}

/// A body whose tools come in this order.
fn with_tools(tools: [&str; 2], opening: &str, messages: usize) -> String {
    let tools = tools.map(|name| format!(r#"{{"name":"{name}"}}"#)).join(",");
    let body = String::from_utf8(body(opening, messages, 32 << 10).to_vec()).unwrap();
    body.replace(r#"{"name":"a"}"#, &tools)
}

#[test]
fn a_conversation_that_repeats_itself_keeps_the_spelling_that_it_went_out_in() {
    let memory = memory(MIB);
    // It went out as it came, before the tenant's first spelling of these tools was known.
    visit(&memory, &id(1), None, with_tools(["b", "a"], "early", 1).into());
    let send = |body: &str| aligned_turn(&memory, body, 0, false);
    let first = r#"[{"name":"a"},{"name":"b"}]"#;
    send(&with_tools(["a", "b"], "first", 1));
    assert!(send(&with_tools(["b", "a"], "late", 1)).contains(first));
    let early = |messages| with_tools(["b", "a"], "early", messages);
    for messages in [3, 5] {
        assert!(send(&early(messages)) == early(messages), "another order would cost it what it has cached");
    }
    let anew = early(7).replace(r#"{"name":"b"}"#, r#"{ "name":"b"}"#);
    assert!(send(&anew).contains(first), "it costs it nothing any more");
    assert!(send(&early(9)).contains(first), "and so it stays");
}

#[test]
fn what_is_spelt_anew_each_turn_is_put_back_before_it_is_read() {
    let memory = memory(MIB);
    let turn = |messages: usize, tools: &str| {
        let message = |number: usize| {
            format!(r#"{{"role":"{}","content":"{number}"}}"#, ["user", "assistant"][number % 2])
        };
        let messages: Vec<_> = (0..messages).map(message).collect();
        format!(r#"{{"model":"m","messages":[{}],"tools":[{tools}]}}"#, messages.join(","))
    };
    let spellings = [
        r#"{"name":"a","input_schema":{"x":1,"y":2}},{"name":"b"}"#,
        r#"{"name":"a","input_schema":{"y":2,"x":1}},{"name":"b"}"#,
        r#"{"name":"b"},{"input_schema":{"x":1,"y":2},"name":"a"}"#,
        r#"{"input_schema":{"y":2,"x":1},"name":"a"},{"name":"b"}"#,
    ];
    // Whether the last request was remembered as it came.
    let is_as_it_came = |came: &str| {
        let tenant = admit(&memory, &id(1));
        let opening = Opening::glimpse(turn(1, "").as_bytes()).unwrap();
        let known = View { tenant: &*tenant, hint: None }.opened(opening);
        known.first().unwrap().body() == came.as_bytes()
    };
    let told: Vec<bool> = [0, 1, 2, 2, 3, 0, 0, 1, 2]
        .into_iter()
        .enumerate()
        .map(|(index, spelling)| {
            let came = turn(2 * index + 1, spellings[spelling]);
            let sent = aligned_turn(&memory, &came, 0, false);
            assert_eq!(sent, turn(2 * index + 1, spellings[0]), "turn {index}");
            is_as_it_came(&came)
        })
        .collect();
    // The second is the first to come so, and is looked up part by part.
    assert_eq!(told, [true, true, false, false, false, true, true, false, false]);
}

#[test]
fn a_request_that_was_put_back_can_still_be_taken_as_it_came() {
    let memory = memory(MIB);
    let view = |tenant: &Arc<Tenant>, body: &str| {
        let view = View { tenant: &**tenant, hint: None };
        view.read(
            &body.to_owned().into(),
            Attribution::Counted,
            ReadMode::Spelt(Order::FirstSeen),
            [].into_iter(),
        )
        .unwrap()
    };
    aligned_turn(&memory, &with_tools(["a", "b"], "opening", 1), 0, false);
    aligned_turn(&memory, &with_tools(["b", "a"], "opening", 3), 0, false);
    // One that keeps to an order of its own is read as it came; this one spells anew each turn.
    let came = with_tools(["b", "a"], "opening", 5).replacen("},{", "}, {", 1);
    let mut arrival = view(&admit(&memory, &id(1)), &came);
    assert_eq!(arrival.received.body(), with_tools(["a", "b"], "opening", 5).as_bytes());
    assert_eq!(arrival.body(), came.as_bytes());
    let alone = Remembered::read(came.into(), &Nothing, Attribution::Counted).unwrap();
    assert_eq!(untouched(&arrival).reading().shared_pieces(&arrival.received), 0, "nobody has cached it so");
    arrival.take_as_it_came();
    assert!(*arrival.received == alone);
    assert_eq!(arrival.settled(false), SharedParts::default());
}

#[test]
fn what_was_chosen_for_bound_thinking_outlives_the_body() {
    for (later_ms, is_kept) in [(1_000, true), (3_600_002, false)] {
        let memory = memory(MIB);
        bound_turn(&memory, &with_tools(["a", "b"], "first", 1), 0);
        // Its tools are respelt as the tenant's first were.
        let turn = |messages: usize| with_tools(["b", "a"], "chosen", messages);
        assert!(bound_turn(&memory, &turn(1), 1).contains(r#"[{"name":"a"},{"name":"b"}]"#));
        for other in 0..40 {
            bound_turn(&memory, &with_tools(["a", "b"], &format!("other {other}"), 1), later_ms);
            assert!(memory.bytes() <= MIB / 2 + (64 << 10), "{}", memory.bytes());
        }
        for messages in [3, 5] {
            let sent = bound_turn(&memory, &turn(messages), later_ms);
            assert_eq!(sent.contains(r#"[{"name":"a"},{"name":"b"}]"#), is_kept, "after {later_ms} ms");
        }
        memory.forget(&id(1));
        assert_eq!(memory.bytes(), 0);
    }
}

#[test]
fn choices_are_bounded_and_the_oldest_goes_first() {
    let memory = memory(256 << 10);
    let turn = |number: usize, messages: usize| {
        // A prompt of its own, which it shares with nobody.
        let prompt = format!("{number}").repeat(2 << 10);
        with_tools(["b", "a"], &format!("opening {number}"), messages).replace("Be brief.", &prompt)
    };
    bound_turn(&memory, &with_tools(["a", "b"], "first", 1), 0);
    for number in 1..60 {
        bound_turn(&memory, &turn(number, 1), 1);
        let tables = admit(&memory, &id(1)).spellings(Table::bytes);
        assert!(memory.bytes() - tables <= 128 << 10, "{number}: {}", memory.bytes() - tables);
    }
    let respelt =
        |number: usize| bound_turn(&memory, &turn(number, 3), 2).contains(r#"[{"name":"a"},{"name":"b"}]"#);
    assert!(respelt(55) && !respelt(2));
}

#[test]
fn a_credential_with_many_workspaces_takes_the_places_of_its_own_tenants() {
    let memory = memory(1 << 20);
    let payer = id(1);
    let admitted = |number: u8| {
        let tenant = memory.tenant(&id(number));
        tenant.paid_by(payer);
        memory.admit(&id(number), &tenant);
    };
    admit(&memory, &id(2));
    (10..10 + TENANTS_PER_PAYER_MAX as u8).for_each(admitted);
    assert_eq!(memory.tenants(), 1 + TENANTS_PER_PAYER_MAX);
    memory.known_tenant(&id(10));
    admitted(200);
    assert_eq!(memory.tenants(), 1 + TENANTS_PER_PAYER_MAX);
    assert!(memory.known_tenant(&id(11)).is_none(), "the one that was away for longest has gone");
    assert!([2, 10, 12, 200].iter().all(|number| memory.known_tenant(&id(*number)).is_some()));
}

#[test]
fn a_step_forgets_a_few_fan_outs_and_the_next_goes_on_from_there() {
    const TENANTS: u8 = 200;
    let memory = small(MIB);
    for number in 0..TENANTS {
        seal(&admit(&memory, &id(number)), usize::from(number), 10 << 10);
    }
    let (before, mut eviction) = (memory.forks(), Eviction::default());
    assert!(!memory.shrink(&mut eviction), "there is more to do");
    let after = memory.forks();
    assert!((before - 80..before).contains(&after), "{before} and {after}");
    while !memory.shrink(&mut eviction) {}
    assert!(memory.bytes() <= MIB && memory.forks() < after);
    assert_eq!(memory.tenants(), usize::from(TENANTS));
}

#[test]
fn one_evictor_is_enough() {
    let memory = small(MIB);
    let evictor = memory.evictor();
    assert!(evictor.is_some() && memory.evictor().is_none());
    drop(evictor);
    assert!(memory.evictor().is_some());
}
