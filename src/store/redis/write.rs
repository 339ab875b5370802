//! Writing, and forgetting.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::try_join_all;
use redis::Value;

use super::RedisStore;
use super::chunks::{CHUNK_BYTES_MAX, chunks};
use super::form::ChunkedBlob;
use super::link::ScriptCall;
use super::names::{ChunkName, TenantNames, hex, listed, member, parse_listed};
use crate::engine::records::{Change, Record};
use crate::engine::words::{StoreError, TenantId};
use crate::store::seal::Seal;

/// How long others are told of a deletion.
const DELETION_MS: u64 = 3_600_000;

/// The records of one tenant: more than the children, fork points and lessons that memory may hold.
pub(super) const RECORDS_MAX: usize = 32_768;

/// The time that a chunk lives longer than its record, which is written after it.
const CHUNK_GRACE_MS: u64 = 60_000;

/// The least bytes of a generation: a store that has no room for a small record counts as one that fails.
pub(super) const GENERATION_BYTES_MIN: usize = 1 << 20;

/// The chunks that are on their way at once, whoever writes them: a call that comes behind them waits for no more.
pub(super) const UPLOADS_MAX: usize = 16;

/// Attempts to write in a generation that is not over before all is written.
const ATTEMPTS_MAX: usize = 3;

/// The scripts' answer for a tenant that was forgotten meanwhile.
const FORGOTTEN: &[u8] = b"forgotten";

/// The script's answer where the chunks are of a generation that is over.
const OVER: &[u8] = b"over";

/// The chunks that are taken away at once.
const SWEPT_AT_ONCE: usize = 1_000;

/// The chunks of records that are about to be written, and the time for which they are needed.
type NeededChunks = BTreeMap<ChunkName, (Bytes, u64)>;

/// What is about to be written of one tenant.
pub(super) struct Prepared {
    tenant: TenantId,
    names: TenantNames,
    known: u64,
    changes: Vec<(Change, Vec<ChunkedBlob>)>,
    needed: NeededChunks,
}

/// What became of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The version of the last record.
    Version(u64),
    Forgotten,
    /// The generation of its chunks is over.
    Over,
}

impl RedisStore {
    /// Writes what depends on the records up to the version `known`; none if the tenant was forgotten after it.
    pub(super) async fn write_all(
        &self,
        tenant: TenantId,
        known: u64,
        changes: Vec<Change>,
    ) -> Result<Option<u64>, StoreError> {
        let prepared = self.prepared(tenant, known, changes).await?;
        for _ in 0..ATTEMPTS_MAX {
            let Some(generation) = self.generation(&prepared).await? else { return Ok(None) };
            match self.write_in(&prepared, generation).await? {
                Written::Version(version) => return Ok(Some(version)),
                Written::Forgotten => return Ok(None),
                Written::Over => {}
            }
        }
        Err(StoreError::Slow)
    }

    pub(super) async fn prepared(
        &self,
        tenant: TenantId,
        known: u64,
        changes: Vec<Change>,
    ) -> Result<Prepared, StoreError> {
        let fits = |change: &Change| !matches!(change, Change::Put(_, record) if !record.fits());
        if !changes.iter().all(fits) {
            return Err(StoreError::Full);
        }
        let names = self.names.of(tenant);
        let (mut needed, mut all) = (NeededChunks::new(), Vec::with_capacity(changes.len()));
        for change in changes {
            let blobs = match &change {
                Change::Put(_, record) => cut(&names, record, self.ttl_ms(record), &mut needed).await,
                Change::Delete(_) => Vec::new(),
            };
            all.push((change, blobs));
        }
        if needed.values().map(|(chunk, _)| chunk.len()).sum::<usize>() > self.generation_bytes {
            return Err(StoreError::Full);
        }
        Ok(Prepared { tenant, names, known, changes: all, needed })
    }

    fn ttl_ms(&self, record: &Record) -> u64 {
        record.ttl_ms.clamp(1, self.max_age_ms)
    }

