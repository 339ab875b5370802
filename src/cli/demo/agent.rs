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
use super::super::progress::Progress;
use super::stage::DemoStage;
use super::workload::{Client, History, Personas, Workload};

const LIMITS: TurnLimits = TurnLimits { bytes: 8 << 20, tool_uses: 256 };
/// The simulator's estimate.
const BYTES_PER_TOKEN: usize = 4;
/// The tokens of a parent's instructions; the rest of its context is history.
const PARENT_INSTRUCTIONS: u32 = 4_000;
/// A tool of an agent: a page of description.
const TOOL_TOKENS: u32 = 1_000;
/// Its name and schema.
const TOOL_FRAME_TOKENS: u32 = 40;
/// The files that a parent has read, where its children may want to read them too.
pub const FILES: [&str; 3] = ["engine", "proxy", "store"];
const FILE_TOKENS: u32 = 6_000;
/// Room for 64 directives in one answer.
const ANSWER_TOKENS_MAX: u32 = 32_000;
/// A script that does not end is a bug of ours, not a reason to run for ever.
const TURNS_MAX: usize = 64;

/// One request that was made.
pub struct ClientCall {
    pub who: String,
    /// The number of the fan-out that it belongs to, from 1.
    pub fan_out: u16,
    pub turn: usize,
    pub request_id: String,
}

/// A workload that was played.
#[derive(Default)]
pub struct Played {
    pub calls: Vec<ClientCall>,
    /// Of each fan-out, the time from the first child's request to the last child's last byte.
    pub children_took: Vec<Duration>,
}

pub async fn run(workload: &Workload, stage: &DemoStage, progress: &Progress) -> Result<Played, Failure> {
    let mut parent = Agent::parent(workload, Session::new(workload, stage, progress)?);
    let mut played = Played::default();
    for fan_out in 1..=workload.fan_outs {
        if fan_out > 1 {
            stage.pass(workload.pause, &played.calls).await?;
        }
        parent.fan_out = fan_out;
        parent.messages.push(json!({"role": "user", "content": [text(&ask(workload, fan_out))]}));
        let answer = parent.ask().await?;
        played.calls.append(&mut parent.calls);
        let (finished, took) = children(workload, &answer, &parent).await?;
        let reports: Vec<&str> = finished.iter().map(|(_, report)| report.as_str()).collect();
        parent.tool_results(&answer, &reports)?;
        let report = parent.ask().await?;
        parent.messages.push(json!({"role": "assistant", "content": blocks(&report)?}));
        played.calls.extend(finished.into_iter().flat_map(|(child, _)| child.calls));
        played.calls.append(&mut parent.calls);
        played.children_took.push(took);
    }
    Ok(played)
}

/// Plays an agent whose system prompt has another time in each of its two turns.
pub async fn drift(workload: &Workload, stage: &DemoStage, progress: &Progress) -> Result<(), Failure> {
    let mut agent = Agent::parent(workload, Session::new(workload, stage, progress)?);
    agent.who = "drifting".into();
    let instructions = agent.system.clone();
    for minute in [14, 15] {
        agent.system = format!("It is 09:{minute}. {instructions}");
        agent
            .messages
            .push(json!({"role": "user", "content": [text("How far is it? [[sim:text words=40]]")]}));
        let answer = agent.ask().await?;
        agent.messages.push(json!({"role": "assistant", "content": blocks(&answer)?}));
    }
    Ok(())
}

