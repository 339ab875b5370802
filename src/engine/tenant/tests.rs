//! A tenant in one thread, with a parent and its two children, and requests that go through it as in the proxy.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::engine::align;
use crate::engine::answer::turn::{Turn, TurnLimits};
use crate::engine::answer::usage::Usage;
use crate::engine::cache::breakpoints::Profile;
use crate::engine::cache::entry::prefix_bytes;
use crate::engine::cache::ledger::Prediction;
use crate::engine::cache::prices::{Model, ModelFacts, Multiplier, Multipliers, Prices};
use crate::engine::cache::worlds::{Segment, TokenWeights, Weights};
use crate::engine::decide::{Circumstances, Departure, Next, observe, proceed};
use crate::engine::family::claims::Claims;
use crate::engine::family::fanout::Who;
use crate::engine::fork::ForkPolicy;
use crate::engine::policy::Policy;
use crate::engine::prepare::{Preparation, Prepared, Treatment};
use crate::engine::request::prefix::Attribution;
use crate::engine::respell::canonical::{self, News, Order, Table};
use crate::engine::respell::system_block::SystemForm;
use crate::engine::words::Mode;

pub mod transitions;
mod answers;
mod refusals;

pub const TENANT: TenantId = TenantId([7; 32]);
pub const MODEL: &str = "claude-x";
/// The message that calls the children.
pub const FORK_MESSAGE: &str = "msg_parent";
/// The time that a child waits for the end of its parent's answer at most.
pub const AWAIT_PARENT_MS: u64 = 2_000;
/// A deadline that no test reaches.
pub const NEVER: Moment = Moment(3_600_000);

/// A tenant in one thread.
pub struct TestTenant {
    state: RefCell<TenantState>,
    spellings: RefCell<Table>,
    weights: RefCell<TokenWeights>,
    next_ticket: Cell<u64>,
    pub policy: Policy,
}

impl TenantAccess for TestTenant {
    fn look<T>(&self, look: impl FnOnce(&mut TenantState) -> T) -> T {
        look(&mut self.state.borrow_mut())
    }

    fn spellings<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.spellings.borrow())
    }

    fn learn(&self, news: News) {
        self.spellings.borrow_mut().remember(news);
    }

    fn weights(&self, model: &str) -> Weights {
        self.weights.borrow().of(model)
    }

    fn weigh(&self, model: &str, segments: &[Segment]) {
        self.weights.borrow_mut().learn(model, segments);
    }
}

impl TestTenant {
    pub fn new() -> TestTenant {
        TestTenant {
            state: RefCell::new(state()),
            spellings: RefCell::new(Table::new(canonical::Limits::TENANT)),
            weights: RefCell::default(),
            next_ticket: Cell::new(1),
            policy: policy(),
        }
    }

    pub fn ticket(&self) -> Ticket {
        Ticket(self.next_ticket.replace(self.next_ticket.get() + 1))
    }

    /// The circumstances of a request with a new ticket, in mode `fork`.
    pub fn facts(&self) -> Circumstances {
        Circumstances {
            ticket: self.ticket(),
            mode: Mode::Fork,
            keeps_prefix: true,
            deadline: NEVER,
            has_room: Some(true),
            is_last_round: false,
        }
    }

    pub fn prepare(&self, request: &ReadRequest, now: u64) -> Box<Prepared> {
        prepare(self, request, &self.policy, Moment(now))
    }

    /// Sends a request for which nothing is to be waited.
    #[track_caller]
    pub fn depart(&self, body: &Value, now: u64) -> Departure {
        let request = read(self, body, now);
        let prepared = self.prepare(&request, now);
        let facts = self.facts();
        let next = self.look(|state| proceed(request, prepared, state, &self.policy, &facts, Moment(now)));
        let Next::Send(departure) = next else { panic!("it does not go: {next:?}") };
        *departure
    }

