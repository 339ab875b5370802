//! A tenant's words stay with that tenant: hundreds of them at once, each with a word of its own in every place
//! that a request has.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};

use crate::fork::scene::closing;
use crate::fork::talk::{
    Call, agent_call, assistant, directive, events, newcomer, parent, prompt_tokens, result, streamed, text,
    tool_use, user,
};
use crate::harness::peer::Reply;
use crate::harness::{Binary, Upstream, post};
use crate::traces::receiver::Receiver;
use crate::workload::dice::Dice;

const WORD: &str = "cAnArY";
const TENANTS: usize = 240;
/// Requests at the same time.
const AT_ONCE: usize = 16;
const FAN_OUT: &str = "Survey it all.";

fn canary(tenant: usize) -> String {
    format!("{WORD}-{tenant:04}-end")
}

/// The tenants whose words stand in a text.
fn tenants(text: &[u8]) -> Vec<usize> {
    let text = String::from_utf8_lossy(text);
    let mut found: Vec<usize> =
        text.split(&format!("{WORD}-")).skip(1).map(|rest| rest[..4].parse().unwrap()).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The words in all that a parent and its children have in common.
fn marked(call: Call, tenant: usize, agent: Option<usize>) -> Call {
    let word = canary(tenant);
    let mut call = call.of(&format!("sk-{word}")).with("x-custom", &word).with("cookie", &word);
    call = call
        .with("anthropic-beta", &format!("beta-{word}"))
        .with("user-agent", &format!("claude-cli/2.1.3 ({word})"));
    // By every kind of hint; where there is none, nothing but the credential tells tenants apart.
    match tenant % 3 {
        0 => {
            call = call.with("x-claude-code-session-id", &word);
            if let Some(agent) = agent {
                call = call.with("x-claude-code-agent-id", &format!("{word}-{agent}"));
            }
        }
        1 => {
            call = call.with("x-forkpoint-session", "shared by all").and("metadata", json!({"user_id": word}))
        }
        _ => {}
    }
    let said = format!("{word} {}", call.body["system"][0]["text"].as_str().unwrap());
    call.body["system"][0]["text"] = json!(said);
    for tool in call.body["tools"].as_array_mut().unwrap() {
        tool["description"] = json!(format!("Does it. {word}"));
    }
    call.and("extension", json!({"of": word}))
}

fn lead(tenant: usize) -> Call {
    let word = canary(tenant);
    let mut call = marked(parent(&format!("{word} is where we are.")), tenant, None);
    let looks = tool_use(&format!("toolu_{word}"), "read_file", json!({"path": word}));
    let found = json!([{"type": "tool_result", "tool_use_id": format!("toolu_{word}"), "content": word}]);
    call = call.then(assistant(&[text(&word), looks])).then(user(found));
    call.then(assistant(&[text("I see.")])).then(user(FAN_OUT))
}

/// What all tenants tell their children alike, and every other one with its word.
fn told(tenant: usize, child: usize) -> String {
    let word = if tenant.is_multiple_of(2) { String::new() } else { canary(tenant) };
    directive(&format!("part number {child}{word}"))
}

fn worker(tenant: usize, child: usize) -> Call {
    let call = marked(newcomer(told(tenant, child)), tenant, Some(child));
    call.and("stop_sequences", json!([canary(tenant)]))
}

fn looked(tenant: usize, child: usize) -> String {
    format!("toolu_{}_look_{child}", canary(tenant))
}

fn later(tenant: usize, child: usize) -> Call {
    let id = looked(tenant, child);
    let call = tool_use(&id, "read_file", json!({"path": canary(tenant)}));
    let results = json!([result(&id)]);
    worker(tenant, child).then(assistant(&[call])).then(user(results))
}

/// Asks about the parent's turn, by its id or by that of another tenant.
fn curious(tenant: usize, of: usize) -> Call {
    let call = marked(newcomer(format!("{} wants to know.", canary(tenant))), tenant, Some(7));
    call.with("x-forkpoint-parent", &format!("msg_{}", canary(of)))
}

/// What the model says to a tenant: its own words, and nothing that tells one tenant from the other but those.
fn answer(request: &Reply) -> Vec<u8> {
    let [tenant] = tenants(request.head.get("x-custom").unwrap().as_bytes())[..] else { panic!("whose?") };
    let (word, body) = (canary(tenant), serde_json::from_slice::<Value>(&request.body).unwrap());
    let messages = body["messages"].as_array().unwrap();
    let last = &messages.last().unwrap()["content"];
    let said = last.as_str().or_else(|| last.as_array()?.last()?["text"].as_str()).unwrap_or_default();
    let child = (0..2).find(|child| said == told(tenant, *child));
    let blocks = match child {
        _ if said == FAN_OUT => {
            let call = |child| agent_call(&format!("toolu_{word}_{child}"), &told(tenant, child));
            vec![text(&word), call(0), call(1)]
        }
        Some(child) => vec![tool_use(&looked(tenant, child), "read_file", json!({"path": word}))],
        None => vec![text(&word)],
    };
    closing(&streamed(&events(&format!("msg_{word}"), prompt_tokens(&body), &blocks)))
}

/// Sends everybody's requests, in any order.
async fn send(
    binary: &Binary,
    dice: &mut Dice,
    mut calls: Vec<(usize, Call)>,
) -> BTreeMap<usize, Vec<String>> {
    dice.shuffle(&mut calls);
    let sent = stream::iter(calls).map(|(tenant, call)| async move {
        let target = format!("/v1/messages?of={}", canary(tenant));
        let body = serde_json::to_vec(&call.body).unwrap();
        let reply = binary.client().await.ask(&post(&target, &call.headers, &body)).await;
        assert_eq!(reply.status(), 200);
        let heard = [&reply.head.raw[..], &reply.body].concat();
        assert_eq!(tenants(&heard), [tenant], "an answer to {tenant}");
        let said =
            ["role", "plan", "reason"].map(|name| reply.head.get(&format!("x-forkpoint-{name}")).unwrap());
        (tenant, said.join(" "))
    });
    let mut plans: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (tenant, plan) in sent.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await {
        plans.entry(tenant).or_default().push(plan);
    }
    plans
}

#[tokio::test(flavor = "multi_thread")]
async fn no_word_of_a_tenant_reaches_another_or_is_shown() {
    let mut upstream = Upstream::answering_with(answer).await;
    let (folder, mut collector) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let (file, endpoint) = (folder.path().join("r.jsonl"), collector.url());
    let settings = [
        ("LOG__FORMAT", "json"),
        ("FORK__MAX_COST_RATIO", "100"),
        ("FORK__CONTEXT_PREMIUM", "100"),
        ("FORK__SNAPSHOTS", "latest"),
        ("GATE__MAX_HOLD_MS", "30000"),
        ("TRACE__ENDPOINT", &endpoint),
        ("RECORD__FILE", file.to_str().unwrap()),
    ];
    let mut binary = Binary::serve(&upstream.url(), &settings).await;
    let mut dice = Dice::new(7);
    let everybody = || 0..TENANTS;
    let siblings = || everybody().flat_map(|tenant| [(tenant, 0), (tenant, 1)]);
    send(&binary, &mut dice, everybody().map(|tenant| (tenant, lead(tenant))).collect()).await;
    let first = siblings().map(|(tenant, child)| (tenant, worker(tenant, child)));
    let first = send(&binary, &mut dice, first.collect()).await;
    let second = siblings().map(|(tenant, child)| (tenant, later(tenant, child)));
    let second = send(&binary, &mut dice, second.collect()).await;
    for (tenant, plans) in first.iter().chain(&second) {
        assert_eq!(plans[..], ["child forked none", "child forked none"], "{tenant}");
    }
    // Names of turns that are another tenant's are nobody's.
    let strangers = everybody().map(|tenant| (tenant, curious(tenant, (tenant + 3) % TENANTS)));
    let plans = send(&binary, &mut dice, strangers.collect()).await;
    assert!(plans.values().flatten().all(|plan| plan.starts_with("plain ")), "{plans:?}");
    let asked = upstream.so_far();
    assert_eq!(asked.len(), 6 * TENANTS);
    for request in asked {
        let heard = [&request.head.raw[..], &request.body].concat();
        let [_] = tenants(&heard)[..] else { panic!("words of several: {:?}", tenants(&heard)) };
    }
    binary.lines("forkpoint::request", 6 * TENANTS).await;
    for line in binary.said() {
        assert!(!line.contains(WORD), "{line}");
    }
    let (_, forks) = binary.admin("/api/forks").await;
    let forks: Value = serde_json::from_str(&forks).unwrap();
    let newest = forks["forks"][0]["id"].as_str().unwrap().to_owned();
    let views =
        ["/metrics", "/healthz", "/readyz", "/", "/api/forks", "/api/prefixes", "/api/breaks", "/api/config"];
    for path in views.map(str::to_owned).into_iter().chain([format!("/api/forks/{newest}")]) {
        let (status, page) = binary.admin(&path).await;
        assert_eq!(status, 200, "{path}");
        assert!(!page.contains(WORD), "{path}: {page}");
    }
    let events = crate::events::snapshot(binary.admin).await;
    assert!(events["exchanges"].as_array().is_some_and(|exchanges| exchanges.len() >= 6 * TENANTS));
    assert!(!events.to_string().contains(WORD), "{events}");
    binary.signal("TERM").await;
    binary.exit().await;
    let traces = collector.so_far().await;
    assert!(!traces.is_empty(), "no trace came");
    let recorded = std::fs::read_to_string(&file).unwrap();
    assert_eq!(recorded.lines().count(), 6 * TENANTS);
    // A span names the answer by the id that the upstream gave it; nothing else of a tenant is in it.
    let told = traces.into_iter().map(|trace| trace.body.replace(&format!("msg_{WORD}-"), "msg_"));
    for text in told.chain([recorded]) {
        assert!(!text.contains(WORD), "{text}");
    }
}
