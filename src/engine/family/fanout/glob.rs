//! Names of tools by pattern: `*` matches any characters, case does not count.

/// Returns true if the whole name fits the pattern. Both are short, and one step back is enough: the last `*` can
/// always take over what an earlier one would.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // The last star, and the byte of the name at which it was met.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match (pattern.get(p), star) {
            (Some(b'*'), _) => {
                star = Some((p, n));
                p += 1;
            }
            (Some(want), _) if want.eq_ignore_ascii_case(&name[n]) => {
                p += 1;
                n += 1;
            }
            (_, Some((at, met))) => {
                star = Some((at, met + 1));
                p = at + 1;
                n = met + 1;
            }
            (_, None) => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::fits;
    use proptest::prelude::*;

    #[test]
    fn stars_stand_for_any_characters_and_case_does_not_count() {
        for (pattern, name) in [
            ("Agent", "agent"),
            ("task", "TASK"),
            ("*agent*", "run_subagent_now"),
            ("*agent*", "agent"),
            ("spawn*", "spawn_agent"),
            ("spawn*", "spawn"),
            ("*a*b", "aab"),
            ("*", ""),
            ("a*b*c", "a1b2b3c"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("task", "tasks"),
            ("spawn*", "respawn"),
            ("*agent", "agents"),
            ("a*b", "ac"),
            ("", "a"),
            ("x", ""),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    /// The definition.
    fn slow(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => {
                slow(rest, name) || name.split_first().is_some_and(|(_, name)| slow(pattern, name))
            }
            (Some((p, pattern)), Some((n, name))) => p.eq_ignore_ascii_case(n) && slow(pattern, name),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn every_answer_is_that_of_the_definition(pattern in "[abA*]{0,8}", name in "[abA]{0,10}") {
            prop_assert_eq!(fits(&pattern, &name), slow(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
