//! Lines of mode `fork`: children that are forked, and one for each reason why a child is not.

use forkpoint::config::Config;
use forkpoint::sim::faults::{FaultCondition, Rule};
use forkpoint::sim::{InjectedFault, Latency, Sim, SimConfig};
use serde_json::{Value, json};

use super::recorded::Recorded;
use crate::harness::{Forkpoint, Log, Upstream, call, samples, until};
use crate::workload::{Exchange, Letter, Line, prose, tool};

const MODEL: &str = "claude-sonnet-4-6";
const FAN_OUT: &str = "[[sim:fan_out n=2 tool=Agent field=prompt words=60 | tools turns=1 tool=read_file]]";

struct Stage {
    sim: Sim,
    forkpoint: Forkpoint,
    log: Log,
    recorded: Recorded,
}

impl Stage {
    async fn new(configure: impl FnOnce(&mut Config)) -> Stage {
        let log = Log::start();
        let sim = Sim::start(SimConfig { latency: Latency::none(), ..SimConfig::default() }).await.unwrap();
        let recorded = Recorded::new();
        let forkpoint = Forkpoint::with(&sim.url(), recorded.with(configure)).await;
        Stage { sim, forkpoint, log, recorded }
    }

    /// The line of this request, and what came of it.
    async fn send(&self, letter: &Letter) -> (Value, Exchange) {
        let before = self.log.count();
        let url = format!("http://{}", self.forkpoint.address);
        let exchange = Line::through(url, self.forkpoint.proxy.clone(), &self.sim).send(letter).await;
        until("the line", || self.log.count() > before).await;
        let line = self.log.records().remove(before);
        self.recorded.says(&self.forkpoint, &line);
        (line, exchange)
    }
}

