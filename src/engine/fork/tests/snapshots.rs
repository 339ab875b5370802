//! Messages to a turn that they name.

use super::*;
use crate::engine::family::fanout::{Explicit, LATEST, Newcomer};
use crate::engine::words::{FanOutDropped, ForkNote, Refusal, WhyPlain};

const SESSION: Option<u8> = Some(3);

fn ended(id: &str, blocks: &[Value], stop_reason: &str) -> Answer {
    let body = json!({"id": id, "stop_reason": stop_reason, "content": blocks,
        "usage": {"input_tokens": 100, "output_tokens": 50}});
    Answer::from_json(body.to_string().as_bytes(), LIMITS)
}

fn question(text: &str) -> Value {
    json!({"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": text}]})
}

/// One tenant whose every turn is kept.
struct Kept(FanOuts<()>);

impl Kept {
    fn new() -> Kept {
        Kept(FanOuts::new(TENANT, Rules::default()))
    }

    fn turn(&mut self, body: &Value, session: Option<u8>, turn: &Answer, before: Option<&str>, now: u64) {
        let request = read(&body.to_string());
        let who = who(&request, session, None);
        let parent = Parent::new(Arc::new(request), who);
        self.record(parent, false, turn, before, now).unwrap();
    }

    /// `bound`: the request was a child's, which nothing is put upon.
    fn record(
        &mut self,
        parent: Parent,
        bound: bool,
        turn: &Answer,
        before: Option<&str>,
        now: u64,
    ) -> Result<Arc<ForkPoint>, FanOutDropped> {
        let mut draft = Draft::begin(parent, bound);
        let turn = draft.snapshot(turn, &Rules::default())?;
        self.0.record(&mut draft, turn, before, Moment(now))
    }

    fn find(&mut self, body: &Value, session: Option<u8>, parent: &str, now: u64) -> Result<Child, WhyPlain> {
        let request = read(&body.to_string());
        let explicit = Some(Explicit { message_id: parent, tool_use: None });
        let newcomer = Newcomer { request: &request, who: who(&request, session, None), explicit };
        self.0.find_snapshot(&newcomer, Moment(now))
    }
}

fn told(child: &Child, body: &Value) -> (Value, Vec<ForkNote>) {
    let policy = ForkPolicy { share: 0.0, ..ForkPolicy::default() };
    let request = read(&body.to_string());
    assert!(is_snapshot(&request, child));
    assert_eq!(eligible(&request, child, &who(&request, SESSION, None), &policy, &Rules::default()), Ok(()));
    let parent_prefix =
        Arc::new(ParentPrefix::of(&child.fork, None, None, Attribution::Stripped, &policy).unwrap());
    let (prefix, notes) = ChildPrefix::of(&parent_prefix, &request, child, &policy).unwrap();
    (unmarked(value(&prefix.compose(&request, Turn::First, Profile::Anthropic))), notes)
}

#[test]
fn a_message_to_a_finished_turn_is_its_next_message_and_nothing_else() {
    let mut kept = Kept::new();
    kept.turn(&parent_body(), SESSION, &ended("m1", &[text("Done.")], "end_turn"), None, 0);
    let child = kept.find(&question("Sum up."), SESSION, "m1", 1).unwrap();
    let (body, notes) = told(&child, &question("Sum up."));
    let mut expected = unmarked(parent_body());
    expected["max_tokens"] = json!(9);
    expected["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": [text("Done.")]}),
        json!({"role": "user", "content": [text("Sum up.")]}),
    ]);
    assert_eq!(body, expected);
    assert_eq!(notes, [ForkNote::Snapshot]);
}

#[test]
fn what_it_leaves_out_is_its_parents() {
    let mut kept = Kept::new();
    let mut lead = parent_body();
    lead["thinking"] = json!({"type": "adaptive"});
    lead["temperature"] = json!(0.5);
    kept.turn(&lead, SESSION, &ended("m1", &[text("Done.")], "end_turn"), None, 0);
    let bare = json!({"messages": [{"role": "user", "content": "Sum up."}]});
    let child = kept.find(&bare, SESSION, "m1", 1).unwrap();
    let (body, _) = told(&child, &bare);
    for field in ["model", "max_tokens", "tools", "thinking"] {
        assert_eq!(body[field], lead[field], "{field}");
    }
    assert_eq!(body.get("temperature"), None, "how it answers is its own");
}

