//! Writing, and forgetting.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::try_join_all;
use redis::Value;

use super::RedisStore;
use super::chunks::chunks;
use super::form::{self, ChunkedBlob};
use super::link::ScriptCall;
use super::names::{ChunkName, TenantNames, hex, member, parse_chunk_name};
use crate::engine::records::{Change, Record};
use crate::engine::words::{StoreError, TenantId};
use crate::store::seal::Seal;

/// How long others are told of a deletion.
const DELETION_MS: u64 = 3_600_000;

/// The records of one tenant: more than the children, fork points and lessons that memory may hold.
pub(super) const RECORDS_MAX: usize = 32_768;

/// The time that a chunk lives longer than its record, which is written after it.
const CHUNK_GRACE_MS: u64 = 60_000;

/// The script's answer for a tenant that was forgotten meanwhile.
const FORGOTTEN: &[u8] = b"forgotten";

/// The chunks that are taken away at once.
const FORGOTTEN_AT_ONCE: usize = 1_000;

/// The chunks of records that are about to be written, and the time for which they are needed.
type NeededChunks = BTreeMap<ChunkName, (Bytes, u64)>;

impl RedisStore {
    /// Writes what depends on the records up to the version `known`; none if the tenant was forgotten after it.
    pub(super) async fn write_all(
        &self,
        tenant: TenantId,
        known: u64,
        changes: Vec<Change>,
    ) -> Result<Option<u64>, StoreError> {
        let fits = |change: &Change| !matches!(change, Change::Put(_, record) if !record.fits());
        if !changes.iter().all(fits) {
            return Err(StoreError::Full);
        }
        let names = self.names.of(tenant);
        let mut needed = NeededChunks::new();
        let mut call = ScriptCall::default()
            .key(names.records())
            .key(names.expiry())
            .key(names.version())
            .argument(known.to_string())
            .argument(DELETION_MS.to_string())
            .argument(names.record_prefix())
            .argument(self.records_max.to_string());
        for change in changes {
            let member = member(change.key());
            call = call.key(names.record_prefix() + &member).argument(member);
            match change {
                Change::Delete(_) => call = call.argument("0").argument(""),
                Change::Put(key, record) => {
                    let ttl_ms = record.ttl_ms.clamp(1, self.max_age_ms);
                    let blobs = cut(&names, &record, ttl_ms, &mut needed).await;
                    let form = form::close(&names, &self.seal, &key, &record, &blobs);
                    call = call.argument(ttl_ms.to_string()).argument(form.ok_or(StoreError::Full)?);
                }
            }
        }
        // Looked at before, too: no prompt is written that its tenant had forgotten.
        if !needed.is_empty() && self.was_forgotten(&names, known).await? {
            return Ok(None);
        }
        self.write_chunks(tenant, &names, needed).await?;
        match self.link.script(&self.scripts.write, call).await? {
            Value::BulkString(word) if word == FORGOTTEN => Ok(None),
            version => version_of(&version).map(Some).ok_or(StoreError::Garbage),
        }
    }

    /// Returns true if the tenant was forgotten after this version.
    async fn was_forgotten(&self, names: &TenantNames, known: u64) -> Result<bool, StoreError> {
        if known == 0 {
            return Ok(false);
        }
        let mut ask = redis::cmd("HMGET");
        ask.arg(names.version()).arg("newest").arg("first").arg("forgotten");
        let Value::Array(versions) = self.link.query(&ask, 0).await? else { return Err(StoreError::Garbage) };
        let [newest, first, forgotten] = &versions[..] else { return Err(StoreError::Garbage) };
        let is_void = version_of(first).is_none() || version_of(forgotten).is_some_and(|at| known < at);
        Ok(version_of(newest).is_some() && is_void)
    }