    #[track_caller]
    pub fn send(&self, body: &Value, now: u64) -> Box<Flight> {
        self.depart(body, now).flight
    }

    pub fn accept(&self, flight: Box<Flight>, now: u64) -> Accepted {
        accept(self, flight, false, Moment(now))
    }

    /// The first content comes, with the bill of a stream.
    pub fn begins(&self, accepted: &mut Accepted, usage: Option<Usage>, now: u64) {
        first_content(self, accepted, usage, &self.policy, Moment(now));
    }

    /// The blocks of an answer finish, one after the other.
    pub fn blocks(&self, accepted: &mut Accepted, turn: &Turn, now: u64) {
        for finished in &turn.blocks {
            block(self, accepted, turn.id.as_deref(), finished.clone(), Moment(now));
        }
    }

    pub fn ends(&self, accepted: &mut Accepted, turn: Option<&Turn>, now: u64) -> Settlement {
        settle(self, accepted, turn, &self.policy, Moment(now))
    }

    /// Sends a request, and plays its whole answer.
    #[track_caller]
    pub fn exchange(&self, body: &Value, answer: impl FnOnce(Usage) -> Turn, now: u64) -> Settlement {
        let flight = self.send(body, now);
        let turn = answer(bill(&flight));
        let mut accepted = self.accept(flight, now);
        self.begins(&mut accepted, turn.usage(), now);
        self.blocks(&mut accepted, &turn, now);
        self.ends(&mut accepted, Some(&turn), now)
    }

    /// A parent whose answer has called two children, and has not ended.
    #[track_caller]
    pub fn parent_calls(&self, now: u64) -> (Accepted, Turn) {
        let flight = self.send(&parent_body(), now);
        let turn = fan_out(bill(&flight));
        let mut accepted = self.accept(flight, now);
        self.begins(&mut accepted, turn.usage(), now);
        self.blocks(&mut accepted, &turn, now);
        (accepted, turn)
    }

    /// A parent whose answer has called two children, and has ended.
    #[track_caller]
    pub fn parent_has_called(&self, now: u64) {
        let (mut accepted, turn) = self.parent_calls(now);
        assert!(matches!(self.ends(&mut accepted, Some(&turn), now).fanout, Some(Ok(_))));
    }

    /// The one fork point.
    pub fn fork_id(&self) -> ForkId {
        ForkId::of(TENANT, FORK_MESSAGE)
    }

    pub fn woken(&self) -> Vec<Ticket> {
        self.look(|state| state.take_woken().collect())
    }

    pub fn children(&self) -> usize {
        self.look(|state| state.fan_outs.children().len())
    }
}

/// Requests that are made of the entries they write, and of nothing else.
impl TenantState {
    /// One goes out, and writes what is predicted: that part of [`TenantState::begin`] which concerns others.
    pub fn begin_entries(&mut self, ticket: Ticket, prediction: &Prediction, streams: bool, now: Moment) {
        let billed = &mut self.worlds.billed;
        self.woken.extend(self.gate.sent(ticket, prediction, streams, billed, now));
    }

    /// Its first content comes: that part of [`TenantState::first_content`] which concerns others.
    pub fn entries_readable(&mut self, ticket: Ticket, now: Moment) {
        self.worlds.billed.readable(ticket, now, None);
        self.woken.extend(self.gate.begun(ticket, &mut self.worlds.billed, now));
    }
}

pub fn state() -> TenantState {
    TenantState::new(TENANT, Rules::default(), GateSettings::default(), 16 << 20)
}

