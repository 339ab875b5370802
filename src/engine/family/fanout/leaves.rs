//! Finding the known directives in a text.
//!
//! Each directive is indexed by the hash of its last [`END_BYTES`]. A text is hashed once, from left to right,
//! so that the hash of any stretch of it is one multiplication away: at each byte the last [`END_BYTES`] are
//! looked up, and where they are the end of a directive, the hash of the whole directive is compared, then its
//! bytes. Directives that end alike (templates do) cost one comparison of numbers each.
//!
//! The hash is not secret and can be forged; so probes and comparisons are counted, and a text that needs too
//! many has no matches at all.
//!
//! A search takes time in proportion to the text. It runs on a copy of the index, which shares everything with the
//! original until that changes, and what it finds is its own.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::directive::Directive;
use super::holdings::HoldingNumber;
use super::point::ForkId;
use crate::engine::words::DigestMap;

/// Shorter than any directive, long enough to be rarely shared by accident.
const END_BYTES: usize = 48;
/// Full comparisons for one request.
pub(super) const COMPARISONS_MAX: usize = 64;
/// Comparisons of hashes for one request: room for thousands of directives that end alike.
pub(super) const PROBES_MAX: usize = 1 << 16;
/// An odd number without pattern.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The call of a fork point that a directive belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DirectiveOwner {
    pub fork: ForkId,
    /// Counts the parent: a message id, which names a fork point, may come twice, and with other calls.
    pub parent_number: HoldingNumber,
    pub call: usize,
}

/// The hashes of a text that it is indexed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextKey {
    /// Of its last [`END_BYTES`].
    end: u64,
    whole: u64,
    /// The factor that shifts a hash by the length of the text.
    shift: u64,
}

impl TextKey {
    /// `None` if the text is too short.
    pub fn of(text: &str) -> Option<TextKey> {
        let bytes = text.as_bytes();
        let end = hash(&bytes[bytes.len().checked_sub(END_BYTES)?..]);
        Some(TextKey { end, whole: hash(bytes), shift: power(bytes.len()) })
    }
}

/// The directives of one tenant, by the hash of their end. A copy is cheap, and of its own from the first change on.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaves {
    ends: DigestMap<u64, Bucket>,
}

/// The directives that end alike.
type Bucket = Arc<Vec<Arc<IndexedDirective>>>;

/// One text, however many calls carry it.
#[derive(Clone, Debug)]
pub(super) struct IndexedDirective {
    text: Directive,
    key: TextKey,
    pub owners: BTreeSet<DirectiveOwner>,
}

/// A directive that was found in one of the texts.
#[derive(Debug)]
pub(super) struct Match {
    pub directive: Arc<IndexedDirective>,
    /// Which text, and where in it.
    pub block: usize,
    pub at: Range<usize>,
    /// The length of that text.
    pub block_len: usize,
}

impl Match {
    pub fn len(&self) -> usize {
        self.at.len()
    }

    pub fn is_whole(&self) -> bool {
        self.at.len() == self.block_len
    }

    /// Returns true if this is only a part of the other, longer one.
    pub fn is_inside(&self, other: &Match) -> bool {
        self.block == other.block
            && self.len() < other.len()
            && other.at.start <= self.at.start
            && self.at.end <= other.at.end
    }
}

/// The matches of a search, and the work it took.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub matches: Vec<Match>,
    pub comparisons: usize,
    pub probes: usize,
}

impl Search {
    /// Returns true if the search was given up; what it found until then must not count.
    pub fn exhausted(&self) -> bool {
        self.comparisons >= COMPARISONS_MAX || self.probes >= PROBES_MAX
    }
}

impl Leaves {
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn insert(&mut self, text: &Directive, owner: DirectiveOwner) {
        let Some(key) = text.key else { return };
        let bucket = Arc::make_mut(self.ends.entry(key.end).or_default());
        match bucket.iter_mut().find(|leaf| leaf.is(text, key)) {
            Some(leaf) => {
                Arc::make_mut(leaf).owners.insert(owner);
            }
            None => {
                let leaf = IndexedDirective { text: text.clone(), key, owners: [owner].into() };
                bucket.push(Arc::new(leaf));
            }
        }
    }

