//! Reading what is new.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use futures_util::future::try_join_all;
use redis::Value;

use super::RedisStore;
use super::chunks::CHUNK_BYTES_MAX;
use super::form::{self, ChunkedBlob, FORM_BYTES_MAX, Form, Outline, Unreadable};
use super::link::ScriptCall;
use super::names::{ChunkName, TenantNames};
use super::write::version_of;
use crate::engine::records::{Change, Record, RecordKey};
use crate::engine::words::{StoreError, TenantId};
use crate::store::records::Changes;

/// The records of one answer.
const RECORDS_MAX: usize = 512;

/// The bytes of one answer, but for those of its last record.
const BYTES_MAX: usize = 4 << 20;

/// The bytes of the chunks that are fetched for one answer, but for those of its last record.
const CHUNK_BYTES_AT_ONCE: usize = 8 << 20;

/// The bytes of the blobs of one answer, but for those of its last record: each is counted once, however often it is named.
const BLOB_BYTES_AT_ONCE: usize = 64 << 20;

/// A chunk in Redis is a little larger than its bytes if these cannot be compressed.
const SEALED_CHUNK_MAX: usize = CHUNK_BYTES_MAX + 1024;

/// One page of what the script returns.
struct Page {
    newest: u64,
    last: u64,
    has_more: bool,
    entries: Vec<Entry>,
    was_forgotten: bool,
}

/// One record of a page.
struct Entry {
    version: u64,
    key: RecordKey,
    state: State,
}

enum State {
    Gone,
    Live(Outline, u64),
    /// It cannot be read.
    Damaged,
    /// A newer process reads it.
    Later,
}

impl Entry {
    /// Returns true unless a newer process reads it, or it is gone with the generation of its chunks. Generation 0 is in no
    /// list, and ends by itself.
    fn is_told(&self, kept: &[u64]) -> bool {
        match &self.state {
            State::Live(Outline { generation, .. }, _) => {
                *generation == 0 || kept.is_empty() || kept.contains(generation)
            }
            State::Later => false,
            State::Gone | State::Damaged => true,
        }
    }
}

impl RedisStore {
    pub(super) async fn read(&self, tenant: TenantId, after: u64) -> Result<Changes, StoreError> {
        let names = self.names.of(tenant);
        let call = ScriptCall::default()
            .key(names.records())
            .key(names.version())
            .argument(after.to_string())
            .argument(names.record_prefix())
            .argument(RECORDS_MAX.to_string())
            .argument(BYTES_MAX.to_string())
            .argument(FORM_BYTES_MAX.to_string())
            .answers(BYTES_MAX);
        let page = self.link.script(&self.scripts.changes, call).await?;
        let page = self.page(&names, page).ok_or(StoreError::Garbage)?;
        self.with_blobs(tenant, &names, page).await
    }

    /// The form of a tenant's records.
    pub(super) fn form<'a>(&'a self, names: &'a TenantNames) -> Form<'a> {
        Form { names, seal: &self.seal, version: self.version }
    }

    fn page(&self, names: &TenantNames, value: Value) -> Option<Page> {
        let Value::Array(parts) = value else { return None };
        let [
            newest,
            last,
            Value::Int(more),
            Value::Array(entries),
            Value::Int(forgotten),
            Value::Array(kept),
        ] = <[Value; 6]>::try_from(parts).ok()?
        else {
            return None;
        };
        let kept: Vec<u64> = kept.iter().filter_map(version_of).collect();
        let entry = |value| self.entry(names, value).filter(|entry| entry.is_told(&kept));
        Some(Page {
            newest: version_of(&newest)?,
            last: version_of(&last)?,
            has_more: more != 0,
            // A name that is none of ours is left out.
            entries: entries.into_iter().filter_map(entry).collect(),
            was_forgotten: forgotten != 0,
        })
    }

    fn entry(&self, names: &TenantNames, value: Value) -> Option<Entry> {
        let Value::Array(parts) = value else { return None };
        let [Value::BulkString(member), Value::BulkString(form), Value::Int(ttl_ms), version] =
            <[Value; 4]>::try_from(parts).ok()?
        else {
            return None;
        };
        let member = String::from_utf8(member).ok()?;
        let state = match u64::try_from(ttl_ms) {
            Ok(ttl_ms) => match self.form(names).open(&member, &form) {
                Ok(outline) => State::Live(outline, ttl_ms.max(1)),
                Err(Unreadable::Damaged) => State::Damaged,
                Err(Unreadable::Later) => State::Later,
            },
            Err(_) if ttl_ms == -2 => State::Gone,
            Err(_) => State::Damaged,
        };
        Some(Entry { version: version_of(&version)?, key: form::parse_member(&member)?, state })
    }

