//! The six shapes: what requests of different clients look like.

use serde_json::{Value, json};

/// What a client's requests look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Strings only, no tools.
    Chat,
    /// Tools, loops of calls, content as blocks.
    Tools,
    /// `messages` before `system` before `tools`, an attribution line, and messages that turn into strings when
    /// their marker goes. Streams.
    Coder,
    /// Automatic caching at the top level, and the last tool and the system prompt marked.
    Framework,
    /// More blocks per turn than a breakpoint looks back.
    LongTurns,
    /// Images, documents and thinking that is bound to its prompt.
    Media,
}

impl Shape {
    pub const ALL: [Shape; 6] =
        [Shape::Chat, Shape::Tools, Shape::Coder, Shape::Framework, Shape::LongTurns, Shape::Media];

    pub fn as_str(self) -> &'static str {
        match self {
            Shape::Chat => "plain chat",
            Shape::Tools => "tool loops",
            Shape::Coder => "coding agent",
            Shape::Framework => "agent framework",
            Shape::LongTurns => "long tool turns",
            Shape::Media => "media and thinking",
        }
    }

    pub fn model(self) -> &'static str {
        match self {
            Shape::Coder => "claude-opus-4-8",
            Shape::Media => "claude-opus-5-5",
            _ => "claude-sonnet-4-6",
        }
    }

    /// What the scripted model is told at the end of a question.
    pub fn instruction(self) -> &'static str {
        match self {
            Shape::Chat => "[[sim:text words=80]]",
            Shape::Tools => "[[sim:tools turns=3 calls=2 words=60]]",
            Shape::Coder => "[[sim:tools turns=2 calls=2 words=60 thinking=30]]",
            Shape::Framework => "[[sim:tools turns=2 calls=1 words=40]]",
            Shape::LongTurns => "[[sim:tools turns=1000 calls=13]]",
            Shape::Media => "[[sim:tools turns=2 calls=1 words=40 thinking=40]]",
        }
    }

    pub fn tools(self) -> Vec<Value> {
        let names: &[&str] = match self {
            Shape::Chat => &[],
            Shape::LongTurns => &["read_file", "search"],
            Shape::Media => &["look_up", "crop", "describe"],
            _ => &["read_file", "write_file", "search", "run", "ask_user", "plan"],
        };
        names.iter().map(|name| tool(name)).collect()
    }

    /// The value of `system`, unmarked.
    pub fn system(self) -> Value {
        let text = |text: String| json!({"type": "text", "text": text});
        match self {
            Shape::Chat => json!(prose("You answer in plain words.", 1_500)),
            Shape::Coder => json!([
                text("x-anthropic-billing-header: cc_version=1.2.3.abc; cc_entrypoint=cli;".to_owned()),
                text("You are a coding agent on a command line.".to_owned()),
                text(prose("# How to work", 2_000)),
            ]),
            _ => json!([text(prose("You work with tools and report what you found.", 1_200))]),
        }
    }

    /// Everything but `tools`, `system` and `messages`; those three are inserted where the client has them.
    pub fn frame(self) -> Value {
        let model = self.model();
        match self {
            Shape::Coder => json!({
                "model": model, "messages": [], "system": [], "tools": [],
                "metadata": {"user_id": "user_1_session_2"}, "max_tokens": 32_000,
                "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}, "stream": true,
            }),
            Shape::Framework => json!({
                "max_tokens": 4096, "messages": [], "model": model, "cache_control": null, "system": [],
                "tools": [],
            }),
            Shape::Media => json!({
                "model": model, "max_tokens": 8000, "thinking": {"type": "adaptive"}, "tools": [],
                "system": [], "messages": [],
            }),
            _ => json!({"model": model, "max_tokens": 2048, "tools": [], "system": [], "messages": []}),
        }
    }
}

/// A tool whose schema has an order that could be lost.
pub fn tool(name: &str) -> Value {
    json!({
        "name": name,
        "description": prose(&format!("`{name}` — what it says, within the project’s folder."), 120),
        "input_schema": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where, from the project's root: a/b.c"},
                "limit": {"type": "integer", "minimum": 0, "maximum": 9_007_199_254_740_991_u64},
                "mode": {"enum": ["brief", "full"], "description": "How much to return"},
                "options": {
                    "type": "object",
                    "properties": {"depth": {"type": "integer"}, "follow": {"type": "boolean"}},
                    "required": ["depth", "follow"],
                },
            },
            "required": ["path", "limit", "mode", "options"],
        },
    })
}

/// Text of about so many tokens; the same words every time.
pub fn prose(opening: &str, tokens: usize) -> String {
    const SENTENCES: [&str; 4] = [
        " Read before you write, and measure before you claim.",
        " Keep to the task at hand; \"later\" is another task.",
        "\nSay what you did, what you saw, and what is left open.",
        " Paths are relative: src/main.c, docs/naïve.md.",
    ];
    let mut text = opening.to_owned();
    for sentence in SENTENCES.iter().cycle() {
        if text.len() >= tokens * 4 {
            break;
        }
        text.push_str(sentence);
    }
    text
}
