//! The directives of one call: the long strings of its input, wherever they are in it.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use super::leaves::TextKey;
use super::rules::Rules;
use crate::engine::request::json::{self, Span};
use crate::engine::words::Spawning;

/// A real call has one or two long strings; a table of them is data.
const DIRECTIVES_MAX: usize = 16;

/// Longer than any id or tool name.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// A client `tool_use` block of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub id: Arc<str>,
    pub name: Arc<str>,
    /// Which block of the turn it is.
    pub block: usize,
    /// The place of its input in that block.
    pub input: Span,
    /// Without the white space around them, each once. Empty if the call has none.
    pub directives: Vec<Directive>,
    pub spawning: Spawning,
}

/// A text that tells a child what to do, with the key that it is found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    text: Arc<str>,
    /// `None` if it is too short to be found.
    pub(super) key: Option<TextKey>,
}

impl Directive {
    pub(super) fn new(text: Arc<str>) -> Directive {
        Directive { key: TextKey::of(&text), text }
    }
}

impl Deref for Directive {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl Call {
    /// `None` if the block has no id, name or input of the right kind.
    pub(super) fn read(bytes: &[u8], block: usize, rules: &Rules) -> Option<Call> {
        let name = |member: &str| {
            let name = json::text(bytes, &json::member(bytes, 0, member)?)?;
            (!name.is_empty() && name.len() <= NAME_BYTES_MAX).then(|| Arc::from(name.as_ref()))
        };
        let (id, name, input) = (name("id")?, name("name")?, json::member(bytes, 0, "input")?);
        let directives = directives(&bytes[input.clone()], rules);
        let spawning = if rules.lists(&name) { Spawning::Listed } else { Spawning::Unknown };
        Some(Call { id, name, block, input, directives, spawning })
    }
}

/// The string leaves of a value that may be directives.
fn directives(value: &[u8], rules: &Rules) -> Vec<Directive> {
    let mut found: BTreeSet<Arc<str>> = BTreeSet::new();
    for leaf in leaves(value) {
        // A character takes at least one byte, and six at most (twelve for four bytes of UTF-8).
        let fits = (rules.min_directive_chars..=6 * rules.scan_bytes).contains(&leaf.len());
        if fits && let Some(text) = json::text(value, &leaf) {
            let text = text.trim();
            if is_directive(text, rules) && found.len() < DIRECTIVES_MAX {
                found.insert(Arc::from(text));
            }
        }
    }
    found.into_iter().map(Directive::new).collect()
}

/// A directive is prose. A long path, URL or key is quoted everywhere and tells nobody what to do; only scripts
/// that need no spaces get along without any.
fn is_directive(text: &str, rules: &Rules) -> bool {
    text.len() <= rules.scan_bytes
        && text.chars().nth(rules.min_directive_chars.saturating_sub(1)).is_some()
        && (!text.is_ascii() || text.contains(char::is_whitespace))
}

/// The strings of a valid value that are no keys: a key is what a colon follows. Needs no recursion.
fn leaves(value: &[u8]) -> impl Iterator<Item = Span> {
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            let start = from + memchr::memchr(b'"', value.get(from..)?)?;
            let end = json::value_end(value, start).ok()?;
            from = end;
            if value.get(json::skip_space(value, end)) != Some(&b':') {
                return Some(start..end);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn long(text: &str) -> String {
        format!("{text} {}", "word ".repeat(20)).trim().to_owned()
    }

    fn read(input: &Value) -> Vec<String> {
        let block = json!({"type": "tool_use", "id": "t", "name": "Agent", "input": input}).to_string();
        let call = Call::read(block.as_bytes(), 0, &Rules::default()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&block.as_bytes()[call.input]).unwrap(), *input);
        call.directives.iter().map(|text| text.to_string()).collect()
    }

    #[test]
    fn long_strings_are_found_wherever_they_stand_and_unescaped() {
        let (a, b) = (long("a\n\"é"), long("b"));
        let input = json!({"x": [{"deep": {"er": format!("  {a}\n")}}, 1, null], "y": b, "z": b});
        assert_eq!(read(&input), [a, b]);
    }

    #[test]
    fn keys_titles_paths_and_giants_are_no_directives() {
        let path = format!("/home/{}", "folder/".repeat(20));
        let input = json!({long("key"): 1, "title": "Investigate area 1", "path": path});
        assert_eq!(read(&input), [""; 0]);
        assert_eq!(read(&json!({"three": "abc", "giant": "a b ".repeat(1 << 18)})), [""; 0]);
        assert_eq!(read(&json!("a ".repeat(29) + "a")), [""; 0]);
        assert_eq!(read(&json!("a ".repeat(29) + "ab")).len(), 1);
        assert_eq!(read(&json!("調".repeat(60))).len(), 1);
    }

    #[test]
    fn a_table_of_long_strings_is_bounded() {
        let table: Vec<_> = (0..10_000).map(|n| long(&n.to_string())).collect();
        assert_eq!(read(&json!(table)).len(), DIRECTIVES_MAX);
    }

    #[test]
    fn a_call_without_id_name_or_input_is_none() {
        for block in [
            r#"{"name":"n","input":{}}"#,
            r#"{"id":"","name":"n","input":{}}"#,
            r#"{"id":"t","input":{}}"#,
            r#"{"id":7,"name":"n","input":{}}"#,
            r#"{"id":"t","name":"n"}"#,
        ] {
            assert_eq!(Call::read(block.as_bytes(), 0, &Rules::default()), None, "{block}");
        }
    }

    fn strings(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::String(text) => out.push(text.clone()),
            Value::Array(items) => items.iter().for_each(|item| strings(item, out)),
            Value::Object(members) => members.values().for_each(|item| strings(item, out)),
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn the_leaves_of_any_value_are_its_strings(
            text in prop::collection::vec(("\\PC{0,5}", "[\"\\\\: a]{0,5}"), 0..6),
            shape in 0..3,
        ) {
            let value = match shape {
                0 => json!(text.iter().map(|(_, v)| v).collect::<Vec<_>>()),
                1 => Value::Object(text.iter().map(|(k, v)| (k.clone(), json!([v, {"k": v}]))).collect()),
                _ => json!({"a": text.iter().map(|(k, v)| json!({k: v})).collect::<Vec<_>>()}),
            };
            let mut expected = Vec::new();
            strings(&value, &mut expected);
            let spelt = serde_json::to_string_pretty(&value).unwrap();
            let bytes = spelt.as_bytes();
            let found: Vec<_> = leaves(bytes).map(|leaf| json::text(bytes, &leaf).unwrap().into_owned()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
