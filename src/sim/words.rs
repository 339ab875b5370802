//! Invented prose and tool inputs that follow from a digest: the same request, the same words.

use serde_json::{Map, Value, json};

/// Plain nouns, so that invented text is never mistaken for an instruction.
const WORDS: [&str; 64] = [
    "anchor", "basin", "beacon", "birch", "bridge", "brook", "canal", "cedar", "cliff", "cloud", "comet",
    "copper", "coral", "crane", "creek", "delta", "dune", "ember", "fern", "field", "flint", "forest",
    "garden", "glacier", "granite", "grove", "harbor", "heron", "hollow", "island", "ivory", "juniper",
    "kelp", "lagoon", "lantern", "ledge", "linen", "maple", "marsh", "meadow", "mesa", "mirror", "moss",
    "north", "orchard", "otter", "pebble", "pine", "plain", "quarry", "quartz", "rapids", "reef", "ridge",
    "river", "saddle", "shale", "shore", "slate", "spruce", "summit", "thicket", "timber", "willow",
];

/// A source of words; the sequence follows from where it was started.
#[derive(Debug, Clone)]
pub struct Words {
    state: u64,
}

impl Words {
    pub fn from(seed: u64, digest: &[u8; 32], label: &str) -> Words {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(digest).update(label.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Words { state: u64::from_le_bytes(first) }
    }

    /// SplitMix64: tiny, and good enough to look varied.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn word(&mut self) -> &'static str {
        WORDS[(self.next() % WORDS.len() as u64) as usize]
    }

    /// So many words in sentences of a dozen.
    pub fn prose(&mut self, words: usize) -> String {
        let mut text = String::with_capacity(words * 7);
        for index in 0..words {
            let word = self.word();
            match index % 12 {
                0 => {
                    text.push_str(if index == 0 { "" } else { ". " });
                    let mut letters = word.chars();
                    text.extend(letters.next().map(|first| first.to_ascii_uppercase()));
                    text.push_str(letters.as_str());
                }
                _ => {
                    text.push(' ');
                    text.push_str(word);
                }
            }
        }
        text.push('.');
        text
    }

    /// An input with every required property of a schema.
    pub fn input_for(&mut self, schema: &Value) -> Map<String, Value> {
        self.members_for(schema, DEPTH)
    }

    fn members_for(&mut self, schema: &Value, depth: usize) -> Map<String, Value> {
        let required = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut input = Map::new();
        for name in required.iter().filter_map(Value::as_str) {
            // Named twice it is still one member; a list of repetitions must not cost one value each.
            if input.contains_key(name) {
                continue;
            }
            let property = schema.get("properties").and_then(|properties| properties.get(name));
            input.insert(name.to_owned(), self.value_for(name, property.unwrap_or(&Value::Null), depth));
        }
        input
    }

    fn value_for(&mut self, name: &str, schema: &Value, depth: usize) -> Value {
        if let Some(first) = schema.get("enum").and_then(Value::as_array).and_then(|values| values.first()) {
            return first.clone();
        }
        if let Some(constant) = schema.get("const") {
            return constant.clone();
        }
        match schema.get("type").and_then(Value::as_str).unwrap_or("string") {
            "integer" | "number" => json!(self.next() % 100),
            "boolean" => Value::Bool(false),
            "null" => Value::Null,
            "array" => match schema.get("items") {
                Some(items) if depth > 0 => json!([self.value_for(name, items, depth - 1)]),
                _ => json!([]),
            },
            "object" if depth > 0 => Value::Object(self.members_for(schema, depth - 1)),
            "object" => json!({}),
            // A client may really run its instructions, so a command is one that does nothing.
            _ if name == "command" => Value::String(format!("echo {}", self.word())),
            _ => Value::String(format!("{} {}", self.word(), self.word())),
        }
    }
}

/// How deep invented inputs follow a schema.
const DEPTH: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_digest_gives_the_same_prose_and_another_label_other_prose() {
        let prose = |label| Words::from(7, &[3; 32], label).prose(40);
        assert_eq!(prose("a"), prose("a"));
        assert_ne!(prose("a"), prose("b"));
    }

    #[test]
    fn an_input_fills_the_required_properties_by_their_type() {
        let schema = json!({"type": "object", "required": ["command", "count", "mode", "list", "deep"], "properties": {
            "command": {"type": "string"}, "count": {"type": "integer"}, "mode": {"enum": ["fast", "slow"]},
            "list": {"type": "array", "items": {"type": "boolean"}},
            "deep": {"type": "object", "required": ["x"], "properties": {"x": {"type": "null"}}},
            "optional": {"type": "string"}}});
        let input = Words::from(1, &[0; 32], "t").input_for(&schema);
        assert!(input["command"].as_str().unwrap().starts_with("echo "));
        assert!(input["count"].is_u64());
        assert_eq!(input["mode"], "fast");
        assert_eq!(input["list"], json!([false]));
        assert_eq!(input["deep"], json!({"x": null}));
        assert!(!input.contains_key("optional"));
    }
}
