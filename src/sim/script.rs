//! The scripted model: what it answers to a request, deterministically.
//!
//! The instruction (see [`super::instruction`]) says what to do; words, ids and inputs follow from the seed and the
//! digest of the prompt, so a retried request gets the same words and a run can be repeated. Like a model, the script
//! calls only tools that the request declares and lets it choose: asked for one that is not there, it answers with
//! text.

use serde_json::{Map, Value};

use super::body::{Body, MessageRole, ThinkingParameter, kind, text};
use super::encode::id;
use super::instruction::{Act, FanOut, Instruction, Likeness};
use super::models::ThinkingBinding;
use super::prompt::DigestedPrompt;
use super::recital::Recital;
use super::render::tokens_of;
use super::rules::signature::Signer;
use super::settings::SimRules;
use super::words::Words;

/// A content block of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerBlock {
    Thinking {
        text: String,
        signature: String,
    },
    Text(String),
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
    /// Of a recital: any other kind, sent as it is.
    Other(Value),
}

#[derive(Debug, Clone, PartialEq)]
pub enum StopReason {
    EndTurn,
    ToolUse,
    MaxTokens,
    StopSequence(String),
    /// A summary was asked for.
    Compaction,
    /// Of a recital.
    Recited(String),
}

impl StopReason {
    pub fn as_str(&self) -> &str {
        match self {
            StopReason::EndTurn => "end_turn",
            StopReason::ToolUse => "tool_use",
            StopReason::MaxTokens => "max_tokens",
            StopReason::StopSequence(_) => "stop_sequence",
            StopReason::Compaction => "compaction",
            StopReason::Recited(why) => why,
        }
    }
}

/// An answer of the scripted model.
#[derive(Debug)]
pub struct Play {
    pub blocks: Vec<AnswerBlock>,
    pub stop_reason: StopReason,
    pub output_tokens: u64,
    pub pace_ms: Option<u64>,
    pub first_ms: u64,
    /// The answer to a request for a summary.
    pub is_compaction: bool,
}

impl Play {
    /// Repeats a recorded answer.
    pub fn recite(recital: &Recital) -> Play {
        Play {
            blocks: recital.content.iter().map(AnswerBlock::recited).collect(),
            stop_reason: StopReason::Recited(recital.stop_reason.clone().unwrap_or("end_turn".into())),
            output_tokens: recital.output_tokens,
            pace_ms: Some(0),
            first_ms: 0,
            is_compaction: false,
        }
    }
}

/// Everything an answer follows from.
pub struct Scene<'a> {
    pub body: &'a Body<'a>,
    pub prompt: &'a DigestedPrompt,
    pub signer: &'a Signer,
    pub rules: &'a SimRules,
    pub seed: u64,
    pub digest: [u8; 32],
    /// How often this very prompt was answered before: ids differ between retries, words do not.
    pub ordinal: u64,
}