    pub fn remove(&mut self, text: &Directive, owner: DirectiveOwner) {
        let Some(key) = text.key else { return };
        let Some(bucket) = self.ends.get_mut(&key.end) else { return };
        let bucket = Arc::make_mut(bucket);
        if let Some(at) = bucket.iter().position(|leaf| leaf.is(text, key)) {
            let owners = &mut Arc::make_mut(&mut bucket[at]).owners;
            owners.remove(&owner);
            if owners.is_empty() {
                bucket.swap_remove(at);
            }
        }
        if bucket.is_empty() {
            self.ends.remove(&key.end);
        }
    }

    /// Searches the texts, `bytes` of them at most. White space around a text does not count.
    pub fn search<'t>(&self, texts: impl Iterator<Item = Cow<'t, str>>, bytes: usize) -> Search {
        let mut search = Search::default();
        let mut left = bytes;
        for (block, text) in texts.enumerate() {
            let text = text.trim().as_bytes();
            let seen = &text[..text.len().min(left)];
            left -= seen.len();
            self.search_one(block, seen, text.len(), &mut search);
            if left == 0 || search.exhausted() {
                break;
            }
        }
        search
    }

    fn search_one(&self, block: usize, text: &[u8], block_len: usize, search: &mut Search) {
        if text.len() < END_BYTES {
            return;
        }
        let hashes = running(text);
        let shift = power(END_BYTES);
        for end in END_BYTES..=text.len() {
            let Some(bucket) = self.ends.get(&between(&hashes, end - END_BYTES, end, shift)) else {
                continue;
            };
            for leaf in bucket.iter() {
                if search.exhausted() {
                    return;
                }
                search.probes += 1;
                let Some(start) = end.checked_sub(leaf.text.len()) else { continue };
                if between(&hashes, start, end, leaf.key.shift) != leaf.key.whole {
                    continue;
                }
                let known = |m: &Match| m.block == block && Arc::ptr_eq(&m.directive, leaf);
                if search.matches.iter().any(known) {
                    continue;
                }
                search.comparisons += 1;
                if &text[start..end] == leaf.text.as_bytes() {
                    let directive = Arc::clone(leaf);
                    search.matches.push(Match { directive, block, at: start..end, block_len });
                }
            }
        }
    }
}

impl IndexedDirective {
    fn is(&self, text: &Directive, key: TextKey) -> bool {
        self.key == key && *self.text == **text
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |hash, byte| step(hash, *byte))
}

/// The hash of every beginning of the text, the empty one first.
fn running(text: &[u8]) -> Vec<u64> {
    let mut hash = 0;
    let steps = text.iter().map(|byte| {
        hash = step(hash, *byte);
        hash
    });
    std::iter::once(0).chain(steps).collect()
}

fn step(hash: u64, byte: u8) -> u64 {
    // No byte counts as nothing.
    hash.wrapping_mul(BASE).wrapping_add(u64::from(byte) + 1)
}

/// The hash of a stretch, where `shift` is the power of its length.
fn between(hashes: &[u64], start: usize, end: usize, shift: u64) -> u64 {
    hashes[end].wrapping_sub(hashes[start].wrapping_mul(shift))
}

