//! Replaces the words of a body by [`Filler`], and keeps everything that replay needs.
//!
//! The names of the API are kept: members, block types, roles, tool names. Everything that people and programs
//! wrote is filled: texts, inputs, results, ids, descriptions, and members that are not part of the API. Nothing
//! moves: the redacted body has the length of the body, and each value its place.

use crate::engine::request::json::{self, Malformed, Span};

use super::filler::Filler;

/// The members of the objects of the API; others are filled.
const MEMBERS: [&str; 74] = [
    "model",
    "max_tokens",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "user_id",
    "service_tier",
    "inference_geo",
    "thinking",
    "budget_tokens",
    "display",
    "output_config",
    "output_format",
    "effort",
    "format",
    "schema",
    "context_management",
    "edits",
    "trigger",
    "keep",
    "value",
    "clear_at_least",
    "exclude_tools",
    "clear_tool_inputs",
    "speed",
    "mcp_servers",
    "container",
    "diagnostics",
    "previous_message_id",
    "thread",
    "fallbacks",
    "cache_control",
    "ttl",
    "type",
    "role",
    "content",
    "text",
    "name",
    "id",
    "input",
    "tool_use_id",
    "is_error",
    "source",
    "media_type",
    "data",
    "url",
    "title",
    "context",
    "citations",
    "enabled",
    "signature",
    "description",
    "input_schema",
    "disable_parallel_tool_use",
    "max_uses",
    "eager_input_streaming",
    "encrypted_content",
    "compaction",
    "instructions",
    "pause_after_compaction",
    "tool_changes",
    "scope",
    "clear_at",
    "task_budget",
    "total",
    "remaining",
    "toolset_name",
];

/// The members of a JSON schema; the names of properties are filled.
const SCHEMA_MEMBERS: [&str; 10] = [
    "type",
    "properties",
    "required",
    "items",
    "description",
    "enum",
    "additionalProperties",
    "anyOf",
    "$schema",
    "default",
];
const SCHEMA_TYPES: [&str; 7] = ["object", "string", "number", "integer", "boolean", "array", "null"];

/// The inputs that distinguish specialists from forks, and those of their values that reveal nothing.
const SPAWN_MEMBERS: [&str; 4] = ["subagent_type", "agent_type", "team_name", "isolation"];
const SPAWN_VALUES: [&str; 4] = ["fork", "general-purpose", "remote", "worktree"];

/// The members whose values are words of the API.
const WORD_MEMBERS: [&str; 10] =
    ["type", "role", "ttl", "scope", "clear_at", "media_type", "display", "effort", "speed", "service_tier"];

const WORD_BYTES_MAX: usize = 64;

/// The meaning of an object or a value in a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// An object of the API.
    Api,
    Schema,
    /// The names of properties, each with a schema.
    Properties,
    /// The input of a call.
    Input,
    /// Anything else: all of it is filled.
    Said,
    /// Nothing is filled except credentials.
    Kept,
}

/// The members that hold a credential, in any object: `mcp_servers[]` has one.
const SECRET_MEMBERS: [&str; 1] = ["authorization_token"];

/// Redacts bodies.
pub struct Redactor {
    filler: Filler,
}

impl Redactor {
    pub fn new(key: &[u8; 32]) -> Redactor {
        Redactor { filler: Filler::new(key) }
    }

    /// Returns the redacted body, or `None` if it is no JSON object. Without `keep_model` the model is filled too.
    pub fn body(&self, body: &[u8], keep_model: bool) -> Option<String> {
        self.walk(body, Place::Api, keep_model)
    }

    /// Returns the body with filler instead of credentials, or `None` if it is no JSON object.
    pub fn without_secrets(&self, body: &[u8]) -> Option<String> {
        self.walk(body, Place::Kept, true)
    }

    fn walk(&self, body: &[u8], place: Place, keep_model: bool) -> Option<String> {
        if body.get(json::skip_space(body, 0)) != Some(&b'{') {
            return None;
        }
        let mut out = body.to_vec();
        let mut pen = Pen { filler: &self.filler, body, out: &mut out, keep_model };
        let end = pen.value(json::skip_space(body, 0), place, None).ok()?;
        if json::skip_space(body, end) != body.len() {
            return None;
        }
        String::from_utf8(out).ok()
    }

    /// Fills an id or the value of a header.
    pub fn text(&self, text: &str) -> String {
        self.filler.text(text)
    }

    pub fn betas(&self, betas: &[String]) -> Vec<String> {
        betas.iter().map(|beta| self.beta(beta)).collect()
    }

