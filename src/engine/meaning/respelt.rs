//! Whether one value is another in a different spelling, without the meaning of either: for a client that spells the
//! same tools anew each turn, most strings are equal byte for byte, and nothing needs to be written or hashed.

use crate::engine::json::{self, Malformed, Span, skip_space, value_end, walk_array, walk_object};

/// Larger, wider or deeper values are compared by their meanings: each level here walks what is inside it once more,
/// and names are looked for one by one.
const BYTES_MAX: usize = 256 * 1024;
const MEMBERS_MAX: usize = 64;
const DEPTH_MAX: usize = 12;

/// Whether `value` means what `sound` means, which is known to have a meaning ([`super::Meaning::of_sound`]). A `false`
/// says nothing: the meanings decide then.
pub fn is_respelt(sound: &[u8], value: &[u8]) -> bool {
    value.len().max(sound.len()) <= BYTES_MAX
        && std::str::from_utf8(value).is_ok()
        && Pair { sound, value }.same(0, 0, 0).is_some()
}

struct Pair<'a> {
    sound: &'a [u8],
    value: &'a [u8],
}

impl Pair<'_> {
    /// Where both values end, if they mean the same.
    fn same(&self, sound: usize, value: usize, depth: usize) -> Option<(usize, usize)> {
        match (self.sound.get(sound)?, self.value.get(value)?) {
            (b'{', b'{') if depth < DEPTH_MAX => self.object(sound, value, depth + 1),
            (b'[', b'[') if depth < DEPTH_MAX => self.array(sound, value, depth + 1),
            (b'{' | b'[', _) | (_, b'{' | b'[') => None,
            _ => {
                let ends = (value_end(self.sound, sound).ok()?, value_end(self.value, value).ok()?);
                self.same_scalar(sound..ends.0, value..ends.1).then_some(ends)
            }
        }
    }

    /// Equal bytes are as sound as the known ones. Of others only strings can say the same.
    fn same_scalar(&self, sound: Span, value: Span) -> bool {
        let (known, raw) = (&self.sound[sound.clone()], &self.value[value.clone()]);
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
                    text.is_some() && text == json::text(self.sound, &sound)
                }
    }

    fn array(&self, sound: usize, value: usize, depth: usize) -> Option<(usize, usize)> {
        let mut next = skip_space(self.sound, sound + 1);
        let end = walk_array(self.value, value, |start| {
            let ends = self.same(next, start, depth).ok_or(Malformed::At(start))?;
            next = skip_space(self.sound, ends.0);
            if self.sound.get(next) == Some(&b',') {
                next = skip_space(self.sound, next + 1);
            }
            Ok(ends.1)
        });
        let end = end.ok()?;
        (self.sound.get(next) == Some(&b']')).then_some((next + 1, end))
    }

    /// A sound object has each name once, so a name that comes twice finds nothing the second time.
    fn object(&self, sound: usize, value: usize, depth: usize) -> Option<(usize, usize)> {
        let mut members: Vec<(Span, usize)> = Vec::with_capacity(8);
        let sound_end = walk_object(self.sound, sound, |key, start| {
            members.push((key, start));
            value_end(self.sound, start)
        });
        let sound_end = sound_end.ok().filter(|_| members.len() <= MEMBERS_MAX)?;
        let value_end = walk_object(self.value, value, |key, start| {
            let place = members.iter().position(|(known, _)| self.same_scalar(known.clone(), key.clone()));
            let (_, known) = members.swap_remove(place.ok_or(Malformed::At(key.start))?);
            self.same(known, start, depth).map(|ends| ends.1).ok_or(Malformed::At(start))
        });
        value_end.ok().filter(|_| members.is_empty()).map(|end| (sound_end, end))
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
