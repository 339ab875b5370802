//! A series of requests as clients send it: bodies, answers, and what each of them waits for.

use bytes::Bytes;
use serde_json::{Value, json};

use super::point::{Client, Marks, Personas, Point, Shape, Tier};
use crate::workload::dice::Dice;
use crate::workload::{prose, tool};

/// Children wait for their parent's answer to begin by so much, if they come before it ends.
const EAGER_MS: u64 = 40;
/// The spawning tool, which the default settings list.
const SPAWN: &str = "Agent";

/// A client that got no answer asks again after so long.
const AGAIN_MS: u64 = 700;
/// One of so many requests of a client that may get no answer gets none.
const IN_VAIN_EVERY: usize = 6;
/// The files that a parent reads whose children read them again.
const READ_FIRST: usize = 2;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// With a 529.
    Refused,
    /// Its client leaves within the answer.
    Left,
}

/// One request and its answer.
#[derive(Clone, Debug)]
pub struct Part {
    pub fate: Fate,
    pub body: Bytes,
    pub session: Option<String>,
    pub start: Start,
    pub content: Vec<Value>,
    pub stop: &'static str,
    pub output: u64,
    /// From the first content to the end of the answer.
    pub to_end_ms: u64,
    pub is_child: bool,
    /// The conversation that it opens, if it is the first of one.
    pub opens: Option<Opening>,
}

/// The beginning of a conversation.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Its tools by name, and as forkpoint tells them apart: whole, and in whatever order.
    pub tool_sets: [String; 2],
    /// True if the client marks the end of its prompt itself.
    pub is_marked: bool,
}

/// The event that a request comes after.
#[derive(Clone, Debug)]
pub enum Start {
    At(u64),
    /// So many milliseconds after the answer of a part began.
    Begun(usize, u64),
    /// So many milliseconds after the last of these parts ended.
    Ended(Vec<usize>, u64),
}

/// A conversation while it is written.
struct Talk {
    tools: Vec<Value>,
    system: Option<String>,
    messages: Vec<Value>,
    is_child: bool,
    /// Texts that its tools find, and that its parent has found before.
    known: Vec<String>,
}

/// Writes the parts of a series.
pub struct Writer<'p> {
    point: &'p Point,
    dice: Dice,
    /// Decides which requests get no answer.
    fates: Dice,
    pub parts: Vec<Part>,
}

impl<'p> Writer<'p> {
    pub fn write(point: &'p Point) -> Vec<Part> {
        let (dice, fates) = (Dice::new(point.seed ^ 0x5eed), Dice::new(point.seed ^ 0xfa7e));
        let mut writer = Writer { point, dice, fates, parts: Vec::new() };
        for (number, client) in point.clients.iter().enumerate() {
            let at = number as u64 * client.start_ms;
            match client.shape {
                Shape::Conversations { .. } => writer.conversations(number, client, at),
                Shape::FanOuts { .. } => writer.fan_outs(number, client, at),
            }
        }
        writer.parts
    }

    fn conversations(&mut self, number: usize, client: &Client, at: u64) {
        let Shape::Conversations { count, turns, longest, one_after_another } = client.shape else { return };
        let (mut starts, mut last) = (at, None);
        for conversation in 0..count {
            let who = if client.personas == Personas::Own { conversation } else { 0 };
            let mut talk = Talk {
                tools: client.tools(false),
                system: Some(prose(&format!("You are assistant {number}.{who}."), client.persona_tokens)),
                messages: Vec::new(),
                is_child: false,
                known: Vec::new(),
            };
            let question = format!("Client {number}, question {conversation}: what is in there?");
            talk.say(json!([text(prose(&question, client.context_tokens))]));
            let turns = if conversation == 0 { longest } else { turns };
            let start = match last.take() {
                Some(last) if one_after_another => Start::Ended(vec![last], client.arrival_ms),
                _ => Start::At(starts),
            };
            starts += client.arrival_ms;
            last = Some(self.talk(client, number, &mut talk, start, turns));
        }
    }

