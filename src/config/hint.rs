//! "Did you mean": the known word nearest to an unknown one.
//!
//! A key in the wrong section is the likeliest mistake and is looked for first; then spelling counts, by edit
//! distance with swapped neighbours as one edit. A suggestion far from what was written is worse than none.

use super::keys::{KEYS, SECTIONS};

/// What to do about a key that nobody knows, such as `server.lisen`.
pub(super) fn for_unknown_key(path: &str) -> String {
    let plain = path.to_lowercase().replace('-', "_");
    let (section, name) = plain.split_once('.').unwrap_or(("", &plain));
    let known = || KEYS.iter().map(|key| key.path);
    let elsewhere = known().find(|key| key.split_once('.').is_some_and(|(_, known)| known == name));
    if let Some(suggestion) = elsewhere.or_else(|| nearest(&plain, known())) {
        return format!("did you mean {suggestion}?");
    }
    let siblings: Vec<_> = known().filter_map(|key| key.strip_prefix(section)?.strip_prefix('.')).collect();
    if siblings.is_empty() {
        format!("the sections are {}", section_names().collect::<Vec<_>>().join(", "))
    } else {
        format!("the keys of [{section}] are {}", siblings.join(", "))
    }
}

/// What to do about a section that nobody knows, such as `[servr]`.
pub(super) fn for_unknown_section(name: &str) -> String {
    match nearest(&name.to_lowercase(), section_names()) {
        Some(suggestion) => format!("did you mean [{suggestion}]?"),
        None => format!("the sections are {}", section_names().collect::<Vec<_>>().join(", ")),
    }
}

/// The nearest of the known words, if it is near enough to be meant.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, best) =
        known.map(|candidate| (edit_distance(word, candidate), candidate)).min_by_key(|(d, _)| *d)?;
    // A third of the word may be wrong; below three letters anything is near everything.
    (distance <= best.len() / 3).then_some(best)
}

fn section_names() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().map(|section| section.name)
}

/// Longer words are certainly no typing mistake, and the table below grows with their length.
const COMPARED_CHARS: usize = 64;

/// Insertions, deletions, replacements and swaps of neighbours that lead from one word to the other.
fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(COMPARED_CHARS + 1).collect();
    let b: Vec<char> = b.chars().take(COMPARED_CHARS + 1).collect();
    if a.len() > COMPARED_CHARS || b.len() > COMPARED_CHARS {
        return usize::MAX;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (above[j] + 1).min(row[j - 1] + 1).min(above[j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        let cases = [
            ("", "", 0),
            ("", "ab", 2),
            ("mode", "mdoe", 1),
            ("listen", "lisen", 1),
            ("kitten", "sitting", 3),
        ];
        for (a, b, expected) in cases {
            assert_eq!((edit_distance(a, b), edit_distance(b, a)), (expected, expected), "{a} {b}");
        }
        assert_eq!(edit_distance(&"a".repeat(1000), "a"), usize::MAX);
    }

    #[test]
    fn a_key_is_found_by_spelling_and_in_another_section() {
        assert_eq!(for_unknown_key("server.lisen"), "did you mean server.listen?");
        assert_eq!(for_unknown_key("server.body_bytes"), "did you mean limits.body_bytes?");
        assert_eq!(for_unknown_key("listen"), "did you mean server.listen?");
        assert_eq!(for_unknown_key("limits.body-bytes"), "did you mean limits.body_bytes?");
    }

    #[test]
    fn without_a_near_word_the_choices_are_listed() {
        assert_eq!(for_unknown_key("drain.zebra"), "the keys of [drain] are delay_ms, deadline_s");
        assert!(for_unknown_key("zebra.crossing").starts_with("the sections are server, upstream"));
        assert_eq!(for_unknown_section("servr"), "did you mean [server]?");
        assert!(for_unknown_section("zebra").starts_with("the sections are server, upstream"));
    }
}