    /// Returns a beta that looks like one, such as `name-of-it-2025-04-20`, and fills any other.
    pub fn beta(&self, beta: &str) -> String {
        let dated = beta.len() > 11 && beta.is_char_boundary(beta.len() - 11);
        let (name, date) = beta.split_at(if dated { beta.len() - 11 } else { 0 });
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_date = date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if !name.is_empty() && name.bytes().all(plain) && is_date { beta.to_owned() } else { self.text(beta) }
    }
}

struct Pen<'a> {
    filler: &'a Filler,
    body: &'a [u8],
    out: &'a mut Vec<u8>,
    keep_model: bool,
}

impl Pen<'_> {
    /// Redacts the value at `at`, which belongs to the member `key` if there is one, and returns its end.
    fn value(&mut self, at: usize, place: Place, key: Option<&str>) -> Result<usize, Malformed> {
        let body = self.body;
        match body.get(at) {
            Some(b'{') => json::walk_object(body, at, |key, start| self.member(key, start, place)),
            Some(b'[') => json::walk_array(body, at, |start| self.value(start, place, key)),
            Some(b'"') => {
                let end = json::value_end(body, at)?;
                if !self.keeps(at..end, place, key) {
                    self.fill(at..end);
                }
                Ok(end)
            }
            _ => {
                let end = json::value_end(body, at)?;
                let is_number = matches!(body.get(at), Some(b'-' | b'0'..=b'9'));
                if is_number && matches!(place, Place::Said | Place::Input | Place::Schema) {
                    self.filler.number(&mut self.out[at..end]);
                }
                Ok(end)
            }
        }
    }

    fn member(&mut self, key: Span, start: usize, place: Place) -> Result<usize, Malformed> {
        let name = json::text(self.body, &key);
        if place == Place::Kept {
            let is_secret = name.is_none_or(|name| SECRET_MEMBERS.contains(&&*name));
            return self.value(start, if is_secret { Place::Said } else { Place::Kept }, None);
        }
        let known: &[&str] = match place {
            Place::Api => &MEMBERS,
            Place::Schema => &SCHEMA_MEMBERS,
            Place::Properties | Place::Input => &SPAWN_MEMBERS,
            Place::Said | Place::Kept => &[],
        };
        let name = name.as_deref().and_then(|name| known.iter().find(|known| **known == name)).copied();
        if name.is_none() {
            self.fill(key);
        }
        let inside = match (place, name) {
            (Place::Properties, _) => Place::Schema,
            (Place::Api, Some("input_schema" | "schema")) => Place::Schema,
            (Place::Api, Some("input")) => Place::Input,
            (Place::Api, Some("metadata")) => Place::Api,
            (Place::Api, Some(_)) => Place::Api,
            (Place::Schema, Some("properties")) => Place::Properties,
            (Place::Schema, Some("items" | "anyOf" | "additionalProperties" | "type")) => Place::Schema,
            (Place::Input, Some(_)) => Place::Input,
            _ => Place::Said,
        };
        self.value(start, inside, name)
    }

    /// Returns true if the string is a word of the API.
    fn keeps(&self, span: Span, place: Place, key: Option<&str>) -> bool {
        if place == Place::Kept {
            return true;
        }
        let (Some(text), Some(key)) = (json::text(self.body, &span), key) else { return false };
        let word = |other: &[u8]| {
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || other.contains(&byte);
            (1..=WORD_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain)
        };
        let name = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':' | b'@' | b'/')
        };
        let is_name = (1..=WORD_BYTES_MAX * 2).contains(&text.len()) && text.bytes().all(name);
        match place {
            Place::Api if key == "model" => self.keep_model && is_name,
            Place::Api if key == "name" => is_name,
            Place::Api => WORD_MEMBERS.contains(&key) && word(b"_-./"),
            Place::Schema => key == "type" && SCHEMA_TYPES.contains(&&*text),
            Place::Input => SPAWN_VALUES.contains(&&*text),
            Place::Properties | Place::Said | Place::Kept => false,
        }
    }

    /// Fills a string between its quotes.
    fn fill(&mut self, span: Span) {
        if span.len() >= 2 {
            self.filler.fill(&mut self.out[span.start + 1..span.end - 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const CANARY: &str = "cAnArY-7f3a";

    fn redactor() -> Redactor {
        Redactor::new(&[3; 32])
    }

    fn redacted(body: &Value) -> Value {
        let text = body.to_string();
        let redacted = redactor().body(text.as_bytes(), true).unwrap();
        assert_eq!(redacted.len(), text.len());
        serde_json::from_str(&redacted).unwrap()
    }

    #[test]
    fn the_shape_stays_and_the_words_go() {
        let body = json!({
            "model": "claude-x", "max_tokens": 99, "stream": true,
            "system": [{"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "tools": [{"name": "Agent", "description": "Starts one.", "input_schema": {"type": "object",
                "properties": {"prompt": {"type": "string"}, "subagent_type": {"type": "string"}}, "required": ["prompt"]}}],
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "Agent",
                    "input": {"prompt": "Survey it all.", "subagent_type": "general-purpose", "port": 8080}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Survey it all."}]},
            ],
            "metadata": {"user_id": "u-1"},
            "thread": {"type": "continue", "previous_message_id": "msg_1"},
        });
        let out = redacted(&body);
        assert_eq!(
            out["thread"]["previous_message_id"],
            redactor().text("msg_1"),
            "as in the record of that answer"
        );
        for pointer in [
            "/model",
            "/thread/type",
            "/max_tokens",
            "/stream",
            "/system/0/type",
            "/system/0/cache_control",
            "/tools/0/name",
            "/tools/0/input_schema/type",
            "/messages/0/role",
            "/messages/1/content/0/type",
            "/messages/1/content/0/name",
            "/messages/1/content/0/input/subagent_type",
        ] {
            assert_eq!(out.pointer(pointer), body.pointer(pointer), "{pointer}");
        }
        for pointer in [
            "/system/0/text",
            "/tools/0/description",
            "/messages/0/content",
            "/metadata/user_id",
            "/messages/1/content/0/id",
            "/thread/previous_message_id",
        ] {
            assert_ne!(out.pointer(pointer), body.pointer(pointer), "{pointer}");
        }
        let call = &out["messages"][1]["content"][0];
        assert_eq!(call["id"], out["messages"][2]["content"][0]["tool_use_id"]);
        let property = out["tools"][0]["input_schema"]["required"][0].as_str().unwrap();
        assert_ne!(property, "prompt");
        assert_eq!(call["input"][property], out["messages"][2]["content"][0]["content"]);
        assert!(call["input"].as_object().unwrap().values().all(|value| *value != json!(8080)));
    }

    #[test]
    fn no_field_lets_a_canary_through() {
        for key in
            MEMBERS.into_iter().chain(["unknown", CANARY]).filter(|key| !["name", "model"].contains(key))
        {
            for value in [
                json!(CANARY),
                json!([CANARY]),
                json!({CANARY: CANARY}),
                json!([{"type": CANARY, "text": CANARY}]),
                json!({"properties": {CANARY: {"type": CANARY, "enum": [CANARY]}}}),
                json!([{"role": "user", "content": [{"type": "tool_use", "input": {"a": [{CANARY: CANARY}]}}]}]),
            ] {
                let out = redacted(&json!({key: value})).to_string();
                assert!(!out.contains(CANARY), "{key}: {out}");
            }
        }
        let body = json!({"model": CANARY}).to_string();
        assert!(!redactor().body(body.as_bytes(), false).unwrap().contains(CANARY));
        assert!(!redactor().beta(CANARY).contains(CANARY));
        assert_eq!(redactor().beta("oauth-2025-04-20"), "oauth-2025-04-20");
    }

    #[test]
    fn a_full_body_has_everything_but_credentials() {
        let body = r#" {"model":"m","mcp_servers":[{"url":"https://x","authorization_token":"cAnArY-7f3a"},
            {"authorization\u005ftoken" : {"value":["cAnArY-7f3a", 42]}}],"messages":[{"content":"authorization_token 42"}]} "#;
        let kept = redactor().without_secrets(body.as_bytes()).unwrap();
        assert_eq!(kept.len(), body.len());
        assert!(!kept.contains(CANARY), "{kept}");
        let (before, after) = (body.split_once("cAnArY").unwrap().0, body.rsplit_once("}],").unwrap().1);
        assert!(kept.starts_with(before) && kept.ends_with(after), "{kept}");
        for body in ["", "[]", "{\"a\":1", "{} {}"] {
            assert_eq!(redactor().without_secrets(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn what_is_no_request_is_not_kept() {
        for body in ["", "[]", "\"x\"", "{\"a\":1", "{} {}", "{\"a\":}", "cAnArY"] {
            assert_eq!(redactor().body(body.as_bytes(), true), None, "{body}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
        ];
        let key = prop_oneof![prop::sample::select(MEMBERS.to_vec()).prop_map(String::from), "\\PC{0,6}"];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::hash_map(key.clone(), inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn equal_bodies_stay_equal_and_lengths_stay(one in any_json(), two in any_json()) {
            let wrap = |value: &Value| json!({"messages": value});
            let (a, b) = (redacted(&wrap(&one)), redacted(&wrap(&two)));
            prop_assert_eq!(a == b, one == two);
        }
    }
}
