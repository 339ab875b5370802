//! Request bodies that look like a coding agent's: tools with schemas, a long system prompt, and a history of
//! calls and results full of newlines and quotes, in the member order of such an agent (`messages` before
//! `system` and `tools`).
//!
//! No two bodies of a run are equal. All conversations of a job share one *script*, built once; each writes its
//! own number into the script's *slots*, sixteen hex digits each, so that the generator costs little more per
//! request than a copy:
//!
//! ```text
//! script        opening, history │ turn 1 │ turn 2 │ …          the first request ends at the bar,
//! request n     {"model":…,"messages":[ … up to turn n ],"system":…,"tools":…}   each later one a turn on
//! ```

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The relation of a body to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bodies {
    /// The next turn of a conversation, from a client that sets its own markers and never respells.
    Plain,
    /// The next turn from a client that sets no markers.
    Growing,
    /// The next turn from a client that sets no markers and shuffles its tools and the keys of all schemas and echoed inputs on every turn.
    Drifting,
    /// A conversation never seen before: tools, system prompt and history are all its own.
    Fresh,
    /// A conversation that fans out at once, and then the first requests of its children, which share its tools.
    Forked,
    /// The next turn from a client that sets no markers, of a conversation that has the stated size only when it opens.
    FromStart,
    /// The next turn of a conversation whose system prompt is half of it and changes throughout on every turn.
    Shifting,
}

impl Bodies {
    /// The number of bytes that a turn adds, about.
    fn turn_bytes(self, body_bytes: usize) -> usize {
        match self {
            Bodies::FromStart => TURN_BYTES_MAX,
            _ => (body_bytes / 100).clamp(1_000, TURN_BYTES_MAX),
        }
    }

    /// The number of requests after the first one of a conversation, which grows by two fifths at most.
    pub fn turns(self, body_bytes: usize) -> usize {
        match self {
            Bodies::Fresh => 0,
            Bodies::Forked => CHILDREN,
            _ => (body_bytes * 2 / 5 / self.turn_bytes(body_bytes)).min(TURNS_MAX),
        }
    }
}

/// Everything that conversations of one kind and size have in common.
pub struct Script {
    bodies: Bodies,
    messages: Text,
    /// Where in the messages each request ends.
    ends: Vec<usize>,
    /// The inputs of calls and their offsets, if they are to be respelt.
    inputs: Vec<(usize, Value)>,
    system: Text,
    tools: Text,
    tool_list: Vec<Value>,
    rest: Text,
    /// The messages of each child of a fan-out, which replace those above.
    children: Vec<String>,
}

/// One conversation and its progress.
pub struct Conversation {
    script: Arc<Script>,
    nonce: u64,
    /// Requests made so far.
    turn: usize,
    shuffle: Words,
}

/// The placeholder in a slot of the script: sixteen digits that occur nowhere else.
const SLOT: &str = "5107510751075107";

const MODEL: &str = r#"{"model":"claude-sonnet-4-6","messages":["#;
const MARKER: &str = r#","cache_control":{"type":"ephemeral"}"#;
/// The prompt of every child of a fan-out.
const CHILD_SYSTEM: &str = r#""You are a worker: do what you are told, and report once.""#;
/// The end of every last message; a marker goes before it.
const LAST_END: &str = "}]}";

/// Agents that a fan-out starts.
pub const CHILDREN: usize = 20;

/// The most turns of a conversation that grows: more would only repeat themselves.
const TURNS_MAX: usize = 100;

/// The most bytes that a turn adds, about.
const TURN_BYTES_MAX: usize = 2_000;

/// Distance of the slots in a system prompt that changes throughout.
const SHIFT_BYTES: usize = 1_000;

/// Results of the history, as agents read files.
const RESULT_BYTES: std::ops::Range<usize> = 500..8_000;

