//! Conversations that the server holds: one record for each, which has the whole of it up to its last answer.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::blobs;
use crate::engine::family::conversation::{SavedThread, ThreadBytes};
use crate::engine::family::recent::AcceptedRequest;
use crate::engine::family::thread::HeldAnswer;
use crate::engine::records::{self, Change, Record, RecordKey, Times};
use crate::engine::tenant::{TenantAccess, UnsavedThread};
use crate::engine::words::{RecordKind, TenantId};

/// Longer than a server holds a conversation that is not continued.
const TTL_MS: u64 = 60 * 60 * 1_000;

#[derive(Serialize, Deserialize)]
struct ThreadRecord {
    thread: SavedThread,
    /// The number of blobs of the request as it came, and then as it went out.
    received_blobs: usize,
    forwarded_blobs: Option<usize>,
}

/// A thread that was read.
pub struct ReadThread {
    message_id: String,
    request: AcceptedRequest,
    answer: HeldAnswer,
}

fn key(message_id: &str) -> Option<RecordKey> {
    RecordKey::new(RecordKind::Thread, &blake3::hash(message_id.as_bytes()).to_hex()[..32])
}

/// The change for a thread; one that went on is taken away.
pub fn change(tenant: TenantId, (message_id, unsaved): &UnsavedThread, times: Times) -> Option<Change> {
    let key = key(message_id)?;
    let Some((thread, bytes)) = unsaved.as_ref().and_then(|last| SavedThread::of(message_id, last)) else {
        return Some(Change::Delete(key));
    };
    let mut all = blobs::cut(&bytes.received);
    let received_blobs = all.len();
    let forwarded = bytes.forwarded.as_ref().map(blobs::cut);
    let forwarded_blobs = forwarded.as_ref().map(Vec::len);
    all.extend(forwarded.into_iter().flatten());
    all.push(bytes.answer);
    let body = records::write(tenant, &ThreadRecord { thread, received_blobs, forwarded_blobs }, times)?;
    let record = Record { group: None, body, blobs: all, ttl_ms: TTL_MS };
    Some(Change::Put(key, record))
}

pub fn read(tenant: TenantId, key: &RecordKey, record: &Record, times: Times) -> Option<ReadThread> {
    let ThreadRecord { thread, received_blobs, forwarded_blobs } =
        records::read(tenant, &record.body, times)?;
    if self::key(thread.message_id()).as_ref() != Some(key) {
        return None;
    }
    let (received, rest) = record.blobs.split_at_checked(received_blobs)?;
    let (forwarded, rest) = match forwarded_blobs {
        Some(count) => {
            let (forwarded, rest) = rest.split_at_checked(count)?;
            (Some(blobs::join(forwarded)), rest)
        }
        None => (None, rest),
    };
    let answer: Bytes = rest.first()?.clone();
    let message_id = thread.message_id().to_owned();
    let bytes = ThreadBytes { received: blobs::join(received), forwarded, answer };
    let (request, answer) = thread.restore(tenant, bytes)?;
    Some(ReadThread { message_id, request, answer })
}

impl ReadThread {
    /// Keeps the thread, unless it is known.
    pub fn restore<T: TenantAccess>(self, tenant: &T) {
        tenant.look(|state| {
            if state.recent.held(&self.message_id).is_none() {
                let id = state.remember(self.request, None);
                state.recent.hold(id, &self.message_id, self.answer);
            }
        });
    }
}