#[test]
fn calls_without_results_get_placeholders_and_a_note_that_says_so() {
    let mut kept = Kept::new();
    let turn = ended("m1", &[call("t", "Read", json!({"path": "a"}))], "tool_use");
    kept.turn(&parent_body(), SESSION, &turn, None, 0);
    let child = kept.find(&question("Sum up."), SESSION, LATEST, 1).unwrap();
    let (body, _) = told(&child, &question("Sum up."));
    let content = body["messages"][2]["content"].as_array().unwrap();
    assert_eq!(content.len(), 3);
    assert_eq!(content[0]["content"], json!([text(PLACEHOLDER)]));
    let note = content[1]["text"].as_str().unwrap();
    assert!(note.starts_with(CHILD_TAG) && !note.contains("fork of the agent"), "{note}");
    assert_eq!(content[2], text("Sum up."));
    let parent = Parent { request: Arc::new(read(&body.to_string())), ..parent(&body.to_string()) };
    assert!(Draft::begin(parent, false).is_nested(), "forks do not fork, whatever they are");
}

#[test]
fn what_it_brings_must_be_its_parents() {
    let mut kept = Kept::new();
    let mut lead = parent_body();
    lead["thinking"] = json!({"type": "adaptive"});
    kept.turn(&lead, SESSION, &ended("m1", &[text("Done.")], "end_turn"), None, 0);
    let policy = ForkPolicy::default();
    let mut refused = |change: &dyn Fn(&mut Value)| {
        let mut body = question("Sum up.");
        change(&mut body);
        let child = kept.find(&body, SESSION, "m1", 1).unwrap();
        let request = read(&body.to_string());
        let who = who(&request, SESSION, None);
        let verdict = eligible(&request, &child, &who, &policy, &Rules::default());
        (verdict.err().map(Refusal::as_str), is_snapshot(&request, &child))
    };
    assert_eq!(refused(&|_| ()), (None, true));
    assert_eq!(refused(&|it| it["tools"] = json!([tool("Read"), tool("Agent")])), (None, true));
    assert_eq!(refused(&|it| it["system"] = json!("You lead.")), (None, true));
    assert_eq!(refused(&|it| it["thinking"] = json!({"type": "adaptive"})), (None, true));
    assert_eq!(refused(&|it| it["thinking"] = json!({"type": "disabled"})), (Some("thinking"), true));
    assert_eq!(refused(&|it| it["model"] = json!("claude-y")), (Some("model"), true));
    assert_eq!(refused(&|it| it["tools"] = json!([tool("Write")])), (Some("tools_differ"), false));
    assert_eq!(refused(&|it| it["tools"] = json!([tool("Agent")])), (Some("tools_subset"), false));
    assert_eq!(refused(&|it| it["unheard_of"] = json!(1)), (Some("unknown_field"), true));
    // Who brings words of its own for a system prompt is a child, and keeps them.
    assert_eq!(refused(&|it| it["system"] = json!("You sum up.")), (None, false));
}

#[test]
fn a_turn_is_found_by_those_who_may_and_while_it_is_the_newest() {
    let mut kept = Kept::new();
    let ask = question("Sum up.");
    let turn = |id: &str| ended(id, &[text("Done.")], "end_turn");
    kept.turn(&parent_body(), SESSION, &turn("m1"), None, 0);
    let found = |kept: &mut Kept, session, parent: &str, now| {
        kept.find(&ask, session, parent, now).map(|_| ()).map_err(WhyPlain::as_str)
    };
    assert_eq!(found(&mut kept, SESSION, "m1", 1), Ok(()));
    assert_eq!(found(&mut kept, SESSION, LATEST, 1), Ok(()));
    assert_eq!(found(&mut kept, Some(4), "m1", 1), Err("hints"));
    assert_eq!(found(&mut kept, Some(4), LATEST, 1), Err("unknown_parent"));
    assert_eq!(found(&mut kept, None, "m1", 1), Err("hints"));
    assert_eq!(found(&mut kept, None, LATEST, 1), Err("hints"));
    assert_eq!(found(&mut kept, SESSION, "m2", 1), Err("unknown_parent"));
    // Without hints it is found by its id, and for a while.
    kept.turn(&parent_body(), None, &turn("bare"), None, 0);
    assert_eq!(found(&mut kept, None, "bare", 300_000), Ok(()));
    assert_eq!(found(&mut kept, None, "bare", 300_001), Err("window"));
    // The next turn of the conversation takes its place; another conversation's does not.
    kept.turn(&parent_body(), SESSION, &turn("other"), None, 2);
    kept.turn(&parent_body(), SESSION, &turn("m2"), Some("m1"), 3);
    assert_eq!(found(&mut kept, SESSION, "m1", 4), Err("unknown_parent"));
    assert_eq!(found(&mut kept, SESSION, "other", 4), Ok(()));
    assert_eq!(
        kept.find(&ask, SESSION, LATEST, 4).unwrap().fork.id,
        kept.find(&ask, SESSION, "m2", 4).unwrap().fork.id
    );
    assert_eq!(found(&mut kept, SESSION, "m2", 3 + 3_600_001), Err("unknown_parent"));
    assert_eq!((kept.0.snapshots().len(), kept.0.bytes()), (0, 0));
}