fn power(len: usize) -> u64 {
    let (mut result, mut square, mut left) = (1u64, BASE, len);
    while left > 0 {
        if left % 2 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left /= 2;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::words::TenantId;
    use proptest::prelude::*;

    fn fork(name: &str) -> ForkId {
        ForkId::of(TenantId([0; 32]), name)
    }

    fn owner(name: &str, call: usize) -> DirectiveOwner {
        DirectiveOwner { fork: fork(name), parent_number: HoldingNumber::default(), call }
    }

    fn directive(text: &str) -> Directive {
        Directive::new(Arc::from(text))
    }

    fn leaves(texts: &[String]) -> Leaves {
        let mut leaves = Leaves::default();
        for (call, text) in texts.iter().enumerate() {
            leaves.insert(&directive(text), owner("a", call));
        }
        leaves
    }

    fn search(leaves: &Leaves, text: &str) -> Search {
        leaves.search([Cow::Borrowed(text)].into_iter(), 256 << 10)
    }

    fn calls(search: &Search) -> Vec<usize> {
        let owners = search.matches.iter().flat_map(|m| &m.directive.owners);
        let mut calls: Vec<_> = owners.map(|owner| owner.call).collect();
        calls.sort();
        calls
    }

    const TAIL: &str = " and then report everything you have found out, in order.";

    #[test]
    fn thousands_of_directives_that_end_alike_cost_one_comparison() {
        let texts: Vec<_> = (0..5_000).map(|n| format!("look into area {n}{TAIL}")).collect();
        let leaves = leaves(&texts);
        let found = search(&leaves, &format!("<task>{}</task>", texts[4_321]));
        assert_eq!((calls(&found), found.comparisons), (vec![4_321], 1));
        assert!(!found.exhausted());
    }

    #[test]
    fn a_text_that_repeats_an_end_is_cheap_and_one_that_forges_it_is_given_up() {
        let few: Vec<_> = (0..4).map(|n| format!("look into area {n}{TAIL}")).collect();
        let hostile = TAIL.repeat((256 << 10) / TAIL.len() + 1);
        let leaves_few = leaves(&few);
        let found = search(&leaves_few, &hostile);
        assert_eq!((found.comparisons, found.matches.len()), (0, 0));
        assert!(found.probes < 20_000);
        let many: Vec<_> = (0..5_000).map(|n| format!("look into area {n}{TAIL}")).collect();
        let leaves_many = leaves(&many);
        let found = search(&leaves_many, &hostile);
        assert!(found.exhausted());
        assert_eq!((found.comparisons, found.probes), (0, PROBES_MAX));
        let mixed = many[..200].join("\n");
        let found = search(&leaves_many, &mixed);
        assert!(found.exhausted());
        assert!(found.comparisons <= COMPARISONS_MAX);
    }

    #[test]
    fn only_so_many_bytes_are_searched_and_the_rest_still_counts() {
        let text = format!("look into this{TAIL}");
        let leaves = leaves(std::slice::from_ref(&text));
        let far = format!("{}{text}", "x".repeat(300 << 10));
        assert_eq!(search(&leaves, &far).matches.len(), 0);
        let near = format!("{text}{}", "x".repeat(300 << 10));
        assert_eq!(search(&leaves, &near).matches[0].block_len, near.len());
        let second = [Cow::Owned("x".repeat(300 << 10)), Cow::Borrowed(text.as_str())];
        assert_eq!(leaves.search(second.into_iter(), 256 << 10).matches.len(), 0);
    }

    #[test]
    fn nothing_is_left_of_what_was_removed() {
        let text = directive(&format!("look into this{TAIL}"));
        let other = directive(&format!("look into that{TAIL}"));
        let mut leaves = Leaves::default();
        leaves.insert(&text, owner("a", 0));
        leaves.insert(&text, owner("b", 1));
        leaves.insert(&other, owner("b", 2));
        leaves.remove(&text, owner("a", 0));
        assert_eq!(calls(&search(&leaves, &text)), [1]);
        leaves.remove(&other, owner("b", 2));
        leaves.remove(&text, owner("b", 1));
        assert!(leaves.is_empty());
        leaves.remove(&text, owner("b", 1));
    }

    #[test]
    fn a_copy_keeps_what_the_original_forgets_and_learns_nothing_new() {
        let texts: Vec<_> = ["this", "that"].map(|part| format!("look into {part}{TAIL}")).into();
        let mut original = leaves(&texts[..1]);
        let copy = original.clone();
        original.insert(&directive(&texts[1]), owner("a", 1));
        original.insert(&directive(&texts[0]), owner("a", 2));
        original.remove(&directive(&texts[0]), owner("a", 0));
        let found = |leaves: &Leaves| calls(&search(leaves, &texts.join("\n")));
        assert_eq!((found(&copy), found(&original)), (vec![0], vec![1, 2]));
    }

    proptest! {
        #[test]
        fn every_directive_in_a_text_is_found_and_no_other(
            texts in prop::collection::btree_set("[ab]{48,52}", 1..8),
            before in "[abé]{0,60}",
            after in "[ab]{0,60}",
            chosen in any::<prop::sample::Index>(),
        ) {
            let texts: Vec<String> = texts.into_iter().collect();
            let leaves = leaves(&texts);
            let text = format!("{before}{}{after}", chosen.get(&texts));
            let expected: Vec<_> = (0..texts.len()).filter(|n| text.contains(&texts[*n])).collect();
            let found = search(&leaves, &text);
            prop_assert_eq!(calls(&found), expected);
            for m in &found.matches {
                prop_assert!(texts.contains(&text[m.at.clone()].to_owned()));
            }
        }
    }
}
