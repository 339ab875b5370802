//! Whether one value is another in a different spelling, without the meaning of either: for a client that spells the
//! same tools anew each turn, most strings are equal byte for byte, and nothing needs to be written or hashed.

use crate::engine::json::{self, Malformed, Span, value_end, walk_array, walk_object};

/// Larger, wider or deeper values are compared by their meanings: names are looked for one by one.
const BYTES_MAX: usize = 256 * 1024;
const MEMBERS_MAX: usize = 64;
const DEPTH_MAX: usize = 12;

/// Whether `value` means what `sound` means, which is known to have a meaning ([`super::Meaning::of_sound`]). A `false`
/// says nothing: the meanings decide then.
pub fn is_respelt(sound: &[u8], value: &[u8]) -> bool {
    if value.len().max(sound.len()) > BYTES_MAX || std::str::from_utf8(value).is_err() {
        return false;
    }
    let mut outline = Outline { bytes: sound, nodes: Vec::with_capacity(sound.len() / 16) };
    outline.add(0..0, 0, 0).is_ok() && Pair { sound, value, nodes: outline.nodes }.same(0, 0).is_some()
}

/// A value within the known one. Those inside it follow it, up to `next`.
struct Node {
    /// Its name in an object, and whether that is spelt with escapes.
    key: Span,
    escaped: bool,
    value: Span,
    next: usize,
    members: usize,
    /// Another member was found to be this one.
    taken: bool,
}

/// The known value, walked once, so that its members can be found in any order.
struct Outline<'a> {
    bytes: &'a [u8],
    nodes: Vec<Node>,
}

impl Outline<'_> {
    /// Adds the value at `start` and all that is inside it, and answers where it ends.
    fn add(&mut self, key: Span, start: usize, depth: usize) -> Result<usize, Malformed> {
        let (bytes, index) = (self.bytes, self.nodes.len());
        let escaped = is_escaped(&bytes[key.clone()]);
        self.nodes.push(Node { key, escaped, value: start..start, next: 0, members: 0, taken: false });
        let mut members = 0;
        let end = match bytes.get(start) {
            Some(b'{' | b'[') if depth >= DEPTH_MAX => return Err(Malformed::TooDeep),
            Some(b'{') => walk_object(bytes, start, |key, start| {
                members += 1;
                self.add(key, start, depth + 1)
            })?,
            Some(b'[') => walk_array(bytes, start, |start| self.add(start..start, start, depth + 1))?,
            _ => value_end(bytes, start)?,
        };
        if members > MEMBERS_MAX {
            return Err(Malformed::TooMany);
        }
        let next = self.nodes.len();
        let node = &mut self.nodes[index];
        (node.value.end, node.next, node.members) = (end, next, members);
        Ok(end)
    }
}

struct Pair<'a> {
    sound: &'a [u8],
    value: &'a [u8],
    nodes: Vec<Node>,
}

impl Pair<'_> {
    /// Where the value ends, if it means what the node does.
    fn same(&mut self, node: usize, start: usize) -> Option<usize> {
        let known = self.nodes[node].value.clone();
        match (self.sound.get(known.start)?, self.value.get(start)?) {
            (b'{', b'{') => self.object(node, start),
            (b'[', b'[') => self.array(node, start),
            (b'{' | b'[', _) | (_, b'{' | b'[') => None,
            _ => {
                let end = value_end(self.value, start).ok()?;
                self.same_scalar(known, start..end).then_some(end)
            }
        }
    }

    /// Equal bytes are as sound as the known ones. Of others only strings can say the same.
    fn same_scalar(&self, sound: Span, value: Span) -> bool {
        let (known, raw) = (&self.sound[sound.clone()], &self.value[value.clone()]);
        let is_string = |raw: &[u8]| raw.first() == Some(&b'"');
        let has_control = || raw.iter().fold(false, |found, byte| found | (*byte < b' '));
        known == raw
            || is_string(known)
                && is_string(raw)
                && (is_escaped(known) || is_escaped(raw))
                && !has_control()
                && {
                    let text = json::text(self.value, &value);
                    text.is_some() && text == json::text(self.sound, &sound)
                }
    }

    fn array(&mut self, node: usize, start: usize) -> Option<usize> {
        let (value, mut at, last) = (self.value, node + 1, self.nodes[node].next);
        let end = walk_array(value, start, |start| {
            let end = if at < last { self.same(at, start) } else { None };
            at = self.nodes.get(at).map_or(last, |node| node.next);
            end.ok_or(Malformed::At(start))
        });
        end.ok().filter(|_| at == last)
    }

    /// A sound object has each name once, so a name that comes twice finds nothing the second time.
    fn object(&mut self, node: usize, start: usize) -> Option<usize> {
        let (value, mut left) = (self.value, self.nodes[node].members);
        let end = walk_object(value, start, |key, start| {
            let member = self.member(node, key).ok_or(Malformed::At(start))?;
            self.nodes[member].taken = true;
            left -= 1;
            self.same(member, start).ok_or(Malformed::At(start))
        });
        end.ok().filter(|_| left == 0)
    }

    /// The member of an object that is named so, unless it was taken.
    fn member(&self, object: usize, key: Span) -> Option<usize> {
        let escaped = is_escaped(&self.value[key.clone()]);
        let (mut at, last) = (object + 1, self.nodes[object].next);
        while at < last {
            let node = &self.nodes[at];
            let same = self.sound[node.key.clone()] == self.value[key.clone()]
                || (escaped || node.escaped) && self.same_scalar(node.key.clone(), key.clone());
            if same && !node.taken {
                return Some(at);
            }
            at = node.next;
        }
        None
    }
}

