//! Changes that are written in one transaction.
//!
//! A prompt is written, under a name that nobody can read yet, before the record that needs it is committed; and taken away
//! after the last record that needed it is gone and that is committed. So whatever moment the process is killed at, no
//! record lacks a prompt, and at worst a prompt lacks its records: an orphan, collected at the next start.

use std::cmp::max;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::atomic::Ordering::Relaxed;

use redb::ReadableTable as _;

use super::database::{Tables, VERSION};
use super::error::Trouble;
use super::journal::Entry;
use super::progress::unix_ms;
use super::{Shared, body_context, prompt_context, proof};
use crate::engine::records::{Change, Record, RecordKey};
use crate::store::seal::Digest;

/// How long a deletion is remembered, for those who ask what has changed.
const DELETION_MS: u64 = 600_000;

/// The bytes that a record takes besides its body, about.
const RECORD_BYTES: u64 = 512;

/// A file takes whole blocks.
const BLOCK: u64 = 4096;

/// The records that are taken away in one batch because their time is over.
const ENDED_MAX: usize = 1024;

/// Changes in one transaction.
pub(super) struct Batch<'a> {
    shared: &'a Shared,
    tables: Tables<'a>,
    now_ms: u64,
    /// The bytes of all tenants, after the changes.
    bytes: u64,
    /// Prompts that no record needs any more.
    unneeded: BTreeSet<Digest>,
    /// Prompts whose files were written, also by a batch that fails.
    written: &'a mut Vec<Digest>,
    /// The tenants that have more than before.
    grown: BTreeSet<Digest>,
}

/// The version, the kind and the name of the oldest record of a tenant.
type Oldest = (u64, String, String);

/// A row of a record that is about to go.
struct OldRow {
    version: u64,
    ends_ms: u64,
    names: Vec<Digest>,
    bytes: u64,
}

