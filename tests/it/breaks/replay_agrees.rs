//! An hour in virtual time with every cause of breaks, a fan-out, holds at the gate and a refused rewrite: what the
//! simulator billed is what `/metrics`, the log, the recording and a replay of it say, in every mode.

mod replayed;

use std::collections::BTreeMap;
use std::time::Duration;

use forkpoint::config::{Bodies, Mode};
use forkpoint::engine::words::BreakCause;
use forkpoint::sim::faults::{FaultCondition, Rule};
use forkpoint::sim::models::{find, public_models};
use forkpoint::sim::{BilledUsage, InjectedFault};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Stage, marked, text, turn, user};
use crate::harness::{PATIENCE, until};
use crate::workload::{Exchange, Letter, prose, tool};

const MODEL: &str = "claude-opus-5-5";
const ANOTHER_MODEL: &str = "claude-haiku-5-5";
const MODEL_OF_AGENTS: &str = "claude-fable-5-2";
const CHILDREN: usize = 3;
const BETWEEN: Duration = Duration::from_secs(240);

type Change = fn(&mut Value);

/// An hour as it went, and where it was written down.
struct Hour {
    stage: Stage,
    exchanges: Vec<Exchange>,
    folder: tempfile::TempDir,
}

/// A request of a tenant of its own, in words of its own: the scenes share nothing but the time.
fn of(tenant: &str, body: &Value) -> Letter {
    let mut body = body.clone();
    if let Some(text) = body["system"][0]["text"].as_str() {
        body["system"][0]["text"] = json!(format!("{tenant}: {text}"));
    }
    // What agents do is another client's.
    let client = if tenant == "fan-out" { "litellm/1.2.3" } else { "claude-cli/2.1.3" };
    let mut letter = Letter::alone(&body).with("user-agent", client);
    letter.headers[0].1 = format!("sk-{tenant}");
    letter
}

fn at(number: usize) -> Value {
    let mut body = turn(number);
    body["model"] = json!(MODEL);
    body
}

impl Hour {
    async fn pass(mode: Mode) -> Hour {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("r.jsonl");
        let stage = Stage::with(|config| {
            config.server.mode = mode;
            config.record.file = Some(file);
            config.record.bodies = Bodies::Redacted;
            config.fork.policy.max_cost_ratio = 10.0;
            config.gate.max_hold = PATIENCE;
        })
        .await;
        let mut hour = Hour { stage, exchanges: Vec::new(), folder };
        hour.changes().await;
        hour.history().await;
        hour.pauses().await;
        hour.shapes().await;
        hour.concurrent().await;
        hour.refused().await;
        hour.fan_out().await;
        let lines = hour.exchanges.len();
        until("all lines in the log", || hour.stage.log.count() == lines).await;
        hour.stage.forkpoint.proxy.recording().unwrap().flush();
        hour
    }

    async fn say(&mut self, letter: &Letter) {
        let exchange = self.stage.send(letter).await.0;
        self.exchanges.push(exchange);
    }

    /// The change that a client makes from its second turn on.
    async fn changes(&mut self) {
        let changes: [(&str, Change); 6] = [
            ("tools", |body| body["tools"][1]["description"] = json!("Runs.")),
            ("system", |body| body["system"][0]["text"] = json!(prose("You guess.", 1_200))),
            ("model", |body| body["model"] = json!(ANOTHER_MODEL)),
            ("thinking", |body| body["thinking"] = json!({"type": "adaptive"})),
            ("tool_choice", |body| body["tool_choice"] = json!({"type": "none"})),
            ("spelling", |body| {
                let schema = body["tools"][0]["input_schema"].as_object_mut().unwrap();
                let kind = schema.shift_remove("type").unwrap();
                schema.insert("type".to_owned(), kind);
            }),
        ];
        for (tenant, change) in changes {
            for number in 1..=3 {
                let mut body = at(number);
                if number > 1 {
                    change(&mut body);
                }
                self.say(&of(tenant, &body)).await;
            }
            self.stage.pass(BETWEEN);
        }
        for number in 1..=3 {
            let letter = of("betas", &at(number));
            let beta = ("anthropic-beta", "context-management-2025-06-27");
            self.say(&if number > 1 { letter.with(beta.0, beta.1) } else { letter }).await;
        }
        self.stage.pass(BETWEEN);
    }

    async fn history(&mut self) {
        for number in 2..=4 {
            let mut body = at(number);
            if number > 2 {
                body["messages"][2]["content"] = json!([text(prose("Another question.", 100))]);
            }
            self.say(&of("messages", &body)).await;
        }
        self.stage.pass(BETWEEN);
    }