pub fn policy() -> Policy {
    let [read, write_5m, write_1h] = [0.1, 1.25, 2.0].map(|factor| Some(Multiplier::new(factor)));
    let facts = ModelFacts {
        minimum_tokens: Some(1_024),
        window_tokens: Some(200_000),
        bound_thinking: false,
        string_is_block: false,
    };
    let model = Model {
        id: MODEL.to_owned(),
        facts,
        multipliers: Multipliers { read, write_5m, write_1h },
        price: None,
        is_current: false,
        source: String::new(),
        as_of: String::new(),
    };
    Policy {
        align: align::Rules {
            order: Order::FirstSeen,
            profile: Profile::Anthropic,
            attribution: Attribution::Stripped,
            system: SystemForm::Auto,
            diagnose: false,
        },
        fan_out: Rules::default(),
        // What forking may cost has tests of its own.
        fork: ForkPolicy { max_cost_ratio: 100.0, context_premium: 100.0, ..ForkPolicy::default() },
        prices: Arc::new(Prices::new(vec![model])),
        body_bytes: 32 << 20,
        await_parent_ms: AWAIT_PARENT_MS,
        holds_children_only: false,
        max_hold_ms: 5_000,
        reports_volatile: false,
    }
}

pub fn read<T: TenantAccess>(tenant: &T, body: &Value, now: u64) -> ReadRequest {
    let (bytes, hint) = (Bytes::from(body.to_string()), None);
    let mode = ReadMode::Spelt(Order::FirstSeen);
    let arrival = View { tenant, hint }.read(&bytes, Attribution::Stripped, mode, [].into_iter()).unwrap();
    ReadRequest {
        arrival: Box::new(arrival),
        hint,
        model: body["model"].as_str().unwrap_or_default().to_owned(),
        version: String::new(),
        betas: String::new(),
        streams: body["stream"] == true,
        came_at: Moment(now),
    }
}

pub fn prepare<T: TenantAccess>(
    tenant: &T,
    request: &ReadRequest,
    policy: &Policy,
    now: Moment,
) -> Box<Prepared> {
    let who = Who::of(&request.arrival.received, None, None);
    let preparation = Preparation {
        request,
        who,
        claims: &Claims::default(),
        tenant,
        treatment: Treatment::Changed,
        policy,
        step: &|_| {},
        now,
    };
    Box::new(preparation.prepare())
}

/// A small parent whose answer has called two children of [`FORK_MESSAGE`], and has not ended.
pub fn small_parent<T: TenantAccess>(
    tenant: &T,
    policy: &Policy,
    ticket: Ticket,
    now: Moment,
) -> (Accepted, Turn) {
    let mut body = parent_body();
    body["tools"] = json!([{"name": "Agent"}]);
    let request = read(tenant, &body, now.0);
    let prepared = prepare(tenant, &request, policy, now);
    let flight = tenant.look(|state| observe(request, prepared, state, policy, ticket, now).flight);
    let turn = fan_out(bill(&flight));
    let mut accepted = accept(tenant, flight, false, now);
    for finished in &turn.blocks {
        block(tenant, &mut accepted, turn.id.as_deref(), finished.clone(), now);
    }
    (accepted, turn)
}

fn tool(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description, "input_schema": {"type": "object"}})
}

/// A tool of some ten thousand tokens, so that it matters who pays for it.
fn read_tool() -> Value {
    tool("Read", &"Reads a file. ".repeat(3_000))
}

pub fn directive(topic: &str) -> String {
    format!(
        "You are a worker. Investigate {topic} and nothing else; report in under 200 words what you found."
    )
}