impl<'a> Batch<'a> {
    pub fn new(shared: &'a Shared, tables: Tables<'a>, written: &'a mut Vec<Digest>) -> Batch<'a> {
        let (unneeded, grown, bytes) = (BTreeSet::new(), BTreeSet::new(), shared.bytes.load(Relaxed));
        Batch { shared, tables, now_ms: unix_ms(), bytes, unneeded, written, grown }
    }

    /// Makes changes that were asked for at a moment. Returns the last version of the tenant. A record that is larger than
    /// all that a tenant may have is left out; if there is nothing else, that is an error.
    pub fn write(&mut self, tenant: &Digest, changes: &[Change], at_ms: u64) -> Result<u64, Trouble> {
        let mut too_large = 0;
        for change in changes {
            match change {
                Change::Put(key, record) => too_large += usize::from(!self.put(tenant, key, record, at_ms)?),
                Change::Delete(key) => self.delete(tenant, key, at_ms)?,
            }
        }
        if too_large > 0 {
            if too_large == changes.len() {
                return Err(Trouble::Full);
            }
            tracing::warn!(
                records = too_large,
                bytes_max = self.shared.limits.tenant_bytes,
                "records are larger than store.tenant_share of store.max_bytes; they are not stored"
            );
        }
        self.last_version(tenant)
    }

    /// Takes in what another process wrote to its journal. What does not fit is not known: the rest is more important.
    pub fn take_in(&mut self, journal: &str, entry: &Entry) -> Result<(), Trouble> {
        let tenant = &entry.tenant;
        if self.tables.dismissed.get((journal, tenant))?.is_some() {
            return Ok(());
        }
        let Some(changes) = &entry.changes else {
            self.forget(tenant)?;
            self.shared.forgotten_by_another(*tenant, self.version_of_left()?);
            return Ok(());
        };
        let mut new = Vec::with_capacity(changes.len());
        for change in changes {
            if !self.has_later(tenant, change, entry.at_ms)? {
                new.push(change.clone());
            }
        }
        match self.write(tenant, &new, entry.at_ms) {
            Err(Trouble::Full) => Ok(()),
            written => written.map(|_| ()),
        }
    }

    /// Returns true if this process has written, or deleted, later what a journal says of a moment. What lives longer was
    /// written later.
    fn has_later(&self, tenant: &Digest, change: &Change, at_ms: u64) -> Result<bool, Trouble> {
        let Change::Put(key, record) = change else { return Ok(false) };
        let row = self.tables.records.get((tenant, key.kind.as_str(), key.name.as_str()))?;
        let Some(row) = row else { return Ok(false) };
        let (_, ends_ms, _, _, sealed) = row.value();
        Ok(match sealed {
            Some(_) => ends_ms > at_ms.saturating_add(record.ttl_ms.min(self.shared.limits.max_age_ms)),
            None => ends_ms > at_ms.saturating_add(DELETION_MS),
        })
    }

    /// A tenant is forgotten that the writer of a journal may still know: what that writes of it from now on is not
    /// taken in.
    pub fn dismiss(&mut self, journal: &str, tenant: &Digest) -> Result<(), Trouble> {
        self.tables.dismissed.insert((journal, tenant), ())?;
        Ok(())
    }

    /// Writes a record; `false` if it is too large.
    fn put(
        &mut self,
        tenant: &Digest,
        key: &RecordKey,
        record: &Record,
        at_ms: u64,
    ) -> Result<bool, Trouble> {
        let ends_ms = at_ms.saturating_add(record.ttl_ms.min(self.shared.limits.max_age_ms));
        let mut names = Vec::with_capacity(32 * record.blobs.len());
        // New prompts come before old ones go, so that those in both stay.
        for blob in &record.blobs {
            names.extend_from_slice(&self.need_prompt(tenant, blob)?);
        }
        let group = record.group.as_deref();
        let proof = proof(&self.shared.seal, tenant, key, group, &names, &record.body);
        let body = [proof.as_slice(), &record.body].concat();
        let sealed = self.shared.seal.close(&body_context(tenant, key), &body);
        self.insert(tenant, key, ends_ms, group, &names, Some(&sealed))?;
        let mut bytes = row_bytes(names.len(), Some(sealed.len()));
        for name in names.as_chunks::<32>().0.iter().collect::<BTreeSet<_>>() {
            bytes += self.tables.prompts.get(name)?.map_or(0, |row| row.value().1);
        }
        if bytes <= self.shared.limits.tenant_bytes {
            return Ok(true);
        }
        self.take_for_good(tenant, key.kind.as_str(), &key.name)?;
        Ok(false)
    }

    fn delete(&mut self, tenant: &Digest, key: &RecordKey, at_ms: u64) -> Result<(), Trouble> {
        if self.tables.records.get((tenant, key.kind.as_str(), key.name.as_str()))?.is_none() {
            return Ok(());
        }
        self.insert(tenant, key, at_ms.saturating_add(DELETION_MS), None, &[], None)
    }

    fn insert(
        &mut self,
        tenant: &Digest,
        key: &RecordKey,
        ends_ms: u64,
        group: Option<&str>,
        names: &[u8],
        sealed: Option<&[u8]>,
    ) -> Result<(), Trouble> {
        let (kind, name) = (key.kind.as_str(), key.name.as_str());
        self.take(tenant, kind, name)?;
        let last = self.last_version(tenant)?;
        let version = last + 1;
        self.grown.insert(*tenant);
        let record = (tenant, kind, name);
        self.tables.records.insert(record, (version, ends_ms, group, names, sealed))?;
        self.tables.order.insert((tenant, version), (kind, name))?;
        self.tables.ends.insert((ends_ms, tenant, version), (kind, name))?;
        let bytes = row_bytes(names.len(), sealed.map(<[u8]>::len));
        self.count(tenant, bytes, 0, Some(version))
    }

    /// Takes a record away without a trace; `false` if it is not there.
    fn take(&mut self, tenant: &Digest, kind: &str, name: &str) -> Result<bool, Trouble> {
        let old = self.tables.records.remove((tenant, kind, name))?.map(|row| {
            let (version, ends_ms, _, names, sealed) = row.value();
            let bytes = row_bytes(names.len(), sealed.map(<[u8]>::len));
            let names = names.as_chunks::<32>().0.to_vec();
            OldRow { version, ends_ms, names, bytes }
        });
        let Some(old) = old else { return Ok(false) };
        self.tables.order.remove((tenant, old.version))?;
        self.tables.ends.remove((old.ends_ms, tenant, old.version))?;
        self.count(tenant, 0, old.bytes, None)?;
        for name in old.names {
            self.need_prompt_no_more(tenant, &name)?;
        }
        Ok(true)
    }

    /// Takes a record away if it is still what was read.
    pub fn take_version(&mut self, tenant: &Digest, key: &RecordKey, version: u64) -> Result<bool, Trouble> {
        let (kind, name) = (key.kind.as_str(), key.name.as_str());
        let is_there = self.has_version(tenant, kind, name, version)?;
        if is_there { self.take_for_good(tenant, kind, name) } else { Ok(false) }
    }

    fn has_version(&self, tenant: &Digest, kind: &str, name: &str, version: u64) -> Result<bool, Trouble> {
        Ok(self.tables.records.get((tenant, kind, name))?.is_some_and(|row| row.value().0 == version))
    }

    /// Takes a record away, and with the last one the tenant.
    fn take_for_good(&mut self, tenant: &Digest, kind: &str, name: &str) -> Result<bool, Trouble> {
        let taken = self.take(tenant, kind, name)?;
        if self.oldest(tenant)?.is_none() {
            self.leave(tenant)?;
        }
        Ok(taken)
    }

    /// Forgets a tenant; `false` if there was nothing.
    pub fn forget(&mut self, tenant: &Digest) -> Result<bool, Trouble> {
        let mut had_any = false;
        while let Some(oldest) = self.oldest(tenant)? {
            had_any |= self.take_oldest(tenant, &oldest)?;
        }
        self.leave(tenant)?;
        Ok(had_any)
    }

    /// Takes the oldest record of a tenant away, and its place in the order even if the record is not there.
    fn take_oldest(&mut self, tenant: &Digest, (version, kind, name): &Oldest) -> Result<bool, Trouble> {
        let is_there = self.has_version(tenant, kind, name, *version)?;
        let was_taken = is_there && self.take(tenant, kind, name)?;
        self.tables.order.remove((tenant, *version))?;
        Ok(was_taken)
    }

    /// Nothing is left of a tenant.
    fn leave(&mut self, tenant: &Digest) -> Result<(), Trouble> {
        let version = max(self.last_version(tenant)?, self.version_of_left()?);
        self.tables.facts.insert(VERSION, version)?;
        self.tables.tenants.remove(tenant)?;
        Ok(())
    }

    fn version_of_left(&self) -> Result<u64, Trouble> {
        Ok(self.tables.facts.get(VERSION)?.map_or(0, |version| version.value()))
    }

    /// The last version of a tenant. One that nothing is known of may have been there before.
    fn last_version(&self, tenant: &Digest) -> Result<u64, Trouble> {
        match self.tables.tenants.get(tenant)? {
            Some(row) => Ok(row.value().0),
            None => self.version_of_left(),
        }
    }

    /// Takes records away whose time is over. Returns true if there may be more.
    pub fn end_records(&mut self) -> Result<bool, Trouble> {
        let mut ended = Vec::new();
        let live = (self.now_ms.saturating_add(1), &Digest::default(), 0_u64);
        for row in self.tables.ends.range(..live)?.take(ENDED_MAX) {
            let (end, record) = row?;
            let ((ends_ms, tenant, version), (kind, name)) = (end.value(), record.value());
            ended.push((ends_ms, *tenant, version, kind.to_owned(), name.to_owned()));
        }
        for (ends_ms, tenant, version, kind, name) in &ended {
            if self.has_version(tenant, kind, name, *version)? {
                self.take_for_good(tenant, kind, name)?;
            }
            // Also if the record is not there, else it is looked for without end.
            self.tables.ends.remove((*ends_ms, tenant, *version))?;
        }
        Ok(ended.len() == ENDED_MAX)
    }

    /// Makes room: no tenant has more than its share, and all together no more than there is. The tenant that has most
    /// gives its oldest, new ones too.
    pub fn make_room(&mut self) -> Result<(), Trouble> {
        let limits = self.shared.limits;
        let mut is_over = self.bytes > limits.max_bytes;
        for tenant in &self.grown {
            is_over |= self.tenant_bytes(tenant)? > limits.tenant_bytes;
        }
        if !is_over {
            return Ok(());
        }
        let mut tenants = BinaryHeap::new();
        for row in self.tables.tenants.iter()? {
            let (tenant, row) = row?;
            tenants.push((row.value().1, *tenant.value()));
        }
        while let Some((bytes, tenant)) = tenants.pop() {
            if self.bytes <= limits.max_bytes && bytes <= limits.tenant_bytes {
                break;
            }
            let Some(oldest) = self.oldest(&tenant)? else { continue };
            self.take_oldest(&tenant, &oldest)?;
            if self.oldest(&tenant)?.is_none() {
                self.leave(&tenant)?;
            }
            tenants.push((self.tenant_bytes(&tenant)?, tenant));
        }
        Ok(())
    }

    fn tenant_bytes(&self, tenant: &Digest) -> Result<u64, Trouble> {
        Ok(self.tables.tenants.get(tenant)?.map_or(0, |row| row.value().1))
    }

    /// Returns how far a journal was taken in.
    pub fn journal(&self, name: &str) -> Result<u64, Trouble> {
        Ok(self.tables.journals.get(name)?.map_or(0, |offset| offset.value()))
    }

    /// Notes how far a journal was taken in.
    pub fn note_journal(&mut self, name: &str, offset: u64) -> Result<(), Trouble> {
        self.tables.journals.insert(name, offset)?;
        Ok(())
    }

    /// Forgets all journals but these.
    pub fn keep_journals(&mut self, names: &[String]) -> Result<(), Trouble> {
        let is_kept = |name: &str| names.iter().any(|kept| kept == name);
        self.tables.journals.retain(|name, _| is_kept(name))?;
        self.tables.dismissed.retain(|(name, _), ()| is_kept(name))?;
        Ok(())
    }

    /// Ends the changes. Returns the number of bytes of all tenants, and the prompts that nobody needs any more.
    pub fn finish(self) -> Result<(u64, BTreeSet<Digest>), Trouble> {
        if !self.written.is_empty() {
            self.shared.folder.sync_prompts()?;
        }
        Ok((self.bytes, self.unneeded))
    }

    fn oldest(&self, tenant: &Digest) -> Result<Option<Oldest>, Trouble> {
        let mut rows = self.tables.order.range((tenant, 0)..=(tenant, u64::MAX))?;
        let Some(row) = rows.next() else { return Ok(None) };
        let (place, record) = row?;
        let (kind, name) = record.value();
        Ok(Some((place.value().1, kind.to_owned(), name.to_owned())))
    }

    /// A record names a prompt. It is written if it is not there.
    fn need_prompt(&mut self, tenant: &Digest, prompt: &[u8]) -> Result<Digest, Trouble> {
        let name = self.shared.seal.digest(tenant, prompt);
        let (times, bytes) = match self.tables.prompts.get(&name)?.map(|row| row.value()) {
            Some(row) => row,
            None => {
                let sealed = self.shared.seal.close(&prompt_context(tenant, &name), prompt);
                self.shared.folder.write_prompt(&name, &sealed)?;
                self.written.push(name);
                (0, (sealed.len() as u64).next_multiple_of(BLOCK))
            }
        };
        self.unneeded.remove(&name);
        self.tables.prompts.insert(&name, (times + 1, bytes))?;
        if times == 0 {
            self.count(tenant, bytes, 0, None)?;
        }
        Ok(name)
    }

    fn need_prompt_no_more(&mut self, tenant: &Digest, name: &Digest) -> Result<(), Trouble> {
        let row = self.tables.prompts.get(name)?.map(|row| row.value());
        let Some((times, bytes)) = row else { return Ok(()) };
        if times > 1 {
            self.tables.prompts.insert(name, (times - 1, bytes))?;
            return Ok(());
        }
        self.tables.prompts.remove(name)?;
        self.unneeded.insert(*name);
        self.count(tenant, 0, bytes, None)
    }

    /// Counts bytes that a tenant has more, and less.
    fn count(&mut self, tenant: &Digest, more: u64, less: u64, version: Option<u64>) -> Result<(), Trouble> {
        let last = max(self.last_version(tenant)?, version.unwrap_or(0));
        let bytes = self.tenant_bytes(tenant)?;
        self.tables.tenants.insert(tenant, (last, (bytes + more).saturating_sub(less)))?;
        self.bytes = (self.bytes + more).saturating_sub(less);
        Ok(())
    }
}

pub(super) fn row_bytes(names: usize, body: Option<usize>) -> u64 {
    RECORD_BYTES + names as u64 + body.unwrap_or(0) as u64
}