fn is_escaped(raw: &[u8]) -> bool {
    memchr::memchr(b'\\', raw).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Meaning;
    use super::*;

    #[test]
    fn spellings_of_one_value_are_known_and_other_values_are_not() {
        let sound = r#"{"a":[1,{"x":"é\n","y":2}],"b":"/","c":{}}"#;
        for same in [
            sound,
            r#"{"c":{ },"b":"\/","a":[1,{"y":2,"x":"\u00e9\n"}]}"#,
            r#"{ "\u0061" : [ 1 , {"x":"é\u000a","y":2} ], "b":"/", "c":{}}"#,
        ] {
            assert!(is_respelt(sound.as_bytes(), same.as_bytes()), "{same}");
        }
        for other in [
            r#"{"a":[1,{"x":"é\n","y":2}],"b":"/"}"#,
            r#"{"a":[1,{"x":"é\n","y":2}],"b":"/","c":{},"d":1}"#,
            r#"{"a":[1,{"x":"é\n","y":2}],"b":"/","c":{},"c":{}}"#,
            r#"{"a":[1,{"x":"é\n","y":2}],"b":"/","b":{}}"#,
            r#"{"a":[1.0,{"x":"é\n","y":2}],"b":"/","c":{}}"#,
            r#"{"a":[1],"b":"/","c":{}}"#,
            r#"{"a":[1,{"x":"é\n","y":2},3],"b":"/","c":{}}"#,
            r#"{"a":[1,{"x":"\ud800","y":2}],"b":"/","c":{}}"#,
            "[]",
            "",
        ] {
            assert!(!is_respelt(sound.as_bytes(), other.as_bytes()), "{other}");
        }
    }

    /// Values of few words, so that many are alike.
    fn any_value() -> impl Strategy<Value = String> {
        let words = [
            "1",
            "1.0",
            "true",
            "\"a\"",
            "\"\\u0061\"",
            "\"é\"",
            "\"\\u00e9\"",
            "\"\\n\"",
            "\"\n\"",
            "\"\\ud800\"",
        ];
        let scalar = prop::sample::select(words.to_vec()).prop_map(String::from);
        let key = prop::sample::select(vec!["\"a\"", "\"\\u0061\"", "\"b\"", "\"c\"", "\"\\n\""]);
        scalar.prop_recursive(4, 12, 3, move |inner| {
            let member = (key.clone(), inner.clone()).prop_map(|(key, value)| format!("{key}:{value}"));
            prop_oneof![
                prop::collection::vec(inner, 0..3).prop_map(|items| format!("[{}]", items.join(" ,"))),
                prop::collection::vec(member, 0..3).prop_map(|items| format!("{{{}}}", items.join(", "))),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn it_says_what_the_meanings_say(one in any_value(), two in any_value()) {
            let meaning = |value: &str| Meaning::of_sound(value.as_bytes());
            if let Some(sound) = meaning(&one) {
                prop_assert_eq!(is_respelt(one.as_bytes(), two.as_bytes()), meaning(&two) == Some(sound));
                prop_assert!(is_respelt(one.as_bytes(), one.as_bytes()));
            }
        }
    }
}
