//! A child keeps what was decided for it, and nobody else gets it.

use proptest::prelude::*;

use super::*;
use crate::engine::family::fanout::bindings::Life;

/// The children of one tenant.
fn children<B>() -> FanOuts<B> {
    FanOuts::new(TENANT, Rules::default())
}

/// A child of this first request, which keeps its own prompt.
fn bindable<B>(request: &Remembered, who: Who, value: B, bytes: usize) -> Bindable<B> {
    Bindable { tools: Toolset::of(request, |_| None), who, value, bytes, point: None }
}

fn answered<B>(bindings: &mut FanOuts<B>, binding: Binding, request: &Remembered, message: &[u8]) {
    if bindings.children().needs_start(binding, request) {
        bindings.answered(binding, StartMeaning::of_answered(request, message));
    }
}

fn first(topic: &str) -> Remembered {
    read(&child(&directive(topic)))
}

fn read_bytes(body: &str) -> Remembered {
    Remembered::read(Bytes::from(body.to_owned()), &Nothing, Attribution::Stripped).unwrap()
}

fn later(topic: &str, messages: &[Value]) -> Remembered {
    let mut all = vec![user(json!([text(&directive(topic))]))];
    all.extend_from_slice(messages);
    read(&request(&["get_fact"], &all))
}

/// A binding for a child of `topic`, whose first answer was these blocks.
fn bound(
    bindings: &mut FanOuts<&'static str>,
    topic: &str,
    headers: Headers,
    blocks: &[Value],
    value: &'static str,
) -> Binding {
    let request = first(topic);
    let who = who(&request, headers);
    let binding = bindings.bind(bindable(&request, who, value, 100), Moment(0));
    let ids = blocks.iter().filter_map(|block| block["id"].as_str());
    ids.for_each(|id| bindings.called(binding, id));
    answered(bindings, binding, &request, assistant(blocks).to_string().as_bytes());
    binding
}

#[test]
fn a_child_is_known_by_the_summary_that_it_goes_on_from() {
    let mut bindings = children();
    let binding = bound(&mut bindings, "roads", BARE, &[text("So.")], "one");
    let summary =
        |signature: &str| json!({"type": "compaction", "content": "So far.", "signature": signature});
    let name = summary_name(summary("a").to_string().as_bytes()).unwrap();
    bindings.called(binding, &name);
    for (signature, found) in [("a", Some("one")), ("b", None)] {
        let block = summary(signature);
        for first in [assistant(std::slice::from_ref(&block)), user(json!([block, text("On.")]))] {
            let again = read(&request(&["get_fact"], &[first, user(json!("Go on."))]));
            assert_eq!(find(&mut bindings, &again, BARE, 1), found, "{signature}");
        }
    }
}

fn find(
    bindings: &mut FanOuts<&'static str>,
    request: &Remembered,
    headers: Headers,
    now: u64,
) -> Option<&'static str> {
    let who = who(request, headers);
    let found = find_child(request, |marks| bindings.find(marks, &who, Moment(now)));
    found.map(|binding| *bindings.children().get(binding).unwrap())
}

#[test]
fn any_call_that_streamed_to_a_child_finds_it() {
    let mut bindings = children();
    let calls = [call("c1", "get_fact", json!({})), call("c2", "get_fact", json!({}))];
    let binding = bound(&mut bindings, "a", BARE, &calls, "mine");
    let results = user(json!([result("c1", json!("r")), result("c2", json!("r"))]));
    let second = later("a", &[assistant(&calls), results.clone()]);
    assert_eq!(find(&mut bindings, &second, BARE, 1), Some("mine"));
    bindings.called(binding, "c3");
    // The client has compacted its history; one id is left.
    let third = later(
        "summary",
        &[assistant(&[call("c3", "get_fact", json!({}))]), user(json!([result("c3", json!("r"))]))],
    );
    assert_eq!(find(&mut bindings, &third, BARE, 2), Some("mine"));
    assert_eq!(find(&mut bindings, &first("a"), BARE, 3), None);
}

#[test]
fn without_calls_the_start_finds_it_however_it_is_spelt() {
    let mut bindings = children();
    bound(
        &mut bindings,
        "a",
        BARE,
        &[json!({"type": "thinking", "thinking": "", "signature": "s"}), text("Done.")],
        "mine",
    );
    let mut more = later("a", &[json!({"role": "assistant", "content": "Done."}), user(json!("And now?"))]);
    assert_eq!(find(&mut bindings, &more, BARE, 1), Some("mine"));
    more = later(
        "a",
        &[json!({"role": "assistant", "content": [{"text": "Done.", "type": "text"}]}), user(json!("?"))],
    );
    assert_eq!(find(&mut bindings, &more, BARE, 1), Some("mine"));
    let other = later("a", &[assistant(&[text("Failed.")]), user(json!("?"))]);
    assert_eq!(find(&mut bindings, &other, BARE, 1), None);
    let other = later("b", &[assistant(&[text("Done.")]), user(json!("?"))]);
    assert_eq!(find(&mut bindings, &other, BARE, 1), None);
}

