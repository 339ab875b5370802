//! Requests of real clients, shortened, each answered as it was: who is put on its parent's prefix and who is not.

use forkpoint::config::{Config, Mode};
use forkpoint::sim::settings::Signatures;
use forkpoint::sim::{Sim, SimConfig};

use crate::align::wire::CLIENTS;
use crate::fork::recognise::wire::play;
use crate::fork::talk::Talk;
use crate::workload::{Letter, Line};

/// The role and plan of each request, after the simulator has accepted what went out.
async fn said(client: &str, configure: impl FnOnce(&mut Config)) -> Vec<String> {
    let forks = |config: &mut Config| {
        config.server.mode = Mode::Fork;
        configure(config);
    };
    let mut talk = Talk::with(forks).await;
    let played = play(&talk, client).await;
    let mut config = SimConfig::default();
    // Their thinking was signed elsewhere.
    config.rules.signatures = Signatures::Ignored;
    let sim = Sim::start(config).await.unwrap();
    let line = Line::direct(&sim);
    let asked = talk.upstream.so_far();
    assert_eq!(asked.len(), played.len(), "{client}: nothing was sent twice");
    for (index, request) in asked.into_iter().enumerate() {
        let mut letter = Letter::alone(&serde_json::Value::Null);
        letter.body = request.body;
        if let Some(betas) = request.head.get("anthropic-beta") {
            letter = letter.with("anthropic-beta", &betas);
        }
        let exchange = line.send(&letter).await;
        let answer = String::from_utf8_lossy(&exchange.answer);
        assert_eq!(exchange.status, 200, "{client} {:03}: {answer}", index + 1);
    }
    let word = |told: &crate::fork::talk::Told, name: &str| {
        told.reply.head.get(&format!("x-forkpoint-{name}")).unwrap()
    };
    let short = |told| match (word(told, "role").as_str(), word(told, "plan").as_str()) {
        ("child", "forked") => "forked".to_owned(),
        ("child", plan) => format!("{plan}: {}", word(told, "reason")),
        (role, _) => role.to_owned(),
    };
    played.iter().map(short).collect()
}

/// Shortened prompts are too small to pay for anything.
fn at_any_price(config: &mut Config) {
    config.fork.policy.max_cost_ratio = 1e6;
}

/// How a client's children, of which each has two turns, are treated.
fn table(client: &str, children: &str) -> Vec<String> {
    let roles: &[&str] = match client {
        "claude-code" | "claude-code-fork" => &["plain", "", "", "", "parent", "", "", "", "plain"],
        "vercel-ai" => &["plain", "", "", "", "", "", "", "parent"],
        "deepagents" | "anthropic-python" => &["plain", "plain", "", "", "", "", "", "", "parent"],
        other => panic!("what does {other} send?"),
    };
    roles.iter().map(|role| if role.is_empty() { children } else { *role }.to_owned()).collect()
}

#[tokio::test]
async fn the_children_of_recorded_clients_are_forked_or_say_why_not() {
    for client in CLIENTS {
        let (at_any_price_are, by_default) = match client {
            "claude-code-fork" => ("aligned: client_fork", "aligned: client_fork"),
            // Its script asks for an agent of its own kind.
            "deepagents" => ("aligned: specialist", "aligned: specialist"),
            "anthropic-python" | "claude-code" | "vercel-ai" => ("forked", "aligned: cost"),
            other => panic!("what becomes of {other}?"),
        };
        assert_eq!(said(client, at_any_price).await, table(client, at_any_price_are), "{client}");
        let default = Config::default().fork.policy;
        let by_the_bill = |config: &mut Config| config.fork.policy = default;
        assert_eq!(said(client, by_the_bill).await, table(client, by_default), "{client}");
    }
}

#[tokio::test]
async fn a_kind_of_agent_that_is_named_as_general_is_forked() {
    let scouts = |config: &mut Config| {
        at_any_price(config);
        config.fork.policy.general_types.push("scout".to_owned());
    };
    assert_eq!(said("deepagents", scouts).await, table("deepagents", "forked"));
}
