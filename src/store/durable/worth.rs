//! What a tenant has too much of for memory: the records that are worth least are left out.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::engine::records::Change;
use crate::engine::words::RecordKind;

/// The bytes at either end of a blob by which it is found among those of its length.
const END_BYTES: usize = 64;

/// The blobs of an answer that comes in parts. Each part may bring a prompt once more, which then is kept once.
#[derive(Default)]
pub struct SharedBlobs(HashMap<(usize, [u8; END_BYTES], [u8; END_BYTES]), Vec<Bytes>>);

impl SharedBlobs {
    /// Puts the blob that was seen first in the place of each that equals it.
    pub fn share(&mut self, changes: &mut [Change]) {
        let blobs = changes.iter_mut().flat_map(|change| match change {
            Change::Put(_, record) => &mut record.blobs[..],
            Change::Delete(_) => &mut [],
        });
        for blob in blobs {
            let (Some(first), Some(last)) = (blob.first_chunk(), blob.last_chunk()) else { continue };
            let alike = self.0.entry((blob.len(), *first, *last)).or_default();
            match alike.iter().find(|known| is_same(known, blob) || known == &blob) {
                Some(known) => *blob = known.clone(),
                None => alike.push(blob.clone()),
            }
        }
    }
}

fn is_same(one: &Bytes, other: &Bytes) -> bool {
    one.as_ptr() == other.as_ptr() && one.len() == other.len()
}

/// Leaves out what is worth least until no more than this many bytes are left, and returns how many records that were.
/// A blob that several records have counts once.
pub fn forget_least(changes: &mut Vec<Change>, bytes_max: usize) -> usize {
    let mut order: Vec<usize> = (0..changes.len()).collect();
    order.sort_by_key(|at| Reverse((worth(changes[*at].key().kind), *at)));
    let (mut blobs, mut bytes, mut kept) = (HashSet::new(), 0_usize, vec![true; changes.len()]);
    for at in order {
        let Change::Put(_, record) = &changes[at] else { continue };
        let names = || record.blobs.iter().map(|blob| (blob.as_ptr(), blob.len()));
        let new: HashSet<_> = names().filter(|blob| !blobs.contains(blob)).collect();
        let more = record.body.len() + new.iter().map(|(_, length)| length).sum::<usize>();
        kept[at] = bytes.saturating_add(more) <= bytes_max;
        if kept[at] {
            bytes += more;
            blobs.extend(new);
        }
    }
    let before = changes.len();
    let mut kept = kept.into_iter();
    changes.retain(|_| kept.next().unwrap_or(true));
    before - changes.len()
}

/// The order in which kinds of records are kept. A child without its prefix is refused or paid for anew; what was learned
/// is learned again.
fn worth(kind: RecordKind) -> u8 {
    match kind {
        RecordKind::Child => 5,
        RecordKind::ForkPoint => 4,
        RecordKind::Thread => 3,
        RecordKind::Spelling => 2,
        RecordKind::Worlds => 1,
        RecordKind::Learned => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::records::{Record, RecordKey};

    fn put(kind: RecordKind, name: usize, blobs: &[&Bytes]) -> Change {
        let key = RecordKey::new(kind, &format!("{name:x}")).unwrap();
        let blobs = blobs.iter().map(|blob| Bytes::copy_from_slice(blob)).collect();
        Change::Put(key, Record { group: None, body: Bytes::from_static(b"{}"), blobs, ttl_ms: 1_000 })
    }

    fn names(changes: &[Change]) -> Vec<(RecordKind, &str)> {
        changes.iter().map(|change| (change.key().kind, &*change.key().name)).collect()
    }

    #[test]
    fn the_children_of_a_fan_out_count_their_parent_once() {
        let parent = Bytes::from(vec![1; 200_000]);
        let mut all = Vec::new();
        let mut blobs = SharedBlobs::default();
        for page in 0..64 {
            let mut changes: Vec<Change> =
                (0..6).map(|child| put(RecordKind::Child, 6 * page + child, &[&parent])).collect();
            blobs.share(&mut changes);
            all.extend(changes);
        }
        assert_eq!(forget_least(&mut all, 201_000), 0);
        assert_eq!(all.len(), 64 * 6);
    }

    #[test]
    fn what_is_worth_least_is_left_out_and_of_one_kind_the_oldest() {
        let [one, other, third] = [1, 2, 3].map(|byte| Bytes::from(vec![byte; 1_000]));
        let mut all = vec![
            put(RecordKind::Child, 1, &[&one]),
            put(RecordKind::Child, 2, &[&other]),
            put(RecordKind::Spelling, 3, &[&third]),
            put(RecordKind::Learned, 4, &[]),
        ];
        let mut room_for_two = all.clone();
        assert_eq!(
            forget_least(&mut room_for_two, 2_010),
            1,
            "what was learned last goes before an old child"
        );
        let kinds = [(RecordKind::Child, "1"), (RecordKind::Child, "2"), (RecordKind::Learned, "4")];
        assert_eq!(names(&room_for_two), kinds);
        assert_eq!(forget_least(&mut all, 1_004), 2);
        assert_eq!(names(&all), [(RecordKind::Child, "2"), (RecordKind::Learned, "4")]);
    }

    #[test]
    fn short_blobs_and_blobs_that_differ_in_the_middle_stay_what_they_are() {
        let mut middle = vec![1; 1_000];
        middle[500] = 2;
        let [one, other, short] = [vec![1; 1_000], middle, vec![1; 10]].map(Bytes::from);
        let before =
            vec![put(RecordKind::Child, 1, &[&one, &other, &short]), put(RecordKind::Child, 2, &[&other])];
        let mut after = before.clone();
        SharedBlobs::default().share(&mut after);
        assert_eq!(after, before);
    }
}
