//! JSON as spans over its own bytes.
//!
//! A proxy that parses into values and writes them again changes number spelling, escapes, key order and
//! white space, and with them the bytes the prompt cache is keyed by. So nothing here builds a value: the
//! scanner walks over the bytes and answers *where* things are.
//!
//! The walk is linear, needs no recursion and no allocation, and refuses to nest deeper than
//! [`MAX_DEPTH`]. It checks structure (brackets, commas, colons, literals, numbers), not the inside of
//! strings: escapes and UTF-8 are the upstream's to judge.
//!
//! ```
//! use forkpoint::engine::request::json;
//! let body = br#"{"model": "m", "stream": true}"#;
//! let stream = json::member(body, 0, "stream").unwrap();
//! assert_eq!(&body[stream], b"true");
//! ```

mod strings;

pub use strings::{has_control, is_blank, is_key, push_text, sound, text};

use std::ops::Range;

use memchr::memchr;

/// Deeper nesting than any request needs, shallow enough for a stack that is one small array.
pub const MAX_DEPTH: usize = 512;

/// A stretch of the scanned bytes.
pub type Span = Range<usize>;

/// The bytes are no JSON that this scanner follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// This byte cannot be here.
    At(usize),
    /// The bytes end within a value.
    Truncated,
    /// Nesting exceeds [`MAX_DEPTH`].
    TooDeep,
    /// More parts than a reader keeps apart, or longer ones than 4 GiB.
    TooMany,
}

/// Walks the object that starts at `at` (white space before it is skipped) and returns where it ends.
/// `member` gets each key, quotes included, and where its value starts, and returns where the value ends:
/// [`value_end`] skips it, another walk looks inside, so that every byte is visited once.
pub fn walk_object(
    bytes: &[u8],
    at: usize,
    mut member: impl FnMut(Span, usize) -> Result<usize, Malformed>,
) -> Result<usize, Malformed> {
    walk(bytes, at, b'{', b'}', |at| {
        let key = at..string_end(bytes, at)?;
        let colon = skip_space(bytes, key.end);
        expect(bytes, colon, b':')?;
        member(key, skip_space(bytes, colon + 1))
    })
}

/// Walks the array at `at` and returns where it ends; `element` gets each element's start and returns its end.
pub fn walk_array(
    bytes: &[u8],
    at: usize,
    element: impl FnMut(usize) -> Result<usize, Malformed>,
) -> Result<usize, Malformed> {
    walk(bytes, at, b'[', b']', element)
}

fn walk(
    bytes: &[u8],
    at: usize,
    open: u8,
    close: u8,
    mut item: impl FnMut(usize) -> Result<usize, Malformed>,
) -> Result<usize, Malformed> {
    let at = skip_space(bytes, at);
    expect(bytes, at, open)?;
    let mut at = skip_space(bytes, at + 1);
    if bytes.get(at) == Some(&close) {
        return Ok(at + 1);
    }
    loop {
        at = skip_space(bytes, item(at)?);
        match bytes.get(at) {
            Some(b',') => at = skip_space(bytes, at + 1),
            Some(&byte) if byte == close => return Ok(at + 1),
            Some(_) => return Err(Malformed::At(at)),
            None => return Err(Malformed::Truncated),
        }
    }
}

/// The value of the object's member `name`, the last one if there are several.
pub fn member(bytes: &[u8], at: usize, name: &str) -> Option<Span> {
    let mut found = None;
    let walked = walk_object(bytes, at, |key, start| {
        let end = value_end(bytes, start)?;
        if is_key(bytes, &key, name) {
            found = Some(start..end);
        }
        Ok(end)
    });
    walked.ok().and(found)
}

/// The first byte at or after `at` that is not white space.
pub fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\t' | b'\r') = bytes.get(at) {
        at += 1;
    }
    at
}

/// Returns where the value that starts exactly at `at` ends.
pub fn value_end(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    value_end_noting(bytes, at, &mut false)
}

/// Returns where a value ends, as [`value_end`] does, and sets `spaced` if there is white space between its tokens. A
/// value without is its own compact form and need not be copied.
pub fn value_end_noting(bytes: &[u8], at: usize, spaced: &mut bool) -> Result<usize, Malformed> {
    match bytes.get(at) {
        None => Err(Malformed::Truncated),
        Some(b'"') => string_end(bytes, at),
        Some(b'{' | b'[') => container_end(bytes, at, spaced),
        Some(_) => scalar_end(bytes, at),
    }
}