impl Script {
    /// Bodies of `body_bytes` on average: with turns after the first request, conversations start shorter and
    /// end longer. Those of `FromStart` start with that size, so that the first turns of a long conversation are those
    /// of a short one.
    pub fn new(body_bytes: usize, bodies: Bodies, turns: usize, streamed: bool) -> Arc<Script> {
        let mut words = Words::new(1);
        let mark = if bodies == Bodies::Fresh { SLOT } else { "" };
        let tool_list = tools(&mut words, mark, body_bytes * 3 / 20);
        let system = system(&mut words, mark, bodies, body_bytes);
        let rest = format!(
            r#","metadata":{{"user_id":"user_bench_account__session_{SLOT}"}},"max_tokens":32000,"temperature":1,"stream":{streamed}}}"#
        );
        let tools = Value::from(tool_list.clone()).to_string();
        let turn_bytes = bodies.turn_bytes(body_bytes);
        let grown_bytes = if bodies == Bodies::FromStart { 0 } else { turns * turn_bytes / 2 };
        let around = MODEL.len() + r#"],"system":,"tools":"#.len() + system.len() + tools.len() + rest.len();
        let history_bytes = body_bytes - around - grown_bytes;
        let mut history = History { words, mark, text: String::new(), exchanges: 0, inputs: Vec::new() };
        history.until(history_bytes);
        let mut ends = vec![history.text.len()];
        for _ in 0..turns {
            history.exchange(turn_bytes);
            ends.push(history.text.len());
        }
        if bodies != Bodies::Drifting {
            history.inputs.clear();
        }
        let mut children = Vec::new();
        if bodies == Bodies::Forked {
            // It does not grow.
            ends = vec![ends[0]; turns + 1];
            children.extend((1..=turns).map(child));
        }
        Arc::new(Script {
            bodies,
            messages: Text::new(history.text),
            ends,
            inputs: history.inputs,
            system: Text::new(system),
            tools: Text::new(tools),
            tool_list,
            rest: Text::new(rest),
            children,
        })
    }
}

impl Conversation {
    pub fn new(script: &Arc<Script>, nonce: u64) -> Conversation {
        Conversation { script: Arc::clone(script), nonce, turn: 0, shuffle: Words::new(nonce) }
    }

    /// The length of the next body.
    pub fn next_len(&self) -> usize {
        let Script { bodies, ends, system, tools, rest, children, .. } = &*self.script;
        let marker = if *bodies == Bodies::Plain { MARKER.len() } else { 0 };
        let around = MODEL.len() + r#"],"system":,"tools":"#.len();
        let turn = self.turn % ends.len();
        if let Some(child) = turn.checked_sub(1).and_then(|child| children.get(child)) {
            return around + child.len() + CHILD_SYSTEM.len() + tools.text.len() + rest.text.len();
        }
        around + ends[turn] + marker + system.text.len() + tools.text.len() + rest.text.len()
    }

    /// Appends the body of the next request. Past its last turn the conversation is another one, by the number
    /// `nonce`.
    pub fn next(&mut self, nonce: u64, out: &mut Vec<u8>) {
        let script = Arc::clone(&self.script);
        if self.turn == script.ends.len() {
            (self.turn, self.nonce) = (0, nonce);
        }
        let end = script.ends[self.turn];
        let child = self.turn.checked_sub(1).and_then(|child| script.children.get(child));
        self.turn += 1;
        out.extend_from_slice(MODEL.as_bytes());
        if let Some(child) = child {
            for part in [child, r#"],"system":"#, CHILD_SYSTEM, r#","tools":"#] {
                out.extend_from_slice(part.as_bytes());
            }
            script.tools.write(usize::MAX, self.nonce, out);
            return script.rest.write(usize::MAX, self.nonce, out);
        }
        let from = out.len();
        script.messages.write(end, self.nonce, out);
        for (at, input) in script.inputs.iter().take_while(|(at, _)| *at < end) {
            let mut spelt = Vec::new();
            self.shuffle.spell(input, &mut spelt);
            out[from + at..from + at + spelt.len()].copy_from_slice(&spelt);
        }
        if script.bodies == Bodies::Plain {
            out.truncate(out.len() - LAST_END.len());
            out.extend_from_slice(MARKER.as_bytes());
            out.extend_from_slice(LAST_END.as_bytes());
        }
        out.extend_from_slice(br#"],"system":"#);
        let system_number = match script.bodies {
            // Turns are fewer than 256, and numbers of conversations leave the highest byte to them.
            Bodies::Shifting => self.nonce ^ ((self.turn as u64) << 56),
            _ => self.nonce,
        };
        script.system.write(usize::MAX, system_number, out);
        out.extend_from_slice(br#","tools":"#);
        match script.bodies {
            Bodies::Drifting => {
                let mut tools = script.tool_list.clone();
                self.shuffle.shuffle(&mut tools);
                self.shuffle.spell(&Value::from(tools), out);
            }
            _ => script.tools.write(usize::MAX, self.nonce, out),
        }
        script.rest.write(usize::MAX, self.nonce, out);
    }
}

/// The directive of a fan-out to one of its children.
pub fn directive(number: usize) -> String {
    format!(
        "Part {number} is yours: read the module that the plan names under this number, run its tests, and report \
         every failure with its cause and the line that it comes from."
    )
}

/// The only message of a child.
fn child(number: usize) -> String {
    json!({"role": "user", "content": [{"type": "text", "text": directive(number)}]}).to_string()
}

/// A text with slots.
struct Text {
    text: String,
    slots: Vec<usize>,
}

impl Text {
    fn new(text: String) -> Text {
        let slots = memchr::memmem::find_iter(text.as_bytes(), SLOT).collect();
        Text { text, slots }
    }

    /// Appends the text up to `end` with the number in its slots.
    fn write(&self, end: usize, nonce: u64, out: &mut Vec<u8>) {
        let from = out.len();
        let end = end.min(self.text.len());
        out.extend_from_slice(&self.text.as_bytes()[..end]);
        let digits = format!("{nonce:016x}");
        for slot in self.slots.iter().take_while(|slot| **slot < end) {
            out[from + slot..from + slot + SLOT.len()].copy_from_slice(digits.as_bytes());
        }
    }
}

/// The messages while they are written.
struct History<'a> {
    words: Words,
    mark: &'a str,
    text: String,
    exchanges: usize,
    inputs: Vec<(usize, Value)>,
}

impl History<'_> {
    fn until(&mut self, bytes: usize) {
        let opening = (bytes / 8).min(1_200);
        let text = format!("{SLOT} {}", self.words.text(opening));
        let opening = json!({"role": "user", "content": [{"type": "text", "text": text}]});
        self.text.push_str(&opening.to_string());
        while self.text.len() + RESULT_BYTES.end + 1_500 < bytes {
            let result = self.words.number(RESULT_BYTES);
            self.exchange(result + 800);
        }
        let mut rest = bytes.saturating_sub(self.text.len());
        while rest > 3_000 {
            self.exchange(rest / 2);
            rest = bytes.saturating_sub(self.text.len());
        }
        self.exchange(rest.max(600));
    }