    /// Fetches the blobs of the records of a page, of so many as one answer may hold.
    async fn with_blobs(
        &self,
        tenant: TenantId,
        names: &TenantNames,
        mut page: Page,
    ) -> Result<Changes, StoreError> {
        let mut chunks: HashMap<ChunkName, Option<Bytes>> = HashMap::new();
        let (mut wanted, mut wanted_bytes) = (BTreeMap::new(), 0);
        let (mut taken, mut blobs, mut blob_bytes) = (0, HashSet::new(), 0);
        for entry in &page.entries {
            if wanted_bytes >= CHUNK_BYTES_AT_ONCE || blob_bytes >= BLOB_BYTES_AT_ONCE {
                break;
            }
            taken += 1;
            let State::Live(outline, _) = &entry.state else { continue };
            let new = outline.blobs.iter().filter(|blob| blobs.insert(*blob));
            blob_bytes += new.map(|blob| blob.bytes).sum::<usize>();
            for name in outline.blobs.iter().flat_map(|blob| &blob.chunks) {
                if chunks.contains_key(name) || wanted.insert(*name, outline.generation).is_some() {
                    continue;
                }
                match self.chunk_cache.get(tenant, name) {
                    Some(chunk) => {
                        wanted.remove(name);
                        chunks.insert(*name, Some(chunk));
                    }
                    None => wanted_bytes += CHUNK_BYTES_MAX / 2,
                }
            }
        }
        drop(blobs);
        let rest = page.entries.split_off(taken);
        let has_more = page.has_more || !rest.is_empty();
        let last = if rest.is_empty() {
            page.last
        } else {
            page.entries.last().map_or(page.last, |entry| entry.version)
        };
        let fetch = wanted.into_iter().map(|(name, generation)| async move {
            let key = names.chunk(generation, &name);
            Ok::<_, StoreError>((name, self.fetch_chunk(tenant, names, name, key, wanted_bytes).await?))
        });
        chunks.extend(try_join_all(fetch).await?);
        let (mut changes, mut damaged, mut whole) = (Vec::new(), 0, HashMap::new());
        for entry in page.entries {
            match change(entry, &chunks, &mut whole).await {
                Some(change) => changes.push(change),
                None => damaged += 1,
            }
        }
        let version = if has_more { last } else { last.max(page.newest) };
        Ok(Changes { changes, version, has_more, damaged, was_forgotten: page.was_forgotten })
    }

    /// Fetches a chunk; none if it is gone, or not what its name says. `bytes` are under way together.
    async fn fetch_chunk(
        &self,
        tenant: TenantId,
        names: &TenantNames,
        name: ChunkName,
        key: String,
        bytes: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        let mut command = redis::cmd("GETRANGE");
        command.arg(key).arg(0).arg(SEALED_CHUNK_MAX);
        let sealed = match self.link.query(&command, bytes).await {
            Ok(Value::BulkString(sealed)) if sealed.len() <= SEALED_CHUNK_MAX => sealed,
            Ok(_) | Err(StoreError::Garbage) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(chunk) = self.seal.open_at_most(&names.context(&name), &sealed, CHUNK_BYTES_MAX) else {
            return Ok(None);
        };
        if names.chunk_name(&chunk) != name {
            return Ok(None);
        }
        let chunk = Bytes::from(chunk);
        self.chunk_cache.insert(tenant, name, chunk.clone());
        Ok(Some(chunk))
    }
}

/// A record with its blobs, or a deletion; none if it is damaged. Records share their blobs: the children of a fan-out
/// have their parent's.
async fn change(
    entry: Entry,
    chunks: &HashMap<ChunkName, Option<Bytes>>,
    known: &mut HashMap<ChunkedBlob, Bytes>,
) -> Option<Change> {
    let (Outline { group, body, blobs: chunked, .. }, ttl_ms) = match entry.state {
        State::Gone => return Some(Change::Delete(entry.key)),
        State::Damaged | State::Later => return None,
        State::Live(outline, ttl_ms) => (outline, ttl_ms),
    };
    let mut blobs = Vec::with_capacity(chunked.len());
    for blob in chunked {
        let whole = match known.get(&blob) {
            Some(whole) => whole.clone(),
            None => whole(&blob, chunks).await?,
        };
        blobs.push(whole.clone());
        known.insert(blob, whole);
    }
    Some(Change::Put(entry.key, Record { group, body, blobs, ttl_ms }))
}

/// A blob, put together of its chunks; none if one is missing.
async fn whole(blob: &ChunkedBlob, chunks: &HashMap<ChunkName, Option<Bytes>>) -> Option<Bytes> {
    let chunk = |name| chunks.get(name)?.as_ref();
    let parts: Vec<&Bytes> = blob.chunks.iter().map(chunk).collect::<Option<_>>()?;
    if parts.iter().map(|part| part.len()).sum::<usize>() != blob.bytes {
        return None;
    }
    let mut whole = Vec::with_capacity(blob.bytes);
    for part in parts {
        whole.extend_from_slice(part);
        // Others may go on in between.
        tokio::task::yield_now().await;
    }
    Some(Bytes::from(whole))
}