/// Runs the children that this answer calls, all at once: each with its report, and the time that they took.
async fn children<'a>(
    workload: &Workload,
    answer: &Turn,
    parent: &Agent<'a>,
) -> Result<(Vec<(Agent<'a>, String)>, Duration), Failure> {
    let spawned = tool_uses(answer)?;
    if spawned.len() != usize::from(workload.children) {
        let message = format!("the parent spawned {} children of {}", spawned.len(), workload.children);
        return Err(Failure::new(message));
    }
    let children: Vec<_> = (1..)
        .zip(&spawned)
        .map(|(number, call)| {
            let mut child = Agent::child(number, call, workload, parent);
            async move { child.work(workload, number).await.map(|report| (child, report)) }
        })
        .collect();
    let started = Instant::now();
    let finished = try_join_all(children).await?;
    Ok((finished, started.elapsed()))
}

/// The user's words to the parent, with the script of the simulated model.
fn ask(workload: &Workload, fan_out: u16) -> String {
    let Workload { children, directive_words, .. } = workload;
    let (turns, calls) = (workload.turns + workload.rereading_turns(), workload.calls_per_turn());
    format!(
        "Survey part {fan_out} of the project and report. [[sim:fan_out n={children} tool=Agent field=prompt \
         words={directive_words} | tools turns={turns} calls={calls} tool=Read]]"
    )
}

#[derive(Clone)]
struct Session<'a> {
    http: reqwest::Client,
    client: Client,
    project: u32,
    stage: &'a DemoStage,
    progress: &'a Progress,
}

impl<'a> Session<'a> {
    fn new(
        workload: &Workload,
        stage: &'a DemoStage,
        progress: &'a Progress,
    ) -> Result<Session<'a>, Failure> {
        let http = reqwest::Client::builder().no_proxy().build();
        let http = http.map_err(|error| Failure::new(format!("cannot make a client: {error}")))?;
        Ok(Session { http, client: workload.client, project: workload.project, stage, progress })
    }

    /// Instructions that begin with this sentence, and with their project if there are several.
    fn instructions(&self, sentence: &str, tokens: u32) -> String {
        match self.project {
            0 => prose(sentence, tokens),
            project => prose(&format!("{sentence} This is project {project}."), tokens),
        }
    }
}

struct Agent<'a> {
    who: String,
    fan_out: u16,
    session: Session<'a>,
    system: String,
    tools: Vec<Value>,
    messages: Vec<Value>,
    calls: Vec<ClientCall>,
    asked: usize,
    /// True once a request of this agent went out on its parent's prefix.
    is_forked: bool,
}

