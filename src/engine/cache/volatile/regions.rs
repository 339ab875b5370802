//! Where two versions of a text differ.
//!
//! Texts are compared as they are in the body: a line ends at the escape `\n` or at a line break between tokens.
//! Equal lines at both ends are left out. In between, where lines differ, the versions fall into step again at the
//! nearest lines that are equal ([`RESYNC_LINES`]); if there are none, the rest is one region. So the work is linear
//! in the text, plus a constant per region, of which there are few. Of a long text only a part is compared, from the
//! first difference on.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::CHANGES_MAX;
use crate::engine::cache::divergence::same_start;
use crate::engine::request::json::Span;

/// The number of lines ahead in which equal lines are looked for.
const RESYNC_LINES: usize = 32;

/// Before the first difference in a long text, and behind the last, this much of a line is looked at too.
const MARGIN_BYTES: usize = 512;

/// A place where two versions differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Whole words or lines, in each version; empty where one has nothing.
    pub spans: [Span; 2],
    /// The lines that they are in.
    pub lines: [Span; 2],
}

/// At most [`CHANGES_MAX`] regions, in order. Of versions that are longer than `room`, so many bytes are compared, and
/// what comes behind is left out.
pub fn regions(versions: [&[u8]; 2], room: usize) -> Vec<Region> {
    if versions.iter().all(|version| version.len() <= room) {
        return regions_within(versions);
    }
    let parts = parts_that_differ(versions, room);
    let mut found = regions_within([0, 1].map(|side| &versions[side][parts[side].clone()]));
    for region in &mut found {
        for side in [0, 1] {
            let start = parts[side].start;
            for span in [&mut region.spans[side], &mut region.lines[side]] {
                *span = start + span.start..start + span.end;
            }
        }
    }
    found
}

/// The part of each version from shortly before the first difference to shortly behind the last, at most `room` bytes.
fn parts_that_differ([one, two]: [&[u8]; 2], room: usize) -> [Span; 2] {
    let shorter = one.len().min(two.len());
    let same = same_start(one, two);
    let behind = one[same..].iter().rev().zip(two[same..].iter().rev());
    let behind = behind.take(shorter - same).take_while(|(one, two)| one == two).count();
    let mut start = same.saturating_sub(MARGIN_BYTES);
    // An escape is not taken apart.
    while start > 0 && one[start - 1] == b'\\' {
        start -= 1;
    }
    [one, two].map(|version| {
        let end = version.len() - behind + MARGIN_BYTES;
        start..end.min(version.len()).min(start + room)
    })
}

fn regions_within(versions: [&[u8]; 2]) -> Vec<Region> {
    let lines = versions.map(lines);
    let equal = |one: &TextLine, two: &TextLine| {
        one.hash == two.hash && versions[0][one.span.clone()] == versions[1][two.span.clone()]
    };
    let [one, two] = &lines;
    let start = one.iter().zip(two).take_while(|(one, two)| equal(one, two)).count();
    let tails = one[start..].iter().rev().zip(two[start..].iter().rev());
    let tail = tails.take_while(|(one, two)| equal(one, two)).count();
    let ends = [one.len() - tail, two.len() - tail];
    let (mut i, mut j) = (start, start);
    let mut found = Vec::new();
    while (i < ends[0] || j < ends[1]) && found.len() < CHANGES_MAX {
        let (old, new) = (&one[i..ends[0]], &two[j..ends[1]]);
        let (gone, come) = resync(old, new, equal).unwrap_or((old.len(), new.len()));
        hunk(versions, [&one[i..], &two[j..]], [gone, come], &mut found);
        // The lines on which both agree again are passed here, so that each round makes way.
        let same = old[gone..].iter().zip(&new[come..]).take_while(|(one, two)| equal(one, two)).count();
        (i, j) = (i + gone + same, j + come + same);
    }
    found.truncate(CHANGES_MAX);
    found
}

struct TextLine {
    span: Span,
    hash: u64,
}

fn lines(text: &[u8]) -> Vec<TextLine> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let mut lines = Vec::new();
    let (mut from, mut at) = (0, 0);
    let mut push = |span: Span| lines.push(TextLine { hash: hasher.hash_one(&text[span.clone()]), span });
    while let Some(step) = memchr::memchr2(b'\\', b'\n', &text[at..]) {
        at += step;
        let (is_end, len) = match &text[at..] {
            [b'\\', b'n', ..] => (true, 2),
            [b'\\', _, ..] => (false, 2),
            [b'\n', ..] => (true, 1),
            _ => (false, 1),
        };
        if is_end {
            push(from..at);
            from = at + len;
        }
        at += len;
    }
    push(from..text.len());
    lines
}

/// Returns the number of lines to pass in each version until both agree; the fewest. At the start they do not.
fn resync(
    old: &[TextLine],
    new: &[TextLine],
    equal: impl Fn(&TextLine, &TextLine) -> bool,
) -> Option<(usize, usize)> {
    (1..=2 * RESYNC_LINES).find_map(|sum| {
        let gone = (0..=sum).filter(|gone| *gone <= RESYNC_LINES && sum - gone <= RESYNC_LINES);
        let pair = |gone: usize| Some((old.get(gone)?, new.get(sum - gone)?));
        let mut agreeing = gone.filter(|gone| pair(*gone).is_some_and(|(old, new)| equal(old, new)));
        agreeing.next().map(|gone| (gone, sum - gone))
    })
}

