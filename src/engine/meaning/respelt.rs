//! Whether one value is another in a different spelling, without the meaning of either: for a client that spells the
//! same tools anew each turn, most strings are equal byte for byte, and nothing needs to be written or hashed.

use crate::engine::json::{self, Malformed, Span, value_end, walk_array, walk_object};

/// Larger, wider or deeper values are compared by their meanings: names are looked for one by one.
const BYTES_MAX: usize = 256 * 1024;
const MEMBERS_MAX: u32 = 64;
const DEPTH_MAX: usize = 12;

/// Whether `value` means what `sound` means, which is known to have a meaning ([`super::Meaning::of_sound`]). A `false`
/// says nothing: the meanings decide then.
pub fn is_respelt(sound: &[u8], value: &[u8]) -> bool {
    if value.len().max(sound.len()) > BYTES_MAX || std::str::from_utf8(value).is_err() {
        return false;
    }
    let mut tree = Tree { bytes: sound, nodes: Vec::with_capacity(sound.len() / 16 + 1) };
    tree.add(0..0, 0, 0).is_ok() && Pair { sound: &tree, value }.same(0, 0).is_some()
}

/// A value with everything inside it, each node before what it holds.
struct Tree<'a> {
    bytes: &'a [u8],
    nodes: Vec<Node>,
}

struct Node {
    /// Its name in the object that holds it; empty in an array.
    key: Span,
    value: Span,
    /// The first node that is not inside this one.
    next: usize,
}

impl Tree<'_> {
    fn add(&mut self, key: Span, start: usize, depth: usize) -> Result<usize, Malformed> {
        let place = self.nodes.len();
        self.nodes.push(Node { key, value: start..start, next: 0 });
        let bytes = self.bytes;
        let end = match bytes.get(start) {
            Some(b'{' | b'[') if depth == DEPTH_MAX => Err(Malformed::TooDeep),
            Some(b'{') => walk_object(bytes, start, |key, start| self.add(key, start, depth + 1)),
            Some(b'[') => walk_array(bytes, start, |start| self.add(0..0, start, depth + 1)),
            _ => value_end(bytes, start),
        }?;
        let next = self.nodes.len();
        let node = &mut self.nodes[place];
        (node.value.end, node.next) = (end, next);
        Ok(end)
    }
}

struct Pair<'a> {
    sound: &'a Tree<'a>,
    value: &'a [u8],
}

impl Pair<'_> {
    /// Where the value that starts at `value` ends, if it means what the node means.
    fn same(&self, node: usize, value: usize) -> Option<usize> {
        let known = &self.sound.nodes[node];
        match (self.sound.bytes.get(known.value.start)?, self.value.get(value)?) {
            (b'{', b'{') => self.object(node, value),
            (b'[', b'[') => self.array(node, value),
            (b'{' | b'[', _) | (_, b'{' | b'[') => None,
            _ => {
                let end = value_end(self.value, value).ok()?;
                self.same_scalar(&known.value, value..end).then_some(end)
            }
        }
    }

    /// Equal bytes are as sound as the known ones. Of others only strings can say the same.
    fn same_scalar(&self, sound: &Span, value: Span) -> bool {
        let (known, raw) = (&self.sound.bytes[sound.clone()], &self.value[value.clone()]);
        let is_string = |raw: &[u8]| raw.first() == Some(&b'"');
        let is_escaped = |raw: &[u8]| memchr::memchr(b'\\', raw).is_some();
        let has_control = || raw.iter().fold(false, |found, byte| found | (*byte < b' '));
        known == raw
            || is_string(known)
                && is_string(raw)
                && (is_escaped(known) || is_escaped(raw))
                && !has_control()
                && {
                    let text = json::text(self.value, &value);
                    text.is_some() && text == json::text(self.sound.bytes, sound)
                }
    }

    fn array(&self, node: usize, value: usize) -> Option<usize> {
        let nodes = &self.sound.nodes;
        let (mut next, last) = (node + 1, nodes[node].next);
        let end = walk_array(self.value, value, |start| {
            let end = (next < last).then(|| self.same(next, start)).flatten();
            next = nodes.get(next).map_or(last, |node| node.next);
            end.ok_or(Malformed::At(start))
        });
        end.ok().filter(|_| next == last)
    }

    /// A sound object has each name once, so a name that comes twice finds nothing the second time.
    fn object(&self, node: usize, value: usize) -> Option<usize> {
        // The members that were found, one bit each.
        let mut found = 0_u64;
        let end = walk_object(self.value, value, |key, start| {
            let unfound =
                || (0..MEMBERS_MAX).zip(self.members(node)).filter(|(number, _)| found >> number & 1 == 0);
            let name = |member: usize| &self.sound.nodes[member].key;
            let written = &self.value[key.clone()];
            let same = unfound().find(|(_, member)| self.sound.bytes[name(*member).clone()] == *written);
            let respelt = || unfound().find(|(_, member)| self.same_scalar(name(*member), key.clone()));
            let (number, member) = same.or_else(respelt).ok_or(Malformed::At(key.start))?;
            found |= 1 << number;
            self.same(member, start).ok_or(Malformed::At(start))
        });
        let count = self.members(node).count();
        end.ok().filter(|_| found.count_ones() as usize == count)
    }

    fn members(&self, node: usize) -> impl Iterator<Item = usize> {
        let last = self.sound.nodes[node].next;
        let next = move |member: &usize| Some(self.sound.nodes[*member].next).filter(|next| *next < last);
        std::iter::successors(Some(node + 1).filter(|first| *first < last), next)
    }
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