    /// A conversation to its end; returns its last part.
    fn talk(&mut self, client: &Client, number: usize, talk: &mut Talk, start: Start, turns: usize) -> usize {
        let mut start = start;
        for turn in 1..turns {
            let part = self.ask(client, number, talk, start, "tool_use", None);
            let image = (client.image_at == Some(turn)).then(|| image(part));
            let known = talk.known.clone();
            self.use_tools(talk, part, image, |call, id| match known.len() {
                0 => prose(&format!("Found by {id}."), client.result_tokens),
                files => known[(turn + call) % files].clone(),
            });
            let pause =
                if client.long_pause_at == Some(turn) { client.long_pause_ms } else { client.pause_ms };
            start = Start::Ended(vec![part], pause);
        }
        self.ask(client, number, talk, start, "end_turn", None)
    }

    /// The tools that an answer calls find something; with it an image, if there is one.
    fn use_tools(
        &self,
        talk: &mut Talk,
        part: usize,
        image: Option<Value>,
        found: impl Fn(usize, &Value) -> String,
    ) {
        let calls = self.parts[part].content.clone();
        let used = calls.iter().filter(|block| block["type"] == "tool_use").enumerate();
        let results = used.map(|(index, call)| {
            let mut content = vec![text(found(index, &call["id"]))];
            content.extend(image.clone());
            json!({"type": "tool_result", "tool_use_id": call["id"], "content": content})
        });
        let results: Vec<Value> = results.collect();
        talk.messages.push(json!({"role": "assistant", "content": calls}));
        talk.say(Value::Array(results));
    }

    /// A parent reads files; returns its next start. Its children know what they find.
    fn read_first(&mut self, number: usize, client: &Client, parent: &mut Talk, start: Start) -> Start {
        if !client.rereads || !parent.known.is_empty() {
            return start;
        }
        let file =
            |file: usize| prose(&format!("File {file} of team {number}."), client.result_tokens.max(100));
        parent.known = (0..READ_FIRST).map(file).collect();
        let part = self.ask(client, number, parent, start, "tool_use", None);
        let known = parent.known.clone();
        self.use_tools(parent, part, None, |call, _| known[call % READ_FIRST].clone());
        Start::Ended(vec![part], client.pause_ms)
    }

    fn fan_outs(&mut self, number: usize, client: &Client, at: u64) {
        let Shape::FanOuts { rows, children, turns, concurrent, fresh_parents, eager } = client.shape else {
            return;
        };
        let mut start = Start::At(at);
        let mut talk: Option<Talk> = None;
        for row in 0..rows {
            let mut parent = match talk.take().filter(|_| !fresh_parents) {
                Some(talk) => talk,
                None => {
                    let mut parent = Talk {
                        tools: client.tools(true),
                        system: Some(prose(&format!("You lead team {number}."), client.parent_tokens)),
                        messages: Vec::new(),
                        is_child: false,
                        known: Vec::new(),
                    };
                    let words = format!("Team {number}.{row}: survey the project.");
                    parent.say(json!([text(prose(&words, client.context_tokens))]));
                    parent
                }
            };
            start = self.read_first(number, client, &mut parent, start);
            let fanned = self.ask(client, number, &mut parent, start, "tool_use", Some((row, children)));
            let calls = self.parts[fanned].content.clone();
            let mut ends = Vec::new();
            let directives: Vec<String> =
                calls.iter().filter_map(|call| call["input"]["prompt"].as_str().map(str::to_owned)).collect();
            for (child, directive) in directives.into_iter().enumerate() {
                let gap = client.arrival_ms * child as u64;
                let starts = match ends.last() {
                    Some(last) if !concurrent => Start::Ended(vec![*last], client.arrival_ms),
                    _ if eager => Start::Begun(fanned, EAGER_MS + gap),
                    _ => Start::Ended(vec![fanned], gap),
                };
                let mut talk = self.child(client, number, child, directive);
                talk.known.clone_from(&parent.known);
                ends.push(self.talk(client, number, &mut talk, starts, turns));
            }
            let results = calls.iter().filter(|block| block["type"] == "tool_use").map(|call| {
                let report = prose(&format!("Report on {}.", call["id"]), 60);
                json!({"type": "tool_result", "tool_use_id": call["id"], "content": [text(report)]})
            });
            let results: Vec<Value> = results.collect();
            parent.messages.push(json!({"role": "assistant", "content": calls}));
            parent.say(Value::Array(results));
            start = Start::Ended(ends, client.row_pause_ms);
            if fresh_parents || row + 1 == rows {
                let end = self.ask(client, number, &mut parent, start, "end_turn", None);
                start = Start::Ended(vec![end], client.row_pause_ms);
            }
            talk = Some(parent);
        }
    }

