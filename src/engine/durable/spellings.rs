//! Spellings that were seen first: one record for those of one request, and one for the inputs that it has brought.

use bytes::Bytes;

use crate::engine::records::{self, Change, Record, RecordKey, Times};
use crate::engine::respell::canonical::{FirstSpellings, SavedSpellings};
use crate::engine::tenant::TenantAccess;
use crate::engine::words::{RecordKind, TenantId, Ttl};

/// Longer than any conversation is expected to pause, and short enough that tools of long ago go.
const TTL_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

/// An input is spelt by one conversation, and every turn brings more. Whoever pauses for longer finds no entry anyway.
const INPUT_TTL_MS: u64 = Ttl::OneHour.ms();

/// After this time the spellings of tools and prompts are written again: they are in use.
pub const RENEWED_AFTER_MS: u64 = TTL_MS / 2;

/// The records of spellings; none for one that is too large.
pub fn changes(tenant: TenantId, first: &FirstSpellings, times: Times) -> Vec<Option<Change>> {
    let parts = first.apart().into_iter().zip([TTL_MS, INPUT_TTL_MS]);
    parts
        .filter(|(part, _)| !part.is_empty())
        .map(|(part, ttl_ms)| change(tenant, &part, ttl_ms, times))
        .collect()
}

fn change(tenant: TenantId, first: &FirstSpellings, ttl_ms: u64, times: Times) -> Option<Change> {
    let (saved, bytes) = first.save();
    let body = records::write(tenant, &saved, times)?;
    let digest = blake3::Hasher::new().update(&body).update(&bytes).finalize();
    let key = RecordKey::new(RecordKind::Spelling, &digest.to_hex()[..32])?;
    Some(Change::Put(key, Record { group: None, body, blobs: vec![bytes], ttl_ms }))
}

pub fn restore<T: TenantAccess>(tenant: &T, id: TenantId, record: &Record, times: Times) -> Option<()> {
    let saved: SavedSpellings = records::read(id, &record.body, times)?;
    let bytes = record.blobs.first().map_or(&[][..], Bytes::as_ref);
    let are_common = saved.are_common();
    tenant.learn(saved.news(bytes)?);
    if are_common {
        tenant.look(|state| state.unsaved.renew_spellings(times.now.after(record.ttl_ms / 2)));
    }
    Some(())
}
