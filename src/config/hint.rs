//! Suggests the known word that is nearest to an unknown one: "did you mean …?"
//!
//! A key in the wrong section is the likeliest mistake and is tried first. After that the edit distance decides, in
//! which swapped neighbours are one edit. A suggestion far from what was written is worse than none.

use strsim::osa_distance;

use super::keys::{KEYS, SECTIONS};

/// The most characters that are compared. Longer words are no typing mistakes, and take long to compare.
const COMPARED_CHARS: usize = 64;

/// Returns the hint for an unknown key, such as `server.lisen`.
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

/// Returns the hint for an unknown section, such as `[servr]`.
pub(super) fn for_unknown_section(name: &str) -> String {
    match nearest(&name.to_lowercase(), section_names()) {
        Some(suggestion) => format!("did you mean [{suggestion}]?"),
        None => format!("the sections are {}", section_names().collect::<Vec<_>>().join(", ")),
    }
}

/// Returns the nearest of the known words, if it is near enough.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.chars().nth(COMPARED_CHARS).is_some() {
        return None;
    }
    let (distance, best) =
        known.map(|candidate| (osa_distance(word, candidate), candidate)).min_by_key(|(d, _)| *d)?;
    // A third of the word may be wrong. Words of less than three letters are too near to each other.
    (distance <= best.len() / 3).then_some(best)
}

fn section_names() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().map(|section| section.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_and_swaps_count_as_one_mistake_each() {
        let known = || ["mode", "listen", "sitting"].into_iter();
        for (word, expected) in
            [("mdoe", Some("mode")), ("lisen", Some("listen")), ("mxxe", None), ("kitchen", None), ("", None)]
        {
            assert_eq!(nearest(word, known()), expected, "{word}");
        }
        assert_eq!(nearest(&"a".repeat(1000), known()), None);
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
