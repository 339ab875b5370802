//! What becomes a fork point, what does not, and what is left of either.

use proptest::prelude::*;

use super::*;
use crate::engine::words::{Spawning, WhyPlain};

fn draft(body: &Value) -> Draft {
    Draft::begin(parent(body, BARE), false)
}

fn plain_draft() -> Draft {
    draft(&request(&["Agent"], &[user(json!("go"))]))
}

fn agents(count: usize) -> Vec<Value> {
    (0..count).map(|n| call(&format!("t{n}"), "Agent", json!({"p": directive(&n.to_string())}))).collect()
}

/// Why this answer leaves no fork point, and that nothing is held.
#[track_caller]
fn dropped(turn: &Turn) -> &'static str {
    let mut scene = Scene::new();
    let mut early = plain_draft();
    for block in turn.blocks.iter().take(2) {
        if early.push(block.clone(), scene.forks.points().rules()) {
            let _ = scene.forks.pending(turn.id.as_deref().unwrap_or("m"), &mut early, scene.now);
        }
    }
    let why = scene.seal(early, turn).unwrap_err();
    assert_eq!((scene.forks.points().len(), scene.forks.bytes()), (0, 0));
    assert!(scene.forks.points.leaves.is_empty());
    assert!(scene.forks.points().parent_of(["t0", "t1"]).is_none());
    why.as_str()
}

#[test]
fn only_a_whole_turn_that_ends_with_two_directed_calls_is_a_fan_out() {
    let good = answer("m", "tool_use", &agents(2));
    assert!(Scene::new().seal(plain_draft(), &good).is_ok());

    assert_eq!(dropped(&answer("m", "tool_use", &agents(1))), "few_calls");
    assert_eq!(dropped(&answer("m", "max_tokens", &agents(2))), "stop_reason");
    assert_eq!(dropped(&answer("m", "end_turn", &[text("hi")])), "few_calls");
    assert_eq!(dropped(&Turn { wholeness: Default::default(), ..good.clone() }), "unfinished");
    assert_eq!(dropped(&Turn::default()), "few_calls", "it never called anybody");
    for n in ["abc".to_owned(), "a b ".repeat(1 << 18)] {
        let calls = ["t0", "t1"].map(|id| call(id, "Agent", json!({"p": n})));
        assert_eq!(dropped(&answer("m", "tool_use", &calls)), "few_directives");
    }
    let reused = ["t0", "t0"].map(|id| call(id, "Agent", json!({"p": directive("a")})));
    assert_eq!(dropped(&answer("m", "tool_use", &reused)), "reused_id");
    let mut odd = agents(2);
    odd[1]["id"] = json!(7);
    assert_eq!(dropped(&answer("m", "tool_use", &odd)), "bad_call");
    assert_eq!(dropped(&answer("m", "tool_use", &agents(10_000))), "too_large");
    let broken = br#"{"id":"m","content":[{"type":"tool_use","id":"t","name":"n","input":{"a":}}]}"#;
    assert_eq!(dropped(&Turn::from_json(broken, LIMITS)), "unfaithful");
    assert_eq!(dropped(&Turn { id: None, ..good }), "no_message_id");
}

