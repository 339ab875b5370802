//! The scripted client: a parent that fans out, children that work with tools, all streaming.
//!
//! It resends its history on every turn, and starts all children at once, as clients do. A careful one marks
//! its system prompt and its newest message for caching; a naive one marks nothing, and brings its tools in
//! another order each time, as those do that keep them in a map.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::engine::answer::sse::Framer;
use crate::engine::answer::turn::{Turn, TurnBuilder, TurnLimits};

use super::super::Failure;
use super::DemoProgress;

const MODEL: &str = "claude-sonnet-4-6";
const LIMITS: TurnLimits = TurnLimits { bytes: 8 << 20, tool_uses: 256 };
/// The simulator's estimate.
const BYTES_PER_TOKEN: usize = 4;
/// The tokens of a parent's instructions; the rest of its context is history.
const PARENT_INSTRUCTIONS: u32 = 4_000;
/// A tool of an agent: a page of description.
const TOOL_TOKENS: u32 = 1_000;
/// Its name and schema.
const TOOL_FRAME_TOKENS: u32 = 40;
/// Room for 64 directives in one answer.
const ANSWER_TOKENS_MAX: u32 = 32_000;
/// A script that does not end is a bug of ours, not a reason to run for ever.
const TURNS_MAX: usize = 64;

/// A fan-out to play.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub children: u16,
    pub turns: u16,
    /// The parent's context: tools, instructions and history.
    pub context_tokens: u32,
    /// Of that the tools, which the children bring too.
    pub tool_tokens: u32,
    /// A sub-agent's own instructions.
    pub child_tokens: u32,
    pub client: Client,
}

/// The client's own care for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Client {
    /// Marks its system prompt and its newest message, and always spells alike
    Careful,
    /// Marks nothing, and shuffles its tools
    Naive,
}

impl Client {
    pub fn name(self) -> &'static str {
        match self {
            Client::Careful => "careful",
            Client::Naive => "naive",
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Client::Careful => "The client marks its system prompt and its newest message for the cache.",
            Client::Naive => "The client marks nothing for the cache, and shuffles its tools.",
        }
    }
}

impl Workload {
    /// The parent's two requests, and each child's.
    pub fn requests(&self) -> usize {
        2 + usize::from(self.children) * (usize::from(self.turns) + 1)
    }
}

/// One request that was made.
pub struct ClientCall {
    pub who: String,
    pub turn: usize,
    pub request_id: String,
    /// The plan that forkpoint chose and the reason, if the request went through one.
    pub plan: Option<String>,
    pub reason: Option<String>,
}

/// A fan-out that was played.
pub struct PlayedFanOut {
    pub calls: Vec<ClientCall>,
    /// From the first child's request to the last child's last byte.
    pub children_took: Duration,
}

pub async fn run(workload: &Workload, url: String, progress: &DemoProgress) -> Result<PlayedFanOut, Failure> {
    let client = reqwest::Client::builder().no_proxy().build();
    let client = client.map_err(|error| Failure::new(format!("cannot make a client: {error}")))?;
    let mut parent =
        Agent::parent(workload, Session { http: client, url, progress, client: workload.client });
    let answer = parent.ask().await?;
    let spawned = tool_uses(&answer)?;
    if spawned.len() != usize::from(workload.children) {
        let message = format!("the parent spawned {} children of {}", spawned.len(), workload.children);
        return Err(Failure::new(message));
    }
    let children = spawned.iter().enumerate().map(|(number, call)| {
        let mut child = Agent::child(number + 1, call, workload, parent.session.clone());
        async move { child.work().await.map(|report| (child, report)) }
    });
    let children: Vec<_> = children.collect();
    let started = Instant::now();
    let finished = try_join_all(children).await?;
    let children_took = started.elapsed();
    let reports: Vec<&str> = finished.iter().map(|(_, report)| report.as_str()).collect();
    parent.tool_results(&answer, &reports)?;
    parent.ask().await?;
    let mut calls = parent.calls;
    let last = calls.pop();
    calls.extend(finished.into_iter().flat_map(|(child, _)| child.calls));
    calls.extend(last);
    Ok(PlayedFanOut { calls, children_took })
}

#[derive(Clone)]
struct Session<'a> {
    http: reqwest::Client,
    client: Client,
    url: String,
    progress: &'a DemoProgress,
}

struct Agent<'a> {
    who: String,
    session: Session<'a>,
    system: String,
    tools: Vec<Value>,
    messages: Vec<Value>,
    calls: Vec<ClientCall>,
}

