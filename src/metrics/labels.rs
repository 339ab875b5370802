//! Label values that come from outside.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError, RwLock};

use crate::engine::request::clients::{NONE, OTHER};
use crate::engine::words::TenantId;

/// One payer may bring this part of such names.
const NAMES_SHARE: usize = 4;
const NAME_BYTES_MAX: usize = 64;
/// Longer than any word in the name of a model.
const WORD_BYTES_MAX: usize = 16;

/// Label values that come from outside: at most `max`, [`GIVEN`] among them, of harmless characters; everything
/// else is `other`.
pub struct LabelValues {
    seen: RwLock<HashSet<String>>,
    /// The first words of the names that were reserved.
    families: RwLock<HashSet<String>>,
    /// The number of names that each payer has brought.
    brought: Mutex<HashMap<TenantId, usize>>,
    max: usize,
}

/// The labels of those that have no name, or for whom no place is left.
const GIVEN: [&str; 2] = [NONE, OTHER];

/// Decides if an unknown name may take one of the free places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// It is one of a bounded number.
    New,
    /// It is one of a bounded number, of which one payer may bring a part: versions are free to invent.
    Of(TenantId),
    /// The upstream vouched for it with a 2xx, and it is made of short words, of which one is the first word of a reserved
    /// name: whatever else a client sends in the place of a name, such as a key, is not shown.
    Akin,
    KnownOnly,
}

impl LabelValues {
    pub(super) fn new(max: usize) -> LabelValues {
        let seen = RwLock::new(GIVEN.map(str::to_owned).into());
        LabelValues { seen, families: RwLock::default(), brought: Mutex::default(), max }
    }

    /// Gives these names their places before anybody else comes.
    pub fn reserve<'a>(&self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            self.label(name, Admit::New);
            let mut families = self.families.write().unwrap_or_else(PoisonError::into_inner);
            families.extend(words(name).next().map(str::to_owned));
        }
    }

    /// Returns true if a name looks like one of a reserved name's family.
    fn is_akin(&self, name: &str) -> bool {
        let families = self.families.read().unwrap_or_else(PoisonError::into_inner);
        words(name).all(|word| word.len() <= WORD_BYTES_MAX)
            && words(name).any(|word| families.contains(word))
    }

    /// The label for `name`.
    pub fn label<'a>(&self, name: &'a str, admit: Admit) -> &'a str {
        if self.seen.read().unwrap_or_else(PoisonError::into_inner).contains(name) {
            return name;
        }
        let harmless = |b: u8| b.is_ascii_alphanumeric() || b"._:@/-".contains(&b);
        let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(harmless);
        let may_enter = match admit {
            Admit::New | Admit::Of(_) => true,
            Admit::Akin => self.is_akin(name),
            Admit::KnownOnly => false,
        };
        if !fits || !may_enter {
            return OTHER;
        }
        // One at a time, so that two newcomers cannot take the last place together.
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(name) {
            return name;
        }
        if seen.len() >= self.max || !self.may_bring(admit) {
            return OTHER;
        }
        seen.insert(name.to_owned());
        name
    }

    /// Counts a name that is brought, if its payer may bring one more.
    fn may_bring(&self, admit: Admit) -> bool {
        let Admit::Of(payer) = admit else { return true };
        let mut brought = self.brought.lock().unwrap_or_else(PoisonError::into_inner);
        let names = brought.entry(payer).or_default();
        *names += 1;
        *names <= (self.max / NAMES_SHARE).max(1)
    }
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_harmless() {
        let names = LabelValues::new(GIVEN.len() + 2);
        assert_eq!(names.label("none", Admit::KnownOnly), "none");
        assert_eq!(names.label("a", Admit::KnownOnly), "other");
        assert_eq!(names.label("a", Admit::New), "a");
        assert_eq!(names.label("a", Admit::KnownOnly), "a");
        assert_eq!(names.label("bad name", Admit::New), "other");
        assert_eq!(names.label("", Admit::New), "other");
        assert_eq!(names.label(&"x".repeat(65), Admit::New), "other");
        names.reserve(["b", "c"].into_iter());
        assert_eq!(names.label("b", Admit::KnownOnly), "b");
        assert_eq!(names.label("c", Admit::New), "other");
    }

    #[test]
    fn one_payer_brings_a_quarter_of_the_names() {
        let names = LabelValues::new(64);
        let shown = |payer: u8, range: std::ops::Range<usize>| {
            let admit = Admit::Of(TenantId([payer; 32]));
            range.filter(|minor| names.label(&format!("claude-cli/1.{minor}"), admit) != OTHER).count()
        };
        assert_eq!((shown(1, 0..64), shown(2, 100..164)), (16, 16));
        assert_eq!(shown(2, 0..16), 16, "what others brought is shown");
        assert_eq!(names.label("claude-cli/2.1", Admit::Of(TenantId([3; 32]))), "claude-cli/2.1");
    }

    #[test]
    fn only_relatives_of_reserved_names_are_admitted_for_their_looks() {
        let names = LabelValues::new(GIVEN.len() + 9);
        names.reserve(["claude-x-1", "house"].into_iter());
        for akin in ["claude-y", "us.anthropic.claude-x-2-v1:0", "claude-x@20261116", "gateway/house-2"] {
            assert_eq!(names.label(akin, Admit::Akin), akin);
        }
        let key = format!("claude-{}", "kE7".repeat(16));
        for strange in ["sk-ant-api03-claudius", "0123456789abcdef", "x-1", &key, &"a".repeat(64)] {
            assert_eq!(names.label(strange, Admit::Akin), "other");
        }
    }

    #[test]
    fn many_newcomers_at_once_take_no_more_places_than_there_are() {
        let names = LabelValues::new(GIVEN.len() + 10);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let names = &names;
                scope.spawn(move || {
                    for number in 0..300 {
                        names.label(&format!("m{thread}-{number}"), Admit::New);
                    }
                });
            }
        });
        let shown = |name: &String| names.label(name, Admit::KnownOnly) != OTHER;
        let all = (0..8).flat_map(|thread| (0..300).map(move |number| format!("m{thread}-{number}")));
        assert_eq!(all.filter(shown).count(), 10);
    }
}