/// Returns how deep a value nests: 0 for one that holds no others. Bytes that are not JSON have some depth too.
pub fn depth(value: &[u8]) -> usize {
    let (mut at, mut depth, mut deepest) = (0, 0_usize, 0);
    while let Some(&byte) = value.get(at) {
        match byte {
            b'"' => at = string_end(value, at).unwrap_or(value.len()),
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            _ => at += 1,
        }
    }
    deepest
}

/// Returns the value without the white space between its tokens: key order, numbers and strings as they are.
pub fn compact(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let start = skip_space(bytes, 0);
    let end = value_end(bytes, start)?;
    let mut out = Vec::with_capacity(end - start);
    compact_into(&mut out, &bytes[start..end])?;
    match bytes.get(skip_space(bytes, end)) {
        None => Ok(out),
        Some(_) => Err(Malformed::At(end)),
    }
}

/// Appends a value that was walked before, without the white space between its tokens.
pub fn compact_into(out: &mut Vec<u8>, value: &[u8]) -> Result<(), Malformed> {
    let mut at = 0;
    while let Some(&byte) = value.get(at) {
        match byte {
            b' ' | b'\n' | b'\t' | b'\r' => at += 1,
            b'"' => {
                let close = string_end(value, at)?;
                out.extend_from_slice(&value[at..close]);
                at = close;
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    Ok(())
}

fn expect(bytes: &[u8], at: usize, byte: u8) -> Result<(), Malformed> {
    match bytes.get(at) {
        Some(found) if *found == byte => Ok(()),
        Some(_) => Err(Malformed::At(at)),
        None => Err(Malformed::Truncated),
    }
}

/// Returns where the string that starts at `at` ends. Jumps from quote to quote: one is the end if the number
/// of backslashes before it is even. Text is full of `\n` escapes, so this visits far fewer bytes than
/// looking at each backslash.
pub fn string_end(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    expect(bytes, at, b'"')?;
    let mut from = at + 1;
    while let Some(found) = near(b'"', &bytes[from..]) {
        let quote = from + found;
        // `quote - 1` exists: the opening quote is before the first one found.
        if bytes[quote - 1] != b'\\' {
            return Ok(quote + 1);
        }
        let backslashes = bytes[from..quote].iter().rev().take_while(|byte| **byte == b'\\').count();
        if backslashes % 2 == 0 {
            return Ok(quote + 1);
        }
        from = quote + 1;
    }
    Err(Malformed::Truncated)
}

/// Returns where the next such byte is, which is seldom far: most names and many values are shorter than what it takes
/// to begin a wide search.
fn near(byte: u8, bytes: &[u8]) -> Option<usize> {
    const NEAR: usize = 32;
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<8>() {
        if at == NEAR {
            return memchr(byte, &bytes[at..]).map(|found| at + found);
        }
        // Such bytes become zero; the lowest zero byte is the lowest whose top bit is set here.
        let zeroed = u64::from_le_bytes(*word) ^ (ONES * u64::from(byte));
        match zeroed.wrapping_sub(ONES) & !zeroed & (ONES << 7) {
            0 => at += 8,
            found => return Some(at + found.trailing_zeros() as usize / 8),
        }
    }
    bytes[at..].iter().position(|it| *it == byte).map(|found| at + found)
}

/// The open brackets, one bit each: object or array.
struct Stack {
    bits: [u64; MAX_DEPTH / 64],
    depth: usize,
}

impl Stack {
    fn push(&mut self, object: bool) -> Result<(), Malformed> {
        let word = self.bits.get_mut(self.depth / 64).ok_or(Malformed::TooDeep)?;
        let bit = 1 << (self.depth % 64);
        // The bit of a bracket that was closed is still there, so it is written in either case.
        if object {
            *word |= bit;
        } else {
            *word &= !bit;
        }
        self.depth += 1;
        Ok(())
    }

    fn in_object(&self) -> bool {
        let top = self.depth - 1;
        self.bits[top / 64] >> (top % 64) & 1 == 1
    }
}

/// Returns where the container that starts at `at` ends.
fn container_end(bytes: &[u8], mut at: usize, spaced: &mut bool) -> Result<usize, Malformed> {
    let mut skip_space = |from: usize| {
        let to = skip_space(bytes, from);
        *spaced |= to != from;
        to
    };
    let mut stack = Stack { bits: [0; MAX_DEPTH / 64], depth: 0 };
    loop {
        // A value starts here.
        match bytes.get(at).ok_or(Malformed::Truncated)? {
            b'"' => at = string_end(bytes, at)?,
            open @ (b'{' | b'[') => {
                let object = *open == b'{';
                stack.push(object)?;
                at = skip_space(at + 1);
                let close = if object { b'}' } else { b']' };
                if bytes.get(at) != Some(&close) {
                    at = if object { past_key(bytes, at, &mut skip_space)? } else { at };
                    continue;
                }
                at += 1;
                stack.depth -= 1;
            }
            _ => at = scalar_end(bytes, at)?,
        }
        // A value ended here: close what ends with it, then step to the next one.
        loop {
            if stack.depth == 0 {
                return Ok(at);
            }
            at = skip_space(at);
            let object = stack.in_object();
            match bytes.get(at).ok_or(Malformed::Truncated)? {
                b',' => {
                    at = skip_space(at + 1);
                    at = if object { past_key(bytes, at, &mut skip_space)? } else { at };
                    break;
                }
                b'}' if object => stack.depth -= 1,
                b']' if !object => stack.depth -= 1,
                _ => return Err(Malformed::At(at)),
            }
            at += 1;
        }
    }
}

/// From a key to the start of its value.
fn past_key(bytes: &[u8], at: usize, mut skip_space: impl FnMut(usize) -> usize) -> Result<usize, Malformed> {
    let colon = skip_space(string_end(bytes, at)?);
    expect(bytes, colon, b':')?;
    Ok(skip_space(colon + 1))
}

/// Returns where the literal or number that starts at `at` ends.
fn scalar_end(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    let rest = &bytes[at..];
    let literal: &[u8] = match rest.first() {
        Some(b't') => b"true",
        Some(b'f') => b"false",
        Some(b'n') => b"null",
        _ => return number_end(bytes, at),
    };
    if rest.starts_with(literal) {
        Ok(at + literal.len())
    } else if literal.starts_with(rest) {
        Err(Malformed::Truncated)
    } else {
        Err(Malformed::At(at))
    }
}

fn number_end(bytes: &[u8], start: usize) -> Result<usize, Malformed> {
    let digits = |mut at: usize| {
        let from = at;
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        if at > from {
            Ok(at)
        } else if at == bytes.len() {
            Err(Malformed::Truncated)
        } else {
            Err(Malformed::At(at))
        }
    };
    let mut at = start + usize::from(bytes.get(start) == Some(&b'-'));
    // Nothing follows a leading zero: a digit behind it is for the caller to refuse.
    at = if bytes.get(at) == Some(&b'0') { at + 1 } else { digits(at)? };
    if bytes.get(at) == Some(&b'.') {
        at = digits(at + 1)?;
    }
    if let Some(b'e' | b'E') = bytes.get(at) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        at = digits(at + 1 + sign)?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use proptest::prelude::*;

    fn whole(text: &str) -> Result<(), Malformed> {
        let start = skip_space(text.as_bytes(), 0);
        let end = value_end(text.as_bytes(), start)?;
        match skip_space(text.as_bytes(), end) {
            end if end == text.len() => Ok(()),
            end => Err(Malformed::At(end)),
        }
    }

    #[test]
    fn members_are_found_with_their_exact_spans() {
        let body = br#" { "a" : [1, {"b": "]}"}] ,"c\u0041":"x\\\"y" , "d": -1.5e+3 } "#;
        let slice = |name| std::str::from_utf8(&body[member(body, 0, name).unwrap()]).unwrap();
        assert_eq!(slice("a"), r#"[1, {"b": "]}"}]"#);
        assert_eq!(slice("cA"), r#""x\\\"y""#);
        assert_eq!(slice("d"), "-1.5e+3");
        let end = walk_object(body, 0, |_, start| value_end(body, start));
        assert_eq!(end, Ok(body.len() - 1));
    }

    #[test]
    fn broken_structure_is_named_with_its_place() {
        assert_eq!(whole(r#"{"a":1,}"#), Err(Malformed::At(7)));
        assert_eq!(whole("[1 2]"), Err(Malformed::At(3)));
        assert_eq!(whole("[1}"), Err(Malformed::At(2)));
        assert_eq!(whole(r#"{"a""#), Err(Malformed::Truncated));
        assert_eq!(whole("tru"), Err(Malformed::Truncated));
        assert_eq!(whole("01"), Err(Malformed::At(1)));
        assert_eq!(whole("nope"), Err(Malformed::At(0)));
        assert_eq!(walk_object(b"[]", 0, |_, start| value_end(b"[]", start)), Err(Malformed::At(0)));
    }

    #[test]
    fn sound_is_what_a_strict_reader_takes() {
        let strict = |text: &str| serde_json::from_str::<serde_json::Value>(text).is_ok();
        for text in ["\"\"", r#""a\n\"\\\/\u00e9""#, r#""\u00e""#, r#""\x""#, "\"\x01\"", "\"é\""] {
            assert_eq!(sound(text.as_bytes()).is_some(), strict(text), "{text}");
        }
        assert_eq!(sound(b"\"\xff\""), None);
    }

    #[test]
    fn nesting_beyond_the_limit_is_refused_without_recursion() {
        assert_eq!(whole(&"[".repeat(100_000)), Err(Malformed::TooDeep));
        let fits = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert_eq!(whole(&fits), Ok(()));
    }

    #[test]
    fn depth_counts_brackets_outside_of_strings() {
        for (value, levels) in [("1", 0), (r#""[[{""#, 0), ("{}", 1), (r#"[{"a":"]"},[[]]]"#, 3), ("]][", 1)]
        {
            assert_eq!(depth(value.as_bytes()), levels, "{value}");
        }
    }

    #[test]
    fn compacting_keeps_order_numbers_and_escapes() {
        let out = compact(b" { \"b\" : 1.0 , \"a\" : [ 1e2 , \"x \\u00e9\\/\" ] } ").unwrap();
        assert_eq!(out, br#"{"b":1.0,"a":[1e2,"x \u00e9\/"]}"#);
        assert!(compact(b"{} {}").is_err());
    }

    /// Any JSON value, as text with random white space between tokens.
    fn any_json() -> impl Strategy<Value = String> {
        let space = prop::sample::select(vec!["", " ", "\n", "\t \r\n"]);
        let scalar = prop_oneof![
            any::<String>().prop_map(|s| serde_json::to_string(&s).unwrap()),
            any::<i64>().prop_map(|n| n.to_string()),
            any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(|f| format!("{f:e}")),
            prop::sample::select(vec!["true", "false", "null", "1.0", "-0", "1E+9"]).prop_map(String::from),
        ];
        scalar.prop_recursive(6, 60, 6, move |inner| {
            let s = space.clone();
            prop_oneof![
                (prop::collection::vec(inner.clone(), 0..6), s.clone())
                    .prop_map(|(items, s)| format!("[{s}{}{s}]", items.join(&format!("{s},{s}")))),
                (prop::collection::vec((any::<String>(), inner), 0..6), s).prop_map(|(items, s)| {
                    let items: Vec<_> = items
                        .iter()
                        .map(|(k, v)| format!("{}{s}:{s}{v}", serde_json::to_string(k).unwrap()))
                        .collect();
                    format!("{{{s}{}{s}}}", items.join(&format!("{s},{s}")))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn texts_with_escapes_are_what_a_parser_reads(
            parts in prop::collection::vec(
                prop::sample::select(vec!["\\", "n", "t", "r", "b", "f", "u", "00e9", "/", "x", "é", "\\\\", "\u{1}", " "]), 0..12
            )
        ) {
            let raw = format!("\"{}\"", parts.concat());
            if string_end(raw.as_bytes(), 0) == Ok(raw.len()) && raw.contains('\\') {
                let read = serde_json::from_str::<String>(&raw).ok();
                prop_assert_eq!(text(raw.as_bytes(), &(0..raw.len())).map(Cow::into_owned), read.clone());
                let mut out = Vec::new();
                let pushed = push_text(&mut out, raw.as_bytes(), 1..raw.len() - 1);
                prop_assert_eq!(pushed.map(|()| String::from_utf8(out).unwrap()), read);
            }
        }

        #[test]
        fn every_value_is_walked_to_its_end(json in any_json()) {
            prop_assert_eq!(whole(&json), Ok(()));
            let list = format!("[{json}]");
            let walked = walk_array(list.as_bytes(), 0, |start| value_end(list.as_bytes(), start));
            prop_assert_eq!(walked, Ok(list.len()));
            let compacted = compact(json.as_bytes()).unwrap();
            let again: serde_json::Value = serde_json::from_slice(&compacted).unwrap();
            prop_assert_eq!(again, serde_json::from_str::<serde_json::Value>(&json).unwrap());
        }

        #[test]
        fn a_prefix_of_a_container_is_never_whole(json in any_json(), cut in any::<prop::sample::Index>()) {
            let json = format!("[{json}]");
            let cut = cut.index(json.len());
            prop_assert!(value_end(&json.as_bytes()[..cut], 0).is_err());
        }

        #[test]
        fn any_bytes_are_answered_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = value_end(&bytes, 0);
            let _ = compact(&bytes);
            let _ = member(&bytes, 0, "a");
            let mut count = 0;
            let _ = walk_array(&bytes, 0, |start| {
                count += 1;
                value_end(&bytes, start)
            });
            prop_assert!(count <= bytes.len());
        }
    }
}