    /// The model says something and calls a tool, whose result comes back.
    fn exchange(&mut self, bytes: usize) {
        let before = self.text.len();
        let Self { words, mark, .. } = self;
        let id = format!("toolu_01{SLOT}{:08}", self.exchanges);
        let said = format!("{mark}{}", words.text((bytes / 6).min(400)));
        let (name, input) = call(words, self.exchanges);
        self.exchanges += 1;
        let said = json!({"type": "text", "text": said});
        let _ = write!(
            self.text,
            r#",{{"role":"assistant","content":[{said},{{"type":"tool_use","id":"{id}","name":"{name}","input":"#
        );
        self.inputs.push((self.text.len(), input.clone()));
        let _ = write!(
            self.text,
            r#"{input}}}]}},{{"role":"user","content":[{{"tool_use_id":"{id}","type":"tool_result","content":"{mark}"#
        );
        let left = (before + bytes).saturating_sub(self.text.len() + 1 + LAST_END.len()).max(100);
        self.text.push_str(&escaped(&self.words.text(left), left));
        let _ = write!(self.text, "\"{LAST_END}");
    }
}

fn call(words: &mut Words, number: usize) -> (&'static str, Value) {
    match number % 4 {
        0 => ("Read", json!({"file_path": format!("src/part_{number}.rs"), "offset": number, "limit": 400})),
        1 => {
            let command = format!("cargo test --lib part_{number} -- --nocapture");
            ("Bash", json!({"command": command, "description": words.text(40), "timeout": 120000}))
        }
        2 => {
            let pattern = format!("fn part_{number}\\(");
            (
                "Grep",
                json!({"pattern": pattern, "path": "src", "glob": "*.rs", "output_mode": "content", "-n": true}),
            )
        }
        _ => {
            let file = format!("src/part_{number}.rs");
            ("Edit", json!({"file_path": file, "old_string": words.text(120), "new_string": words.text(160)}))
        }
    }
}

