//! The kind of a text that changed, by its look and the words around it.

use super::regions::{Region, words};
use crate::engine::request::json::{self, Span};
use crate::engine::words::VolatileKind;

/// Longer words are prose in some script without spaces, or data.
const WORD_BYTES_MAX: usize = 512;
/// Lines that `git` prints are short; a word like `branch:` in a long one says nothing about the rest.
const GIT_LINE_BYTES_MAX: usize = 512;
/// A region of more words, or of more lines, is looked at no further.
const WORDS_MAX: usize = 64;
/// So much of a region's lines is looked at for what `git` prints.
const GIT_BYTES_MAX: usize = WORDS_MAX * GIT_LINE_BYTES_MAX;
/// The number of bytes around a region in which its neighbours are looked for.
const CONTEXT_BYTES: usize = 64;

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// The kind of a region: what both versions look like.
pub fn kind(versions: [&[u8]; 2], region: &Region) -> VolatileKind {
    let is_git = [0, 1].into_iter().any(|side| {
        let lines = &versions[side][region.lines[side].clone()];
        let lines = lines[..lines.len().min(GIT_BYTES_MAX)].split(|byte| *byte == b'\n');
        lines.take(WORDS_MAX).any(|line| escaped_lines(line).into_iter().take(WORDS_MAX).any(is_git_line))
    });
    if is_git {
        return VolatileKind::Git;
    }
    let [one, two] = [0, 1].map(|side| side_kind(versions[side], &region.spans[side], &region.lines[side]));
    let texts = [0, 1].map(|side| &versions[side][region.spans[side].clone()]);
    match (one, two) {
        _ if texts[0].is_empty() => two.unwrap_or_else(|| number_or_other(texts[1])),
        _ if texts[1].is_empty() => one.unwrap_or_else(|| number_or_other(texts[0])),
        (Some(one), Some(two)) if one == two => one,
        (Some(VolatileKind::Date), Some(VolatileKind::Clock))
        | (Some(VolatileKind::Clock), Some(VolatileKind::Date)) => VolatileKind::Clock,
        // Digits alone look like no id, and sometimes an id is just that.
        (Some(VolatileKind::Id), None) if is_number(texts[1]) => VolatileKind::Id,
        (None, Some(VolatileKind::Id)) if is_number(texts[0]) => VolatileKind::Id,
        _ => counter_or_other(texts[0], texts[1]),
    }
}

