//! A prompt as blobs. A conversation that grows is cut where it was cut before, so that a store which keeps each blob
//! once keeps most of it once.
//!
//! The cuts follow from the last bytes before them (a gear hash) and from the size of the whole, which counts in steps:
//! what is about twice as long is cut anew.

use bytes::Bytes;

/// Blobs of about this size at least: each is a file or a value of its own.
const BLOB_BYTES: usize = 64 << 10;
/// About how many blobs a large prompt has. The most are four times as many, and a few are left for what belongs to it.
const BLOBS: usize = 12;

/// A number without pattern for each byte.
const GEAR: [u64; 256] = gear();

const fn gear() -> [u64; 256] {
    let (mut table, mut number, mut seed) = ([0; 256], 0, 0u64);
    while number < 256 {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[number] = mixed ^ (mixed >> 31);
        number += 1;
    }
    table
}

/// Cuts a prompt.
pub fn cut(whole: &Bytes) -> Vec<Bytes> {
    let size = (whole.len() / BLOBS).next_power_of_two().max(BLOB_BYTES);
    let (least, most) = (size / 4, size * 4);
    // The upper bits of the hash depend on the last 64 bytes.
    let is_cut = |hash: u64| hash >> (64 - size.trailing_zeros()) == 0;
    let (mut blobs, mut from, mut hash) = (Vec::new(), 0, 0u64);
    for (at, byte) in whole.iter().enumerate() {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
        let length = at + 1 - from;
        if (length >= least && is_cut(hash)) || length >= most {
            blobs.push(whole.slice(from..=at));
            from = at + 1;
        }
    }
    if from < whole.len() {
        blobs.push(whole.slice(from..));
    }
    blobs
}

/// Puts a prompt together again.
pub fn join(blobs: &[Bytes]) -> Bytes {
    match blobs {
        [whole] => whole.clone(),
        parts => parts.concat().into(),
    }
}

/// Returns true if these blobs are this prompt.
pub fn are(blobs: &[Bytes], whole: &[u8]) -> bool {
    let mut rest = whole;
    let is_next = |blob: &Bytes| match rest.strip_prefix(&blob[..]) {
        Some(behind) => {
            rest = behind;
            true
        }
        None => false,
    };
    blobs.iter().all(is_next) && rest.is_empty()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::engine::records::BLOBS_MAX;

    fn words(count: usize) -> Bytes {
        let word = |number: usize| format!("word {} ", blake3::hash(&number.to_le_bytes()));
        (0..count).map(word).collect::<String>().into()
    }

    #[test]
    fn a_prompt_is_put_together_as_it_was() {
        for count in [0, 1, 100, 3_000, 20_000, 200_000] {
            let whole = words(count);
            let blobs = cut(&whole);
            assert!(blobs.len() + 4 <= BLOBS_MAX, "{} blobs of {} bytes", blobs.len(), whole.len());
            assert!(join(&blobs) == whole && are(&blobs, &whole));
            assert!(!are(&blobs, &words(count + 1)));
        }
        let zeros = Bytes::from(vec![0; 32 << 20]);
        assert!(cut(&zeros).len() + 4 <= BLOBS_MAX, "no place to cut is no reason for too many");
    }

    #[test]
    fn what_has_grown_by_a_little_is_mostly_the_same_blobs() {
        let (before, after) = (words(10_000), words(10_400));
        let known: HashSet<Bytes> = cut(&before).into_iter().collect();
        let new: usize = cut(&after).iter().filter(|blob| !known.contains(*blob)).map(Bytes::len).sum();
        assert!(new < after.len() / 4, "{new} of {} bytes are new", after.len());
    }
}