pub fn parent_body() -> Value {
    json!({
        "model": MODEL, "max_tokens": 1000, "stream": true,
        "tools": [tool("Agent", "Starts an agent."), read_tool()],
        "system": [{"type": "text", "text": "You lead."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Survey the project."}]}],
    })
}

pub fn child_body(topic: &str) -> Value {
    json!({
        "model": MODEL, "max_tokens": 500, "stream": true,
        "tools": [read_tool()],
        "system": [{"type": "text", "text": "You work."}],
        "messages": [{"role": "user", "content": directive(topic)}],
    })
}

/// The second turn of a child, after the answer of [`reads`].
pub fn child_again(topic: &str) -> Value {
    let mut body = child_body(topic);
    let messages = body["messages"].as_array_mut().unwrap();
    messages
        .push(json!({"role": "assistant", "content": [call("toolu_read", "Read", json!({"path": "a"}))]}));
    messages.push(json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_read", "content": "Nothing."}]}));
    body
}

/// A conversation of nobody's child, with a user message for each of these.
pub fn plain_body(system: &str, questions: &[&str]) -> Value {
    let mut messages = Vec::new();
    for (number, question) in questions.iter().enumerate() {
        if number > 0 {
            messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}));
        }
        messages.push(json!({"role": "user", "content": [{"type": "text", "text": question}]}));
    }
    json!({
        "model": MODEL, "max_tokens": 1000, "stream": true,
        "tools": [read_tool()],
        "system": [{"type": "text", "text": system}],
        "messages": messages,
    })
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

fn turn(id: &str, stop_reason: &str, content: &[Value], usage: Usage) -> Turn {
    let body = json!({
        "id": id, "model": MODEL, "stop_reason": stop_reason, "content": content,
        "usage": {
            "input_tokens": usage.uncached,
            "cache_read_input_tokens": usage.cache_read,
            "cache_creation_input_tokens": usage.cache_write_5m,
            "output_tokens": usage.output,
        },
    });
    Turn::from_json(body.to_string().as_bytes(), TurnLimits { bytes: 16 << 20, tool_uses: 256 })
}

/// An answer that thinks aloud for some two thousand tokens, and calls two children.
pub fn fan_out(usage: Usage) -> Turn {
    let [a, b] =
        ["a", "b"].map(|topic| call(&format!("toolu_{topic}"), "Agent", json!({"prompt": directive(topic)})));
    let text = json!({"type": "text", "text": "There is much to do. ".repeat(400)});
    turn(FORK_MESSAGE, "tool_use", &[text, a, b], Usage { output: 2_100, ..usage })
}

/// The answer of a child that calls two children of its own.
pub fn nested_fan_out(usage: Usage) -> Turn {
    turn("msg_nested", "tool_use", &nested_calls(), usage)
}

fn nested_calls() -> [Value; 2] {
    ["c", "d"].map(|topic| call(&format!("toolu_{topic}"), "Agent", json!({"prompt": directive(topic)})))
}

/// The second turn of a child, after the answer of [`nested_fan_out`].
pub fn child_with_results(topic: &str) -> Value {
    let mut body = child_body(topic);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": nested_calls()}));
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "Nothing."});
    messages.push(json!({"role": "user", "content": [result("toolu_c"), result("toolu_d")]}));
    body
}

/// The answer of a child that goes on.
pub fn reads(usage: Usage) -> Turn {
    turn("msg_child", "tool_use", &[call("toolu_read", "Read", json!({"path": "a"}))], usage)
}

/// An answer in one word.
pub fn yes(usage: Usage) -> Turn {
    turn("msg_yes", "end_turn", &[json!({"type": "text", "text": "Yes."})], usage)
}

/// An answer that says nothing.
pub fn silent(usage: Usage) -> Turn {
    turn("msg_silent", "end_turn", &[], usage)
}

/// A summary of what was said.
pub fn summary(usage: Usage) -> Turn {
    turn("msg_summary", "compaction", &[json!({"type": "compaction", "content": "Much was said."})], usage)
}

/// The bill of a request that finds what was predicted, at four bytes to a token.
pub fn bill(flight: &Flight) -> Usage {
    let prediction = flight.prediction();
    let read = prediction.read.map_or(0, |read| read.bytes);
    let written = prediction.writes().first().map_or(read, |write| write.bytes);
    let anatomy = flight.trace.reading().anatomy();
    let all = prefix_bytes(anatomy, anatomy.pieces.len() - 1);
    Usage {
        uncached: all.saturating_sub(written) / 4,
        cache_read: read / 4,
        cache_write_5m: written / 4 - read / 4,
        cache_write_1h: 0,
        output: 50,
    }
}
