//! The scanner against a parser that shares no code with it.
//!
//! The scanner accepts everything that serde_json accepts, to the same last byte. Text that only it accepts differs
//! in the inside of strings, which is not its business: with every string emptied, serde_json accepts it too.

#![no_main]

use forkpoint::engine::request::json::{self, MAX_DEPTH, Malformed};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use serde_json::value::RawValue;

fuzz_target!(|bytes: &[u8]| {
    let start = json::skip_space(bytes, 0);
    let end = json::value_end(bytes, start);
    if let Ok(end) = end {
        assert!(start < end && end <= bytes.len(), "{start}..{end}");
    }
    let compact = json::compact(bytes);
    let is_json = serde_json::from_slice::<&RawValue>(bytes).is_ok();
    match &compact {
        Ok(compact) => {
            assert_eq!(json::skip_space(bytes, end.expect("compacted")), bytes.len());
            assert_eq!(json::compact(compact).as_ref(), Ok(compact), "not idempotent");
            let emptied = without_strings(compact);
            assert!(serde_json::from_slice::<&RawValue>(&emptied).is_ok(), "structure: {emptied:?}");
            prefixes_are_truncated(compact);
        }
        Err(Malformed::TooDeep) => assert!(depth(bytes) > MAX_DEPTH),
        Err(_) => assert!(!is_json, "refused what is JSON: {compact:?}"),
    }
    if let (Ok(compact), Ok(value)) = (compact, serde_json::from_slice::<Value>(bytes)) {
        assert_eq!(serde_json::from_slice::<Value>(&compact).ok().as_ref(), Some(&value), "another meaning");
        members_are_found(bytes, &value);
        elements_are_found(bytes, &value);
    }
});

/// A container that ends early is cut off, not wrong. A few cuts per input are enough.
fn prefixes_are_truncated(compact: &[u8]) {
    if matches!(compact[0], b'{' | b'[') {
        for cut in (1..compact.len()).step_by(compact.len() / 16 + 1) {
            assert_eq!(json::value_end(&compact[..cut], 0), Err(Malformed::Truncated), "cut at {cut}");
        }
    }
}

fn members_are_found(bytes: &[u8], value: &Value) {
    let Some(object) = value.as_object() else { return };
    for (name, expected) in object.iter().take(16) {
        let span = json::member(bytes, 0, name).expect("a member that serde_json found");
        let found: Value = serde_json::from_slice(&bytes[span.clone()]).expect("a span of one value");
        assert_eq!(&found, expected, "{name:?}");
        assert_eq!(json::text(bytes, &span).as_deref(), expected.as_str());
    }
    assert_eq!(json::member(bytes, 0, "\u{0}absent\u{0}"), None);
}

fn elements_are_found(bytes: &[u8], value: &Value) {
    let Some(expected) = value.as_array() else { return };
    let mut found = Vec::new();
    let end = json::walk_array(bytes, 0, |start| {
        let end = json::value_end(bytes, start)?;
        found.push(serde_json::from_slice::<Value>(&bytes[start..end]).expect("a span of one value"));
        Ok(end)
    });
    assert!(end.is_ok_and(|end| json::skip_space(bytes, end) == bytes.len()));
    assert_eq!(&found, expected);
}

/// The text with the inside of every string removed.
fn without_strings(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let (mut inside, mut escaped) = (false, false);
    for &byte in bytes {
        if !inside || (byte == b'"' && !escaped) {
            inside ^= byte == b'"';
            out.push(byte);
        }
        escaped = inside && byte == b'\\' && !escaped;
    }
    out
}

/// The deepest nesting, whatever is wrong elsewhere.
fn depth(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in without_strings(bytes) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
