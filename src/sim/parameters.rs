//! The parameters that cache entries depend on, besides the blocks: the invalidation table.
//!
//! Each parameter belongs to the first layer that is lost when it changes ([`Invalidation`](super::settings::Invalidation));
//! its value enters the cache chain where that layer begins, so the layers before it keep their entries.

use std::collections::BTreeSet;

use serde_json::Value;

use super::body::{Body, ThinkingParameter, kind};
use super::prompt::link;
use super::render::images_in;
use super::settings::{PromptLayer, SaidDefault, SimRules};

/// Betas that do nothing any more (rules §9.10).
const NO_OP_BETAS: [&str; 8] = [
    "prompt-caching-2024-07-31",
    "pdfs-2024-09-25",
    "token-counting-2024-11-01",
    "token-efficient-tools-2025-02-19",
    "extended-cache-ttl-2025-04-11",
    "cache-diagnosis-2026-04-07",
    "ce-user-management-2026-07-13",
    "message-batches-2024-09-24",
];

/// One digest per layer.
#[derive(Debug)]
pub struct ParameterDigests {
    tools: [u8; 32],
    system: [u8; 32],
    messages: [u8; 32],
}

impl ParameterDigests {
    pub fn of(body: &Body<'_>, betas: &[&str], rules: &SimRules) -> ParameterDigests {
        let table = &rules.invalidation;
        let mut parameters = ParameterDigests { tools: [0; 32], system: [0; 32], messages: [0; 32] };
        let mut note = |layer: PromptLayer, name: &str, value: &[u8]| match layer {
            PromptLayer::Tools => parameters.tools = link(&parameters.tools, name.as_bytes(), value),
            PromptLayer::System => parameters.system = link(&parameters.system, name.as_bytes(), value),
            PromptLayer::Messages => parameters.messages = link(&parameters.messages, name.as_bytes(), value),
            PromptLayer::Nothing => {}
        };
        let blocks = || body.messages.iter().flat_map(|message| message.content.blocks());
        let has_images = blocks().any(|block| images_in(block).0 > 0);
        let has_citations = blocks().any(asks_for_citations);
        let speed = body.member("speed").filter(|speed| *speed != "standard");
        let betas: BTreeSet<&str> =
            betas.iter().copied().filter(|beta| !NO_OP_BETAS.contains(beta)).collect();
        let betas: Vec<&str> = betas.into_iter().collect();

        note(table.speed, "speed", &rendered(speed));
        note(table.citations, "citations", &[u8::from(has_citations)]);
        note(table.tool_choice, "tool_choice", &tool_choice(body, table.said_tool_choice));
        note(table.images, "images", &[u8::from(has_images)]);
        note(table.thinking, "thinking", thinking(body).as_bytes());
        note(table.effort, "effort", &effort(body));
        note(table.output_format, "output_format", &output_format(body));
        note(table.context_management, "context_management", &rendered(body.member("context_management")));
        note(table.betas, "betas", betas.join(",").as_bytes());
        parameters
    }

    pub fn of_layer(&self, layer: PromptLayer) -> &[u8; 32] {
        match layer {
            PromptLayer::Tools => &self.tools,
            PromptLayer::System => &self.system,
            PromptLayer::Messages | PromptLayer::Nothing => &self.messages,
        }
    }
}

fn rendered(value: Option<&Value>) -> Vec<u8> {
    value.map(Value::to_string).unwrap_or_default().into_bytes()
}

fn tool_choice(body: &Body<'_>, said_default: SaidDefault) -> Vec<u8> {
    let is_default = |choice: &Value| {
        let is_parallel = choice.get("disable_parallel_tool_use").is_none_or(|value| *value == false);
        kind(choice) == "auto" && is_parallel
    };
    let choice = body.member("tool_choice");
    rendered(choice.filter(|choice| said_default == SaidDefault::Different || !is_default(choice)))
}

/// Mode and budget; how thinking is displayed or bound changes no prompt.
fn thinking(body: &Body<'_>) -> String {
    match body.thinking() {
        ThinkingParameter::Unset => String::new(),
        ThinkingParameter::Disabled => "disabled".to_owned(),
        ThinkingParameter::Adaptive => "adaptive".to_owned(),
        ThinkingParameter::Enabled { budget } => {
            format!("enabled {}", budget.map(Value::to_string).unwrap_or_default())
        }
    }
}

/// The default, said or not, is one value.
fn effort(body: &Body<'_>) -> Vec<u8> {
    let effort = body.member("output_config").and_then(|config| config.get("effort"));
    rendered(effort.filter(|effort| *effort != "high" && !effort.is_null()))
}

fn output_format(body: &Body<'_>) -> Vec<u8> {
    let mut format = rendered(body.member("output_format"));
    if let Some(config) = body.member("output_config").and_then(Value::as_object) {
        for (key, value) in config.iter().filter(|(key, _)| *key != "effort") {
            format.extend_from_slice(format!("{key}:{value}").as_bytes());
        }
    }
    format
}

fn asks_for_citations(block: &Value) -> bool {
    let citations = block.get("citations").and_then(|citations| citations.get("enabled"));
    citations.and_then(Value::as_bool).unwrap_or_default()
}