impl<'a> Agent<'a> {
    fn parent(workload: &Workload, session: Session<'a>) -> Agent<'a> {
        let ask = format!(
            "Survey the project and report. [[sim:fan_out n={} tool=Agent field=prompt words=60 | tools turns={} tool=Read]]",
            workload.children, workload.turns
        );
        let mut tools = tools(workload.tool_tokens);
        tools.push(tool("Agent", "prompt", 0));
        let rest = workload.context_tokens.saturating_sub(workload.tool_tokens);
        let system = rest.min(PARENT_INSTRUCTIONS);
        let mut messages = Vec::new();
        if rest > system {
            let project = prose("Here is what is known of the project.", rest - system);
            messages.push(json!({"role": "user", "content": [text(&project)]}));
            messages.push(json!({"role": "assistant", "content": [text("I have read it.")]}));
        }
        messages.push(json!({"role": "user", "content": [text(&ask)]}));
        let system = prose("You lead a team of engineers.", system);
        Agent { who: "parent".into(), session, system, tools, messages, calls: Vec::new() }
    }

    /// A sub-agent: its own instructions, the tools that start no agents, and the directive as its first message.
    fn child(number: usize, spawn: &Value, workload: &Workload, session: Session<'a>) -> Agent<'a> {
        let directive = spawn["input"]["prompt"].as_str().unwrap_or_default();
        Agent {
            who: format!("child {number}"),
            session,
            system: prose("You are a sub-agent. Report tersely.", workload.child_tokens),
            tools: tools(workload.tool_tokens),
            messages: vec![json!({"role": "user", "content": [text(directive)]})],
            calls: Vec::new(),
        }
    }

    /// Runs the agent's loop to its end; its report is the last answer's text.
    async fn work(&mut self) -> Result<String, Failure> {
        for _ in 0..TURNS_MAX {
            let answer = self.ask().await?;
            let uses = tool_uses(&answer)?;
            if uses.is_empty() {
                return Ok(blocks(&answer)?.iter().filter_map(|block| block["text"].as_str()).collect());
            }
            let results = vec!["The file holds what its name says."; uses.len()];
            self.tool_results(&answer, &results)?;
        }
        Err(Failure::new(format!("{} did not finish within {TURNS_MAX} turns", self.who)))
    }

    /// Appends the answer and the results of its calls.
    fn tool_results(&mut self, answer: &Turn, results: &[&str]) -> Result<(), Failure> {
        let uses = tool_uses(answer)?;
        let results: Vec<Value> = uses
            .iter()
            .zip(results)
            .map(
                |(call, result)| json!({"type": "tool_result", "tool_use_id": call["id"], "content": result}),
            )
            .collect();
        self.messages.push(json!({"role": "assistant", "content": blocks(answer)?}));
        self.messages.push(json!({"role": "user", "content": results}));
        Ok(())
    }

    async fn ask(&mut self) -> Result<Turn, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::new(super::super::cause(error));
        let request = self.session.http.post(format!("{}/v1/messages", self.session.url));
        let request = request.header("x-api-key", "demo").header("anthropic-version", "2023-06-01");
        let answer = request.json(&self.body()).send().await.map_err(|error| failed(&error))?;
        let status = answer.status();
        let said =
            |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(String::from);
        self.calls.push(ClientCall {
            who: self.who.clone(),
            turn: self.calls.len() + 1,
            request_id: said("request-id").unwrap_or_default(),
            plan: said("x-forkpoint-plan"),
            reason: said("x-forkpoint-reason"),
        });
        let mut builder = TurnBuilder::new(LIMITS);
        let mut framer = Framer::new(LIMITS.bytes);
        let mut chunks = answer.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| failed(&error))?;
            framer.push(&chunk, |event| builder.push(event.data));
        }
        self.session.progress.step(&self.who);
        if status.is_success() {
            Ok(builder.finish())
        } else {
            Err(Failure::new(format!("{}: the simulator answered {status}", self.who)))
        }
    }

    /// The request, as this client writes it.
    fn body(&self) -> Value {
        let mut system = text(&self.system);
        let mut tools = self.tools.clone();
        let mut messages = self.messages.clone();
        match self.session.client {
            Client::Careful => {
                let marker = json!({"type": "ephemeral"});
                let newest =
                    messages.last_mut().and_then(|message| message["content"].as_array_mut()?.last_mut());
                newest.into_iter().for_each(|block| block["cache_control"] = marker.clone());
                system["cache_control"] = marker;
            }
            Client::Naive => tools.rotate_left(self.calls.len() % self.tools.len().max(1)),
        }
        json!({
            "model": MODEL,
            "max_tokens": ANSWER_TOKENS_MAX,
            "stream": true,
            "system": [system],
            "tools": tools,
            "messages": messages,
        })
    }
}

fn blocks(answer: &Turn) -> Result<Vec<Value>, Failure> {
    let parsed: Result<Vec<Value>, _> =
        answer.blocks.iter().map(|block| serde_json::from_slice(&block.json)).collect();
    parsed.map_err(|error| Failure::new(format!("an answer could not be read: {error}")))
}

fn tool_uses(answer: &Turn) -> Result<Vec<Value>, Failure> {
    Ok(blocks(answer)?.into_iter().filter(|block| block["type"] == "tool_use").collect())
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Tools of about that many tokens in all; a few small ones if that is zero.
fn tools(tokens: u32) -> Vec<Value> {
    let more = (tokens / TOOL_TOKENS).saturating_sub(2);
    let each = tokens / (more + 2);
    let mut tools = vec![tool("Read", "path", each), tool("Search", "query", each)];
    tools.extend((1..=more).map(|number| tool(&format!("Inspect{number}"), "path", each)));
    tools
}

fn tool(name: &str, field: &str, tokens: u32) -> Value {
    let description = format!("{name} something in the project and return what was found.");
    json!({
        "name": name,
        "description": prose(&description, tokens.saturating_sub(TOOL_FRAME_TOKENS)),
        "input_schema": {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]},
    })
}

/// Words of about that many tokens; the same every time.
fn prose(opening: &str, tokens: u32) -> String {
    const SENTENCE: &str =
        " Read before you write, measure before you claim, and leave the place tidier than it was.";
    let mut text = opening.to_owned();
    while text.len() < tokens as usize * BYTES_PER_TOKEN {
        text.push_str(SENTENCE);
    }
    text
}