/// About `bytes` of tools, two thirds of it schemas.
fn tools(words: &mut Words, mark: &str, bytes: usize) -> Vec<Value> {
    const NAMES: [&str; 16] = [
        "Read",
        "Edit",
        "Bash",
        "Grep",
        "Agent",
        "Write",
        "Glob",
        "WebFetch",
        "WebSearch",
        "TodoWrite",
        "NotebookEdit",
        "BashOutput",
        "KillShell",
        "Skill",
        "ExitPlanMode",
        "AskUserQuestion",
    ];
    let count = (bytes / 1_500).clamp(2, NAMES.len());
    let each = bytes.min(30_000) * 3 / 4 / count;
    let tool = |name: &&str| {
        let mut property = |share: usize| format!("{mark}{}", words.text((each / share).max(20)));
        json!({
            "name": name,
            "description": property(3),
            "input_schema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                "properties": {
                    "file_path": {"type": "string", "description": property(12)},
                    "limit": {"type": "number", "minimum": 1, "description": property(12)},
                    "mode": {"type": "string", "enum": ["content", "files", "count"], "description": property(12)},
                    "edits": {"type": "array", "description": property(12), "items": {"type": "object",
                        "properties": {"old": {"type": "string", "description": property(16)},
                                       "new": {"type": "string", "description": property(16)}},
                        "required": ["old", "new"], "additionalProperties": false}}},
                "required": ["file_path"], "additionalProperties": false}
        })
    };
    NAMES.iter().take(count).map(tool).collect()
}

fn system(words: &mut Words, mark: &str, bodies: Bodies, body_bytes: usize) -> String {
    if bodies == Bodies::Shifting {
        let mut text = String::new();
        while text.len() < body_bytes / 2 {
            let _ = write!(text, "{SLOT} {}", words.text(SHIFT_BYTES));
        }
        return json!([{"type": "text", "text": text}]).to_string();
    }
    let bytes = (body_bytes / 10).min(20_000);
    let mut blocks = json!([
        {"type": "text", "text": format!("You are a careful engineer. {mark}")},
        {"type": "text", "text": format!("{mark}{}", words.text(bytes * 3 / 4))},
        {"type": "text", "text": format!("{mark}{}", words.text(bytes / 4))}]);
    if bodies == Bodies::Plain {
        blocks[2]["cache_control"] = json!({"type": "ephemeral"});
    }
    blocks.to_string()
}

/// The inside of a JSON string of exactly this length: what is missing is filled with text that needs no escape.
fn escaped(text: &str, bytes: usize) -> String {
    let quoted = json!(text).to_string();
    let mut inner = String::with_capacity(bytes);
    for word in quoted[1..quoted.len() - 1].split_inclusive(' ') {
        if inner.len() + word.len() > bytes {
            break;
        }
        inner.push_str(word);
    }
    let missing = bytes - inner.len();
    inner.extend("so that every byte of it is read. ".chars().cycle().take(missing));
    inner
}

/// A small repeatable source of text and chance (xorshift), so that every run sends the same conversations.
struct Words(u64);

impl Words {
    fn new(seed: u64) -> Words {
        Words(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn draw(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize
    }

    fn number(&mut self, range: std::ops::Range<usize>) -> usize {
        range.start + self.draw() % range.len()
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.draw() % (last + 1));
        }
    }

    /// Writes a value with the keys of every object in another order; its length stays the same.
    fn spell(&mut self, value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                self.shuffle(&mut members);
                self.separated(b'{', members, b'}', out, |words, (key, value), out| {
                    out.extend_from_slice(format!("\"{key}\":").as_bytes());
                    words.spell(value, out);
                });
            }
            Value::Array(elements) => self.separated(b'[', elements, b']', out, Words::spell),
            other => out.extend_from_slice(other.to_string().as_bytes()),
        }
    }

    fn separated<T>(
        &mut self,
        open: u8,
        items: impl IntoIterator<Item = T>,
        close: u8,
        out: &mut Vec<u8>,
        write: impl Fn(&mut Words, T, &mut Vec<u8>),
    ) {
        out.push(open);
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write(self, item, out);
        }
        out.push(close);
    }

    fn pick(&mut self) -> &'static str {
        const LIST: [&str; 24] = [
            "the",
            "request",
            "\"config\"",
            "returns",
            "a",
            "stream",
            "of",
            "bytes\n",
            "when",
            "`deadline`",
            "is",
            "reached;",
            "fn main() {\n    let x = \"y\";\n}\n",
            "then",
            "naïve",
            "path\\to\\file",
            "3.14",
            "— and",
            "tests/it/main.rs:42:",
            "error:",
            "expected",
            "two",
            "lines\n\n",
            "instead",
        ];
        LIST[self.draw() % LIST.len()]
    }

    fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 40);
        while text.len() < bytes {
            text.push_str(self.pick());
            text.push(' ');
        }
        text
    }
}
