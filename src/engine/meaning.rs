//! What a value says, whatever its spelling.
//!
//! Two spellings mean the same if they differ only in key order, escapes or white space. Numbers count by
//! their lexeme: `1` and `1.0` differ, because a reader may show the difference. A value with a key twice or
//! with half a surrogate pair has no meaning that all readers share, and gets no hash.
//!
//! The value is written once in a form that is the same for every spelling (keys sorted, strings decoded and
//! with their length before them), and that form is hashed in one run: far cheaper than a hash per node.
//!
//! ```
//! use forkpoint::engine::meaning::Meaning;
//! let one = Meaning::of(br#"{"a":1,"b":"\u00e9"}"#).unwrap();
//! assert_eq!(Some(one), Meaning::of("{ \"b\": \"é\", \"a\": 1 }".as_bytes()));
//! ```

mod respelt;

pub use respelt::{Tree, is_reordered, is_respelt};

use std::sync::LazyLock;

use super::json::{self, Malformed, Span, skip_space, value_end};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Meaning([u8; 32]);

impl Meaning {
    /// The meaning of one JSON value.
    pub fn of(value: &[u8]) -> Option<Meaning> {
        Form::of(value, &[], Strictness::LENIENT)
    }

    /// The same, of a value that may stand for others: one whose strings hold raw control characters, which a
    /// lenient reader takes and a strict one refuses, has none, and neither has one that nests beyond reason.
    pub fn of_sound(value: &[u8]) -> Option<Meaning> {
        Form::of(value, &[], Strictness::SOUND)
    }

    /// The meaning of a block: its marker does not count.
    pub fn of_block(block: &[u8]) -> Option<Meaning> {
        Form::of(block, &["cache_control"], Strictness::LENIENT)
    }

    /// The meaning of a `content` or `system` value: a string says what one text block says.
    pub fn of_text(text: &[u8]) -> Option<Meaning> {
        let block = [&b"{\"type\":\"text\",\"text\":"[..], text, b"}"].concat();
        Meaning::of(&block)
    }

    pub(super) fn from_bytes(digest: [u8; 32]) -> Meaning {
        Meaning(digest)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// What a value may look like.
#[derive(Clone, Copy)]
struct Strictness {
    depth: usize,
    control_characters: bool,
}

impl Strictness {
    const LENIENT: Strictness = Strictness { depth: json::MAX_DEPTH, control_characters: true };
    /// Deeper than schemas and inputs go.
    const SOUND: Strictness = Strictness { depth: 64, control_characters: false };
}

/// The one form, being written in one walk.
struct Form<'a> {
    bytes: &'a [u8],
    out: Vec<u8>,
    /// The members of the objects that are being written, innermost last.
    members: Vec<Written>,
    /// For putting members into their order.
    scratch: Vec<u8>,
    strictness: Strictness,
    depth: usize,
}

/// A member, where it stands in the form.
struct Written {
    key: Span,
    all: Span,
}

/// A token's kind and length.
const HEAD_BYTES: usize = 1 + size_of::<u64>();

impl<'a> Form<'a> {
    fn of(bytes: &'a [u8], without: &[&str], strictness: Strictness) -> Option<Meaning> {
        // Once for all strings in it.
        std::str::from_utf8(bytes).ok()?;
        let out = Vec::with_capacity(bytes.len() + bytes.len() / 2);
        let (members, scratch) = Default::default();
        let mut form = Form { bytes, out, members, scratch, strictness, depth: 0 };
        form.value(skip_space(bytes, 0), without)?;
        static DERIVE: LazyLock<blake3::Hasher> =
            LazyLock::new(|| blake3::Hasher::new_derive_key("forkpoint meaning v1"));
        Some(Meaning(*DERIVE.clone().update(&form.out).finalize().as_bytes()))
    }

    /// Writes the value at `start`, and answers where it ends. `without`: members to leave out of this object,
    /// not of the ones inside it.
    fn value(&mut self, start: usize, without: &[&str]) -> Option<usize> {
        match self.bytes.get(start)? {
            b'{' | b'[' if self.depth >= self.strictness.depth => None,
            b'{' => {
                self.depth += 1;
                let end = self.object(start, without)?;
                self.depth -= 1;
                Some(end)
            }
            b'[' => {
                self.depth += 1;
                self.out.push(b'[');
                let bytes = self.bytes;
                let end = json::walk_array(bytes, start, |start| {
                    self.value(start, &[]).ok_or(Malformed::At(start))
                });
                self.out.push(b']');
                self.depth -= 1;
                end.ok()
            }
            first => {
                let end = value_end(self.bytes, start).ok()?;
                let from = self.begin(if *first == b'"' { b's' } else { b'n' });
                match first {
                    b'"' => self.string(start + 1..end - 1)?,
                    _ => self.out.extend_from_slice(&self.bytes[start..end]),
                }
                self.finish(from);
                Some(end)
            }
        }
    }

    /// The inside of a string, decoded.
    fn string(&mut self, inner: Span) -> Option<()> {
        let raw = &self.bytes[inner.clone()];
        let has_control = || raw.iter().fold(false, |found, byte| found | (*byte < 0x20));
        if !self.strictness.control_characters && has_control() {
            return None;
        }
        json::push_text(&mut self.out, self.bytes, inner)
    }

    fn object(&mut self, start: usize, without: &[&str]) -> Option<usize> {
        let (bytes, base) = (self.bytes, self.members.len());
        self.out.push(b'{');
        let end = json::walk_object(bytes, start, |key, start| {
            let from = self.begin(b's');
            self.string(key.start + 1..key.end - 1).ok_or(Malformed::At(key.start))?;
            let key = from + HEAD_BYTES..self.out.len();
            if without.iter().any(|name| name.as_bytes() == &self.out[key.clone()]) {
                self.out.truncate(from);
                return value_end(bytes, start);
            }
            self.finish(from);
            let end = self.value(start, &[]).ok_or(Malformed::At(start))?;
            self.members.push(Written { key, all: from..self.out.len() });
            Ok(end)
        });
        self.sort(base)?;
        self.out.push(b'}');
        end.ok()
    }

