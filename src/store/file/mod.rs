//! Records in a folder of this machine, which outlive the process.
//!
//! Records lie in one database of `redb`, prompts in files beside it ([`folder`] has the layout). All that is written goes
//! through one thread ([`writer`]), which writes what is queued in one transaction; reads go beside it. Bodies and prompts
//! are compressed and, with a key, encrypted; tenants and prompts have names that nobody can guess without the key.
//!
//! What [`RecordStore::write`] has confirmed outlives the process, killed or not, and the machine as far as its disk keeps
//! what was synchronised. What waits to be written is lost with the process.
//!
//! One process has the folder at a time. A process that is about to end hands it over before its last exchanges have ended
//! ([`RecordStore::hand_over`]): what it still writes goes to a [`journal`], which the next process takes in at once.

mod batch;
mod database;
mod disk;
mod error;
mod folder;
mod journal;
mod load;
mod progress;
mod writer;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redb::Database;
use tokio::sync::{Semaphore, oneshot};

use error::{Trouble, guarded};
use folder::Folder;
use writer::{Answer, Job};

use super::records::{Changes, Options, RecordStore};
use super::seal::{Digest, OPENED_MAX, Seal};
use crate::engine::records::{Change, RecordKey};
use crate::engine::words::{StoreError, TenantId};

/// The most jobs that wait for the writer; of more none is taken.
const JOBS_MAX: usize = 1024;

/// The most tenants that are read at once.
const READS_MAX: usize = 4;

/// The most tenants of which it is remembered that a process has forgotten them while it drained.
const FORGOTTEN_MAX: usize = 1024;

/// The longest time that a call takes. Who waits for one on the way of a request gives up far sooner.
const CALL_MAX: Duration = Duration::from_secs(10);

/// A store of records in a folder.
pub struct FileStore {
    shared: Arc<Shared>,
    jobs: SyncSender<Job>,
    reads: Arc<Semaphore>,
}

/// What the writer and those who read share.
struct Shared {
    folder: Folder,
    seal: Seal,
    limits: Limits,
    /// None while this process does not have the folder.
    database: RwLock<Option<Database>>,
    /// The bytes of all tenants, as they are kept.
    bytes: AtomicU64,
    /// True while another process writes a journal.
    follows: AtomicBool,
    /// True once this process has let the next one have the folder.
    has_handed_over: AtomicBool,
    /// How often the database was examined.
    examinations: AtomicU64,
    damaged: AtomicU64,
    /// The tenants that another process has forgotten in its journal, each with a version that what was known is not
    /// younger than.
    forgotten: Mutex<VecDeque<(Digest, u64)>>,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Of all tenants, as they are kept.
    max_bytes: u64,
    /// Of one tenant.
    tenant_bytes: u64,
    /// Of one tenant, opened: memory holds no more of it.
    loaded_bytes: u64,
    max_age_ms: u64,
}

impl FileStore {
    /// Opens the store of a folder; waits for it, up to `lock_wait`, if another process has it. Says in the log why it cannot
    /// be opened.
    pub async fn open(path: PathBuf, options: Options) -> Result<FileStore, StoreError> {
        let (sender, jobs) = std::sync::mpsc::sync_channel(JOBS_MAX);
        let (ready, opened) = oneshot::channel();
        let open = move || {
            match writer::open(&path, options, jobs) {
                Ok(writer) => {
                    if ready.send(Ok(writer.shared())).is_ok() {
                        writer.run();
                    }
                }
                Err(trouble) => {
                    tracing::warn!(path = %path.display(), reason = %trouble, "{}", advice(&trouble));
                    let _ = ready.send(Err(trouble.word()));
                }
            };
        };
        std::thread::Builder::new().name("store".into()).spawn(open).map_err(|_| StoreError::Down)?;
        let shared = opened.await.unwrap_or(Err(StoreError::Down))?;
        Ok(FileStore { shared, jobs: sender, reads: Arc::new(Semaphore::new(READS_MAX)) })
    }

    /// Returns the number of records that were damaged, since the start.
    pub fn damaged(&self) -> u64 {
        self.shared.damaged.load(Relaxed)
    }