    /// Writes the chunks that are not there yet, and prolongs the others.
    async fn write_chunks(
        &self,
        tenant: TenantId,
        names: &TenantNames,
        needed: NeededChunks,
    ) -> Result<(), StoreError> {
        if needed.is_empty() {
            return Ok(());
        }
        let ((), missing) = tokio::try_join!(self.list(names, &needed), self.missing(names, &needed))?;
        let set = missing.into_iter().map(|(name, (chunk, ttl_ms))| async move {
            let sealed = sealed(&self.seal, names, &name, &chunk).await?;
            let mut command = redis::cmd("SET");
            command.arg(names.chunk(&name)).arg(&sealed[..]).arg("PX").arg(ttl_ms);
            self.link.query(&command, sealed.len()).await?;
            self.chunk_cache.insert(tenant, name, chunk);
            Ok::<_, StoreError>(())
        });
        try_join_all(set).await.map(drop)
    }

    /// Enters chunks into the list by which they are found when the tenant is forgotten.
    async fn list(&self, names: &TenantNames, needed: &NeededChunks) -> Result<(), StoreError> {
        let longest_ms = needed.values().map(|(_, ttl_ms)| *ttl_ms).max().unwrap_or_default();
        let mut call = ScriptCall::default().key(names.chunks()).argument(longest_ms.to_string());
        for (name, (_, ttl_ms)) in needed {
            call = call.argument(hex(name)).argument(ttl_ms.to_string());
        }
        self.link.script(&self.scripts.list, call).await.map(drop)
    }

    /// Prolongs the chunks that are there, and returns the others.
    async fn missing(&self, names: &TenantNames, needed: &NeededChunks) -> Result<NeededChunks, StoreError> {
        let ask = needed.iter().map(|(name, (chunk, ttl_ms))| async move {
            let key = names.chunk(name);
            let (mut prolong, mut exists) = (redis::cmd("PEXPIRE"), redis::cmd("EXISTS"));
            prolong.arg(&key).arg(*ttl_ms).arg("GT");
            exists.arg(&key);
            let (_, found) = tokio::try_join!(self.link.query(&prolong, 0), self.link.query(&exists, 0))?;
            Ok((found != Value::Int(1)).then(|| (*name, (chunk.clone(), *ttl_ms))))
        });
        let missing: Vec<Option<_>> = try_join_all(ask).await?;
        Ok(missing.into_iter().flatten().collect())
    }

    pub(super) async fn forget_all(&self, tenant: TenantId) -> Result<bool, StoreError> {
        self.chunk_cache.forget(tenant);
        let names = self.names.of(tenant);
        let call = ScriptCall::default()
            .key(names.records())
            .key(names.expiry())
            .key(names.version())
            .argument(names.record_prefix())
            .argument(self.max_age_ms.to_string());
        let forgotten = self.link.script(&self.scripts.forget, call).await?;
        while let Some(some) = self.next_chunks(&names).await? {
            let take_away = some
                .iter()
                .map(|name| async { self.link.query(redis::cmd("UNLINK").arg(names.chunk(name)), 0).await });
            try_join_all(take_away).await?;
            // They are listed until they are gone: whoever is interrupted begins again.
            let mut unlist = redis::cmd("ZREM");
            unlist.arg(names.chunks()).arg(some.iter().map(|name| hex(name)).collect::<Vec<_>>());
            self.link.query(&unlist, 0).await?;
        }
        Ok(forgotten != Value::Int(0))
    }

    /// The next chunks to be taken away; none if there are none.
    async fn next_chunks(&self, names: &TenantNames) -> Result<Option<Vec<ChunkName>>, StoreError> {
        let mut list = redis::cmd("ZRANGE");
        list.arg(names.chunks()).arg(0).arg(FORGOTTEN_AT_ONCE - 1);
        let listed = self.link.query(&list, 0).await?;
        let listed: Vec<String> = redis::from_redis_value(listed).map_err(|_| StoreError::Garbage)?;
        let chunks: Option<Vec<_>> = listed.iter().map(|name| parse_chunk_name(name)).collect();
        let chunks = chunks.ok_or(StoreError::Garbage)?;
        Ok((!chunks.is_empty()).then_some(chunks))
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