fn agent(name: &str) -> Value {
    json!({"name": name, "description": "Starts a sub-agent.", "input_schema": {"type": "object",
        "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}})
}

fn parent(instruction: &str) -> Value {
    json!({
        "model": MODEL, "max_tokens": 9_000, "stream": true,
        "tools": [agent(if instruction.contains("tool=go") { "go" } else { "Agent" }), tool("read_file"), tool("search")],
        "system": [{"type": "text", "text": prose("You lead a team of agents.", 3_000)}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": format!("Survey it. {instruction}")}]}],
    })
}

/// A child that can be forked.
fn child(directive: &str) -> Value {
    json!({
        "model": MODEL, "max_tokens": 1_000, "stream": true, "tools": [tool("read_file"), tool("search")],
        "system": [{"type": "text", "text": prose("You report once.", 3_000)}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": directive}]}],
    })
}

/// How a fan-out goes: the configuration, what the parent is told, and what its first child is like.
struct Scene {
    configure: fn(&mut Config),
    instruction: &'static str,
    change: fn(&mut Value),
}

impl Default for Scene {
    fn default() -> Scene {
        Scene { configure: |_| (), instruction: FAN_OUT, change: |_| () }
    }
}

impl Scene {
    fn changing(change: fn(&mut Value)) -> Scene {
        Scene { change, ..Scene::default() }
    }

    fn with(configure: fn(&mut Config)) -> Scene {
        Scene { configure, ..Scene::default() }
    }

    fn told(instruction: &'static str) -> Scene {
        Scene { instruction, ..Scene::default() }
    }

    /// The child's line.
    async fn line(self) -> Value {
        let stage = Stage::new(self.configure).await;
        let (_, directive) = fan_out(&stage, self.instruction).await;
        let mut body = child(&directive);
        (self.change)(&mut body);
        stage.send(&of_session(&body)).await.0
    }
}

fn of_session(body: &Value) -> Letter {
    Letter::alone(body).with("x-forkpoint-session", "one")
}

/// The parent's turn, and the directive of its first child.
async fn fan_out(stage: &Stage, instruction: &str) -> (Vec<Value>, String) {
    let (_, exchange) = stage.send(&of_session(&parent(instruction))).await;
    let blocks = exchange.blocks().expect("a fan-out");
    let calls = blocks.iter().filter_map(|block| block["input"]["prompt"].as_str());
    let directive = calls.map(str::to_owned).next().expect("a call");
    (blocks, directive)
}

/// Every line of the mode.
pub async fn lines() -> Vec<Value> {
    let mut lines = children().await;
    let known = Stage::new(|_| ()).await;
    fan_out(&known, FAN_OUT).await;
    lines.push(known.send(&of_session(&child("Look around."))).await.0);
    lines.push(client_fork().await);
    lines.push(stood_down().await);
    lines.push(lost_prefix().await);
    lines.push(no_tools().await);
    lines.push(summary().await);
    lines.push(other_version().await);
    let scenes = [
        Scene::with(|config| config.fork.policy.share = 0.0),
        Scene::with(|config| config.fork.policy.max_cost_ratio = 0.0),
        // It pays for many turns, and not for one.
        Scene::with(|config| {
            (config.fork.policy.max_cost_ratio, config.fork.policy.horizon_turns) = (0.3, 32)
        }),
        Scene::with(|config| config.fork.policy.exclude_sessions = vec!["one".to_owned()]),
        Scene::with(|config| config.limits.body_bytes = 20_000),
        Scene::with(|config| config.fork.policy.max_context_share = 0.001),
        // Room for the fan-out, and none for a child.
        Scene::with(|config| (config.store.max_bytes, config.store.tenant_share) = (30_000, 1.0)),
        Scene::told("[[sim:fan_out n=2 tool=go field=prompt words=60]]"),
        Scene::told("[[sim:fan_out n=2 tool=Agent field=prompt words=60 type=Explore]]"),
        Scene::changing(|body| body["model"] = json!("claude-opus-4-5")),
        Scene::changing(|body| body["tools"] = json!([tool("read_file"), tool("search"), tool("paint")])),
        Scene::changing(|body| body["tools"] = json!([tool("read_file")])),
        Scene::changing(|body| {
            body["max_tokens"] = json!(4_000);
            body["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
        }),
        Scene::changing(|body| body["tool_choice"] = json!({"type": "any"})),
        Scene::changing(|body| body["output_config"] = json!({"effort": "low"})),
        Scene::changing(|body| body["output_format"] = json!({"type": "json_schema", "schema": {}})),
        Scene::changing(|body| body["context_management"] = json!({"edits": []})),
        Scene::changing(|body| body["speed"] = json!("fast")),
        Scene::changing(|body| {
            body["mcp_servers"] = json!([{"type": "url", "url": "https://m", "name": "m"}])
        }),
        Scene::changing(|body| body["container"] = json!("c")),
        Scene::changing(|body| body["frobnicate"] = json!(true)),
        Scene::changing(|body| {
            let source = json!({"type": "base64", "media_type": "image/png", "data": "aGk="});
            let image = json!({"type": "image", "source": source});
            body["messages"][0]["content"].as_array_mut().unwrap().insert(0, image);
        }),
    ];
    for scene in scenes {
        lines.push(scene.line().await);
    }
    lines
}

/// A forked child's first turn and its second.
async fn children() -> Vec<Value> {
    let stage = Stage::new(|_| ()).await;
    let (_, directive) = fan_out(&stage, FAN_OUT).await;
    let mut body = child(&directive);
    let (first, exchange) = stage.send(&of_session(&body)).await;
    let blocks = exchange.blocks().expect("a call");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": blocks}));
    messages.push(json!({"role": "user", "content": results(&blocks, "It is empty.")}));
    vec![first, stage.send(&of_session(&body)).await.0]
}

fn results(blocks: &[Value], text: &str) -> Vec<Value> {
    let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
    calls.map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": text})).collect()
}

/// A client that has put the child on the parent's history itself.
async fn client_fork() -> Value {
    let stage = Stage::new(|_| ()).await;
    let (blocks, directive) = fan_out(&stage, FAN_OUT).await;
    let mut body = parent(FAN_OUT);
    let mut content = results(&blocks, "Started.");
    content.push(json!({"type": "text", "text": directive}));
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": blocks}));
    messages.push(json!({"role": "user", "content": content}));
    stage.send(&of_session(&body)).await.0
}

/// A child that an agent's id makes one, and that may call nothing.
async fn no_tools() -> Value {
    let stage = Stage::new(|_| ()).await;
    let (_, directive) = fan_out(&stage, FAN_OUT).await;
    let mut body = child(&directive);
    body.as_object_mut().unwrap().shift_remove("tools");
    stage.send(&of_session(&body).with("x-claude-code-agent-id", "a")).await.0
}

/// A child that asks for a summary of itself.
async fn summary() -> Value {
    let stage = Stage::new(|_| ()).await;
    let (_, directive) = fan_out(&stage, FAN_OUT).await;
    let mut body = child(&directive);
    body["compaction"] = json!({"type": "summarize"});
    stage.send(&of_session(&body).with("anthropic-beta", "compact-2026-09-04")).await.0
}

/// A child that asks for another version of the API than its parent.
async fn other_version() -> Value {
    let stage = Stage::new(|_| ()).await;
    let (_, directive) = fan_out(&stage, FAN_OUT).await;
    let mut letter = of_session(&child(&directive));
    letter.headers.retain(|(name, _)| *name != "anthropic-version");
    stage.send(&letter.with("anthropic-version", "2026-10-21")).await.0
}

/// The second child of a fan-out whose first was refused as it was forked.
async fn stood_down() -> Value {
    let stage = Stage::new(|_| ()).await;
    let (blocks, directive) = fan_out(&stage, FAN_OUT).await;
    let matching =
        FaultCondition { body_contains: Some("<forkpoint-child>".to_owned()), ..FaultCondition::default() };
    let fault = InjectedFault::Status { status: 400, retry_after_s: None };
    stage.sim.faults().order(Rule { fault, count: 1, matching }).unwrap();
    stage.send(&of_session(&child(&directive))).await;
    let other = blocks.iter().filter_map(|block| block["input"]["prompt"].as_str()).nth(1).unwrap();
    stage.send(&of_session(&child(other))).await.0
}

/// A conversation whose thinking belongs behind a prefix that nobody knows any more.
async fn lost_prefix() -> Value {
    let log = Log::start();
    let upstream = Upstream::answering_with(|request| {
        if String::from_utf8_lossy(&request.body).contains("block_binding") {
            samples::message()
        } else {
            let said = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1: the block is bound to a different conversation"}}"#;
            let head = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n", said.len());
            [head.as_bytes(), said.as_bytes()].concat()
        }
    })
    .await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let body = json!({"model": MODEL, "max_tokens": 2_000, "thinking": {"type": "adaptive"}, "messages": [
        {"role": "user", "content": "Think."},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "Go on."},
    ]});
    forkpoint.client().await.ask(&call(body.to_string().as_bytes())).await;
    until("the line", || log.count() > 0).await;
    log.records().remove(0)
}