#[test]
fn server_tools_must_have_answered() {
    let mut blocks = agents(2);
    blocks.insert(0, json!({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}));
    assert_eq!(dropped(&answer("m", "tool_use", &blocks)), "server_tools");
    blocks.insert(1, json!({"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}));
    assert!(Scene::new().seal(plain_draft(), &answer("m", "tool_use", &blocks)).is_ok());
    let mut programmed = agents(2);
    programmed[0]["caller"] = json!({"type": "direct"});
    assert!(Scene::new().seal(plain_draft(), &answer("m", "tool_use", &programmed)).is_ok());
    programmed[1]["caller"] = json!({"type": "code_execution_20250825", "tool_id": "srv"});
    assert_eq!(dropped(&answer("m", "tool_use", &programmed)), "server_tools");
}

#[test]
fn a_stream_cut_midway_leaves_nothing() {
    let blocks = agents(3);
    let turn = answer("m", "tool_use", &blocks);
    for cut in 0..3 {
        let mut scene = Scene::new();
        let mut early = plain_draft();
        for block in &turn.blocks[..=cut] {
            assert!(early.push(block.clone(), scene.forks.points().rules()));
            scene.forks.pending("m", &mut early, scene.now).unwrap();
        }
        assert_eq!(scene.forks.points().len(), 1);
        assert_eq!(say(&scene.ask(&child(&directive("0")), BARE)), "child");
        let cut = Turn { wholeness: Default::default(), ..turn.clone() };
        assert_eq!(scene.seal(early, &cut).unwrap_err(), FanOutDropped::Unfinished);
        assert_eq!((scene.forks.points().len(), scene.forks.bytes()), (0, 0));
        assert_eq!(say(&scene.ask(&child(&directive("0")), BARE)), "no_fork_point");
    }
}

#[test]
fn a_claim_made_before_the_seal_holds_after_it() {
    let mut scene = Scene::new();
    let turn = answer("m", "tool_use", &agents(2));
    let mut early = plain_draft();
    early.push(turn.blocks[0].clone(), scene.forks.points().rules());
    scene.forks.pending("m", &mut early, scene.now).unwrap();
    let body = child(&directive("0"));
    assert_eq!(say(&scene.ask(&body, BARE)), "child");
    scene.seal(early, &turn).unwrap();
    assert_eq!(say(&scene.ask(&body, BARE)), "child");
    let mut other = body.clone();
    other["max_tokens"] = json!(1);
    assert_eq!(say(&scene.ask(&other, BARE)), "claimed");
}

#[test]
fn the_children_of_children_are_known_as_such() {
    let is_nested = |body: &Value, headers: Headers, is_child: bool| {
        let mut scene = Scene::new();
        let draft = Draft::begin(parent(body, headers), is_child);
        let turn = answer("m", "tool_use", &agents(2));
        let fork = scene.seal(draft, &turn).unwrap();
        let agent = headers.session.and(Some(9));
        let found = as_child(scene.ask(&child(&directive("1")), Headers { agent, ..headers }));
        assert_eq!(found, (fork.id.to_string(), Some(1), Rank::Whole));
        fork.is_nested
    };
    let body = request(&["Agent"], &[user(json!("go"))]);
    assert!(!is_nested(&body, BARE, false));
    assert!(is_nested(&body, BARE, true));
    assert!(is_nested(&body, claude(1, Some(1)), false));
    let tag = format!("{CHILD_TAG}You are the fork.");
    let forked = request(&["Agent"], &[user(json!([result("t", json!([text(PLACEHOLDER)])), text(&tag)]))]);
    assert!(is_nested(&forked, BARE, false));
}

#[test]
fn ids_of_another_fan_out_are_not_taken_over() {
    let mut scene = Scene::new();
    let turn = |id: &str| answer(id, "tool_use", &agents(2));
    let first = scene.seal(plain_draft(), &turn("m1")).unwrap();
    let again = scene.seal(plain_draft(), &turn("m2"));
    assert_eq!(again.unwrap_err(), FanOutDropped::ReusedId);
    assert_eq!(scene.forks.points().parent_of(["t0"]).unwrap().id, first.id);
    // The same message once more is the same fork point.
    scene.seal(plain_draft(), &turn("m1")).unwrap();
    assert_eq!(scene.forks.points().len(), 1);
}

#[test]
fn only_so_many_fan_outs_are_pending_at_once() {
    let mut scene = Scene::new();
    let early = |n: usize| {
        let mut early = plain_draft();
        let block = call(&format!("t{n}"), "Agent", json!({"p": directive(&n.to_string())}));
        early.push(answer("m", "", &[block]).blocks[0].clone(), &Rules::default());
        early
    };
    for n in 0..64 {
        scene.forks.pending(&format!("m{n}"), &mut early(n), scene.now).unwrap();
    }
    assert_eq!(scene.forks.pending("m64", &mut early(64), scene.now), Err(FanOutDropped::PendingForks));
    assert!(scene.forks.pending("m63", &mut early(63), scene.now).is_ok());
    scene.wait(3_601);
    scene.forks.expire(scene.now);
    assert_eq!((scene.forks.points().len(), scene.forks.bytes()), (0, 0));
    assert!(scene.forks.pending("m64", &mut early(64), scene.now).is_ok());
}

#[test]
fn memory_is_bounded_and_what_is_held_stays() {
    let mut scene = Scene::new();
    scene.forks = FanOuts::new(TENANT, Rules { bytes: 640 << 10, ..Rules::default() });
    let large = |n: usize| request(&["Agent"], &[user(json!(format!("{n}{}", "x".repeat(10 << 10))))]);
    let calls = |n: usize| ["a", "b"].map(|t| call(&format!("{n}{t}"), "Agent", json!({"p": directive(t)})));
    let held = scene.fan_out(&large(0), BARE, "m0", &calls(0));
    for n in 1..100 {
        scene.fan_out(&large(n), BARE, &format!("m{n}"), &calls(n));
        assert!(scene.forks.bytes() <= scene.forks.points().rules().bytes);
    }
    assert!((40..64).contains(&scene.forks.points().len()), "{}", scene.forks.points().len());
    assert!(scene.forks.points().get(held.id).is_some());
    assert!(
        scene.forks.points().by_message("m1").is_none() && scene.forks.points().by_message("m99").is_some()
    );
    while scene.forks.points().len() > 1 {
        assert!(scene.forks.forget_oldest_point());
    }
    assert!(!scene.forks.forget_oldest_point() && scene.forks.points().get(held.id).is_some());
    // Once forgotten it is still counted as long as a child holds it, and not for a request in flight.
    let first = read(&child(&directive("a")));
    let forked = Bindable {
        tools: Toolset::of(&first, |_| None),
        who: who(&first, BARE),
        value: (),
        bytes: 0,
        point: Some(Arc::clone(&held)),
    };
    let before = scene.forks.bytes();
    let binding = scene.forks.bind(forked, scene.now);
    let own = scene.forks.bytes() - before;
    scene.wait(10_000);
    scene.forks.expire(scene.now);
    assert_eq!((scene.forks.points().len(), scene.forks.bytes() - own), (0, held.memory_bytes()));
    scene.forks.release(binding);
    assert_eq!(scene.forks.bytes(), 0);
    drop(held);

    let giant = request(&["Agent"], &[user(json!("x".repeat(641 << 10)))]);
    let refused = scene.seal(draft(&giant), &answer("m", "tool_use", &agents(2)));
    assert_eq!(refused.unwrap_err(), FanOutDropped::TooLarge);
    assert_eq!(scene.forks.bytes(), 0);
}

#[test]
fn every_reason_has_its_own_spelling() {
    let distinct = |words: &[&str]| words.iter().collect::<std::collections::HashSet<_>>().len();
    assert_eq!(distinct(&FanOutDropped::ALL.map(FanOutDropped::as_str)), FanOutDropped::ALL.len());
    assert_eq!(distinct(&WhyPlain::ALL.map(WhyPlain::as_str)), WhyPlain::ALL.len());
    assert_eq!(distinct(&[Rank::Contained, Rank::Whole, Rank::Explicit].map(Rank::as_str)), 3);
    assert_eq!(distinct(&[Spawning::Listed, Spawning::Learned, Spawning::Unknown].map(Spawning::as_str)), 3);
}

#[derive(Clone, Debug)]
enum Step {
    Begin(usize, usize),
    Grow(usize),
    Seal(usize, bool),
    Child(usize, usize),
    Wait(u64),
    Evict,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6usize, 0..5usize).prop_map(|(fork, calls)| Step::Begin(fork, calls)),
        (0..6usize).prop_map(Step::Grow),
        (0..6usize, any::<bool>()).prop_map(|(fork, whole)| Step::Seal(fork, whole)),
        (0..6usize, 0..5usize).prop_map(|(fork, call)| Step::Child(fork, call)),
        prop::sample::select(vec![1, 100, 400, 4_000]).prop_map(Step::Wait),
        Just(Step::Evict),
    ]
}

proptest! {
    /// Whatever happens in whatever order: a child belongs to a call that carries its very directive, and when
    /// all is over nothing is left.
    #[test]
    fn every_child_has_its_directive_and_nothing_leaks(steps in prop::collection::vec(steps(), 0..60)) {
        let mut scene = Scene::new();
        let mut open: Vec<Option<(Draft, Turn)>> = (0..6).map(|_| None).collect();
        for step in steps {
            match step {
                Step::Begin(fork, calls) => {
                    let body = request(&["Agent"], &[user(json!(format!("parent {fork}")))]);
                    let calls: Vec<_> = (0..calls)
                        .map(|n| call(&format!("{fork}_{n}"), "Agent", json!({"p": directive(&format!("{} {n}", fork / 2))})))
                        .collect();
                    open[fork] = Some((draft(&body), answer(&format!("m{fork}"), "tool_use", &calls)));
                }
                Step::Grow(fork) => if let Some((draft, turn)) = &mut open[fork]
                    && let Some(block) = turn.blocks.get(draft.blocks.len())
                    && draft.push(block.clone(), scene.forks.points().rules())
                {
                    let _ = scene.forks.pending(&format!("m{fork}"), draft, scene.now);
                },
                Step::Seal(fork, whole) => if let Some((draft, mut turn)) = open[fork].take() {
                    if !whole {
                        turn.wholeness = Default::default();
                    }
                    let count = turn.blocks.len();
                    let sealed = scene.seal(draft, &turn);
                    prop_assert_eq!(sealed.is_ok(), whole && count >= 2);
                },
                Step::Child(fork, n) => {
                    let told = directive(&format!("{} {n}", fork / 2));
                    match scene.ask(&child(&told), BARE) {
                        Recognised::Child(child, _) => {
                            let call = &child.fork.calls[child.call.unwrap()];
                            prop_assert_eq!(&*call.directives[0], told.as_str());
                        }
                        Recognised::Plain(_) | Recognised::Ambiguous => {}
                        other => prop_assert!(false, "{}", say(&other)),
                    }
                }
                Step::Wait(seconds) => scene.wait(seconds),
                Step::Evict => { scene.forks.forget_oldest_point(); }
            }
            let points = scene.forks.points.slots.values().map(|slot| &slot.point);
            let sum: usize = points.map(|point| point.memory_bytes()).sum();
            prop_assert_eq!(scene.forks.bytes(), sum);
        }
        drop(open);
        scene.wait(10_000);
        scene.forks.expire(scene.now);
        prop_assert_eq!((scene.forks.points().len(), scene.forks.bytes()), (0, 0));
        prop_assert!(scene.forks.points.leaves.is_empty());
    }
}

#[test]
fn texts_that_say_nothing_are_left_out_of_the_turn() {
    let task = |id: &str| call(id, "spawn_agent", json!({"task": directive(id)}));
    let said = [text("Splitting."), task("a"), task("b")];
    let blocks =
        [text(""), said[0].clone(), text(" \n"), said[1].clone(), text(""), said[2].clone(), text("")];
    let mut scene = Scene::new();
    let body = request(&["spawn_agent"], &[user(json!("go"))]);
    let mut draft = Draft::begin(parent(&body, BARE), false);
    let turn = answer("msg_1", "tool_use", &blocks);
    // Some blocks come while it streams, the others with its end.
    for block in &turn.blocks[..4] {
        draft.push(block.clone(), scene.forks.points().rules());
    }
    let fork = scene.seal(draft, &turn).unwrap();
    let message: Value = serde_json::from_slice(fork.message.as_ref().unwrap()).unwrap();
    assert_eq!(message, assistant(&said));
    for (block, said) in fork.blocks.iter().zip(&said) {
        assert_eq!(serde_json::from_slice::<Value>(block).unwrap(), *said);
    }
    assert_eq!(fork.calls.iter().map(|call| call.block).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_turn_that_another_model_took_over_is_no_fork_point() {
    let mut scene = Scene::new();
    let calls =
        ["a", "b"].map(|topic| call(&format!("t_{topic}"), "Agent", json!({"prompt": directive(topic)})));
    let fallback = json!({"type": "fallback", "from": {"model": "m"}, "to": {"model": "n"}, "trigger": {}});
    let blocks = [vec![text("No."), fallback], calls.to_vec()].concat();
    let body = request(&["Agent"], &[user(json!("Go."))]);
    let turn = answer("msg_1", "tool_use", &blocks);
    let mut draft = Draft::begin(parent(&body, BARE), false);
    for block in &turn.blocks {
        assert!(!draft.push(block.clone(), &Rules::default()) || block.kind == "tool_use");
    }
    assert_eq!(draft.spoilt, Some(FanOutDropped::Unfaithful), "also before it ends");
    assert_eq!(scene.seal(draft, &turn).unwrap_err(), FanOutDropped::Unfaithful);
}

#[test]
fn a_turn_that_begins_with_a_summary_by_threshold_is_replayed_with_it() {
    let mut scene = Scene::new();
    let mut builder = TurnBuilder::new(LIMITS);
    let mut push = |event: Value| builder.push(event.to_string().as_bytes());
    push(json!({"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 9}}}));
    push(
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": null}}),
    );
    push(json!({"type": "content_block_delta", "index": 0,
        "delta": {"type": "compaction_delta", "content": "So \"far\"."}}));
    push(json!({"type": "content_block_stop", "index": 0}));
    let calls =
        ["a", "b"].map(|topic| call(&format!("t_{topic}"), "Agent", json!({"prompt": directive(topic)})));
    for (index, block) in calls.iter().enumerate() {
        push(json!({"type": "content_block_start", "index": index + 1, "content_block": block}));
        push(json!({"type": "content_block_stop", "index": index + 1}));
    }
    let usage = json!({"input_tokens": 23, "output_tokens": 7, "iterations": [
        {"type": "compaction", "input_tokens": 180, "output_tokens": 35},
        {"type": "message", "input_tokens": 23, "output_tokens": 7}]});
    push(json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage}));
    push(json!({"type": "message_stop"}));
    let body = request(&["Agent"], &[user(json!("Go."))]);
    let sealed = scene.seal(Draft::begin(parent(&body, BARE), false), &builder.finish()).unwrap();
    let message: Value = serde_json::from_slice(sealed.message.as_ref().unwrap()).unwrap();
    assert_eq!(message["content"][0], json!({"type": "compaction", "content": "So \"far\"."}));
    let usage = sealed.usage.unwrap();
    assert_eq!((usage.uncached, usage.output), (23, 7), "the size of the conversation from here on");
}
