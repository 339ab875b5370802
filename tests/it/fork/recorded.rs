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

use super::talk::{Talk, Told};

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
async fn play(client: &str) -> (Vec<[String; 3]>, String) {
    let mut talk = Talk::with(|config| {
        config.server.mode = Mode::Fork;
        // Shortened prompts are too small to pay for anything.
        config.fork.policy.max_cost_ratio = 1e6;
    })
    .await;
    let (mut all, mut golden) = (Vec::new(), String::new());
    for (index, exchange) in recorded(client).iter().enumerate() {
        let at = format!("{client} {:03}", index + 1);
        assert_eq!(exchange.target, "/v1/messages", "{at}");
        let told =
            talk.answered_as_spelt(&exchange.headers(), exchange.body.as_bytes(), exchange.answer()).await;
        assert_eq!(told.reply.status(), exchange.status, "{at}");
        assert!(told.reply.body == exchange.answer.as_bytes(), "{at}: another answer");
        let sent = talk.upstream.so_far();
        let [sent] = &sent[..] else { panic!("{at}: sent {} times", sent.len()) };
        let decided = decided(&told);
        let betas = sent.head.get("anthropic-beta").unwrap_or_else(|| "none".to_owned());
        let body = std::str::from_utf8(&sent.body).unwrap();
        golden += &format!("{:03} {}, betas: {betas}\n{body}\n", index + 1, decided.join(" "));
        all.push(decided);
    }
    (all, golden)
}

/// That what goes out is what the golden says. Returns what was decided for each request.
async fn as_the_golden_says(client: &str) -> Vec<String> {
    let (decided, forwarded) = play(client).await;
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
async fn recorded_conversations_that_the_server_holds_are_marked_as_the_goldens_say() {
    for client in ["typescript-held-alone", "python-held-alone"] {
        let decided = as_the_golden_says(client).await;
        assert!(decided.len() > 7, "{client}: {decided:?}");
        assert!(decided.iter().all(|said| said.starts_with("plain aligned ")), "{client}: {decided:?}");
    }
}