    /// Enters the chunks into the list by which they are found when they are to be taken away, and returns their generation
    /// (0 if there are no chunks); none if the tenant was forgotten: no prompt is written then.
    pub(super) async fn generation(&self, prepared: &Prepared) -> Result<Option<u64>, StoreError> {
        let Prepared { names, known, needed, .. } = prepared;
        let Some(longest_ms) = needed.values().map(|(_, ttl_ms)| *ttl_ms).max() else { return Ok(Some(0)) };
        let mut call = ScriptCall::default()
            .key(names.chunks())
            .key(names.version())
            .argument(known.to_string())
            .argument(longest_ms.to_string())
            .argument(self.generation_bytes.to_string());
        for (name, (chunk, ttl_ms)) in needed {
            call = call.argument(hex(name)).argument(ttl_ms.to_string()).argument(chunk.len().to_string());
        }
        let parts = match self.link.script(&self.scripts.list, call).await? {
            Value::BulkString(word) if word == FORGOTTEN => return Ok(None),
            Value::Array(parts) => parts,
            _ => return Err(StoreError::Garbage),
        };
        let [generation, Value::Int(is_unswept)] = &parts[..] else { return Err(StoreError::Garbage) };
        if *is_unswept != 0 {
            self.sweep(names).await?;
            self.link.query(redis::cmd("HDEL").arg(names.version()).arg("unswept"), 0).await?;
        }
        version_of(generation).map(Some).ok_or(StoreError::Garbage)
    }

    /// Writes the chunks, and then the records. Of what is refused no chunk is left.
    pub(super) async fn write_in(&self, prepared: &Prepared, generation: u64) -> Result<Written, StoreError> {
        let Prepared { names, needed, .. } = prepared;
        let written = async {
            self.write_chunks(prepared, generation).await?;
            self.write_records(prepared, generation).await
        };
        let written = written.await;
        let is_refused = !matches!(written, Ok(Written::Version(_)));
        if is_refused
            && generation > 0
            && self.kept(names).await.is_ok_and(|kept| !kept.contains(&generation))
        {
            // What cannot be taken away now ends by its TTL.
            let _ = self.take_away(names, needed.keys().map(|name| (generation, *name))).await;
        }
        written
    }

    async fn write_records(&self, prepared: &Prepared, generation: u64) -> Result<Written, StoreError> {
        let Prepared { names, known, changes, .. } = prepared;
        let mut call = ScriptCall::default()
            .key(names.records())
            .key(names.expiry())
            .key(names.version())
            .argument(known.to_string())
            .argument(DELETION_MS.to_string())
            .argument(names.record_prefix())
            .argument(self.records_max.to_string())
            .argument(generation.to_string());
        for (change, blobs) in changes {
            let member = member(change.key());
            call = call.key(names.record_prefix() + &member).argument(member);
            match change {
                Change::Delete(_) => call = call.argument("0").argument(""),
                Change::Put(key, record) => {
                    let form = self.form(names).close(key, record, blobs, generation);
                    call = call
                        .argument(self.ttl_ms(record).to_string())
                        .argument(form.ok_or(StoreError::Full)?);
                }
            }
        }
        match self.link.script(&self.scripts.write, call).await? {
            Value::BulkString(word) if word == FORGOTTEN => Ok(Written::Forgotten),
            Value::BulkString(word) if word == OVER => Ok(Written::Over),
            version => version_of(&version).map(Written::Version).ok_or(StoreError::Garbage),
        }
    }

    /// Writes the chunks that are not there yet, and prolongs the others.
    async fn write_chunks(&self, prepared: &Prepared, generation: u64) -> Result<(), StoreError> {
        let Prepared { tenant, names, needed, .. } = prepared;
        let missing = self.missing(names, generation, needed).await?;
        let set = missing.into_iter().map(|(name, chunk, ttl_ms)| async move {
            let _permit = self.uploads.acquire().await.map_err(|_| StoreError::Down)?;
            let sealed = sealed(&self.seal, names, &name, &chunk).await?;
            let mut command = redis::cmd("SET");
            command.arg(names.chunk(generation, &name)).arg(&sealed[..]).arg("PX").arg(ttl_ms);
            // It comes behind all others.
            self.link.query(&command, UPLOADS_MAX * CHUNK_BYTES_MAX).await?;
            self.chunk_cache.insert(*tenant, name, chunk);
            Ok::<_, StoreError>(())
        });
        try_join_all(set).await.map(drop)
    }

    /// Prolongs the chunks that are there, and returns the others, each with its TTL.
    async fn missing(
        &self,
        names: &TenantNames,
        generation: u64,
        needed: &NeededChunks,
    ) -> Result<Vec<(ChunkName, Bytes, u64)>, StoreError> {
        let ask = needed.iter().map(|(name, (chunk, ttl_ms))| async move {
            let key = names.chunk(generation, name);
            let (mut prolong, mut exists) = (redis::cmd("PEXPIRE"), redis::cmd("EXISTS"));
            prolong.arg(&key).arg(*ttl_ms).arg("GT");
            exists.arg(&key);
            let (_, found) = tokio::try_join!(self.link.query(&prolong, 0), self.link.query(&exists, 0))?;
            Ok((found != Value::Int(1)).then(|| (*name, chunk.clone(), *ttl_ms)))
        });
        let missing: Vec<Option<_>> = try_join_all(ask).await?;
        Ok(missing.into_iter().flatten().collect())
    }