    /// Puts the members of the innermost object into the order of their names; none if a name stands twice.
    fn sort(&mut self, base: usize) -> Option<()> {
        let Form { out, members, scratch, .. } = self;
        let own = &mut members[base..];
        if !own.is_sorted_by(|one, two| out[one.key.clone()] < out[two.key.clone()]) {
            let from = own.first().map_or(out.len(), |first| first.all.start);
            own.sort_by(|one, two| out[one.key.clone()].cmp(&out[two.key.clone()]));
            if own.windows(2).any(|pair| out[pair[0].key.clone()] == out[pair[1].key.clone()]) {
                return None;
            }
            scratch.clear();
            own.iter().for_each(|member| scratch.extend_from_slice(&out[member.all.clone()]));
            out.truncate(from);
            out.extend_from_slice(scratch);
        }
        members.truncate(base);
        Some(())
    }

    /// A token begins; its length comes before it, and keeps it from running into the next.
    fn begin(&mut self, kind: u8) -> usize {
        let from = self.out.len();
        self.out.push(kind);
        self.out.extend_from_slice(&[0; size_of::<u64>()]);
        from
    }

    fn finish(&mut self, from: usize) {
        let length = (self.out.len() - from - HEAD_BYTES) as u64;
        self.out[from + 1..from + HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn same(a: &str, b: &str) -> bool {
        let (a, b) = (Meaning::of(a.as_bytes()), Meaning::of(b.as_bytes()));
        a.is_some() && a == b
    }

    #[test]
    fn spelling_does_not_count() {
        assert!(same(
            r#"{"a":[1,{"x":1,"y":2}],"b":"\u00e9\/"}"#,
            "{ \"b\" : \"é/\", \"a\" : [ 1, {\"y\":2,\"x\":1} ] }"
        ));
        assert!(same(r#""\ud83d\ude00""#, "\"😀\""));
    }

    #[test]
    fn content_does() {
        assert!(!same("1", "1.0"));
        assert!(!same("[1,2]", "[2,1]"));
        assert!(!same(r#"["ab","c"]"#, r#"["a","bc"]"#));
        assert!(!same(r#"{"a":1}"#, r#"{"a":1,"b":null}"#));
        assert!(!same("\"1\"", "1"));
        assert!(!same("[[1],[]]", "[[],[1]]"));
    }

    #[test]
    fn what_readers_could_understand_differently_has_no_meaning() {
        assert_eq!(Meaning::of(br#"{"a":1,"a":1}"#), None);
        assert_eq!(Meaning::of(br#"{"a":1,"\u0061":1}"#), None);
        assert_eq!(Meaning::of(br#"["\ud83d"]"#), None);
        assert_eq!(Meaning::of(b"\"\xff\""), None);
        assert_eq!(Meaning::of(b"{"), None);
    }

    #[test]
    fn what_a_strict_reader_refuses_stands_for_nothing() {
        assert_eq!(Meaning::of_sound(br#"{"a":"\u0001"}"#), Meaning::of(b"{\"a\":\"\x01\"}"));
        assert_eq!(Meaning::of_sound(b"{\"a\":\"\x01\"}"), None);
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Meaning::of_sound(nested(64).as_bytes()).is_some());
        assert_eq!(Meaning::of_sound(nested(65).as_bytes()), None);
        assert!(Meaning::of(nested(512).as_bytes()).is_some());
        assert_eq!(Meaning::of(nested(513).as_bytes()), None);
    }

    #[test]
    fn a_marker_counts_in_a_value_but_not_on_a_block() {
        let marked = br#"{"cache_control":{"type":"ephemeral"},"type":"text","text":"t"}"#;
        let plain = br#"{"type":"text","text":"t"}"#;
        assert_ne!(Meaning::of(marked), Meaning::of(plain));
        assert_eq!(Meaning::of_block(marked), Meaning::of_block(plain));
        let inner = br#"{"type":"tool_use","input":{"cache_control":1}}"#;
        assert_ne!(Meaning::of_block(inner), Meaning::of_block(br#"{"type":"tool_use","input":{}}"#));
    }

    #[test]
    fn a_string_says_what_one_text_block_says() {
        assert_eq!(
            Meaning::of_text(br#""h\u0069""#),
            Meaning::of_block(br#"{"text":"hi","type":"text","cache_control":null}"#)
        );
    }

    /// Another spelling of the same value: keys reversed, everything escaped, white space everywhere.
    fn respell(value: &Value) -> String {
        match value {
            Value::Object(members) => {
                let members = members.iter().rev();
                let members: Vec<_> =
                    members.map(|(k, v)| format!(" {} :\t{}", escape(k), respell(v))).collect();
                format!("{{{} }}", members.join(" ,\n"))
            }
            Value::Array(items) => {
                format!("[ {} ]", items.iter().map(respell).collect::<Vec<_>>().join(" , "))
            }
            Value::String(text) => escape(text),
            other => other.to_string(),
        }
    }

    fn escape(text: &str) -> String {
        let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
        format!("\"{}\"", units.collect::<String>())
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from)
        ];
        scalar.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_spelling_of_a_value_means_the_same(value in any_value()) {
            prop_assert!(same(&value.to_string(), &respell(&value)));
        }

        #[test]
        fn different_values_mean_different_things(a in any_value(), b in any_value()) {
            prop_assert_eq!(same(&a.to_string(), &b.to_string()), a == b);
        }
    }
}