    /// An entry that expired, and one that was lost.
    async fn pauses(&mut self) {
        for number in 1..=3 {
            self.say(&of("ttl", &at(number))).await;
            self.stage.pass(if number == 1 { Duration::from_secs(301) } else { BETWEEN });
        }
        for number in 1..=3 {
            self.say(&of("unknown", &at(number))).await;
            if number == 1 {
                self.stage.forget().await;
            }
        }
        self.stage.pass(BETWEEN);
    }

    /// Too short to be cached, and too long to be looked back on.
    async fn shapes(&mut self) {
        for number in 1..=2 {
            let mut body = at(number);
            body["system"] = json!("You help.");
            body["tools"] = json!([]);
            self.say(&of("short", &body)).await;
        }
        self.stage.pass(BETWEEN);
        for number in 1..=2 {
            let mut body = at(number);
            if number == 2 {
                let blocks = body["messages"][2]["content"].as_array_mut().unwrap();
                blocks.splice(0..0, (0..25).map(|part| text(format!("Part {part}."))));
            }
            self.say(&of("lookback", &body)).await;
        }
        self.stage.pass(BETWEEN);
    }

    /// Two that write the same at the same time.
    async fn concurrent(&mut self) {
        let sibling = |words: &str| {
            let mut body = at(1);
            body["messages"] = json!([user(json!([marked(text(prose("Shared.", 1_000))), text(words)]))]);
            body["system"][0].as_object_mut().unwrap().shift_remove("cache_control");
            of("concurrent", &body)
        };
        // Nothing is kept of a tenant before its first answer.
        let hello = json!({"model": MODEL, "max_tokens": 9, "messages": [user(json!("hi"))]});
        self.say(&of("concurrent", &hello)).await;
        let before = self.stage.sim.requests().len();
        let line = self.stage.line();
        let (leader, follower) = (sibling("[[sim:text first_ms=700]]"), sibling("and you"));
        let follow = async {
            let requests = || self.stage.sim.requests();
            let consulted = || requests().get(before).is_some_and(|record| !record.breakpoints.is_empty());
            until("the leader is on its way", consulted).await;
            line.send(&follower).await
        };
        let both = tokio::join!(line.send(&leader), follow);
        self.exchanges.extend([both.0, both.1]);
        self.stage.pass(BETWEEN);
    }

    /// What forkpoint makes of a request is refused once; in mode `observe` it makes nothing.
    async fn refused(&mut self) {
        let matching =
            FaultCondition { body_contains: Some("Refuse this.".to_owned()), ..FaultCondition::default() };
        let fault = InjectedFault::Status { status: 400, retry_after_s: None };
        self.stage.sim.faults().order(Rule { fault, count: 1, matching }).unwrap();
        let mut body = at(2);
        body["system"] = json!([text(prose("Refuse this.", 3_000))]);
        let exchange = self.stage.line().send(&of("refused", &body)).await;
        self.exchanges.push(exchange);
        self.stage.pass(BETWEEN);
    }

    /// A parent, its children at once for two turns each, and the parent's report.
    async fn fan_out(&mut self) {
        let session = |body: &Value| of("fan-out", body).with("x-forkpoint-session", "one");
        let body = |system: &str, tools: Value, messages: Value| {
            json!({"model": MODEL_OF_AGENTS, "max_tokens": 9_000, "stream": true, "tools": tools,
                "system": [marked(text(prose(system, 4_000)))], "messages": messages})
        };
        let agent = json!({"name": "Agent", "description": "Starts a sub-agent.", "input_schema": {
            "type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}});
        let tools = json!([agent, tool("read_file")]);
        let order = format!(
            "[[sim:fan_out n={CHILDREN} tool=Agent field=prompt words=60 | tools turns=1 first_ms=300]]"
        );
        let ask = user(json!([text(format!("Survey it. {order}"))]));
        self.say(&session(&body("You lead.", tools.clone(), json!([ask])))).await;
        let blocks = self.exchanges.last().unwrap().blocks().unwrap();
        let calls: Vec<&Value> = blocks.iter().filter(|block| block["type"] == "tool_use").collect();
        assert_eq!(calls.len(), CHILDREN);
        let line = self.stage.line();
        let results = |blocks: &[Value]| -> Value {
            let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
            calls
                .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "Done."}))
                .collect()
        };
        let child = async |call: &Value| {
            let mut messages = vec![user(json!([text(call["input"]["prompt"].as_str().unwrap())]))];
            let mut exchanges = Vec::new();
            for _ in 0..2 {
                let letter = session(&body("You report.", json!([tool("read_file")]), json!(messages)));
                let exchange = line.send(&letter).await;
                let blocks = exchange.blocks().unwrap();
                let user = user(results(&blocks));
                messages.extend([json!({"role": "assistant", "content": blocks}), user]);
                exchanges.push(exchange);
            }
            exchanges
        };
        let children = join_all(calls.iter().map(|call| child(call))).await;
        self.exchanges.extend(children.into_iter().flatten());
        let report = json!([ask, {"role": "assistant", "content": blocks}, user(results(&blocks))]);
        self.say(&session(&body("You lead.", tools, report))).await;
    }

    fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.stage.forkpoint.metric(&format!("forkpoint_{name}"), labels)
    }

    /// The lines of the recording.
    fn recorded(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("r.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The simulator's bill, by model.
    fn ledger(&self) -> BTreeMap<String, (BilledUsage, f64)> {
        let mut sums: BTreeMap<String, (BilledUsage, f64)> = BTreeMap::new();
        for record in self.stage.sim.requests() {
            let Some(usage) = record.usage else { continue };
            let model = record.model.unwrap();
            let (sum, cost) = sums.entry(model.clone()).or_default();
            sum.uncached += usage.uncached;
            sum.cache_read += usage.cache_read;
            sum.cache_write_5m += usage.cache_write_5m;
            sum.cache_write_1h += usage.cache_write_1h;
            sum.output += usage.output;
            *cost += find(&public_models(), &model).unwrap().price.cost_usd(&usage);
        }
        sums
    }
}

fn kinds(usage: &BilledUsage) -> [(&'static str, u64); 5] {
    [
        ("uncached", usage.uncached),
        ("cache_read", usage.cache_read),
        ("cache_write_5m", usage.cache_write_5m),
        ("cache_write_1h", usage.cache_write_1h),
        ("output", usage.output),
    ]
}

/// How many lines have each value of a field.
fn counts(lines: &[Value], fields: &[&str]) -> BTreeMap<Vec<String>, f64> {
    let mut counts = BTreeMap::new();
    for line in lines {
        let values: Option<Vec<String>> =
            fields.iter().map(|field| line.get(*field)?.as_str().map(str::to_owned)).collect();
        if let Some(values) = values {
            *counts.entry(values).or_default() += 1.0;
        }
    }
    counts
}

fn sum(lines: &[Value], field: &str) -> f64 {
    lines.iter().filter_map(|line| line.get(field)?.as_f64()).sum()
}

fn close(left: f64, right: f64) -> bool {
    (left - right).abs() < 1e-6
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{value}\"")
}

/// Tokens and dollars: the ledger's.
fn bills(hour: &Hour, log: &[Value], recorded: &[Value]) {
    for (model, (usage_of_model, cost)) in hour.ledger() {
        let of_model: Vec<Value> = log.iter().filter(|line| line["model"] == *model).cloned().collect();
        let named = label("model", &model);
        for (kind, tokens) in kinds(&usage_of_model) {
            let counted = hour.metric("tokens_total", &[&named, &label("kind", kind)]);
            assert_eq!((counted, sum(&of_model, kind)), (tokens as f64, tokens as f64), "{model} {kind}");
        }
        let billed = hour.metric("cost_usd_total", &[&named]);
        assert!(close(billed, cost), "{model}: {billed} and {cost}");
        assert!(close(sum(&of_model, "cost_usd"), cost), "{model} in the log");
        let as_sent = hour.metric("counterfactual_usd_total", &[&named, "sent"]);
        assert!(close(sum(&of_model, "as_sent_usd"), as_sent), "{model} as sent");
        assert!(close(hour.metric("saved_usd", &[&named]), as_sent - cost), "{model} saved");
    }
    for kind in ["uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output"] {
        let all: u64 = hour
            .ledger()
            .values()
            .flat_map(|(usage, _)| kinds(usage))
            .filter(|(name, _)| *name == kind)
            .map(|(_, tokens)| tokens)
            .sum();
        for name in ["tenant_tokens_total", "client_tokens_total"] {
            assert_eq!(hour.metric(name, &[&label("kind", kind)]), all as f64, "{name} {kind}");
        }
        assert_eq!(sum(recorded, kind), all as f64, "recorded {kind}");
    }
    for (client, exchanges) in by_client(&hour.exchanges) {
        for (kind, tokens) in kinds(&replayed::Sum::of(exchanges).usage) {
            let counted =
                hour.metric("client_tokens_total", &[&label("client", client), &label("kind", kind)]);
            assert_eq!(counted, tokens as f64, "{client} {kind}");
        }
    }
}

/// The exchanges that were billed, by the client as it is shown.
fn by_client(exchanges: &[Exchange]) -> BTreeMap<&'static str, Vec<&Exchange>> {
    let mut clients: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for exchange in exchanges.iter().filter(|exchange| exchange.usage.is_some()) {
        clients.entry(replayed::client(exchange)).or_default().push(exchange);
    }
    assert_eq!(clients.len(), 2);
    clients
}

