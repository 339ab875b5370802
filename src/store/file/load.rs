//! Reads what was written for a tenant.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use super::database::{RecordRow, View};
use super::disk::closed;
use super::error::Trouble;
use super::progress::unix_ms;
use super::{Shared, body_context, prompt_context, proof};
use crate::engine::records::{Change, Record, RecordKey};
use crate::engine::words::RecordKind;
use crate::store::records::Changes;
use crate::store::seal::Digest;

/// What was read of a tenant.
#[derive(Default)]
pub(super) struct Loaded {
    pub changes: Changes,
    /// Records that cannot be read, each with its version.
    pub damaged: Vec<(RecordKey, u64)>,
}

/// Reads what was written for a tenant after a version.
pub(super) fn load(shared: &Shared, tenant: &Digest, after: u64) -> Result<Loaded, Trouble> {
    let mut loaded = load_all(shared, tenant, after)?;
    loaded.changes.was_forgotten = shared.was_forgotten_after(tenant, after);
    Ok(loaded)
}

fn load_all(shared: &Shared, tenant: &Digest, after: u64) -> Result<Loaded, Trouble> {
    let loaded = load_once(shared, tenant, after)?;
    // A prompt may have gone, with its record, after the records were looked up. A second look sees whether it did.
    if loaded.damaged.is_empty() { Ok(loaded) } else { load_once(shared, tenant, after) }
}

fn load_once(shared: &Shared, tenant: &Digest, after: u64) -> Result<Loaded, Trouble> {
    let database = shared.database();
    let Some(database) = database.as_ref() else { return without_database(shared, after) };
    let view = View::open(database)?;
    let Some(row) = view.tenants.get(tenant)? else { return Ok(Loaded::nothing_after(after)) };
    let version = row.value().0.max(after);
    let mut reader = Reader { shared, tenant, now_ms: unix_ms(), prompts: HashMap::new(), bytes: 0 };
    let mut loaded = Loaded::nothing_after(version);
    // The newest come first, so that the oldest are left out if there is more than memory may hold.
    for entry in view.order.range((tenant, after.saturating_add(1))..=(tenant, u64::MAX))?.rev() {
        let (_, record) = entry?;
        let (kind, name) = record.value();
        let key = kind_of(kind).and_then(|kind| RecordKey::new(kind, name));
        // A later version may write kinds that this one does not know.
        let (Some(key), Some(row)) = (key, view.records.get((tenant, kind, name))?) else { continue };
        match reader.read(&key, row.value())? {
            Found::Record(record) => loaded.changes.changes.push(Change::Put(key, record)),
            Found::Deleted if after > 0 => loaded.changes.changes.push(Change::Delete(key)),
            Found::Deleted | Found::Ended => {}
            Found::Damaged => loaded.damaged.push((key, row.value().0)),
        }
        if reader.bytes > shared.limits.loaded_bytes {
            break;
        }
    }
    loaded.changes.changes.reverse();
    Ok(loaded)
}

/// A process that has handed the folder over hears nothing more of the tenants that it knows. What is stored of others
/// only the next process can tell: nobody is to take them for new, and write over what is known of them.
fn without_database(shared: &Shared, after: u64) -> Result<Loaded, Trouble> {
    match (shared.has_handed_over.load(Relaxed), after) {
        (false, _) => Err(closed()),
        (true, 0) => Err(Trouble::Locked),
        (true, _) => Ok(Loaded::nothing_after(after)),
    }
}

impl Loaded {
    pub fn nothing_after(version: u64) -> Loaded {
        Loaded { changes: Changes { version, ..Changes::default() }, damaged: Vec::new() }
    }
}

fn kind_of(word: &str) -> Option<RecordKind> {
    RecordKind::ALL.into_iter().find(|kind| kind.as_str() == word)
}

enum Found {
    Record(Record),
    Deleted,
    Ended,
    Damaged,
}

struct Reader<'a> {
    shared: &'a Shared,
    tenant: &'a Digest,
    now_ms: u64,
    /// The prompts that were read: siblings share them.
    prompts: HashMap<Digest, Bytes>,
    bytes: u64,
}

impl Reader<'_> {
    fn read(
        &mut self,
        key: &RecordKey,
        row: <RecordRow as redb::Value>::SelfType<'_>,
    ) -> Result<Found, Trouble> {
        let (_, ends_ms, group, names, sealed) = row;
        let Some(sealed) = sealed else { return Ok(Found::Deleted) };
        let ttl_ms = ends_ms.saturating_sub(self.now_ms);
        if ttl_ms == 0 {
            return Ok(Found::Ended);
        }
        let Some(body) = self.open_body(key, group, names, sealed) else { return Ok(Found::Damaged) };
        let mut blobs = Vec::with_capacity(names.len() / 32);
        for name in names.as_chunks::<32>().0 {
            let Some(prompt) = self.prompt(name)? else { return Ok(Found::Damaged) };
            blobs.push(prompt);
        }
        self.bytes += body.len() as u64;
        Ok(Found::Record(Record { group: group.map(str::to_owned), body, blobs, ttl_ms }))
    }

    fn open_body(&self, key: &RecordKey, group: Option<&str>, names: &[u8], sealed: &[u8]) -> Option<Bytes> {
        let opened = Bytes::from(self.shared.seal.open(&body_context(self.tenant, key), sealed)?);
        let (expected, body) = opened.split_first_chunk::<32>()?;
        let is_whole = *expected == proof(&self.shared.seal, self.tenant, key, group, names, body);
        is_whole.then(|| opened.slice(32..))
    }

    /// Reads a prompt; none if it is damaged or not there. Other failures are the folder's, not the prompt's.
    fn prompt(&mut self, name: &Digest) -> Result<Option<Bytes>, Trouble> {
        if let Some(prompt) = self.prompts.get(name) {
            return Ok(Some(prompt.clone()));
        }
        let sealed = match self.shared.folder.read_prompt(name) {
            Ok(sealed) => sealed,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let trouble = Trouble::from(error);
                return if trouble.is_damage() { Ok(None) } else { Err(trouble) };
            }
        };
        let opened = self.shared.seal.open(&prompt_context(self.tenant, name), &sealed);
        let is_whole = |prompt: &Vec<u8>| self.shared.seal.digest(self.tenant, prompt) == *name;
        let Some(prompt) = opened.filter(is_whole).map(Bytes::from) else { return Ok(None) };
        self.bytes += prompt.len() as u64;
        self.prompts.insert(*name, prompt.clone());
        Ok(Some(prompt))
    }
}
