//! The entries in the provider's cache, in three worlds: one record for each of 64 parts, and one for what is known
//! beside them. Each process writes records of its own, and reads those of all.

use crate::engine::cache::worlds::{SavedPart, SavedWorlds};
use crate::engine::records::{self, Change, Record, RecordKey, Times, Writer};
use crate::engine::words::{RecordKind, TenantId, Ttl, digits};

/// No entry lives longer.
const TTL_MS: u64 = Ttl::OneHour.ms();

fn name(writer: Writer) -> String {
    digits::of(&writer.0)
}

/// Reads whose record it is, and which part, if it is one.
pub fn named(name: &str) -> Option<(Writer, Option<u32>)> {
    let (writer, part) = match name.split_once('-') {
        Some((writer, part)) => (writer, Some(u32::from_str_radix(part, 16).ok()?)),
        None => (name, None),
    };
    Some((Writer(digits::read(writer)?), part))
}

pub fn put_part(
    tenant: TenantId,
    writer: Writer,
    (number, part): (u32, SavedPart),
    times: Times,
) -> Option<Change> {
    let body = records::write(tenant, &part, times)?;
    let key = RecordKey::new(RecordKind::Worlds, &format!("{}-{number:x}", name(writer)))?;
    Some(Change::Put(key, Record { group: None, body, blobs: Vec::new(), ttl_ms: TTL_MS }))
}

pub fn put(tenant: TenantId, writer: Writer, saved: &SavedWorlds, times: Times) -> Option<Change> {
    let body = records::write(tenant, saved, times)?;
    let key = RecordKey::new(RecordKind::Worlds, &name(writer))?;
    Some(Change::Put(key, Record { group: None, body, blobs: Vec::new(), ttl_ms: TTL_MS }))
}
