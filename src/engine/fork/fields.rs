//! The top-level fields of a forked request: which are the parent's, and which the child's.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::said;
use crate::engine::request::anatomy::{Anatomy, Member};
use crate::engine::request::json::{self, Span, is_key};
use crate::engine::request::marker;
use crate::engine::request::recall::Remembered;
use crate::engine::words::Refusal;

/// Fields that shape the answer and not the prompt: each child has its own.
const OWN: [&str; 10] = [
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "service_tier",
    "inference_geo",
    "thread",
];

/// A top-level marker would write an entry per sibling; a diagnosis would compare with another prompt.
const DROPPED: [&str; 2] = [marker::NAME, "diagnostics"];

/// Fields that the layout takes apart itself.
const LAID_OUT: [&str; 4] = ["model", "tools", "system", "messages"];

/// Asks for a summary of all that was said, instead of an answer.
pub const COMPACTION: &str = "compaction";

/// Fields that shape the prompt, by name; every other one is taken to do so too.
const SHAPING: [(&str, Refusal); 8] = [
    ("thinking", Refusal::Thinking),
    ("tool_choice", Refusal::ToolChoice),
    ("output_config", Refusal::OutputConfig),
    ("output_format", Refusal::OutputFormat),
    ("context_management", Refusal::ContextManagement),
    ("speed", Refusal::Speed),
    ("mcp_servers", Refusal::McpServers),
    ("container", Refusal::Container),
];

/// Fields that shape a prompt and that a count of its tokens takes.
const COUNTED: [&str; 11] = [
    "model",
    "tools",
    "system",
    "messages",
    "thinking",
    "tool_choice",
    "output_config",
    "output_format",
    "context_management",
    "mcp_servers",
    "speed",
];

/// The names of a parent's fields that a count of tokens does not take.
pub fn uncounted(parent: &Remembered) -> impl Iterator<Item = Cow<'_, str>> {
    let (body, anatomy) = (parent.body(), parent.anatomy());
    let inherited = inherited(body, anatomy).filter(|member| !is_one_of(body, &member.key, &COUNTED));
    inherited.filter_map(|member| json::text(body, &member.key))
}

/// Members of the parent that a forked child takes over, in their order. The messages come later.
pub fn inherited<'a>(body: &'a [u8], anatomy: &'a Anatomy) -> impl Iterator<Item = &'a Member> {
    anatomy.members.iter().filter(move |member| {
        !is_one_of(body, &member.key, &OWN)
            && !is_one_of(body, &member.key, &DROPPED)
            && !is_key(body, &member.key, "messages")
    })
}

/// Members of a child that stay its own, in their order; `changed` are the others that do so too.
pub fn own<'a>(
    body: &'a [u8],
    anatomy: &'a Anatomy,
    changed: &'a BTreeSet<Cow<'_, str>>,
) -> impl Iterator<Item = &'a Member> {
    anatomy
        .members
        .iter()
        .filter(move |member| is_one_of(body, &member.key, &OWN) || is_in(body, &member.key, changed))
}

/// Returns true if a key is one of these names.
pub fn is_in(body: &[u8], key: &Span, names: &BTreeSet<Cow<'_, str>>) -> bool {
    !names.is_empty() && json::text(body, key).is_some_and(|name| names.contains(&name))
}

/// The values of a request's top-level fields by name, so that many are soon found. Those that are `null` are left out.
pub struct Fields<'r> {
    values: BTreeMap<Cow<'r, str>, &'r [u8]>,
    /// True if every name can be read.
    are_named: bool,
}

impl<'r> Fields<'r> {
    pub fn of(request: &'r Remembered) -> Fields<'r> {
        let (body, members) = (request.body(), &request.anatomy().members);
        let (mut values, mut are_named) = (BTreeMap::new(), true);
        for member in members {
            match json::text(body, &member.key) {
                // Of a name that occurs twice the last value counts.
                Some(name) => drop(values.insert(name, &body[member.value.clone()])),
                None => are_named = false,
            }
        }
        values.retain(|_, value| *value != b"null");
        Fields { values, are_named }
    }

    pub fn get(&self, name: &str) -> Option<&'r [u8]> {
        self.values.get(name).copied()
    }

    /// The names of fields that nothing is known of.
    fn unknown(&self) -> impl Iterator<Item = &Cow<'r, str>> {
        let is_known = |name: &str| {
            [&OWN[..], &DROPPED, &LAID_OUT].iter().any(|names| names.contains(&name))
                || SHAPING.iter().any(|(shaping, _)| *shaping == name)
        };
        self.values.keys().filter(move |name| !is_known(name))
    }
}

/// The rule by which a child's fields are compared with its parent's.
#[derive(Clone, Copy)]
pub struct Comparison<'a> {
    pub child: &'a Remembered,
    pub parent: &'a Remembered,
    /// The child has named its parent itself, and takes from it what it leaves out.
    pub lenient: bool,
    /// Fields that the child takes from its parent whatever it says: `fork.inherit`.
    pub inherit: &'a [String],
}

impl<'a> Comparison<'a> {
    /// Returns why the first prompt-shaping field that differs keeps a child from being forked.
    pub fn refusal(&self) -> Option<Refusal> {
        let values = self.values();
        let known = SHAPING.into_iter().find(|(name, _)| !self.agrees(&values, name));
        let differs = |of: &Fields<'_>| !of.are_named || of.unknown().any(|name| !self.agrees(&values, name));
        let refusal = known.map(|(_, refusal)| refusal);
        refusal.or_else(|| values.iter().any(differs).then_some(Refusal::UnknownField))
    }

    /// The names of all that differ: what a child has changed in the course of its life. A name that cannot be
    /// read is left out: such a child was never forked.
    pub fn changed(&self) -> BTreeSet<Cow<'a, str>> {
        let values = self.values();
        let known = SHAPING.into_iter().map(|(name, _)| Cow::Borrowed(name));
        let unknown = values.iter().flat_map(Fields::unknown).cloned();
        known.chain(unknown).filter(|name| !self.agrees(&values, name)).collect()
    }

    fn values(&self) -> [Fields<'a>; 2] {
        [self.child, self.parent].map(Fields::of)
    }

    fn agrees(&self, [child, parent]: &[Fields<'_>; 2], name: &str) -> bool {
        // What is left of a parent's budget is its own.
        let is_spent = name == "output_config" && parent.get(name).is_some_and(has_remaining);
        (!is_spent && self.inherit.iter().any(|inherited| inherited == name))
            || match (child.get(name), parent.get(name)) {
                (None, None) => true,
                (None, Some(_)) => self.lenient && !is_spent,
                (Some(_), None) => false,
                (Some(one), Some(two)) => said::same(one, two),
            }
    }
}

/// Returns true if an `output_config` says how much of a budget is left.
fn has_remaining(config: &[u8]) -> bool {
    let budget = json::member(config, 0, "task_budget").filter(|budget| config[budget.start] == b'{');
    let remaining = budget.and_then(|budget| json::member(config, budget.start, "remaining"));
    remaining.is_some_and(|remaining| &config[remaining] != b"null")
}

/// Returns the value of a top-level field; `None` for `null` too.
pub fn value<'r>(request: &'r Remembered, name: &str) -> Option<&'r [u8]> {
    let span = request.anatomy().member(request.body(), name)?;
    Some(&request.body()[span.clone()]).filter(|value| *value != b"null")
}

fn is_one_of(body: &[u8], key: &Span, names: &[&str]) -> bool {
    names.iter().any(|name| is_key(body, key, name))
}
