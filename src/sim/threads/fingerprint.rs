//! The fields that are fixed when a thread is created.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::super::body::text;
use super::super::render::ATTRIBUTION;
use super::super::rules::RequestBetas;
use super::rules::RepeatedFields;

/// Top-level fields that every continue repeats as they were.
const FIXED: [&str; 6] =
    ["model", "thinking", "tool_choice", "output_config", "context_management", "cache_control"];

/// The fixed fields of one thread. Values are compared, so the order of keys does not count; null is absent.
#[derive(Debug, Clone)]
pub struct Fingerprint {
    fixed: [Value; FIXED.len()],
    betas: BTreeSet<String>,
    system: Value,
    tools: Value,
}

impl Fingerprint {
    pub fn of(root: &Map<String, Value>, betas: &RequestBetas<'_>) -> Fingerprint {
        Fingerprint {
            fixed: FIXED.map(|name| member(root, name)),
            betas: betas.iter().map(|beta| (*beta).to_owned()).collect(),
            system: system_of(root),
            tools: tools_of(root),
        }
    }

    /// The names of the fields in which a continue differs.
    pub fn differences(
        &self,
        root: &Map<String, Value>,
        betas: &RequestBetas<'_>,
        repeated: RepeatedFields,
    ) -> Vec<&'static str> {
        let mut names: Vec<&str> = FIXED
            .into_iter()
            .zip(&self.fixed)
            .filter(|(name, held)| member(root, name) != **held)
            .map(|(name, _)| name)
            .collect();
        let sent: BTreeSet<&str> = betas.iter().copied().collect();
        if !sent.iter().copied().eq(self.betas.iter().map(String::as_str)) {
            names.push("anthropic-beta");
        }
        let differs = |sent: &Value, held: &Value| {
            !sent.is_null() && (repeated == RepeatedFields::Refused || sent != held)
        };
        if differs(&system_of(root), &self.system) {
            names.push("system");
        }
        if differs(&tools_of(root), &self.tools) {
            names.push("tools");
        }
        names
    }
}

/// Returns true if a continue brings a system prompt, and not only the attribution block or nothing.
pub fn has_system(root: &Map<String, Value>) -> bool {
    !system_of(root).is_null()
}

pub fn has_tools(root: &Map<String, Value>) -> bool {
    !tools_of(root).is_null()
}

fn member(root: &Map<String, Value>, name: &str) -> Value {
    root.get(name).cloned().unwrap_or_default()
}

/// The system prompt without the attribution block, which changes with every request.
fn system_of(root: &Map<String, Value>) -> Value {
    let Some(Value::Array(blocks)) = root.get("system") else { return member(root, "system") };
    let is_attribution =
        |block: &Value| text(block, "text").is_some_and(|text| text.starts_with(ATTRIBUTION));
    let skipped = usize::from(blocks.first().is_some_and(is_attribution));
    match &blocks[skipped..] {
        [] => Value::Null,
        rest => Value::Array(rest.to_vec()),
    }
}

fn tools_of(root: &Map<String, Value>) -> Value {
    match root.get("tools") {
        Some(Value::Array(tools)) if tools.is_empty() => Value::Null,
        _ => member(root, "tools"),
    }
}