    fn child(&mut self, client: &Client, number: usize, child: usize, directive: String) -> Talk {
        let system = match client.personas {
            Personas::Own => {
                prose(&format!("You are member {child} of team {number}."), client.persona_tokens)
            }
            Personas::Shared => prose(&format!("You are a member of team {number}."), client.persona_tokens),
            Personas::Parents => prose(&format!("You lead team {number}."), client.parent_tokens),
        };
        let mut talk = Talk {
            tools: client.tools(client.children_spawn),
            system: Some(system),
            messages: Vec::new(),
            is_child: true,
            known: Vec::new(),
        };
        talk.say(json!([text(directive)]));
        talk
    }

    /// A request that gets no answer, if this is one: its client asks again.
    fn ask_in_vain(&mut self, client: &Client, number: usize, talk: &Talk, start: Start) -> Start {
        let fates = [(client.is_refused, Fate::Refused), (client.leaves && client.streams, Fate::Left)];
        for (may_be, fate) in fates {
            if may_be && self.fates.once_in(IN_VAIN_EVERY) {
                let part = self.parts.len();
                let content = vec![text(prose(&format!("Answer {part}, which nobody reads."), 20))];
                self.push(client, number, talk, start, Said { fate, content, stop: "end_turn", opens: None });
                return Start::Ended(vec![part], AGAIN_MS);
            }
        }
        start
    }

    /// A request of a conversation; returns its number. `fans_out`: the number of the fan-out and of its children.
    fn ask(
        &mut self,
        client: &Client,
        number: usize,
        talk: &mut Talk,
        start: Start,
        stop: &'static str,
        fans_out: Option<(usize, usize)>,
    ) -> usize {
        let start = self.ask_in_vain(client, number, talk, start);
        let part = self.parts.len();
        let mut content = vec![text(prose(&format!("Answer {part}."), 20))];
        match (fans_out, stop) {
            (Some((row, children)), _) => content.extend((0..children).map(|child| {
                let row = if client.repeats_directives { 0 } else { row };
                let words = format!("Client {number}, fan-out {row}, task {child}: look at it and report.");
                let input = json!({"description": "A task", "prompt": prose(&words, client.directive_tokens)});
                json!({"type": "tool_use", "id": format!("toolu_{part}_{child}"), "name": SPAWN, "input": input})
            })),
            (None, "tool_use") => {
                let calls = 1 + self.dice.below(2);
                content.extend((0..calls).map(|call| {
                    let input = json!({"path": format!("src/{part}/{call}.c"), "limit": 9, "mode": "full",
                        "options": {"depth": 1, "follow": false}});
                    json!({"type": "tool_use", "id": format!("toolu_{part}_{call}"), "name": "read", "input": input})
                }));
            }
            _ => {}
        }
        let is_first = talk.messages.len() == 1;
        let opens = is_first.then(|| {
            let names: String = talk.tools.iter().map(|tool| tool["name"].to_string()).collect();
            let mut whole: Vec<String> = talk.tools.iter().map(Value::to_string).collect();
            whole.sort_unstable();
            Opening { tool_sets: [names, whole.concat()], is_marked: client.marks.marks_end() }
        });
        self.push(client, number, talk, start, Said { fate: Fate::Answered, content, stop, opens });
        part
    }