/// The lines of one difference. Those at its start and its end that are versions of each other are compared one by
/// one, and so are all if there are as many in both; what is left came or went as a whole.
fn hunk(versions: [&[u8]; 2], lines: [&[TextLine]; 2], counts: [usize; 2], found: &mut Vec<Region>) {
    let [old, new] = [0, 1].map(|side| &lines[side][..counts[side]]);
    let alike = |(one, two): &(&TextLine, &TextLine)| {
        is_alike(&versions[0][one.span.clone()], &versions[1][two.span.clone()])
    };
    let (head, tail) = if counts[0] == counts[1] {
        (counts[0], 0)
    } else {
        let head = old.iter().zip(new).take_while(alike).count();
        let tails = old[head..].iter().rev().zip(new[head..].iter().rev());
        (head, tails.take_while(alike).count())
    };
    let [old_end, new_end] = counts.map(|count| count - tail);
    let one_by_one = |old: &[TextLine], new: &[TextLine], found: &mut Vec<Region>| {
        for (one, two) in old.iter().zip(new) {
            if found.len() < CHANGES_MAX {
                words_of(versions, [one.span.clone(), two.span.clone()], found);
            }
        }
    };
    one_by_one(&old[..head], &new[..head], found);
    if head < old_end || head < new_end {
        let spans = [(0, old_end), (1, new_end)].map(|(side, end)| {
            let start = lines[side].get(head).map_or(versions[side].len(), |line| line.span.start);
            let last = lines[side][head..end].last();
            start..last.map_or(start, |line| line.span.end)
        });
        found.push(Region { lines: spans.clone(), spans });
    }
    one_by_one(&old[old_end..], &new[new_end..], found);
}

/// Returns true if two lines are versions of one: half of the shorter is the same at their ends.
fn is_alike(one: &[u8], two: &[u8]) -> bool {
    let shorter = one.len().min(two.len());
    let start = one.iter().zip(two).take_while(|(one, two)| one == two).count();
    let ends = one.iter().rev().zip(two.iter().rev());
    let end = ends.take(shorter - start).take_while(|(one, two)| one == two).count();
    shorter > 0 && 2 * (start + end) >= shorter
}

/// The words by which two lines differ.
fn words_of(versions: [&[u8]; 2], lines: [Span; 2], found: &mut Vec<Region>) {
    if versions[0][lines[0].clone()] == versions[1][lines[1].clone()] {
        return;
    }
    let [one, two] = [0, 1].map(|side| words(versions[side], &lines[side]));
    let equal = |(a, b): &(&Span, &Span)| versions[0][(*a).clone()] == versions[1][(*b).clone()];
    let start = one.iter().zip(&two).take_while(equal).count();
    let tail = one[start..].iter().rev().zip(two[start..].iter().rev()).take_while(equal).count();
    let (old, new) = (&one[start..one.len() - tail], &two[start..two.len() - tail]);
    let mut push = |spans: [Span; 2]| found.push(Region { spans, lines: lines.clone() });
    match (old, new) {
        // Only the bytes between the words differ.
        ([], []) => push(lines.clone()),
        _ if old.len() == new.len() => {
            let pairs = old.iter().zip(new).filter(|pair| !equal(pair));
            pairs.take(CHANGES_MAX).for_each(|(old, new)| push([old.clone(), new.clone()]));
        }
        _ => {
            let whole = |words: &[Span], side: usize, all: &[Span]| match words {
                [first, .., last] => first.start..last.end,
                [only] => only.clone(),
                [] => {
                    let at = all.get(start).map_or(lines[side].end, |next| next.start);
                    at..at
                }
            };
            push([whole(old, 0, &one), whole(new, 1, &two)]);
        }
    }
}

/// The words of a line: everything between white space, quotes, brackets and the like.
pub fn words(text: &[u8], line: &Span) -> Vec<Span> {
    let mut words = Vec::new();
    let (mut from, mut at) = (line.start, line.start);
    while at < line.end {
        let len = separator(text, at).unwrap_or(0);
        if len > 0 {
            if from < at {
                words.push(from..at);
            }
            from = (at + len).min(line.end);
            at = from;
        } else {
            // An escape is never taken apart.
            at += if text[at] == b'\\' { 2 } else { 1 };
        }
    }
    if from < line.end {
        words.push(from..line.end);
    }
    words
}

/// Returns how long the separator at `at` is.
fn separator(text: &[u8], at: usize) -> Option<usize> {
    let is_digit = |at: Option<usize>| at.and_then(|at| text.get(at)).is_some_and(u8::is_ascii_digit);
    match text.get(at)? {
        b'\\' => matches!(text.get(at + 1)?, b'"' | b'n' | b'r' | b't').then_some(2),
        b',' if is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)) => None,
        byte if byte.is_ascii_whitespace() || b"\"'`()[]{}<>,;=|".contains(byte) => Some(1),
        _ => None,
    }
}
