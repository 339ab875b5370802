//! Every rule that could be otherwise, as a setting with the documented default.
//!
//! The vendor documents most of the cache and leaves some of it open. A claim that holds only under our guess is
//! worth little, so each guess can be turned, in code or by name, and the same test run under both readings.
//!
//! ```text
//! rules.merging = Merging::Separate;
//! rules.set("merging", "separate")?;
//! ```

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::threads::rules::ThreadRules;

/// The cache and validation rules. [`SimRules::set`] turns one by name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimRules {
    /// Positions checked per breakpoint, the breakpoint itself being the first.
    pub lookback_positions: usize,
    /// Breakpoints per request, the automatic one included.
    pub breakpoints: usize,
    /// How long a `5m` entry really lives.
    pub five_minutes_s: u64,
    /// How long a `1h` entry really lives.
    pub one_hour_s: u64,
    /// One token is this many bytes of a rendered block, rounded up. An estimate: deterministic, not real.
    pub bytes_per_token: u64,
    /// An image counts as this many tokens, whatever its bytes.
    pub image_tokens: u64,
    pub visibility: Visibility,
    pub refresh: Refresh,
    pub below_hit: BelowHit,
    pub key_order: KeyOrder,
    pub escapes: Escapes,
    pub merging: Merging,
    pub attribution: AttributionRule,
    pub nested_markers: NestedMarkers,
    pub mixed_messages: MixedMessages,
    pub isolation: Isolation,
    pub invalidation: Invalidation,
    pub signatures: Signatures,
    pub mismatch: Mismatch,
    pub unknown_input: UnknownInput,
    pub options: Options,
    pub version_header: VersionHeader,
    pub diagnosis: DiagnosisRule,
    pub iterations: Iterations,
    pub threads: ThreadRules,
}

impl Default for SimRules {
    fn default() -> Self {
        SimRules {
            lookback_positions: 20,
            breakpoints: 4,
            five_minutes_s: 5 * 60,
            one_hour_s: 60 * 60,
            bytes_per_token: 4,
            image_tokens: 1_600,
            visibility: Visibility::FirstContent,
            refresh: Refresh::WholePrefix,
            below_hit: BelowHit::Skip,
            key_order: KeyOrder::Everywhere,
            escapes: Escapes::Decoded,
            merging: Merging::OneTurn,
            attribution: AttributionRule::Stripped,
            nested_markers: NestedMarkers::Ignored,
            mixed_messages: MixedMessages::NewTurn,
            isolation: Isolation::Workspace,
            invalidation: Invalidation::default(),
            signatures: Signatures::Checked,
            mismatch: Mismatch::Refuse,
            unknown_input: UnknownInput::Accept,
            options: Options::Checked,
            version_header: VersionHeader::Required,
            diagnosis: DiagnosisRule::Ready,
            iterations: Iterations::WhenNeeded,
            threads: ThreadRules::default(),
        }
    }
}

/// A rule that does not exist, or a value it does not have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRule {
    #[error("unknown rule '{name}'; the rules are {}", .known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    #[error("rule '{name}' cannot be '{value}': {reason}")]
    Value { name: String, value: String, reason: String },
}

impl SimRules {
    /// Turns one rule by its name, e.g. `merging` to `separate`, or `invalidation.betas` to `nothing`.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BadRule> {
        let unknown = |tree: &Value| BadRule::Unknown { name: name.to_owned(), known: names(tree) };
        let wrong = |error: serde_json::Error| BadRule::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            reason: error.to_string(),
        };
        let mut tree = serde_json::to_value(&*self).map_err(wrong)?;
        let pointer = format!("/{}", name.replace('.', "/"));
        match tree.pointer_mut(&pointer) {
            Some(slot) if !slot.is_object() => {
                *slot = value.parse::<u64>().map_or_else(|_| json!(value), Value::from)
            }
            _ => return Err(unknown(&tree)),
        }
        *self = serde_json::from_value(tree).map_err(wrong)?;
        Ok(())
    }

    /// Every rule with its value, for help and for reports.
    pub fn list(&self) -> Vec<(String, String)> {
        let tree = serde_json::to_value(self).unwrap_or_default();
        let shown = |name: &String| {
            tree.pointer(&format!("/{}", name.replace('.', "/"))).map(plain).unwrap_or_default()
        };
        names(&tree).into_iter().map(|name| (name.clone(), shown(&name))).collect()
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn names(tree: &Value) -> Vec<String> {
    let mut names = Vec::new();
    let Some(tree) = tree.as_object() else { return names };
    for (name, value) in tree {
        match value.as_object() {
            None => names.push(name.clone()),
            Some(nested) => names.extend(nested.keys().map(|inner| format!("{name}.{inner}"))),
        }
    }
    names
}

/// When an entry can be read by others. "Once the response begins" is documented; the exact instant is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// With the response headers.
    Headers,
    /// With the first `content_block_start`; of a JSON answer, when its first token exists.
    FirstContent,
    /// With the last byte.
    End,
}

/// Which entries a read keeps alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refresh {
    /// The one that was hit and every entry for a shorter prefix of it.
    WholePrefix,
    HitOnly,
}