    fn push(&mut self, client: &Client, number: usize, talk: &Talk, start: Start, said: Said) {
        let Said { fate, content, stop, opens } = said;
        let output = content.iter().map(|block| block.to_string().len() as u64 / 4).sum();
        self.parts.push(Part {
            fate,
            body: Bytes::from(talk.body(client, self.point.model).to_string()),
            session: client.has_session.then(|| format!("session-{number}")),
            start,
            content,
            stop,
            output,
            to_end_ms: 200 + 12 * output,
            is_child: talk.is_child,
            opens,
        });
    }
}

/// What is said to a request.
struct Said {
    fate: Fate,
    content: Vec<Value>,
    stop: &'static str,
    opens: Option<Opening>,
}

impl Talk {
    fn say(&mut self, content: Value) {
        self.messages.push(json!({"role": "user", "content": content}));
    }

    fn body(&self, client: &Client, model: &str) -> Value {
        let mut body = json!({"model": model, "max_tokens": 4_096, "stream": client.streams});
        if !self.tools.is_empty() {
            body["tools"] = json!(self.tools);
        }
        if let Some(system) = &self.system {
            body["system"] = if client.string_system { json!(system) } else { json!([text(system.clone())]) };
        }
        body["messages"] = json!(self.messages);
        client.mark(&mut body, if self.is_child { client.child_tier } else { client.tier });
        body
    }
}

impl Client {
    /// The client's tools; `spawns`: the spawning one too.
    fn tools(&self, spawns: bool) -> Vec<Value> {
        if self.tool_tokens == 0 && !spawns {
            return Vec::new();
        }
        let mut read = tool("read");
        let spare = self.tool_tokens.saturating_sub(250);
        read["description"] = json!(prose("Reads a file.", 60));
        let mut tools = vec![read];
        for name in ["write", "search"] {
            let mut other = tool(name);
            other["description"] = json!(prose(&format!("`{name}`, as the manual says."), spare / 2));
            tools.push(other);
        }
        if self.tools_reversed {
            tools.reverse();
        }
        if spawns {
            tools.push(json!({"name": SPAWN, "description": "Starts a sub-agent.", "input_schema": {
                "type": "object", "properties": {"description": {"type": "string"},
                "prompt": {"type": "string"}}, "required": ["prompt"]}}));
        }
        tools
    }

    fn mark(&self, body: &mut Value, tier: Tier) {
        let marker = |is_message: bool| match (tier, is_message) {
            (Tier::Hour, _) | (Tier::Mixed, false) => json!({"type": "ephemeral", "ttl": "1h"}),
            _ => json!({"type": "ephemeral"}),
        };
        let last_of = |list: &mut Value, marker: Value| {
            if let Some(last) = list.as_array_mut().and_then(|list| list.last_mut()) {
                last["cache_control"] = marker;
            }
        };
        let message = |body: &mut Value, from_end: usize| {
            let count = body["messages"].as_array().map_or(0, Vec::len);
            if let Some(index) = count.checked_sub(from_end) {
                last_of(&mut body["messages"][index]["content"], marker(true));
            }
        };
        match self.marks {
            Marks::None => {}
            Marks::LastMessage => message(body, 1),
            Marks::SystemOnly => last_of(&mut body["system"], marker(false)),
            Marks::SystemAndLast => {
                last_of(&mut body["system"], marker(false));
                message(body, 1);
            }
            Marks::Careful => {
                last_of(&mut body["tools"], marker(false));
                last_of(&mut body["system"], marker(false));
                message(body, 1);
            }
            Marks::Automatic => body["cache_control"] = marker(true),
            Marks::LastToolAndThreeMessages => {
                last_of(&mut body["tools"], marker(false));
                (1..=3).for_each(|from_end| message(body, from_end));
            }
            Marks::LastTwoTurns => {
                last_of(&mut body["system"], marker(false));
                message(body, 1);
                message(body, 3);
            }
        }
        if body["tools"].is_null() {
            body.as_object_mut().unwrap().shift_remove("tools");
        }
    }
}

fn text(words: String) -> Value {
    json!({"type": "text", "text": words})
}

fn image(number: usize) -> Value {
    let data = format!("iVBORw0KGgo{number:04}").repeat(20);
    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
}