impl Scene<'_> {
    pub fn play(&self) -> Play {
        if self.body.asks_summary {
            return self.summarize();
        }
        let (instruction, step) = self.instruction();
        let mut blocks = Vec::new();
        if self.body.max_tokens != Some(0) {
            blocks.extend(self.thinking(&instruction));
            self.act(&instruction.act, step, &mut blocks);
        }
        let stop_reason = match blocks.last() {
            _ if self.body.max_tokens == Some(0) => StopReason::MaxTokens,
            Some(AnswerBlock::ToolUse { .. }) => StopReason::ToolUse,
            _ => StopReason::EndTurn,
        };
        let mut play = Play {
            blocks,
            stop_reason,
            output_tokens: 0,
            pace_ms: instruction.pace_ms,
            first_ms: instruction.first_ms,
            is_compaction: false,
        };
        self.stop_at_sequences(&mut play);
        self.stop_at_max_tokens(&mut play);
        play
    }

    /// The newest instruction, and how many assistant messages came after it.
    fn instruction(&self) -> (Instruction, u64) {
        let mut step = 0;
        for message in self.body.messages.iter().rev() {
            match message.role {
                MessageRole::Assistant => step += 1,
                MessageRole::System => {}
                MessageRole::User => {
                    let found = message.content.texts().filter_map(Instruction::find).last();
                    if let Some(instruction) = found {
                        return (instruction, step);
                    }
                }
            }
        }
        (Instruction::default(), step)
    }

    fn act(&self, act: &Act, step: u64, blocks: &mut Vec<AnswerBlock>) {
        match act {
            Act::Empty => {}
            Act::Text { words } => self.talk(*words, blocks),
            Act::FanOut(fan_out) => match self.spawning_tool(fan_out).filter(|tool| self.may_call(tool)) {
                Some(tool) if step < fan_out.rounds => self.fan_out(fan_out, tool, blocks),
                _ => self.talk(REPORT_WORDS, blocks),
            },
            Act::Tools { turns, calls, tool, words } => {
                match self.plain_tool(tool.as_deref()).filter(|tool| self.may_call(tool)) {
                    Some(tool) if step < *turns => self.call(tool, *calls, blocks),
                    _ => self.talk(*words, blocks),
                }
            }
        }
    }

    /// Text, unless the request forces a call.
    fn talk(&self, words: usize, blocks: &mut Vec<AnswerBlock>) {
        let choice = self.body.member("tool_choice");
        let forced = match choice.map(kind) {
            Some("any") => self.plain_tool(None).or(self.body.tools.first()),
            Some("tool") => choice.and_then(|choice| self.body.tool(text(choice, "name")?)),
            _ => None,
        };
        match forced {
            Some(tool) => self.call(tool, 1, blocks),
            None => blocks.push(self.text(words)),
        }
    }

    fn may_call(&self, tool: &Value) -> bool {
        let Some(choice) = self.body.member("tool_choice") else { return true };
        match kind(choice) {
            "none" => false,
            "tool" => text(choice, "name") == text(tool, "name"),
            _ => true,
        }
    }

    pub fn words(&self, label: &str) -> Words {
        Words::from(self.seed, &self.digest, label)
    }

    fn text(&self, words: usize) -> AnswerBlock {
        let format = self.body.member("output_config").and_then(|config| config.get("format"));
        let format = format.or_else(|| self.body.member("output_format"));
        match format.and_then(|format| format.get("schema")) {
            Some(schema) => {
                AnswerBlock::Text(Value::Object(self.words("json").input_for(schema)).to_string())
            }
            None => AnswerBlock::Text(self.words("text").prose(words)),
        }
    }

    fn thinking(&self, instruction: &Instruction) -> Option<AnswerBlock> {
        let thinks = match self.body.thinking() {
            ThinkingParameter::Enabled { .. } | ThinkingParameter::Adaptive => true,
            ThinkingParameter::Unset => self.body.model.binding == ThinkingBinding::Bound,
            ThinkingParameter::Disabled => false,
        };
        if !thinks || instruction.thinking_words == 0 {
            return None;
        }
        let display = self.body.member("thinking").and_then(|thinking| text(thinking, "display"));
        let shown = match display {
            Some("omitted") => String::new(),
            _ => self.words("thinking").prose(instruction.thinking_words),
        };
        let signature = self.signer.sign(&self.body.model.id, &shown, &self.prompt.bond_of_answer(0));
        Some(AnswerBlock::Thinking { text: shown, signature })
    }

    /// The tool that starts children: the one asked for, else one whose name says so.
    fn spawning_tool(&self, fan_out: &FanOut) -> Option<&Value> {
        match &fan_out.tool {
            Some(name) => self.body.tool(name),
            None => self.body.tools.iter().find(|tool| is_spawning(tool)),
        }
    }

    fn plain_tool(&self, name: Option<&str>) -> Option<&Value> {
        let is_custom = |tool: &&Value| matches!(kind(tool), "" | "custom");
        match name {
            Some(name) => self.body.tool(name),
            None => self.body.tools.iter().filter(is_custom).find(|tool| !is_spawning(tool)),
        }
    }

    fn call(&self, tool: &Value, calls: u64, blocks: &mut Vec<AnswerBlock>) {
        blocks.push(AnswerBlock::Text(self.words("before").prose(6)));
        let schema = tool.get("input_schema").unwrap_or(&Value::Null);
        self.make_calls(tool, calls, blocks, |index| self.words(&format!("call {index}")).input_for(schema));
    }

    /// Ends with the first call that does not fit, which is then not made: a schema of megabytes is filled once.
    fn make_calls(
        &self,
        tool: &Value,
        calls: u64,
        blocks: &mut Vec<AnswerBlock>,
        input: impl Fn(u64) -> Map<String, Value>,
    ) {
        let choice = self.body.member("tool_choice");
        let is_single = choice.and_then(|choice| choice.get("disable_parallel_tool_use")?.as_bool());
        let calls = if is_single == Some(true) { calls.min(1) } else { calls };
        let most = self.body.max_tokens.unwrap_or(u64::MAX);
        let mut tokens = 0_u64;
        for index in 0..calls {
            let call = self.tool_use(tool, index, input(index));
            tokens = tokens.saturating_add(tokens_of(call.bytes(), self.rules));
            blocks.push(call);
            if tokens > most {
                return;
            }
        }
    }

    fn tool_use(&self, tool: &Value, index: u64, input: Map<String, Value>) -> AnswerBlock {
        let ingredients = [&self.digest[..], &self.ordinal.to_le_bytes(), &index.to_le_bytes()];
        let name = text(tool, "name").unwrap_or_default().to_owned();
        AnswerBlock::ToolUse { id: id("toolu_", self.seed, &ingredients), name, input }
    }

    fn fan_out(&self, fan_out: &FanOut, tool: &Value, blocks: &mut Vec<AnswerBlock>) {
        blocks.push(AnswerBlock::Text(self.words("before").prose(10)));
        self.make_calls(tool, fan_out.children, blocks, |index| self.spawn_input(fan_out, tool, index));
    }

    /// Title first, directive second, then whatever else the schema requires.
    fn spawn_input(&self, fan_out: &FanOut, tool: &Value, index: u64) -> Map<String, Value> {
        let schema = tool.get("input_schema").unwrap_or(&Value::Null);
        let properties = schema.get("properties").and_then(Value::as_object);
        let has = |name: &&str| properties.is_none_or(|known| known.contains_key(*name));
        let field = match &fan_out.field {
            Some(field) => field.as_str(),
            None => DIRECTIVE_FIELDS.into_iter().find(has).unwrap_or("prompt"),
        };
        let title = ["description", "title", "name"].into_iter().filter(|name| *name != field).find(has);
        let area = self.words(&format!("area {index}")).word();
        let mut input = Map::new();
        if let Some(title) = title {
            input.insert(title.to_owned(), Value::String(format!("Survey {area} {}", index + 1)));
        }
        input.insert(field.to_owned(), Value::String(self.directive(fan_out, index, area)));
        if let Some(agent_type) = &fan_out.agent_type {
            input.insert("subagent_type".to_owned(), Value::String(agent_type.clone()));
        }
        for (name, value) in self.words(&format!("input {index}")).input_for(schema) {
            input.entry(name).or_insert(value);
        }
        input
    }

    fn directive(&self, fan_out: &FanOut, index: u64, area: &str) -> String {
        let (number, children) = (index + 1, fan_out.children);
        let mut directive = match fan_out.likeness {
            Likeness::Short => return format!("Look at {area} {number}."),
            Likeness::Alike => format!(
                "You are worker {number} of {children}. Survey the {area} part and report what you find there.\n\n\
                 Details: {}",
                self.words("details").prose(fan_out.words)
            ),
            Likeness::Own => {
                let mut words = self.words(&format!("directive {index}"));
                let opening = words.prose(5);
                format!(
                    "{opening} Part {number} of {children} is yours, {area}; report what you find. {}",
                    words.prose(fan_out.words)
                )
            }
        };
        if let Some(child) = &fan_out.child {
            directive.push_str(&format!("\n\n[[sim:{child}]]"));
        }
        directive
    }

    fn stop_at_sequences(&self, play: &mut Play) {
        let Some(sequences) = self.body.member("stop_sequences").and_then(Value::as_array) else { return };
        let sequences: Vec<&str> =
            sequences.iter().take(MOST_STOP_SEQUENCES).filter_map(Value::as_str).collect();
        for index in 0..play.blocks.len() {
            let AnswerBlock::Text(text) = &mut play.blocks[index] else { continue };
            let found = sequences.iter().filter_map(|sequence| Some((text.find(sequence)?, *sequence))).min();
            if let Some((at, sequence)) = found {
                text.truncate(at);
                let keep = if text.is_empty() { index } else { index + 1 };
                play.stop_reason = StopReason::StopSequence(sequence.to_owned());
                play.blocks.truncate(keep);
                return;
            }
        }
    }

    /// Counts the output, and ends it where `max_tokens` does. A call that does not fit is not made.
    pub fn stop_at_max_tokens(&self, play: &mut Play) {
        let most = self.body.max_tokens.unwrap_or(u64::MAX);
        for index in 0..play.blocks.len() {
            let left = most.saturating_sub(play.output_tokens);
            let tokens = tokens_of(play.blocks[index].bytes(), self.rules);
            if tokens <= left {
                play.output_tokens += tokens;
                continue;
            }
            let left_bytes =
                usize::try_from(left.saturating_mul(self.rules.bytes_per_token)).unwrap_or(usize::MAX);
            let keep = match &mut play.blocks[index] {
                AnswerBlock::Text(text) if left_bytes > 0 => {
                    text.truncate(text.floor_char_boundary(left_bytes));
                    index + 1
                }
                _ => index,
            };
            play.blocks.truncate(keep);
            play.stop_reason = StopReason::MaxTokens;
            play.output_tokens = most;
            return;
        }
    }
}

