//! Prompts, cut where their content says so.
//!
//! A conversation's prompt grows at its end or, where `messages` come before `tools`, in its middle. Pieces between cuts
//! that depend on the bytes before them alone stay the same wherever they stand, so only what is new is stored again.

use bytes::Bytes;

/// The smallest chunk, but for the last of a prompt.
const LEAST: usize = 16 << 10;

/// The largest chunk.
pub const CHUNK_BYTES_MAX: usize = 128 << 10;

/// A cut comes every 32 KiB after the least, on average: these bits of the hash are zero there.
const MASK: u64 = 0x7FFF << 48;

/// The bytes that the hash depends on.
const WINDOW: usize = 64;

/// A number for each byte, mixed as in SplitMix64.
static GEAR: [u64; 256] = gear();

/// Cuts bytes into chunks, without copying them. Each is looked for when it is asked for.
pub fn chunks(bytes: Bytes) -> impl Iterator<Item = Bytes> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let next = length(&rest);
        (next > 0).then(|| rest.split_to(next))
    })
}

/// The length of the first chunk.
fn length(bytes: &[u8]) -> usize {
    let end = bytes.len().min(CHUNK_BYTES_MAX);
    let mut hash = 0_u64;
    for (at, byte) in bytes[..end].iter().enumerate().skip(LEAST - WINDOW) {
        hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
        if at >= LEAST && hash & MASK == 0 {
            return at + 1;
        }
    }
    end
}

const fn gear() -> [u64; 256] {
    let (mut table, mut at, mut state) = ([0; 256], 0, 0_u64);
    while at < 256 {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        table[at] = mixed ^ (mixed >> 31);
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Text that does not repeat itself.
    fn text(seed: u64, bytes: usize) -> Vec<u8> {
        let words =
            (0_u64..).map(|n| format!("{} ", blake3::hash(&[seed, n].map(u64::to_be_bytes).concat())));
        words.flat_map(String::into_bytes).take(bytes).collect()
    }

    fn cut(bytes: &[u8]) -> Vec<Bytes> {
        chunks(Bytes::copy_from_slice(bytes)).collect()
    }

    /// The bytes of the chunks of `after` that are not among those of `before`.
    fn new_bytes(before: &[u8], after: &[u8]) -> usize {
        let known: HashSet<Bytes> = cut(before).into_iter().collect();
        cut(after).iter().filter(|chunk| !known.contains(*chunk)).map(Bytes::len).sum()
    }

    #[test]
    fn chunks_are_the_bytes_again_and_of_bounded_size() {
        for bytes in [0, 1, LEAST, LEAST + 1, CHUNK_BYTES_MAX, 1_000_000] {
            for content in [text(1, bytes), vec![b'x'; bytes]] {
                let chunks = cut(&content);
                assert_eq!(chunks.concat(), content);
                let (last, others) =
                    chunks.split_last().map_or((0, &[][..]), |(last, others)| (last.len(), others));
                assert!(last <= CHUNK_BYTES_MAX);
                assert!(others.iter().all(|chunk| (LEAST..=CHUNK_BYTES_MAX).contains(&chunk.len())));
            }
        }
    }

    #[test]
    fn a_prompt_that_grows_shares_all_but_the_end_or_the_place_where_it_grew() {
        let before = text(1, 1_000_000);
        let news = text(2, 20_000);
        let at_the_end = [before.clone(), news.clone()].concat();
        assert!(new_bytes(&before, &at_the_end) <= 2 * CHUNK_BYTES_MAX);
        let (messages, tools) = before.split_at(600_000);
        let in_the_middle = [messages, &news, tools].concat();
        assert!(new_bytes(&before, &in_the_middle) <= 3 * CHUNK_BYTES_MAX);
    }
}