impl<'a> Agent<'a> {
    fn parent(workload: &Workload, session: Session<'a>) -> Agent<'a> {
        let mut tools = tools(workload.tool_tokens);
        tools.push(tool("Agent", "prompt", 0));
        let rest = workload.context_tokens.saturating_sub(workload.tool_tokens);
        let system = rest.min(PARENT_INSTRUCTIONS);
        Agent {
            who: "parent".into(),
            fan_out: 1,
            system: session.instructions("You lead a team of engineers.", system),
            session,
            tools,
            messages: history(workload.history, rest - system),
            calls: Vec::new(),
            asked: 0,
            is_forked: false,
        }
    }

    /// A sub-agent: its own instructions, the tools that start no agents, and the directive as its first message.
    fn child(number: u16, spawn: &Value, workload: &Workload, parent: &Agent<'a>) -> Agent<'a> {
        let directive = spawn["input"]["prompt"].as_str().unwrap_or_default();
        let system = match workload.personas {
            Personas::Shared => "You are a sub-agent. Report tersely.".to_owned(),
            Personas::Own => format!("Specialist {number} of the team: report tersely."),
        };
        Agent {
            who: format!("child {number}"),
            fan_out: parent.fan_out,
            session: parent.session.clone(),
            system: parent.session.instructions(&system, workload.child_tokens),
            tools: tools(workload.tool_tokens),
            messages: vec![json!({"role": "user", "content": [text(directive)]})],
            calls: Vec::new(),
            asked: 0,
            is_forked: false,
        }
    }

    /// Runs a child's loop to its end; its report is the last answer's text. Unless it is forked it first reads again
    /// what the workload says.
    async fn work(&mut self, workload: &Workload, number: u16) -> Result<String, Failure> {
        let mut left = workload.calls(number);
        let mut scripted = workload.turns + workload.rereading_turns();
        for _ in 0..TURNS_MAX {
            let answer = self.ask().await?;
            let uses = tool_uses(&answer)?;
            if uses.is_empty() {
                return Ok(blocks(&answer)?.iter().filter_map(|block| block["text"].as_str()).collect());
            }
            let reads_again = self.asked == 1 && workload.history == History::Files && !self.is_forked;
            if reads_again {
                self.tool_results(&answer, &FILES.map(file))?;
            } else {
                self.tool_results(&answer, &vec!["The file holds what its name says."; uses.len()])?;
                left = left.saturating_sub(1);
            }
            scripted = scripted.saturating_sub(1);
            if left == 0 && scripted > 0 {
                self.append(text("That was all there is to read. [[sim:text words=30]]"));
            }
        }
        Err(Failure::new(format!("{} did not finish within {TURNS_MAX} turns", self.who)))
    }

    /// Appends a block to the newest message.
    fn append(&mut self, block: Value) {
        let newest = self.messages.last_mut().and_then(|message| message["content"].as_array_mut());
        newest.into_iter().for_each(|blocks| blocks.push(block.clone()));
    }

    /// Appends the answer and the results of its calls.
    fn tool_results(&mut self, answer: &Turn, results: &[impl AsRef<str>]) -> Result<(), Failure> {
        let uses = tool_uses(answer)?;
        let results: Vec<Value> = uses
            .iter()
            .zip(results)
            .map(
                |(call, result)| json!({"type": "tool_result", "tool_use_id": call["id"], "content": result.as_ref()}),
            )
            .collect();
        self.messages.push(json!({"role": "assistant", "content": blocks(answer)?}));
        self.messages.push(json!({"role": "user", "content": results}));
        Ok(())
    }

    async fn ask(&mut self) -> Result<Turn, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::new(super::super::cause(error));
        let request = self.session.http.post(format!("{}/v1/messages", self.session.stage.client_url()));
        let request = request.header("x-api-key", "demo").header("anthropic-version", "2023-06-01");
        self.asked += 1;
        let answer = request.json(&self.body()).send().await.map_err(|error| failed(&error))?;
        let status = answer.status();
        let said =
            |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(String::from);
        self.calls.push(ClientCall {
            who: self.who.clone(),
            fan_out: self.fan_out,
            turn: self.asked,
            request_id: said("request-id").unwrap_or_default(),
        });
        self.is_forked |= said("x-forkpoint-plan").as_deref() == Some("forked");
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
            Client::Naive => tools.rotate_left(self.asked % self.tools.len().max(1)),
        }
        json!({
            "model": self.session.stage.model(),
            "max_tokens": ANSWER_TOKENS_MAX,
            "stream": true,
            "system": [system],
            "tools": tools,
            "messages": messages,
        })
    }
}

/// What the parent knows before it fans out, in this many tokens.
fn history(kind: History, tokens: u32) -> Vec<Value> {
    if tokens == 0 {
        return Vec::new();
    }
    let known = |tokens| prose("Here is what is known of the project.", tokens);
    let read = json!({"role": "assistant", "content": [text("I have read it.")]});
    let files: Vec<Value> = match kind {
        History::Told => Vec::new(),
        History::Files => {
            let id = |name: &str| format!("toolu_{name}");
            let calls = FILES.map(
                |name| json!({"type": "tool_use", "id": id(name), "name": "Read", "input": {"path": name}}),
            );
            let results = FILES
                .map(|name| json!({"type": "tool_result", "tool_use_id": id(name), "content": file(name)}));
            vec![json!({"role": "assistant", "content": calls}), json!({"role": "user", "content": results})]
        }
    };
    let of_files = if files.is_empty() { 0 } else { FILE_TOKENS * FILES.len() as u32 };
    let opening = json!({"role": "user", "content": [text(&known(tokens.saturating_sub(of_files)))]});
    [vec![opening], files, vec![read]].concat()
}

/// A file of the project.
fn file(name: &str) -> String {
    prose(&format!("{name}: what this part of the project does, and why."), FILE_TOKENS)
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