/// Stop sequences looked for in each text; more would only cost time.
const MOST_STOP_SEQUENCES: usize = 1_000;

/// Words of a fan-out's closing report.
const REPORT_WORDS: usize = 30;

/// Where a spawning tool carries its directive, likeliest first.
const DIRECTIVE_FIELDS: [&str; 8] =
    ["prompt", "instructions", "task", "directive", "input", "message", "query", "description"];

fn is_spawning(tool: &Value) -> bool {
    let name = text(tool, "name").unwrap_or_default().to_ascii_lowercase();
    let starts = ["spawn", "delegate", "dispatch"].into_iter().any(|start| name.starts_with(start));
    starts || name.contains("agent") || name == "task"
}

impl AnswerBlock {
    fn recited(block: &Value) -> AnswerBlock {
        let said = |member: &str| text(block, member).map(str::to_owned);
        let input = block.get("input").and_then(Value::as_object).cloned();
        let members = block.as_object().map_or(0, Map::len);
        match (
            kind(block),
            said("text"),
            said("thinking"),
            said("signature"),
            said("id"),
            said("name"),
            input,
        ) {
            ("text", Some(text), ..) if members == 2 => AnswerBlock::Text(text),
            ("thinking", _, Some(text), Some(signature), ..) if members == 3 => {
                AnswerBlock::Thinking { text, signature }
            }
            ("tool_use", .., Some(id), Some(name), Some(input)) if members == 4 => {
                AnswerBlock::ToolUse { id, name, input }
            }
            _ => AnswerBlock::Other(block.clone()),
        }
    }

    /// Bytes of it that a model writes.
    fn bytes(&self) -> usize {
        match self {
            AnswerBlock::Thinking { text, .. } | AnswerBlock::Text(text) => text.len(),
            AnswerBlock::ToolUse { name, input, .. } => {
                name.len() + Value::Object(input.clone()).to_string().len()
            }
            AnswerBlock::Other(block) => block.to_string().len(),
        }
    }
}
