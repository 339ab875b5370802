//! Journals: what a process still writes after it has handed its folder over.
//!
//! ```text
//! length (4)    of what follows the digest
//! digest (32)   of the same
//! sealed        the length of the head (4), the head in JSON, then bodies and prompts as the head says
//! ```
//!
//! Whoever writes a journal has it locked, until it ends or is killed. The process that has the folder takes in what comes,
//! and removes the journal once it is over.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::error::Trouble;
use super::folder::{Folder, JOURNALS, open_regular, private, sync_folder};
use super::progress::unix_ms;
use crate::engine::records::{Change, Record, RecordKey};
use crate::engine::words::RecordKind;
use crate::store::seal::{Digest, OPENED_MAX, Seal};

const CONTEXT: &[u8] = b"journal";
const ENDING: &str = ".journal";

/// The length and the digest.
const PREAMBLE: usize = 4 + 32;

/// The bytes that are read in one step, one entry aside.
const STEP_BYTES: u64 = 8 << 20;

/// Something that was written for a tenant.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub tenant: Digest,
    pub at_ms: u64,
    /// None: the tenant is forgotten.
    pub changes: Option<Vec<Change>>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    tenant: Digest,
    at_ms: u64,
    changes: Option<Vec<ChangeHead>>,
}

#[derive(Serialize, Deserialize)]
struct ChangeHead {
    kind: String,
    name: String,
    record: Option<RecordHead>,
}

#[derive(Serialize, Deserialize)]
struct RecordHead {
    group: Option<String>,
    ttl_ms: u64,
    body: usize,
    blobs: Vec<usize>,
}

impl Entry {
    fn encode(&self, seal: &Seal) -> Result<Vec<u8>, Trouble> {
        let changes = self.changes.as_deref();
        let head = Head {
            tenant: self.tenant,
            at_ms: self.at_ms,
            changes: changes.map(|changes| changes.iter().map(head_of).collect()),
        };
        let head = serde_json::to_vec(&head).map_err(io::Error::from)?;
        let mut plain = (head.len() as u32).to_le_bytes().to_vec();
        plain.extend_from_slice(&head);
        for change in changes.unwrap_or_default() {
            if let Change::Put(_, record) = change {
                plain.extend_from_slice(&record.body);
                record.blobs.iter().for_each(|blob| plain.extend_from_slice(blob));
            }
        }
        if plain.len() > OPENED_MAX {
            return Err(Trouble::Full);
        }
        let sealed = seal.close(CONTEXT, &plain);
        let length = (sealed.len() as u32).to_le_bytes();
        Ok([&length, seal.digest(CONTEXT, &sealed).as_slice(), &sealed].concat())
    }

    fn decode(plain: Vec<u8>) -> Option<Entry> {
        let mut rest = Bytes::from(plain);
        let length = u32::from_le_bytes(*rest.first_chunk::<4>()?) as usize;
        let _length = split(&mut rest, 4)?;
        let head: Head = serde_json::from_slice(&split(&mut rest, length)?).ok()?;
        let Some(heads) = head.changes else {
            return Some(Entry { tenant: head.tenant, at_ms: head.at_ms, changes: None });
        };
        let changes = heads.into_iter().map(|head| change_of(head, &mut rest)).collect::<Option<_>>()?;
        Some(Entry { tenant: head.tenant, at_ms: head.at_ms, changes: Some(changes) })
    }
}

fn head_of(change: &Change) -> ChangeHead {
    let key = change.key();
    let record = match change {
        Change::Put(_, record) => Some(RecordHead {
            group: record.group.clone(),
            ttl_ms: record.ttl_ms,
            body: record.body.len(),
            blobs: record.blobs.iter().map(Bytes::len).collect(),
        }),
        Change::Delete(_) => None,
    };
    ChangeHead { kind: key.kind.as_str().to_owned(), name: key.name.clone(), record }
}

fn change_of(head: ChangeHead, rest: &mut Bytes) -> Option<Change> {
    let kind = RecordKind::ALL.into_iter().find(|kind| kind.as_str() == head.kind)?;
    let key = RecordKey::new(kind, &head.name)?;
    let Some(record) = head.record else { return Some(Change::Delete(key)) };
    let body = split(rest, record.body)?;
    let blobs = record.blobs.into_iter().map(|size| split(rest, size)).collect::<Option<_>>()?;
    Some(Change::Put(key, Record { group: record.group, body, blobs, ttl_ms: record.ttl_ms }))
}

/// Splits bytes off the front, if there are as many.
fn split(bytes: &mut Bytes, at: usize) -> Option<Bytes> {
    if at <= bytes.len() { Some(bytes.split_to(at)) } else { None }
}

/// The journal that this process writes.
#[derive(Debug)]
pub(super) struct Journal {
    /// Locked as long as it is open.
    file: File,
    path: PathBuf,
    bytes: u64,
    max_bytes: u64,
}

impl Journal {
    /// Begins a journal; to be called while this process still has the folder, so that the next one finds it.
    pub fn begin(folder: &Folder, max_bytes: u64) -> Result<Journal, Trouble> {
        let name = format!("{}-{}{ENDING}", unix_ms(), std::process::id());
        let path = folder.path(JOURNALS).join(name);
        let file = private().create_new(true).open(&path)?;
        file.lock()?;
        sync_folder(&folder.path(JOURNALS))?;
        Ok(Journal { file, path, bytes: 0, max_bytes })
    }

