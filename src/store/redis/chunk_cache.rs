//! The chunks that were read or written last. Siblings share most of their prompts, and come one after another.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::names::ChunkName;
use crate::engine::words::TenantId;

/// The bytes of one of the two generations.
const GENERATION_BYTES: usize = 8 << 20;

type Generation = HashMap<(TenantId, ChunkName), Bytes>;

#[derive(Default)]
pub struct ChunkCache(Mutex<Generations>);

/// When the young are enough, they become the old ones, and the old ones are forgotten.
#[derive(Default)]
struct Generations {
    young: Generation,
    old: Generation,
    young_bytes: usize,
}

impl Generations {
    fn insert(&mut self, key: (TenantId, ChunkName), chunk: Bytes) {
        if self.young_bytes >= GENERATION_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        let bytes = chunk.len();
        if self.young.insert(key, chunk).is_none() {
            self.young_bytes += bytes;
        }
    }
}

impl ChunkCache {
    pub fn get(&self, tenant: TenantId, name: &ChunkName) -> Option<Bytes> {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(chunk) = generations.young.get(&(tenant, *name)) {
            return Some(chunk.clone());
        }
        let chunk = generations.old.remove(&(tenant, *name))?;
        generations.insert((tenant, *name), chunk.clone());
        Some(chunk)
    }

    pub fn insert(&self, tenant: TenantId, name: ChunkName, chunk: Bytes) {
        // A copy of its own: it would keep the whole prompt that it was cut from.
        let chunk = Bytes::copy_from_slice(&chunk);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((tenant, name), chunk);
    }

    /// Forgets the chunks of a tenant.
    pub fn forget(&self, tenant: TenantId) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { young, old, young_bytes } = &mut *generations;
        old.retain(|(owner, _), _| *owner != tenant);
        young.retain(|(owner, _), _| *owner != tenant);
        *young_bytes = young.values().map(Bytes::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TenantId = TenantId([1; 32]);
    const OTHER: TenantId = TenantId([2; 32]);

    #[test]
    fn what_was_used_last_is_kept_within_bounds() {
        let cache = ChunkCache::default();
        let mebibyte = Bytes::from(vec![0; 1 << 20]);
        for name in 0..100 {
            cache.insert(ONE, [name; 16], mebibyte.clone());
            assert!(cache.get(ONE, &[0; 16]).is_some(), "it was used a moment ago, before {name}");
        }
        let kept = (0..100).filter(|name| cache.get(ONE, &[*name; 16]).is_some()).count();
        assert!((8..=18).contains(&kept), "{kept} MiB");
    }

    #[test]
    fn a_tenant_is_forgotten_and_another_is_not() {
        let cache = ChunkCache::default();
        cache.insert(ONE, [1; 16], Bytes::from_static(b"a"));
        cache.insert(OTHER, [1; 16], Bytes::from_static(b"b"));
        cache.forget(ONE);
        assert_eq!(
            (cache.get(ONE, &[1; 16]), cache.get(OTHER, &[1; 16])),
            (None, Some(Bytes::from_static(b"b")))
        );
    }
}