/// The lines of a text whose line breaks are escaped.
fn escaped_lines(text: &[u8]) -> Vec<&[u8]> {
    let (mut lines, mut from, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        if text[at..].starts_with(b"\\n") {
            lines.push(&text[from..at]);
            from = at + 2;
        }
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    lines.push(&text[from..]);
    lines
}

/// The one kind of all words of a region, if they have one.
fn side_kind(text: &[u8], span: &Span, line: &Span) -> Option<VolatileKind> {
    // A line may be the whole text; only the words next to the region count.
    let line =
        line.start.max(span.start.saturating_sub(CONTEXT_BYTES))..line.end.min(span.end + CONTEXT_BYTES);
    let around = words(text, &line);
    let is_inside = |word: &&Span| word.start >= span.start && word.end <= span.end;
    let first = around.iter().position(|word| is_inside(&word))?;
    let count = around[first..].iter().take_while(is_inside).count();
    if count > WORDS_MAX {
        return None;
    }
    let word = |index: usize| around.get(index).map(|word| plain(&text[word.clone()]));
    let mut kinds = (first..first + count).map(|index| word_kind(index, &word));
    let kind = kinds.next()??;
    kinds.try_fold(kind, |kind, next| match (kind, next?) {
        (one, two) if one == two => Some(one),
        (VolatileKind::Date | VolatileKind::Clock, VolatileKind::Date | VolatileKind::Clock) => {
            Some(VolatileKind::Clock)
        }
        _ => None,
    })
}

/// A word without escapes and without the punctuation around it; nothing if it is too long.
fn plain(raw: &[u8]) -> String {
    if raw.len() > WORD_BYTES_MAX {
        return String::new();
    }
    let quoted = [b"\"", raw, b"\""].concat();
    let text = json::text(&quoted, &(0..quoted.len())).map_or_else(String::new, |text| text.into_owned());
    text.trim_matches(['.', ':', '!', '?', '*', '#', '_']).to_owned()
}

fn word_kind(index: usize, word: &impl Fn(usize) -> Option<String>) -> Option<VolatileKind> {
    let text = word(index)?;
    let near = |from: usize, to: usize| (from..to).filter(|near| *near != index).filter_map(word);
    if is_clock(&text) || is_epoch(&text) {
        return Some(VolatileKind::Clock);
    }
    let is_half = text.eq_ignore_ascii_case("am") || text.eq_ignore_ascii_case("pm");
    if is_half && near(index.saturating_sub(1), index).any(|before| is_clock(&before)) {
        return Some(VolatileKind::Clock);
    }
    let is_named = |text: &str| is_name_of(&WEEKDAYS, text) || is_name_of(&MONTHS, text);
    let has_month = || near(index.saturating_sub(2), index + 3).any(|near| is_name_of(&MONTHS, &near));
    if is_numeric_date(&text) || is_named(&text) || (is_day_or_year(&text) && has_month()) {
        return Some(VolatileKind::Date);
    }
    if is_absolute_path(&text) {
        return Some(VolatileKind::Directory);
    }
    if is_hex(&text, 7..=7) {
        return Some(VolatileKind::Git);
    }
    is_id(&text).then_some(VolatileKind::Id)
}

/// `9:05`, `09:05:30.5Z`, `10:00pm`, or a date with such a time after it.
fn is_clock(text: &str) -> bool {
    let time = match text.split_once(['T', 't']) {
        Some((date, time)) if is_numeric_date(date) => time,
        _ => text,
    };
    let mut bytes = time.bytes().peekable();
    let mut digits = || {
        let mut count = 0;
        while bytes.next_if(u8::is_ascii_digit).is_some() {
            count += 1;
        }
        (count, bytes.next())
    };
    let (hour, minute) = (digits(), digits());
    let ends_time = |byte: Option<u8>| byte.is_none_or(|byte| b":Z+-apAP".contains(&byte));
    matches!(hour, (1 | 2, Some(b':'))) && minute.0 == 2 && ends_time(minute.1)
}

/// Seconds or milliseconds since 1970, of the years from 2001 to 2033.
fn is_epoch(text: &str) -> bool {
    let whole = text.split('.').next().unwrap_or_default();
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_number && whole.starts_with('1') && matches!(whole.len(), 10 | 13)
}

/// `2026-11-16`, `2026/11/16`, `16.11.2026`, `11/16/2026`.
fn is_numeric_date(text: &str) -> bool {
    ['-', '/', '.'].into_iter().any(|between| {
        let parts: Vec<&str> = text.splitn(4, between).collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
        parts.iter().all(is_number) && matches!(lengths[..], [4, 2, 2] | [1 | 2, 1 | 2, 4])
    })
}

/// The whole name or its first three letters.
fn is_name_of(names: &[&str], text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    names.iter().any(|name| *name == text || (text.len() == 3 && name.starts_with(&text)))
}

/// `5`, `16th`, `2026`.
fn is_day_or_year(text: &str) -> bool {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &text[digits.len()..];
    matches!(digits.len(), 1 | 2 | 4)
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && matches!(suffix, "" | "st" | "nd" | "rd" | "th")
}

/// `/home/x`, `~/x`, `C:\x`, `\\server\x`, `file:///x`.
fn is_absolute_path(text: &str) -> bool {
    let text = text.strip_prefix("file://").unwrap_or(text);
    let is_name =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._-~".contains(byte));
    match text.as_bytes() {
        [b'/', rest @ ..] => is_name(rest.first()),
        [b'~', b'/' | b'\\', ..] | [b'\\', b'\\', _, ..] => true,
        [drive, b':', b'/' | b'\\', ..] => drive.is_ascii_alphabetic(),
        _ => false,
    }
}

/// A UUID, eight or more hex digits, or a long run of letters and digits without a word's look.
fn is_id(text: &str) -> bool {
    let is_uuid = || {
        let lengths: Vec<usize> = text.split('-').map(str::len).collect();
        lengths == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    };
    let is_mixed = |run: &str| {
        run.len() >= 16
            && run.bytes().any(|byte| byte.is_ascii_digit())
            && run.bytes().any(|byte| byte.is_ascii_alphabetic())
    };
    is_hex(text, 8..=128) || is_uuid() || text.split(|c: char| !c.is_ascii_alphanumeric()).any(is_mixed)
}

/// Hex digits, letters and numbers among them.
fn is_hex(text: &str, lengths: std::ops::RangeInclusive<usize>) -> bool {
    lengths.contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        && text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// A branch, the state of a file, or a commit with its subject.
fn is_git_line(line: &[u8]) -> bool {
    if line.len() > GIT_LINE_BYTES_MAX {
        return false;
    }
    let Ok(line) = std::str::from_utf8(line) else { return false };
    let line = line.trim_matches(|c: char| c.is_ascii_whitespace() || "\"-*#".contains(c));
    let lower = line.to_ascii_lowercase();
    let starts =
        ["status:", "git status", "gitstatus", "on branch ", "main branch", "recent commits", "head:"];
    let is_named = starts.iter().any(|start| lower.starts_with(start));
    let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim();
    let is_commit = !rest.is_empty() && (is_hex(first, 7..=12) || is_hex(first, 40..=40));
    let is_state = matches!(first.len(), 1 | 2) && first.bytes().all(|byte| b"MADRCU?!".contains(&byte));
    let is_file = !rest.contains(' ') && rest.contains(['/', '.']);
    is_named || lower.contains("branch:") || lower.contains("git repo") || is_commit || (is_state && is_file)
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b','))
}

/// A text that came or went.
fn number_or_other(text: &[u8]) -> VolatileKind {
    if is_number(text) { VolatileKind::Counter } else { VolatileKind::Other }
}

/// A counter if the texts are equal but for their numbers.
fn counter_or_other(one: &[u8], two: &[u8]) -> VolatileKind {
    let has_digit = one.iter().any(u8::is_ascii_digit);
    if has_digit && skeleton(one) == skeleton(two) { VolatileKind::Counter } else { VolatileKind::Other }
}

/// The text with one digit for each number.
fn skeleton(text: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(text.len());
    for (at, byte) in text.iter().enumerate() {
        let in_number = out.last() == Some(&b'0');
        let is_inner =
            matches!(byte, b'.' | b',') && in_number && text.get(at + 1).is_some_and(u8::is_ascii_digit);
        match byte {
            b'0'..=b'9' if in_number => {}
            b'0'..=b'9' => out.push(b'0'),
            _ if is_inner => {}
            other => out.push(*other),
        }
    }
    out
}