    /// Writes entries, durably: all of them or none.
    pub fn write(&mut self, entries: &[Entry], seal: &Seal) -> Result<(), Trouble> {
        let bytes = entries.iter().map(|entry| entry.encode(seal)).collect::<Result<Vec<_>, _>>()?.concat();
        if self.bytes + bytes.len() as u64 > self.max_bytes {
            return Err(Trouble::Full);
        }
        let written = self.file.write_all_at(&bytes, self.bytes).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // What follows would be lost behind half an entry.
            let _ = self.file.set_len(self.bytes);
            return Err(error.into());
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Ends the journal. One without entries is removed.
    pub fn end(mut self) {
        let _ = self.file.flush();
        if self.bytes == 0 {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The journal of another process, as far as it was taken in.
#[derive(Debug)]
pub(super) struct FollowedJournal {
    pub name: String,
    pub path: PathBuf,
    pub offset: u64,
    file: File,
}

/// The next part of a journal.
pub(super) struct Part {
    pub entries: Vec<Entry>,
    /// Where the part ends.
    pub offset: u64,
    /// True if nothing follows, now or later.
    pub is_over: bool,
    /// True if something follows that is not an entry, and will not be one.
    pub is_damaged: bool,
}

impl FollowedJournal {
    /// The journals of a folder, the oldest first, and what cannot be one.
    pub fn all(folder: &Folder) -> Result<(Vec<FollowedJournal>, Vec<PathBuf>), Trouble> {
        let (mut journals, mut foreign) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(folder.path(JOURNALS))?.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            match (name.to_str().filter(|name| name.ends_with(ENDING)), open_regular(&path)) {
                (Some(name), Ok(file)) => {
                    journals.push(FollowedJournal { name: name.to_owned(), path, offset: 0, file });
                }
                _ => foreign.push(path),
            }
        }
        journals.sort_by(|one, other| one.name.cmp(&other.name));
        Ok((journals, foreign))
    }

    /// Reads the next part.
    pub fn read(&self, seal: &Seal) -> Result<Part, Trouble> {
        // It is asked first: once its writer is gone, what is there is all.
        let is_alive = self.file.try_lock_shared().is_err();
        if !is_alive {
            self.file.unlock()?;
        }
        let length = self.file.metadata()?.len();
        let mut part = Part { entries: Vec::new(), offset: self.offset, is_over: false, is_damaged: false };
        while part.offset < length && part.offset - self.offset < STEP_BYTES {
            match self.entry(part.offset, length, seal)? {
                Some((entry, next)) => {
                    part.entries.push(entry);
                    part.offset = next;
                }
                // Its writer is at it, or was killed at it.
                None => break,
            }
        }
        let is_stuck = part.entries.is_empty();
        part.is_over = !is_alive && (part.offset == length || is_stuck);
        part.is_damaged = part.is_over && part.offset != length && self.is_damaged(part.offset, length);
        Ok(part)
    }

    /// Reads the entry at an offset; none if it is not whole.
    fn entry(&self, offset: u64, length: u64, seal: &Seal) -> Result<Option<(Entry, u64)>, Trouble> {
        let Some(size) = self.size(offset, length)? else { return Ok(None) };
        let mut sealed = vec![0; size as usize];
        let mut digest = Digest::default();
        let is_there =
            self.read_at(&mut digest, offset + 4)? && self.read_at(&mut sealed, offset + PREAMBLE as u64)?;
        if !is_there || seal.digest(CONTEXT, &sealed) != digest {
            return Ok(None);
        }
        let entry = seal.open(CONTEXT, &sealed).and_then(Entry::decode);
        Ok(entry.map(|entry| (entry, offset + PREAMBLE as u64 + size)))
    }

    /// The size of the entry at an offset, if all of it is there.
    fn size(&self, offset: u64, length: u64) -> Result<Option<u64>, Trouble> {
        let left = length.saturating_sub(offset);
        if left < PREAMBLE as u64 {
            return Ok(None);
        }
        let mut size = [0; 4];
        if !self.read_at(&mut size, offset)? {
            return Ok(None);
        }
        let size = u64::from(u32::from_le_bytes(size));
        let is_there = size <= left - PREAMBLE as u64 && size <= OPENED_MAX as u64 + 1024;
        Ok(if is_there { Some(size) } else { None })
    }

    /// Reads what fills a buffer; `false` if the file ends before: its writer takes back what its disk has no room for.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<bool, Trouble> {
        match self.file.read_exact_at(buffer, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => Ok(read.map(|()| true)?),
        }
    }

    /// Returns true if what follows is more than the beginning of an entry.
    fn is_damaged(&self, offset: u64, length: u64) -> bool {
        matches!(self.size(offset, length), Ok(Some(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_its_writer_takes_back_while_it_is_read_is_not_there() {
        let path = tempfile::tempdir().unwrap();
        let (folder, seal) = (Folder::open(path.path()).unwrap(), Seal::new(None));
        folder.prepare().unwrap();
        let mut journal = Journal::begin(&folder, 1 << 20).unwrap();
        let entry = Entry { tenant: [1; 32], at_ms: 7, changes: None };
        journal.write(std::slice::from_ref(&entry), &seal).unwrap();
        let (journals, _) = FollowedJournal::all(&folder).unwrap();
        let followed = &journals[0];
        let length = journal.bytes;
        assert_eq!(followed.entry(0, length, &seal).unwrap(), Some((entry, length)));
        // The length was asked for before.
        for left in [length - 1, PREAMBLE as u64 - 1, 3, 0] {
            journal.file.set_len(left).unwrap();
            assert_eq!(followed.entry(0, length, &seal).unwrap(), None, "{left} bytes");
        }
    }
}
