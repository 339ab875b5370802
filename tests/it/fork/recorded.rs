//! Whole conversations of real clients with the answers that they got, played again: what goes out for each request.
//!
//! `tests/golden/wire/<client>/exchanges.jsonl` is what a client sent and was answered, in the order in which it came;
//! `tests/clients/record.py` writes it. The upstream gives the recorded answers, so the ids in later requests are those
//! that forkpoint has seen. `forwarded.txt` beside it has two lines for each request, what was decided with the betas
//! that went out, and the body; `UPDATE=1` rewrites it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forkpoint::config::Mode;
use serde::Deserialize;
use serde_json::Value;

use super::children::without_markers;
use super::talk::{Talk, Told};

const CLIENTS: [&str; 12] = [
    "typescript-held",
    "typescript-held-alone",
    "typescript-thread",
    "typescript-whole",
    "python-held",
    "python-held-alone",
    "python-thread",
    "python-whole",
    "python-late",
    "deepagents",
    "ai-sdk",
    "claude-code-held",
];

/// What a client sent, and what it was answered.
#[derive(Deserialize)]
struct Exchange {
    target: String,
    headers: BTreeMap<String, String>,
    body: String,
    status: u16,
    content_type: String,
    answer: String,
}

impl Exchange {
    fn headers(&self) -> String {
        let own = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        own.chain(["x-api-key: key\r\n".to_owned()]).collect()
    }

    fn answer(&self) -> Vec<u8> {
        let Exchange { status, content_type, answer, .. } = self;
        let length = answer.len();
        let head =
            format!("HTTP/1.1 {status} Said\r\ncontent-type: {content_type}\r\ncontent-length: {length}");
        format!("{head}\r\n\r\n{answer}").into_bytes()
    }
}

fn folder(client: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/wire").join(client)
}