/// The effect of a breakpoint below the hit, where no entry exists: it may write one for free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BelowHit {
    Skip,
    Write,
}

/// Which JSON objects are compared with their key order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyOrder {
    Everywhere,
    /// Inside values (`input`, `input_schema`) but not among a block's own members.
    InsideValues,
}

/// Decides if `"\u0041"` and `"A"` are one prefix. Clients that re-serialize a history change such spellings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Escapes {
    /// Strings are compared by what they say: the body is parsed before it is rendered.
    Decoded,
    /// Strings are compared as they are spelt.
    Significant,
}

/// How consecutive messages of one role render.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Merging {
    /// As one turn: where one message ends and the next begins leaves no trace.
    OneTurn,
    Separate,
}

/// The treatment of a leading `x-anthropic-billing-header` system block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttributionRule {
    /// Left out of the prompt, if it is alone and first.
    Stripped,
    Prompt,
}

/// The effect of a marker on a block inside `tool_result.content`. It counts toward the limit either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NestedMarkers {
    Ignored,
    /// It marks the `tool_result` around it.
    MarkOuter,
}

/// Decides if `user(tool_result…, text)` ends the turn on models that keep only the last turn's thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixedMessages {
    NewTurn,
    SameTurn,
}

/// Who shares a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    Workspace,
    Organization,
}

/// Switches the verification of thinking signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signatures {
    Checked,
    Ignored,
}

/// The treatment of a bound thinking block behind another prompt, when the request does not name one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mismatch {
    /// Accounts created since 2026-08-31.
    Refuse,
    /// Older accounts.
    DropSilently,
}

/// The treatment of fields and blocks that no documentation names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownInput {
    Accept,
    Refuse,
}

/// Switches the check of top-level options and definitions of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Options {
    Checked,
    /// Taken as they are: for requests that another API has accepted already.
    Taken,
}

/// The treatment of a request without `anthropic-version`, or with one that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionHeader {
    /// Refused.
    Required,
    /// Answered as the oldest version would.
    Optional,
}

/// The content of `diagnostics` for a request that names an earlier message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiagnosisRule {
    /// The earliest divergence.
    Ready,
    /// A reason of null: the comparison had not ended when the answer began.
    Pending,
    Unavailable,
}

/// Which answers have `usage.iterations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Iterations {
    /// Those whose bill is not at the top level, or not all of the requested model.
    WhenNeeded,
    Always,
}

/// Decides if a parameter that is set to its default equals one that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaidDefault {
    SameAsOmitted,
    Different,
}

/// The layer whose entries a parameter invalidates, with all layers behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptLayer {
    Tools,
    System,
    Messages,
    Nothing,
}

/// The invalidation table: for each parameter the first layer that is lost when it changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invalidation {
    pub speed: PromptLayer,
    /// Web search and web fetch tools: switching them on changes the system prompt, not the tool definitions.
    pub web_tools: PromptLayer,
    /// Citations in any document.
    pub citations: PromptLayer,
    pub tool_choice: PromptLayer,
    /// `{"type":"auto"}` beside no choice at all. Documented only for effort, so the reading that shares less.
    pub said_tool_choice: SaidDefault,
    /// An image anywhere.
    pub images: PromptLayer,
    pub thinking: PromptLayer,
    pub effort: PromptLayer,
    pub output_format: PromptLayer,
    pub context_management: PromptLayer,
    /// The set of `anthropic-beta` values.
    pub betas: PromptLayer,
}

impl Default for Invalidation {
    fn default() -> Self {
        Invalidation {
            speed: PromptLayer::System,
            web_tools: PromptLayer::System,
            citations: PromptLayer::System,
            tool_choice: PromptLayer::Messages,
            said_tool_choice: SaidDefault::Different,
            images: PromptLayer::Messages,
            thinking: PromptLayer::Messages,
            effort: PromptLayer::Messages,
            output_format: PromptLayer::Messages,
            context_management: PromptLayer::Messages,
            betas: PromptLayer::Messages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_can_be_turned_by_name() {
        let mut rules = SimRules::default();
        rules.set("merging", "separate").unwrap();
        rules.set("lookback_positions", "7").unwrap();
        rules.set("invalidation.betas", "nothing").unwrap();
        assert_eq!((rules.merging, rules.lookback_positions), (Merging::Separate, 7));
        assert_eq!(rules.invalidation.betas, PromptLayer::Nothing);
        for (name, value) in SimRules::default().list() {
            rules.set(&name, &value).unwrap();
        }
        assert_eq!(rules.list(), SimRules::default().list());
    }

    #[test]
    fn a_rule_that_does_not_exist_names_those_that_do() {
        let mut rules = SimRules::default();
        let error = rules.set("merge", "x").unwrap_err().to_string();
        assert!(error.contains("unknown rule 'merge'") && error.contains("invalidation.speed"), "{error}");
        assert!(matches!(rules.set("invalidation", "x"), Err(BadRule::Unknown { .. })));
        assert!(matches!(rules.set("merging", "sideways"), Err(BadRule::Value { .. })));
        assert!(matches!(rules.set("lookback_positions", "many"), Err(BadRule::Value { .. })));
    }
}