    pub(super) async fn forget_all(&self, tenant: TenantId) -> Result<bool, StoreError> {
        let had_any = self.forget_records(tenant).await?;
        self.sweep(&self.names.of(tenant)).await?;
        Ok(had_any)
    }

    /// Forgets the records of a tenant; `false` if there were none. The generations of its chunks are over.
    pub(super) async fn forget_records(&self, tenant: TenantId) -> Result<bool, StoreError> {
        self.chunk_cache.forget(tenant);
        let names = self.names.of(tenant);
        let call = ScriptCall::default()
            .key(names.records())
            .key(names.expiry())
            .key(names.version())
            .argument(names.record_prefix())
            .argument(self.max_age_ms.to_string());
        Ok(self.link.script(&self.scripts.forget, call).await? != Value::Int(0))
    }

    /// Takes the chunks of all generations away that are over.
    pub(super) async fn sweep(&self, names: &TenantNames) -> Result<(), StoreError> {
        let mut passed = 0;
        loop {
            let some = self.some_listed(names, passed).await?;
            if some.is_empty() {
                return Ok(());
            }
            // Asked after the list: none of a generation that has begun since is taken for one that is over.
            let kept = self.kept(names).await?;
            let (stay, go): (Vec<_>, Vec<_>) =
                some.into_iter().partition(|(generation, _)| kept.contains(generation));
            passed += stay.len();
            if go.is_empty() {
                continue;
            }
            self.take_away(names, go.iter().copied()).await?;
            // They are listed until they are gone: whoever is interrupted begins again.
            let mut unlist = redis::cmd("ZREM");
            unlist.arg(names.chunks()).arg(go.iter().map(|(of, name)| listed(*of, name)).collect::<Vec<_>>());
            self.link.query(&unlist, 0).await?;
        }
    }

    async fn take_away(
        &self,
        names: &TenantNames,
        chunks: impl Iterator<Item = (u64, ChunkName)>,
    ) -> Result<(), StoreError> {
        let take_away = chunks.map(|(generation, name)| async move {
            self.link.query(redis::cmd("UNLINK").arg(names.chunk(generation, &name)), 0).await
        });
        try_join_all(take_away).await.map(drop)
    }

    /// The generations whose chunks are kept.
    async fn kept(&self, names: &TenantNames) -> Result<Vec<u64>, StoreError> {
        let mut ask = redis::cmd("HMGET");
        ask.arg(names.version()).arg("generation").arg("before");
        let Value::Array(kept) = self.link.query(&ask, 0).await? else { return Err(StoreError::Garbage) };
        Ok(kept.iter().filter_map(version_of).collect())
    }

    /// Some chunks of the list, after so many.
    async fn some_listed(
        &self,
        names: &TenantNames,
        passed: usize,
    ) -> Result<Vec<(u64, ChunkName)>, StoreError> {
        let mut list = redis::cmd("ZRANGE");
        list.arg(names.chunks()).arg(passed).arg(passed + SWEPT_AT_ONCE - 1);
        let listed = self.link.query(&list, 0).await?;
        let listed: Vec<String> = redis::from_redis_value(listed).map_err(|_| StoreError::Garbage)?;
        listed.iter().map(|name| parse_listed(name)).collect::<Option<_>>().ok_or(StoreError::Garbage)
    }
}

/// Cuts the blobs of a record into chunks.
async fn cut(
    names: &TenantNames,
    record: &Record,
    ttl_ms: u64,
    needed: &mut NeededChunks,
) -> Vec<ChunkedBlob> {
    let mut blobs = Vec::with_capacity(record.blobs.len());
    for blob in &record.blobs {
        let mut chunked = ChunkedBlob { bytes: blob.len(), chunks: Vec::new() };
        // Cut as it goes on: others may go on in between.
        for chunk in chunks(blob.clone()) {
            let name = names.chunk_name(&chunk);
            chunked.chunks.push(name);
            let until = ttl_ms + CHUNK_GRACE_MS;
            let known = needed.entry(name).or_insert_with(|| (chunk, until));
            known.1 = known.1.max(until);
            tokio::task::yield_now().await;
        }
        blobs.push(chunked);
    }
    blobs
}

/// Closes a chunk. Others may go on before.
async fn sealed(
    seal: &Seal,
    names: &TenantNames,
    name: &ChunkName,
    chunk: &[u8],
) -> Result<Vec<u8>, StoreError> {
    tokio::task::yield_now().await;
    let sealed = seal.close(&names.context(name), chunk);
    if sealed.is_empty() { Err(StoreError::Full) } else { Ok(sealed) }
}

/// Reads a version that a script has returned.
pub(super) fn version_of(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}
