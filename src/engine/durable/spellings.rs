//! Spellings that were seen first: one record for those of one request.

use bytes::Bytes;

use crate::engine::records::{self, Change, Record, RecordKey, Times};
use crate::engine::respell::canonical::{FirstSpellings, SavedSpellings};
use crate::engine::tenant::TenantAccess;
use crate::engine::words::{RecordKind, TenantId};

/// Longer than any conversation is expected to pause, and short enough that tools of long ago go.
const TTL_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

pub fn change(tenant: TenantId, first: &FirstSpellings, times: Times) -> Option<Change> {
    let (saved, bytes) = first.save();
    let body = records::write(tenant, &saved, times)?;
    let digest = blake3::Hasher::new().update(&body).update(&bytes).finalize();
    let key = RecordKey::new(RecordKind::Spelling, &digest.to_hex()[..32])?;
    Some(Change::Put(key, Record { group: None, body, blobs: vec![bytes], ttl_ms: TTL_MS }))
}

pub fn restore<T: TenantAccess>(tenant: &T, id: TenantId, record: &Record, times: Times) -> Option<()> {
    let saved: SavedSpellings = records::read(id, &record.body, times)?;
    let bytes = record.blobs.first().map_or(&[][..], Bytes::as_ref);
    tenant.learn(saved.news(bytes)?);
    Some(())
}
