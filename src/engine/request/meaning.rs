//! The meaning of a value: a hash that is equal for all of its spellings.
//!
//! Two spellings mean the same if they differ only in key order, escapes or white space. Numbers count by
//! their lexeme: `1` and `1.0` differ, because a reader may show the difference. A value with a key twice or
//! with half a surrogate pair has no meaning that all readers share, and gets no hash.
//!
//! The value is written once in a form that is the same for every spelling (keys sorted, strings with the escapes that
//! most writers use and with their length before them), and that form is hashed in one run: far cheaper than a hash
//! per node.
//!
//! ```
//! use forkpoint::engine::request::meaning::Meaning;
//! let one = Meaning::of(br#"{"a":1,"b":"\u00e9"}"#).unwrap();
//! assert_eq!(Some(one), Meaning::of("{ \"b\": \"é\", \"a\": 1 }".as_bytes()));
//! ```

mod respelt;

pub use respelt::{Tree, is_reordered, is_respelt};

use blake3::hazmat::{ContextKey, HasherExt};
use serde::{Deserialize, Serialize};

use super::json::{self, Malformed, Span, skip_space, value_end};
use super::marker;
use crate::engine::words::digits;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Meaning(#[serde(with = "digits")] [u8; 32]);

impl Meaning {
    /// The meaning of one JSON value.
    pub fn of(value: &[u8]) -> Option<Meaning> {
        NormalForm::of(value, &[], Strictness::LENIENT)
    }

    /// The meaning of a value that may be sent in place of others. A value whose strings hold raw control characters,
    /// which a lenient reader takes and a strict one refuses, has none, and neither has one that nests beyond reason.
    pub fn of_sound(value: &[u8]) -> Option<Meaning> {
        NormalForm::of(value, &[], Strictness::SOUND)
    }

    /// The meaning of a block: its marker does not count.
    pub fn of_block(block: &[u8]) -> Option<Meaning> {
        NormalForm::of(block, &[marker::NAME], Strictness::LENIENT)
    }

    /// The meaning of a `content` or `system` value: a string says what one text block says.
    pub fn of_text(text: &[u8]) -> Option<Meaning> {
        let block = [&b"{\"type\":\"text\",\"text\":"[..], text, b"}"].concat();
        Meaning::of(&block)
    }

    /// Returns the digest that a value is compared by: that of its meaning, or of its bytes if it has none.
    pub fn or_bytes(meaning: Option<Meaning>, bytes: &[u8]) -> [u8; 32] {
        match meaning {
            Some(Meaning(digest)) => digest,
            None => *blake3::hash(bytes).as_bytes(),
        }
    }

    /// Returns a bound for the work of reading the meaning of a value: its bytes times its levels. An object whose
    /// members are out of order is copied, and so is each one around it.
    pub fn work(value: &[u8]) -> usize {
        value.len().saturating_mul(json::depth(value).max(1))
    }

    pub(in crate::engine) fn from_bytes(digest: [u8; 32]) -> Meaning {
        Meaning(digest)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Which values have a meaning.
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

/// The BLAKE3 key of the context `forkpoint meaning v1`: what is hashed as a meaning is never equal to another digest.
const CONTEXT_KEY: ContextKey = [
    0x34, 0x47, 0x1d, 0x8d, 0x03, 0x54, 0xde, 0x29, 0xde, 0x10, 0x92, 0x05, 0x05, 0x75, 0xff, 0x4f, 0x03,
    0x18, 0xa1, 0x04, 0xf8, 0x4a, 0x2f, 0x05, 0x87, 0xeb, 0x8e, 0x62, 0x22, 0xbf, 0x89, 0x99,
];

/// The one form, being written in one walk.
struct NormalForm<'a> {
    bytes: &'a [u8],
    out: Vec<u8>,
    /// The members of the objects that are being written, innermost last.
    members: Vec<WrittenMember>,
    /// For putting members into their order.
    scratch: Vec<u8>,
    strictness: Strictness,
    depth: usize,
}

/// The place of a member in the form.
struct WrittenMember {
    key: Span,
    all: Span,
}

/// A token's kind and length.
const HEAD_BYTES: usize = 1 + size_of::<u64>();

impl<'a> NormalForm<'a> {
    fn of(bytes: &'a [u8], without: &[&str], strictness: Strictness) -> Option<Meaning> {
        // Once for all strings in it.
        std::str::from_utf8(bytes).ok()?;
        let out = Vec::with_capacity(bytes.len() + bytes.len() / 2);
        let (members, scratch) = Default::default();
        let mut form = NormalForm { bytes, out, members, scratch, strictness, depth: 0 };
        form.value(skip_space(bytes, 0), without)?;
        let mut hasher = blake3::Hasher::new_from_context_key(&CONTEXT_KEY);
        Some(Meaning(*hasher.update(&form.out).finalize().as_bytes()))
    }

    /// Writes the value at `start`, and returns where it ends. `without`: members to leave out of this object,
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
            b'"' => {
                let end = json::string_end(self.bytes, start).ok()?;
                self.string(start + 1..end - 1)?;
                Some(end)
            }
            _ => {
                let end = value_end(self.bytes, start).ok()?;
                self.token(b'n', start..end);
                Some(end)
            }
        }
    }

    /// The inside of a string, with the escapes that most writers use.
    fn string(&mut self, inner: Span) -> Option<()> {
        let raw = &self.bytes[inner.clone()];
        if is_usual(raw) {
            self.token(b's', inner);
            return Some(());
        }
        if !self.strictness.control_characters && json::has_control(raw) {
            return None;
        }
        // Unescaped and escaped again: only so do all spellings of a text end up the same.
        let mut text = Vec::with_capacity(raw.len());
        json::push_text(&mut text, self.bytes, inner)?;
        let from = self.out.len();
        // The length is known only once the text is written.
        self.out.extend_from_slice(&head(b's', 0));
        push_usual(&mut self.out, &text);
        let length = self.out.len() - from - HEAD_BYTES;
        self.out[from..from + HEAD_BYTES].copy_from_slice(&head(b's', length));
        Some(())
    }

    fn object(&mut self, start: usize, without: &[&str]) -> Option<usize> {
        let (bytes, base) = (self.bytes, self.members.len());
        self.out.push(b'{');
        let end = json::walk_object(bytes, start, |key, start| {
            let from = self.out.len();
            self.string(key.start + 1..key.end - 1).ok_or(Malformed::At(key.start))?;
            let key = from + HEAD_BYTES..self.out.len();
            // Compared as it is in the form, so that escapes do not hide the name.
            if without.iter().any(|name| name.as_bytes() == &self.out[key.clone()]) {
                self.out.truncate(from);
                return value_end(bytes, start);
            }
            let end = self.value(start, &[]).ok_or(Malformed::At(start))?;
            self.members.push(WrittenMember { key, all: from..self.out.len() });
            Ok(end)
        });
        self.sort(base)?;
        self.out.push(b'}');
        end.ok()
    }

    /// Puts the members of the innermost object into the order of their names; `None` if a name occurs twice.
    fn sort(&mut self, base: usize) -> Option<()> {
        let NormalForm { out, members, scratch, .. } = self;
        let own = &mut members[base..];
        // Equal names are not in order either, so that they are always found below.
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

    /// Bytes that go into the form as they are.
    fn token(&mut self, kind: u8, span: Span) {
        self.out.extend_from_slice(&head(kind, span.len()));
        self.out.extend_from_slice(&self.bytes[span]);
    }
}

/// Returns the head of a token: its length keeps it from running into the next.
fn head(kind: u8, length: usize) -> [u8; HEAD_BYTES] {
    let mut head = [kind; HEAD_BYTES];
    head[1..].copy_from_slice(&(length as u64).to_le_bytes());
    head
}

/// Returns true if the inside of a string is what [`push_usual`] writes: nothing is escaped that need not be, and
/// each control character is escaped by its letter. `false` may be wrong, `true` is not. All bytes are looked at in
/// one run, which is faster than to go from escape to escape.
fn is_usual(inner: &[u8]) -> bool {
    let is_odd = |byte: u8, next: u8| {
        let is_letter = (next == b'n') | (next == b't') | (next == b'r') | (next == b'b') | (next == b'f');
        (byte < b' ') | ((byte == b'\\') & !((next == b'"') | (next == b'\\') | is_letter))
    };
    let Some((last, before)) = inner.split_last() else { return true };
    // The second of two backslashes may be the last byte, and is then taken for an escape without a letter.
    let pairs = before.iter().zip(&inner[1..]);
    !pairs.fold(is_odd(*last, 0), |found, (byte, next)| found | is_odd(*byte, *next))
}

fn push_usual(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            // Others have no letter. Nothing reads the form, so they need only differ.
            other => out.push(*other),
        }
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
    fn meanings_are_derived_for_a_context_of_their_own() {
        assert_eq!(CONTEXT_KEY, blake3::hazmat::hash_derive_key_context("forkpoint meaning v1"));
        let form_of_true =
            blake3::derive_key("forkpoint meaning v1", &[&head(b'n', 4)[..], b"true"].concat());
        assert_eq!(Meaning::of(b"true").unwrap().as_bytes(), &form_of_true);
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
    fn each_escape_means_what_it_stands_for() {
        let all = (0..0x80_u32).filter_map(char::from_u32);
        let coded: Vec<String> = all.clone().map(|it| format!("\"a\\u{:04x}z\"", it as u32)).collect();
        for (it, coded) in all.zip(&coded) {
            let written = serde_json::to_string(&format!("a{it}z")).unwrap();
            assert!(same(&written, coded), "{written} and {coded}");
            let raw = format!("\"a{it}z\"");
            assert!(matches!(it, '"' | '\\') || same(&raw, coded), "as it is, for a lenient reader: {coded}");
        }
        for (index, one) in coded.iter().enumerate() {
            assert!(coded[..index].iter().all(|other| !same(one, other)), "{one}");
        }
        for (one, two) in [(r#""\/""#, r#""/""#), (r#""\\""#, r#""\u005c""#), (r#""\\n""#, r#""\u005cn""#)] {
            assert!(same(one, two), "{one} and {two}");
        }
        assert!(!same(r#""\\n""#, r#""\n""#));
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