#[test]
fn a_clients_own_fork_is_found_by_the_turns_it_started_with() {
    let mut bindings = children();
    let start =
        [assistant(&[call("p1", "Agent", json!({"p": "x"}))]), user(json!([result("p1", json!("r"))]))];
    let request = later("a", &start);
    let headers = claude(1, Some(4));
    let binding = bindings.bind(bindable(&request, who(&request, headers), "mine", 0), Moment(0));
    answered(&mut bindings, binding, &request, assistant(&[text("Done.")]).to_string().as_bytes());
    let more = later("a", &[&start[..], &[assistant(&[text("Done.")]), user(json!("?"))]].concat());
    assert_eq!(find(&mut bindings, &more, headers, 1), Some("mine"));
    assert_eq!(find(&mut bindings, &more, claude(1, Some(5)), 1), None);
}

#[test]
fn agent_model_and_tools_must_agree() {
    let mut bindings = children();
    let calls = [call("c1", "get_fact", json!({}))];
    bound(&mut bindings, "a", claude(1, Some(4)), &calls, "mine");
    let messages = [user(json!(directive("a"))), assistant(&calls), user(json!([result("c1", json!("r"))]))];
    let good = request(&["get_fact"], &messages);
    assert_eq!(find(&mut bindings, &read(&good), claude(1, Some(4)), 1), Some("mine"));
    assert_eq!(find(&mut bindings, &read(&good), claude(1, Some(5)), 1), None);
    assert_eq!(find(&mut bindings, &read(&good), claude(1, None), 1), None);
    let mut model = good.clone();
    model["model"] = json!("claude-y");
    assert_eq!(find(&mut bindings, &read(&model), claude(1, Some(4)), 1), None);
    assert_eq!(find(&mut bindings, &read(&request(&["other"], &messages)), claude(1, Some(4)), 1), None);
}

#[test]
fn two_conversations_that_start_alike_are_told_apart_or_left_alone() {
    let mut bindings = children();
    let session = |session| Headers { session: Some(session), ..BARE };
    bound(&mut bindings, "a", session(1), &[text("Done.")], "one");
    bound(&mut bindings, "a", session(2), &[text("Done.")], "two");
    let more = later("a", &[assistant(&[text("Done.")]), user(json!("?"))]);
    assert_eq!(find(&mut bindings, &more, session(1), 1), Some("one"));
    assert_eq!(find(&mut bindings, &more, session(2), 1), Some("two"));
    assert_eq!(find(&mut bindings, &more, BARE, 1), None);
    bound(&mut bindings, "a", session(2), &[text("Done.")], "three");
    assert_eq!(find(&mut bindings, &more, session(2), 1), None);
    // One call id for two children names neither.
    let calls = [call("c", "get_fact", json!({}))];
    bound(&mut bindings, "x", BARE, &calls, "x");
    bound(&mut bindings, "y", BARE, &calls, "y");
    let third = later("z", &[assistant(&calls), user(json!([result("c", json!("r"))]))]);
    assert_eq!(find(&mut bindings, &third, BARE, 1), None);
}

#[test]
fn an_id_given_to_several_children_names_none_of_them_as_long_as_one_lives() {
    let mut bindings = children();
    let calls = [call("c", "get_fact", json!({}))];
    let made = ["x", "y", "z"].map(|topic| bound(&mut bindings, topic, BARE, &calls, topic));
    let echo = [assistant(&calls), user(json!([result("c", json!("r"))]))];
    let compacted = later("a summary", &echo);
    assert_eq!(find(&mut bindings, &compacted, BARE, 1), None);
    for topic in ["x", "y", "z"] {
        let own = later(topic, &echo);
        assert_eq!(find(&mut bindings, &own, BARE, 1).unwrap(), topic, "its start tells it apart");
    }
    for binding in &made[..2] {
        bindings.release(*binding);
        assert_eq!(find(&mut bindings, &compacted, BARE, 2), None);
    }
    bindings.release(made[2]);
    assert_eq!((bindings.children().keys(), bindings.bytes()), (0, 0));
}

#[test]
fn another_session_or_user_is_not_given_a_childs_prefix_by_its_call() {
    let mut bindings = children();
    let calls = [call("c1", "get_fact", json!({}))];
    let session = |session| Headers { session: Some(session), ..BARE };
    bound(&mut bindings, "a", session(1), &calls, "mine");
    let messages = [user(json!(directive("a"))), assistant(&calls), user(json!([result("c1", json!("r"))]))];
    let mut body = request(&["get_fact"], &messages);
    assert_eq!(find(&mut bindings, &read(&body), session(1), 1), Some("mine"));
    assert_eq!(find(&mut bindings, &read(&body), session(2), 1), None);
    assert_eq!(find(&mut bindings, &read(&body), BARE, 1), None);
    body["metadata"] = json!({"user_id": "somebody else"});
    assert_eq!(find(&mut bindings, &read(&body), session(1), 1), None);
}