fn recorded(client: &str) -> Vec<Exchange> {
    let lines = std::fs::read_to_string(folder(client).join("exchanges.jsonl")).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What was decided for a request.
fn decided(told: &Told) -> [String; 3] {
    ["role", "plan", "reason"].map(|name| told.reply.head.get(&format!("x-forkpoint-{name}")).unwrap())
}

/// Plays a client's conversations, and checks that it notices nothing. Returns what was decided, and the text of the
/// golden.
async fn play(client: &str, mode: Mode) -> (Vec<[String; 3]>, String) {
    let mut talk = Talk::with(|config| {
        config.server.mode = mode;
        // Shortened prompts are too small to pay for anything.
        config.fork.policy.max_cost_ratio = 1e6;
    })
    .await;
    let (mut all, mut golden) = (Vec::new(), String::new());
    for (index, exchange) in recorded(client).iter().enumerate() {
        let at = format!("{client} {mode:?} {:03}", index + 1);
        let (headers, body) = (exchange.headers(), exchange.body.as_bytes());
        let told = talk.answered_at(&exchange.target, &headers, body, exchange.answer()).await;
        assert_eq!(told.reply.status(), exchange.status, "{at}");
        assert!(told.reply.body == exchange.answer.as_bytes(), "{at}: another answer");
        let sent = talk.upstream.so_far();
        let [sent] = &sent[..] else { panic!("{at}: sent {} times", sent.len()) };
        match mode {
            Mode::Observe => assert!(sent.body == body, "{at}: another body"),
            Mode::Align => is_only_marked(exchange, &sent.body, &at),
            Mode::Fork => {}
        }
        let decided = decided(&told);
        let betas = sent.head.get("anthropic-beta").unwrap_or_else(|| "none".to_owned());
        if mode != Mode::Fork {
            assert_eq!(
                Some(betas.as_str()),
                exchange.headers.get("anthropic-beta").map(String::as_str).or(Some("none")),
                "{at}"
            );
        }
        let body = std::str::from_utf8(&sent.body).unwrap();
        golden += &format!("{:03} {}, betas: {betas}\n{body}\n", index + 1, decided.join(" "));
        all.push(decided);
    }
    (all, golden)
}

/// That nothing was changed but markers, of which a thread may have three.
#[track_caller]
fn is_only_marked(exchange: &Exchange, sent: &[u8], at: &str) {
    let came: Value = serde_json::from_str(&exchange.body).unwrap();
    let sent: Value = serde_json::from_slice(sent).unwrap();
    let markers = sent.to_string().matches("\"cache_control\":").count();
    let most = if came.get("thread").is_some() { 3 } else { 4 };
    assert!(markers <= most, "{at}: {markers} markers");
    for member in ["tools", "system", "cache_control"] {
        let is_fixed = came.get("thread").is_some();
        assert!(!is_fixed || sent.get(member) == came.get(member), "{at}: {member}");
    }
    assert_eq!(without_markers(sent), without_markers(came), "{at}");
}

/// That what goes out is what the golden says. Returns what was decided for each request.
async fn as_the_golden_says(client: &str) -> Vec<String> {
    let (decided, forwarded) = play(client, Mode::Fork).await;
    let golden = folder(client).join("forwarded.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&golden, &forwarded).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    assert!(expected == forwarded, "{client} differs; run with UPDATE=1 and look at the change");
    decided.iter().map(|decided| decided.join(" ")).collect()
}

#[tokio::test]
async fn recorded_agents_of_runners_are_forked_as_the_goldens_say() {
    for client in
        ["typescript-held", "typescript-whole", "python-held", "python-whole", "ai-sdk", "deepagents"]
    {
        let decided = as_the_golden_says(client).await;
        let [first, children @ .., last] = &decided[..] else { panic!("{client}: too few") };
        assert!(first.starts_with("plain ") && last.starts_with("parent "), "{client}: {first}, {last}");
        assert!(children.iter().all(|child| child == "child forked none"), "{client}: {children:?}");
    }
}

/// By a model that binds its thinking; it has looked something up before.
#[tokio::test]
async fn a_recorded_fan_out_that_answers_a_continue_is_forked_as_the_golden_says() {
    let decided = as_the_golden_says("python-late").await;
    let [first, second, third, children @ .., last] = &decided[..] else { panic!("too few") };
    for said in [first, second, third] {
        assert!(said.starts_with("plain aligned "), "{said}");
    }
    assert!(children.len() == 12 && last.starts_with("parent "), "{decided:?}");
    assert!(children.iter().all(|child| child == "child forked none"), "{children:?}");
}

#[tokio::test]
async fn recorded_clients_are_only_marked_in_align_and_untouched_in_observe() {
    for client in CLIENTS {
        let (aligned, _) = play(client, Mode::Align).await;
        assert!(aligned.iter().any(|decided| decided[1] == "aligned"), "{client}: {aligned:?}");
        let (observed, _) = play(client, Mode::Observe).await;
        assert!(
            observed.iter().all(|decided| decided[1..] == ["passthrough", "observe"]),
            "{client}: {observed:?}"
        );
    }
}

/// It repeats its tools and its system prompt on every continue, and streams.
#[tokio::test]
async fn a_recorded_claude_code_whose_conversations_the_server_holds_is_forked_as_the_golden_says() {
    let exchanges = recorded("claude-code-held");
    let decided = as_the_golden_says("claude-code-held").await;
    let mut children = 0;
    for (exchange, decided) in exchanges.iter().zip(&decided) {
        let body: Value = serde_json::from_str(&exchange.body).unwrap();
        let is_continue = body["thread"]["type"] == "continue";
        assert!(!is_continue || body.get("tools").is_some() && body.get("system").is_some(), "{body}");
        assert!(exchange.content_type.starts_with("text/event-stream"), "{}", exchange.content_type);
        let is_child = exchange.headers.contains_key("x-claude-code-agent-id");
        assert_eq!(decided == "child forked none", is_child, "{decided}");
        children += usize::from(is_child && is_continue);
    }
    assert!(children >= 6, "{decided:?}");
}

#[tokio::test]
async fn recorded_conversations_that_the_server_holds_are_marked_as_the_goldens_say() {
    for client in ["typescript-held-alone", "python-held-alone", "typescript-thread", "python-thread"] {
        let decided = as_the_golden_says(client).await;
        let streamed =
            recorded(client).iter().filter(|one| one.content_type.starts_with("text/event-stream")).count();
        assert_eq!(streamed > 1, client.ends_with("-thread"), "{client}: {streamed} streams");
        assert!(decided.len() > 7, "{client}: {decided:?}");
        assert!(decided.iter().all(|said| said.starts_with("plain aligned ")), "{client}: {decided:?}");
    }
}
