//! Scenes of parents and children, as clients play them and as nobody should.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::engine::answer::turn::{Block, Turn, TurnBuilder, TurnLimits};
use crate::engine::request::identify::Session;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{Nothing, Remembered};
use crate::engine::words::{FanOutDropped, IdDigest, Moment, Rank, TenantId};

mod adversarial;
mod bindings;
mod claims;
mod clients;
mod fan_outs;
mod points;
mod shapes;

const LIMITS: TurnLimits = TurnLimits { bytes: 16 << 20, tool_uses: 256 };
const TENANT: TenantId = TenantId([7; 32]);
const SECOND: u64 = 1_000;

/// What the headers of a client say.
#[derive(Clone, Copy, Default)]
struct Headers {
    session: Option<u8>,
    agent: Option<u8>,
}

fn fork_name(message_id: &str) -> String {
    ForkId::of(TENANT, message_id).to_string()
}

/// A client without ids.
const BARE: Headers = Headers { session: None, agent: None };

/// Claude Code: one session, an agent id on children only.
fn claude(session: u8, agent: Option<u8>) -> Headers {
    Headers { session: Some(session), agent }
}

fn read(body: &Value) -> Remembered {
    Remembered::read(Bytes::from(body.to_string()), &Nothing, Attribution::Stripped).unwrap()
}

fn who(request: &Remembered, headers: Headers) -> Who {
    let id = |id: Option<u8>| id.map(|id| IdDigest([id; 16]));
    let session = id(headers.session).map(|digest| Session { shown: digest, hints: digest });
    Who::of(request, session, id(headers.agent))
}

fn parent(body: &Value, headers: Headers) -> Parent {
    let request = read(body);
    let who = who(&request, headers);
    Parent { betas: "some-beta".into(), ..Parent::new(Arc::new(request), who) }
}

/// An answer as one JSON body.
fn answer(id: &str, stop_reason: &str, blocks: &[Value]) -> Turn {
    let body = json!({"id": id, "model": "m", "stop_reason": stop_reason, "content": blocks,
        "usage": {"input_tokens": 10, "output_tokens": 5}});
    Turn::from_json(body.to_string().as_bytes(), LIMITS)
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

fn result(id: &str, content: Value) -> Value {
    json!({"tool_use_id": id, "type": "tool_result", "content": content})
}

fn tool(name: &str) -> Value {
    json!({"name": name, "description": "d", "input_schema": {"type": "object"}})
}

fn user(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

fn assistant(content: &[Value]) -> Value {
    json!({"role": "assistant", "content": content})
}

fn request(tools: &[&str], messages: &[Value]) -> Value {
    let tools: Vec<_> = tools.iter().map(|name| tool(name)).collect();
    json!({"model": "claude-x", "max_tokens": 1024, "tools": tools, "system": "You work.", "messages": messages})
}

/// What a worker is told: several lines, an end that all workers share.
fn directive(topic: &str) -> String {
    format!(
        "You are a worker. Investigate {topic} and nothing else.\nLook at every \"file\" that matters, in order. \
         Do not change anything.\n\nReport what you found in under 200 words, with the names of the key files."
    )
}

/// One tenant's fork points, and a clock.
struct Scene {
    forks: FanOuts<()>,
    now: Moment,
}

impl Scene {
    fn new() -> Scene {
        Scene { forks: FanOuts::new(TENANT, Rules::default()), now: Moment(1_000_000) }
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now.after(seconds * SECOND);
    }

    /// A parent whose answer came as one JSON body, with these calls.
    fn fan_out(&mut self, body: &Value, headers: Headers, id: &str, calls: &[Value]) -> Arc<ForkPoint> {
        let draft = Draft::begin(parent(body, headers), false);
        let blocks: Vec<_> = [text("I will split this.")].into_iter().chain(calls.iter().cloned()).collect();
        self.seal(draft, &answer(id, "tool_use", &blocks)).unwrap()
    }

    /// The answer of this draft has ended.
    fn seal(&mut self, draft: Draft, turn: &Turn) -> Result<Arc<ForkPoint>, FanOutDropped> {
        let ended = draft.end(turn, self.forks.points().rules());
        self.forks.seal(ended, self.now)
    }

    fn ask(&mut self, body: &Value, headers: Headers) -> Recognised {
        self.ask_naming(body, headers, None)
    }

    fn ask_naming(&mut self, body: &Value, headers: Headers, explicit: Option<Explicit<'_>>) -> Recognised {
        let request = read(body);
        let who = who(&request, headers);
        self.forks.note_agent(&who);
        self.recognise(&Newcomer { request: &request, who, explicit })
    }

    /// Recognises a request, and lets it go out.
    fn recognise(&mut self, newcomer: &Newcomer<'_>) -> Recognised {
        let recognised = recognise(newcomer, |sought| self.forks.recognise(sought, self.now));
        match &recognised {
            Recognised::Child(child, body) => self.forks.claim(child, &newcomer.who, *body),
            Recognised::Parent(_) => self.forks.returned(new_results(newcomer.request)),
            _ => {}
        }
        recognised
    }
}

/// Two agents with a directive each, of a parent that goes by `name`.
fn two_agents(scene: &mut Scene, headers: Headers, name: &str) -> Arc<ForkPoint> {
    let body = request(&["get_fact", "spawn_agent"], &[user(json!(format!("{name}: survey the project")))]);
    let calls = ["a", "b"].map(|topic| {
        call(&format!("{name}_{topic}"), "spawn_agent", json!({"title": "T", "task": directive(topic)}))
    });
    scene.fan_out(&body, headers, name, &calls)
}

/// A child as most clients send it: the directive alone.
fn child(directive: &str) -> Value {
    request(&["get_fact"], &[user(json!(directive))])
}

#[track_caller]
fn as_child(recognised: Recognised) -> (String, Option<usize>, Rank) {
    match recognised {
        Recognised::Child(child, _) => (child.fork.id.to_string(), child.call, child.rank),
        other => panic!("no child: {}", say(&other)),
    }
}

/// What was recognised, in one word.
fn say(recognised: &Recognised) -> &'static str {
    match recognised {
        Recognised::Plain(why) => why.as_str(),
        Recognised::Parent(_) => "parent",
        Recognised::Child(..) => "child",
        Recognised::ClientFork(_) => "client_fork",
        Recognised::Ambiguous => "ambiguous",
    }
}