    /// Gives the writer a job, and waits until it is done.
    async fn ask<T>(&self, job: impl FnOnce(Answer<T>) -> Job) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.jobs.try_send(job(answer)).map_err(|refused| match refused {
            TrySendError::Full(_) => StoreError::Slow,
            TrySendError::Disconnected(_) => StoreError::Down,
        })?;
        match tokio::time::timeout(CALL_MAX, answered).await {
            Ok(answered) => answered.unwrap_or(Err(StoreError::Down)),
            Err(_) => Err(StoreError::Slow),
        }
    }

    async fn load(&self, tenant: Digest, after: u64) -> Result<Changes, StoreError> {
        let permit = Arc::clone(&self.reads).acquire_owned().await.map_err(|_| StoreError::Down)?;
        let shared = Arc::clone(&self.shared);
        let read = tokio::task::spawn_blocking(move || {
            let examinations = shared.examinations.load(Relaxed);
            let loaded = guarded(|| load::load(&shared, &tenant, after));
            drop(permit);
            (loaded, examinations)
        });
        let (loaded, examinations) = read.await.map_err(|_| StoreError::Down)?;
        let mut loaded = loaded.map_err(|trouble| {
            if trouble.is_damage_of_database() {
                let _ = self.jobs.try_send(Job::Examine(trouble.to_string(), examinations));
            }
            trouble.word()
        })?;
        if !loaded.damaged.is_empty() {
            loaded.changes.damaged = loaded.damaged.len();
            self.shared.damaged.fetch_add(loaded.damaged.len() as u64, Relaxed);
            let _ = self.jobs.try_send(Job::Damaged(tenant, loaded.damaged));
        }
        Ok(loaded.changes)
    }

    fn tenant(&self, tenant: TenantId) -> Digest {
        self.shared.seal.digest(b"tenant", &tenant.0)
    }
}

impl RecordStore for FileStore {
    fn name(&self) -> &'static str {
        "file"
    }

    fn is_shared(&self) -> bool {
        self.shared.follows.load(Relaxed)
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.shared.bytes.load(Relaxed))
    }

    fn changes(&self, tenant: TenantId, after: u64) -> BoxFuture<'_, Result<Changes, StoreError>> {
        Box::pin(async move {
            if self.is_shared() {
                // What the process before has written so far is taken in first; if it cannot be, what is known counts.
                let _ = self.ask(Job::Follow).await;
            }
            let load = self.load(self.tenant(tenant), after);
            tokio::time::timeout(CALL_MAX, load).await.unwrap_or(Err(StoreError::Slow))
        })
    }

    fn write(&self, tenant: TenantId, changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            if !changes.iter().all(fits) {
                return Err(StoreError::Full);
            }
            self.ask(|answer| Job::Write(self.tenant(tenant), changes, answer)).await
        })
    }

    fn forget(&self, tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { self.ask(|answer| Job::Forget(self.tenant(tenant), answer)).await })
    }

    fn hand_over(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.ask(Job::HandOver).await;
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.ask(Job::Close).await;
        })
    }
}

impl Shared {
    fn database(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that another process has forgotten a tenant, and all up to a version.
    fn forgotten_by_another(&self, tenant: Digest, version: u64) {
        let mut forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        if forgotten.len() >= FORGOTTEN_MAX {
            forgotten.pop_front();
        }
        forgotten.push_back((tenant, version));
    }

    /// Returns true if another process has forgotten a tenant after this version.
    fn was_forgotten_after(&self, tenant: &Digest, version: u64) -> bool {
        let forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        version > 0 && forgotten.iter().any(|(of, until)| of == tenant && version <= *until)
    }

    /// Waits for those who read.
    fn database_alone(&self) -> RwLockWriteGuard<'_, Option<Database>> {
        self.database.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fits(change: &Change) -> bool {
    match change {
        Change::Put(_, record) => record.fits() && record.blobs.iter().all(|blob| blob.len() <= OPENED_MAX),
        Change::Delete(_) => true,
    }
}

/// What to do about a folder that cannot be opened.
fn advice(trouble: &Trouble) -> &'static str {
    match trouble.word() {
        StoreError::Locked => {
            "another process has the store's folder; stop it, or give each process a store.path of its own (or \
             store.kind = \"redis\")"
        }
        StoreError::ReadOnly => {
            "the store's folder is not writable; let this user write to it, or set store.path"
        }
        StoreError::Full => "the store's disk is full; make room, or set store.path to another disk",
        StoreError::Garbage => {
            "the store's folder cannot be used and is left as it is; start the forkpoint that wrote it, or set \
             store.path to another folder"
        }
        _ => "the store's folder cannot be used; check the disk, or set store.path to another folder",
    }
}

/// What the body of a record is sealed for.
fn body_context(tenant: &Digest, key: &RecordKey) -> Vec<u8> {
    [tenant.as_slice(), key.kind.as_str().as_bytes(), b"/", key.name.as_bytes()].concat()
}

/// What a prompt is sealed for.
fn prompt_context(tenant: &Digest, name: &Digest) -> Vec<u8> {
    [tenant.as_slice(), name].concat()
}

/// The proof that a record is whole, and that of its tenant and name.
fn proof(
    seal: &Seal,
    tenant: &Digest,
    key: &RecordKey,
    group: Option<&str>,
    names: &[u8],
    body: &[u8],
) -> Digest {
    let context = [&body_context(tenant, key), b"/".as_slice(), group.unwrap_or("-").as_bytes(), b"/", names];
    seal.digest(&context.concat(), body)
}

#[cfg(test)]
mod tests;
