//! A client that holds one conversation: what it sends next follows from what it was answered.

use serde_json::{Value, json};

use super::blocks::{
    as_echoed_by_python, document, lone_text_to_string, mark_block, mark_last, mark_message, picture,
};
use super::dice::Dice;
use super::shape::{Shape, prose};
use super::spelling::{History, shuffle_deep, shuffle_own, write_oddly};

/// How a client spells and marks what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Stable bytes, no markers at all.
    Naive,
    /// Tools, their keys and those of echoed inputs in another order on every turn, odd white space everywhere,
    /// odd escapes in tools, system and inputs. The shapes that are known for their markers keep them.
    Shuffling,
    /// `Shuffling`, and the blocks of messages with their keys in another order and odd escapes.
    Scrambling,
    /// Stable bytes, markers where they are read.
    WellBehaved,
}

impl Behaviour {
    /// Those of the table.
    pub const ALL: [Behaviour; 3] = [Behaviour::Naive, Behaviour::Shuffling, Behaviour::WellBehaved];

    pub fn as_str(self) -> &'static str {
        match self {
            Behaviour::Naive => "naive",
            Behaviour::Shuffling => "shuffling",
            Behaviour::Scrambling => "scrambling",
            Behaviour::WellBehaved => "well-behaved",
        }
    }
}

/// One request, ready to be sent.
#[derive(Clone, Debug)]
pub struct Letter {
    pub target: &'static str,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

pub struct Client {
    shape: Shape,
    behaviour: Behaviour,
    dice: Dice,
    model: &'static str,
    tools: Vec<Value>,
    system: Value,
    /// Unmarked, content as blocks unless the shape speaks in strings.
    messages: Vec<Value>,
    questions: usize,
    /// How long the conversation was when it was last sent.
    sent: usize,
}

/// Every fifth result of [`Shape::Media`] brings a picture.
const PICTURE_EVERY: usize = 5;
/// Every third question of [`Shape::Coder`] is followed by a system message.
const REMINDER_EVERY: usize = 3;

impl Client {
    pub fn new(shape: Shape, behaviour: Behaviour, seed: u64) -> Client {
        let mut client = Client {
            shape,
            behaviour,
            dice: Dice::new(seed),
            model: shape.model(),
            tools: shape.tools(),
            system: shape.system(),
            messages: Vec::new(),
            questions: 0,
            sent: 0,
        };
        client.ask();
        client
    }

    /// The same client on another model.
    pub fn on(mut self, model: &'static str) -> Client {
        self.model = model;
        self
    }

    /// The next request.
    pub fn letter(&mut self) -> Letter {
        let mut body = self.shape.frame();
        body["model"] = json!(self.model);
        body["messages"] = Value::Array(self.messages.clone());
        body["system"] = self.system.clone();
        body["tools"] = Value::Array(self.tools.clone());
        if self.spells_anew() {
            self.respell(&mut body);
        }
        if self.marks() {
            self.mark(&mut body);
        }
        if self.shape == Shape::Coder {
            body["messages"].as_array_mut().unwrap().iter_mut().for_each(lone_text_to_string);
        }
        let body = body.as_object_mut().unwrap();
        body.retain(|_, value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()));
        self.sent = self.messages.len();
        let bytes = match self.spells_anew() {
            true => {
                shuffle_own(body, &mut self.dice);
                let history = match self.behaviour {
                    Behaviour::Scrambling => History::Odd,
                    _ => History::Stable,
                };
                write_oddly(&Value::Object(body.clone()), history, &mut self.dice)
            }
            false => serde_json::to_vec(body).unwrap(),
        };
        Letter { target: self.target(), headers: self.headers(), body: bytes }
    }

    /// Takes an answer in: the assistant's turn as it was, then results or the next question.
    pub fn answered(&mut self, blocks: Vec<Value>) {
        let calls: Vec<Value> = blocks.iter().filter(|block| block["type"] == "tool_use").cloned().collect();
        let content = match self.shape {
            Shape::Chat => blocks[0]["text"].clone(),
            Shape::Framework => blocks.iter().map(as_echoed_by_python).collect(),
            _ => Value::Array(blocks),
        };
        self.messages.push(json!({"role": "assistant", "content": content}));
        match calls.is_empty() {
            true => self.ask(),
            false => {
                let results: Vec<Value> = calls.iter().map(|call| self.result(&call["id"])).collect();
                self.messages.push(json!({"role": "user", "content": results}));
            }
        }
    }