#[test]
fn a_conversation_that_goes_on_is_no_message_to_a_turn() {
    let mut kept = Kept::new();
    kept.turn(&parent_body(), SESSION, &ended("m1", &[text("Done.")], "end_turn"), None, 0);
    let mut body = question("Sum up.");
    body["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": "No."}));
    assert_eq!(kept.find(&body, SESSION, "m1", 1).err(), Some(WhyPlain::LaterTurn));
}

#[test]
fn turns_that_nothing_may_follow_are_not_kept() {
    let mut kept = Kept::new();
    let searching = json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}});
    for (blocks, stop, why) in [
        (vec![], "end_turn", "stop_reason"),
        (vec![text("Do")], "max_tokens", "stop_reason"),
        (vec![searching], "end_turn", "server_tools"),
    ] {
        let dropped =
            kept.record(parent(&parent_body().to_string()), false, &ended("m", &blocks, stop), None, 0);
        assert_eq!(dropped.err().map(|why| why.as_str()), Some(why));
    }
    let broken = Answer { wholeness: Wholeness::Unfinished, ..ended("m", &[text("Do")], "end_turn") };
    let dropped = kept.record(parent(&parent_body().to_string()), false, &broken, None, 0);
    assert_eq!(dropped.err().map(|why| why.as_str()), Some("unfinished"));
    let whole = ended("m", &[text("Done.")], "end_turn");
    let in_its_own_words = Parent { is_forwarded: false, ..parent(&parent_body().to_string()) };
    let dropped = kept.record(in_its_own_words, true, &whole, None, 0);
    assert_eq!(dropped.err().map(|why| why.as_str()), Some("child"));
    assert!(kept.0.snapshots().is_empty());
    kept.record(parent(&parent_body().to_string()), true, &whole, None, 0).unwrap();
    assert_eq!(kept.0.snapshots().len(), 1, "a child's turn as it went out");
}

#[test]
fn snapshots_are_bounded_and_the_oldest_goes_first() {
    let mut kept = Kept::new();
    for number in 0..300 {
        kept.turn(
            &parent_body(),
            SESSION,
            &ended(&format!("m{number}"), &[text("Done.")], "end_turn"),
            None,
            number,
        );
    }
    assert_eq!(kept.0.snapshots().len(), 256);
    assert!(kept.find(&question("?"), SESSION, "m43", 300).is_err());
    assert!(kept.find(&question("?"), SESSION, "m44", 300).is_ok());
    let mut large = parent_body();
    large["messages"][0]["content"][0]["text"] = json!("x".repeat(20 << 20));
    for number in 0..4 {
        kept.turn(&large, SESSION, &ended(&format!("l{number}"), &[text("Done.")], "end_turn"), None, 400);
    }
    assert!(kept.0.snapshots().len() == 3 && kept.0.bytes() <= Rules::default().bytes);
}

#[test]
fn one_that_compacts_still_says_something() {
    let mut kept = Kept::new();
    kept.turn(&parent_body(), SESSION, &ended("m1", &[text("Done.")], "end_turn"), None, 0);
    let child = kept.find(&question("Sum up."), SESSION, "m1", 1).unwrap();
    let policy = ForkPolicy::default();
    let parent_prefix =
        Arc::new(ParentPrefix::of(&child.fork, None, None, Attribution::Stripped, &policy).unwrap());
    let (prefix, _) =
        ChildPrefix::of(&parent_prefix, &read(&question("Sum up.").to_string()), &child, &policy).unwrap();
    let mut body = question("What was asked.");
    let answered =
        [json!({"role": "assistant", "content": "So."}), json!({"role": "user", "content": "And?"})];
    body["messages"].as_array_mut().unwrap().extend(answered.clone());
    let composed = prefix.compose(&read(&body.to_string()), Turn::Later(None), Profile::Anthropic);
    let messages = unmarked(value(&composed))["messages"].clone();
    assert_eq!(messages[2], json!({"role": "user", "content": [text("What was asked.")]}));
    assert_eq!(&messages.as_array().unwrap()[3..], &answered);
    body["messages"][0]["role"] = json!("assistant");
    let composed = prefix.compose(&read(&body.to_string()), Turn::Later(None), Profile::Anthropic);
    assert_eq!(unmarked(value(&composed))["messages"][2]["content"].as_array().unwrap().len(), 1);
}
