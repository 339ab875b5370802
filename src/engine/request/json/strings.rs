//! The inside of strings: their text, without building a value where the bytes are the text already.

use std::borrow::Cow;

use memchr::memchr;

use super::{Span, near};

/// The value of a string span (with its quotes) as text; `None` if escapes or UTF-8 are broken.
pub fn text<'a>(bytes: &'a [u8], span: &Span) -> Option<Cow<'a, str>> {
    let raw = bytes.get(span.clone())?;
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let Some(escape) = memchr(b'\\', inner) else {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    };
    let mut out = Vec::with_capacity(inner.len());
    let unescaped = push_unescaped(&mut out, inner, escape).and_then(|()| String::from_utf8(out).ok());
    unescaped.or_else(|| serde_json::from_slice(raw).ok()).map(Cow::Owned)
}

/// The bytes as text, if a strict reader takes all of their strings, wherever these are: UTF-8 without control
/// characters, and with escapes that JSON has. Structure is left to the walk.
pub fn sound(bytes: &[u8]) -> Option<&str> {
    let mut at = 0;
    while let Some(escape) = memchr(b'\\', &bytes[at..]).map(|found| at + found) {
        at = match bytes.get(escape + 1)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => escape + 2,
            b'u' => {
                let digits = bytes.get(escape + 2..escape + 6)?;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(escape + 6)?
            }
            _ => return None,
        };
    }
    if has_control(bytes) { None } else { std::str::from_utf8(bytes).ok() }
}

/// Returns true if there is a control character, which no string may hold as it is. All bytes are looked at in one
/// run, which is faster than to stop at the first.
pub fn has_control(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |found, byte| found | (*byte < b' '))
}

/// Returns true if a string span holds nothing but white space.
pub fn is_blank(bytes: &[u8], span: &Span) -> bool {
    // Most texts start with a letter, and need not be read further.
    let says = |first: &u8| first.is_ascii_graphic() && !matches!(first, b'"' | b'\\');
    !bytes.get(span.start + 1).is_some_and(says)
        && text(bytes, span).is_some_and(|text| text.trim().is_empty())
}

/// Appends the inside of a string that has escapes. `None` if escapes or UTF-8 are broken; then what was appended is
/// of no use. It is UTF-8 if the string is.
pub fn push_text(out: &mut Vec<u8>, bytes: &[u8], inner: Span) -> Option<()> {
    let from = out.len();
    let raw = &bytes[inner.clone()];
    let Some(escape) = memchr(b'\\', raw) else {
        out.extend_from_slice(raw);
        return Some(());
    };
    if push_unescaped(out, raw, escape).is_none() {
        out.truncate(from);
        let text: String = serde_json::from_slice(&bytes[inner.start - 1..inner.end + 1]).ok()?;
        out.extend_from_slice(text.as_bytes());
    }
    Some(())
}

/// Appends the inside of a string with its usual escapes undone, the first of which is at `at`. `None` for those of
/// code points and for whatever is broken: a slower parser knows these.
fn push_unescaped(out: &mut Vec<u8>, inner: &[u8], mut at: usize) -> Option<()> {
    let mut from = 0;
    loop {
        out.extend_from_slice(&inner[from..at]);
        out.push(match inner.get(at + 1)? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 0x08,
            b'f' => 0x0c,
            same @ (b'"' | b'\\' | b'/') => *same,
            _ => return None,
        });
        from = at + 2;
        match near(b'\\', &inner[from..]) {
            Some(next) => at = from + next,
            None => break,
        }
    }
    out.extend_from_slice(&inner[from..]);
    (!has_control(inner)).then_some(())
}

/// Returns true if a key span spells `name`, with or without escapes.
pub fn is_key(bytes: &[u8], key: &Span, name: &str) -> bool {
    let raw = &bytes[key.clone()];
    let inner = &raw[1..raw.len() - 1];
    match inner.len() {
        len if len == name.len() => inner == name.as_bytes(),
        // A spelling with escapes is longer than the name, and at most six times as long.
        len if len < name.len() || len > 6 * name.len() => false,
        _ => memchr(b'\\', inner).is_some() && text(bytes, key).is_some_and(|key| key == name),
    }
}