/// What was counted is what was logged and recorded.
fn counted(hour: &Hour, log: &[Value], recorded: &[Value]) {
    let all = hour.exchanges.len();
    assert_eq!((log.len(), recorded.len()), (all, all));
    assert_eq!(hour.metric("requests_total", &[]), all as f64);
    let same = |metric: &str, labels: &[&str], fields: &[&str], lines: &[Value]| {
        let found = counts(lines, fields);
        for (values, count) in &found {
            let labels: Vec<String> =
                labels.iter().zip(values).map(|(name, value)| label(name, value)).collect();
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            assert_eq!(hour.metric(metric, &labels), *count, "{metric} {labels:?}");
        }
        assert_eq!(hour.metric(metric, &[]), found.values().sum::<f64>(), "{metric}");
    };
    let held: Vec<Value> =
        log.iter().filter(|line| line.get("gate").is_none_or(|gate| gate != "unneeded")).cloned().collect();
    let children: Vec<Value> = log.iter().filter(|line| line["child_turn"] == 1).cloned().collect();
    let passed: Vec<Value> = log.iter().filter(|line| line["plan"] == "passthrough").cloned().collect();
    for lines in [log, recorded] {
        same("requests_total", &["role", "plan", "model"], &["role", "plan", "model"], lines);
        same("cache_breaks_total", &["layer", "cause"], &["break_layer", "break_cause"], lines);
        assert_eq!(hour.metric("cache_break_tokens_total", &[]), sum(lines, "break_tokens"));
        let sealed = lines.iter().filter(|line| line["fanned_out"].is_string()).count();
        assert_eq!(hour.metric("forks_total", &["sealed"]), sealed as f64);
    }
    same("client_requests_total", &["client", "plan"], &["client", "plan"], log);
    same("passthrough_total", &["reason"], &["reason"], &passed);
    same("children_total", &["plan", "reason"], &["plan", "reason"], &children);
    same("gate_holds_total", &["outcome"], &["gate"], &held);
    assert_eq!(hour.metric("gate_hold_seconds_count", &[]), counts(&held, &["gate"]).values().sum::<f64>());
    assert_eq!(hour.metric("gate_tokens_total", &["saved"]), sum(log, "gate_saved_tokens"));
    assert_eq!(hour.metric("gate_tokens_total", &["missed"]), sum(log, "gate_missed_tokens"));
    // A request that went out again came twice to the upstream.
    let asked = hour.stage.sim.requests().len();
    assert_eq!(hour.metric("fallbacks_total", &[]), (asked - all) as f64);
    for exchange in &hour.exchanges {
        let id = exchange.headers.get("request-id").unwrap().to_str().unwrap();
        let line = log.iter().find(|line| line["upstream_request_id"] == id).expect("a line");
        for (header, field) in [("role", "role"), ("plan", "plan"), ("reason", "reason"), ("fork", "fork")] {
            assert_eq!(exchange.said(header), line.get(field).and_then(Value::as_str), "{field}: {line}");
        }
    }
}

async fn agrees(mode: Mode, quiet: &[BreakCause]) -> Hour {
    let hour = Hour::pass(mode).await;
    let log = hour.stage.log.records();
    let recorded = hour.recorded();
    for cause in BreakCause::ALL {
        let breaks = hour.metric("cache_breaks_total", &[&label("cause", cause.as_str())]);
        assert_eq!(breaks > 0.0, !quiet.contains(&cause), "{}: {breaks}", cause.as_str());
    }
    bills(&hour, &log, &recorded);
    counted(&hour, &log, &recorded);
    hour
}

#[tokio::test]
async fn an_hour_observed_agrees_with_the_ledger_and_so_does_its_replay() {
    let hour = agrees(Mode::Observe, &[]).await;
    assert_eq!(hour.metric("fallbacks_total", &[]), 0.0);
    replayed::agrees(&hour, "as sent").await;
}

#[tokio::test]
async fn an_hour_aligned_agrees_with_the_ledger_and_so_does_its_replay() {
    let hour = agrees(Mode::Align, &[BreakCause::Spelling, BreakCause::Lookback]).await;
    assert_eq!(hour.metric("fallbacks_total", &["refused"]), 1.0);
    assert!(hour.metric("gate_holds_total", &["released"]) > 0.0, "nobody waited");
    replayed::agrees(&hour, "aligned").await;
}

#[tokio::test]
async fn an_hour_forked_agrees_with_the_ledger_and_so_does_its_replay() {
    let hour = agrees(Mode::Fork, &[BreakCause::Spelling, BreakCause::Lookback]).await;
    assert_eq!(hour.metric("children_total", &["forked"]), CHILDREN as f64);
    assert!(hour.metric("gate_holds_total", &["released"]) > 0.0, "nobody waited");
    replayed::agrees(&hour, "forked").await;
}