#[test]
fn tools_in_another_order_and_spelling_are_the_same_tools() {
    let mut bindings = children();
    let calls = [call("c1", "get_fact", json!({}))];
    let tools = ["get_fact", "search"];
    let start = read(&request(&tools, &[user(json!(directive("a")))]));
    let binding = bindings.bind(bindable(&start, who(&start, BARE), "mine", 0), Moment(0));
    bindings.called(binding, "c1");
    let messages = [user(json!(directive("a"))), assistant(&calls), user(json!([result("c1", json!("r"))]))];
    let mut shuffled = request(&["search", "get_fact"], &messages).to_string();
    assert_eq!(find(&mut bindings, &read_bytes(&shuffled), BARE, 1), Some("mine"));
    shuffled = shuffled.replace(r#""description":"d""#, r#""description": "\u0064""#);
    assert_eq!(find(&mut bindings, &read_bytes(&shuffled), BARE, 1), Some("mine"));
    let other = shuffled.replace(r#"\u0064"#, "another");
    assert_eq!(find(&mut bindings, &read_bytes(&other), BARE, 1), None);
    let fewer = read(&request(&["search"], &messages));
    assert_eq!(find(&mut bindings, &fewer, BARE, 1), None);
}

#[test]
fn an_agent_that_sums_up_all_it_said_is_still_the_same_child() {
    let mut bindings = children();
    let (mine, other) = (claude(1, Some(4)), claude(1, Some(5)));
    let started = first("a");
    let binding = bindings.bind(bindable(&started, who(&started, mine), "mine", 0), Moment(0));
    let summary = first("a summary");
    assert_eq!(find(&mut bindings, &summary, mine, 1), None, "it has not answered yet");
    answered(&mut bindings, binding, &started, assistant(&[text("Done.")]).to_string().as_bytes());
    assert_eq!(find(&mut bindings, &summary, mine, 1), Some("mine"));
    for stranger in [other, claude(2, Some(4)), claude(1, None), BARE] {
        assert_eq!(find(&mut bindings, &summary, stranger, 1), None);
    }
    let side = read(&request(&[], &[user(json!("Sum this up."))]));
    assert_eq!(find(&mut bindings, &side, mine, 1), None, "other tools");
    // Its summary is where it starts from now on.
    answered(&mut bindings, binding, &summary, assistant(&[text("Going on.")]).to_string().as_bytes());
    let more = later("a summary", &[assistant(&[text("Going on.")]), user(json!("?"))]);
    assert_eq!(find(&mut bindings, &more, mine, 2), Some("mine"));
    bound(&mut bindings, "b", mine, &[text("Done.")], "a second of that id");
    assert_eq!(find(&mut bindings, &summary, mine, 3), None);
}

#[test]
fn a_binding_lives_on_use_and_is_forgotten_without() {
    let mut bindings = children();
    let calls = [call("c1", "get_fact", json!({}))];
    bound(&mut bindings, "a", BARE, &calls, "mine");
    let more = later("a", &[assistant(&calls), user(json!([result("c1", json!("r"))]))]);
    for n in 1..5 {
        assert_eq!(find(&mut bindings, &more, BARE, n * 3_600_000), Some("mine"));
    }
    assert_eq!(find(&mut bindings, &more, BARE, 4 * 3_600_000 + 3_600_001), None);
    assert_eq!((bindings.children().len(), bindings.bytes()), (0, 0));
}

proptest! {
    #[test]
    fn bindings_are_bounded_and_leave_nothing(
        steps in prop::collection::vec((0..8u8, 0..100usize, 0..2_000usize), 0..200),
    ) {
        let life = Life { ttl_s: 10, count: 20 };
        let mut bindings = children();
        bindings.children.life = life;
        let request = first("a");
        let mut made = Vec::new();
        let mut now = Moment(0);
        for (kind, number, bytes) in steps {
            match kind {
                0..=2 => {
                    let agent = (number % 4 > 0).then_some(IdDigest([(number % 4) as u8; 16]));
                    let mut who = Who::default();
                    who.agent = agent;
                    made.push(bindings.bind(bindable(&request, who, (), bytes), now));
                }
                3..=5 => if let Some(binding) = made.get(number % made.len().max(1)) {
                    bindings.called(*binding, &format!("id{number}"));
                },
                6 => if let Some(binding) = made.last() {
                    answered(&mut bindings, *binding, &request, br#"{"role":"assistant","content":"x"}"#);
                },
                _ => now = now.after(bytes as u64),
            }
            bindings.children.make_room(now, &mut bindings.holdings);
            prop_assert!(bindings.children().len() <= life.count);
        }
        bindings.children.make_room(now.after(10_001), &mut bindings.holdings);
        prop_assert_eq!((bindings.children().len(), bindings.bytes()), (0, 0));
        prop_assert_eq!(bindings.children().keys(), 0);
    }
}