    fn ask(&mut self) {
        self.questions += 1;
        let number = self.questions;
        let question = prose(&format!("Question {number}: what holds “part {number}” together?"), 90);
        let question = format!("{question}\n{}", self.shape.instruction());
        let text = json!({"type": "text", "text": question});
        let content = match self.shape {
            Shape::Chat | Shape::Framework => json!(question),
            Shape::Coder if number == 1 => {
                json!([{"type": "text", "text": prose("<system-reminder>", 140)}, text])
            }
            Shape::Media if number == 1 => json!([picture(1), document(), text]),
            _ => json!([text]),
        };
        self.messages.push(json!({"role": "user", "content": content}));
        if self.shape == Shape::Coder && number % REMINDER_EVERY == 1 {
            let reminder = json!([{"type": "text", "text": prose(&format!("Reminder {number}."), 200)}]);
            self.messages.push(json!({"role": "system", "content": reminder}));
        }
    }

    fn result(&mut self, id: &Value) -> Value {
        let number = self.messages.len();
        let found = prose(&format!("Found {number}: it’s where its name says."), 60);
        let text = json!({"type": "text", "text": found});
        match self.shape {
            Shape::Coder => json!({"tool_use_id": id, "type": "tool_result", "content": [text]}),
            Shape::Framework => {
                json!({"type": "tool_result", "content": found, "tool_use_id": id, "is_error": false})
            }
            Shape::LongTurns => json!({"type": "tool_result", "tool_use_id": id, "content": "done"}),
            Shape::Media if number.is_multiple_of(PICTURE_EVERY) => {
                json!({"type": "tool_result", "tool_use_id": id, "content": [text, picture(number)]})
            }
            _ => json!({"type": "tool_result", "tool_use_id": id, "content": found}),
        }
    }

    fn spells_anew(&self) -> bool {
        matches!(self.behaviour, Behaviour::Shuffling | Behaviour::Scrambling)
    }

    fn marks(&self) -> bool {
        match self.behaviour {
            Behaviour::Naive => false,
            Behaviour::WellBehaved => true,
            Behaviour::Shuffling | Behaviour::Scrambling => {
                matches!(self.shape, Shape::Coder | Shape::Framework)
            }
        }
    }

    fn respell(&mut self, body: &mut Value) {
        let dice = &mut self.dice;
        let tools = body["tools"].as_array_mut().unwrap();
        dice.shuffle(tools);
        tools.iter_mut().for_each(|tool| shuffle_deep(tool, dice));
        if let Some(blocks) = body["system"].as_array_mut() {
            blocks.iter_mut().for_each(|block| shuffle_deep(block, dice));
        }
        let messages = body["messages"].as_array_mut().unwrap();
        let blocks = messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten();
        for block in blocks {
            if block["type"] == "tool_use" {
                shuffle_deep(&mut block["input"], dice);
            }
            if self.behaviour == Behaviour::Scrambling {
                shuffle_own(block.as_object_mut().unwrap(), dice);
            }
        }
    }

    fn mark(&self, body: &mut Value) {
        match self.shape {
            Shape::Chat => body["cache_control"] = json!({"type": "ephemeral"}),
            Shape::Tools | Shape::Media => {
                mark_last(&mut body["system"]);
                mark_message(body, self.messages.len() - 1);
            }
            Shape::Coder => {
                body["system"].as_array_mut().unwrap().iter_mut().skip(1).for_each(mark_block);
                mark_message(body, self.messages.len() - 1);
            }
            Shape::Framework => {
                let marker = json!({"type": "ephemeral", "ttl": "5m"});
                body["cache_control"] = marker.clone();
                body["system"][0]["cache_control"] = marker.clone();
                let tools = body["tools"].as_array_mut().unwrap();
                tools.last_mut().unwrap()["cache_control"] = marker;
            }
            Shape::LongTurns => {
                mark_last(&mut body["tools"]);
                mark_message(body, self.messages.len() - 1);
                if let Some(before) = self.sent.checked_sub(1).filter(|_| self.sent < self.messages.len()) {
                    mark_message(body, before);
                }
            }
        }
    }

    fn target(&self) -> &'static str {
        if self.shape == Shape::Coder { "/v1/messages?beta=true" } else { "/v1/messages" }
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = plain_headers();
        if self.shape == Shape::Coder {
            headers.push(("user-agent", "claude-cli/2.1.325 (external, cli)".to_owned()));
            headers.push(("x-claude-code-session-id", "4be3c1a0-session".to_owned()));
            headers.push(("anthropic-beta", "claude-code-20250219,context-management-2025-06-27".to_owned()));
        }
        headers
    }
}

impl Letter {
    /// A request that belongs to no conversation.
    pub fn alone(body: &Value) -> Letter {
        Letter { target: "/v1/messages", headers: plain_headers(), body: serde_json::to_vec(body).unwrap() }
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Letter {
        self.headers.push((name, value.to_owned()));
        self
    }
}

fn plain_headers() -> Vec<(&'static str, String)> {
    let pairs =
        [("x-api-key", "sk-test"), ("anthropic-version", "2023-06-01"), ("content-type", "application/json")];
    pairs.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}
