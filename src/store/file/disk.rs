//! The database and the prompts of a folder that this process has: changed together, and opened again after a failure.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use redb::ReadableTable as _;

use super::Shared;
use super::batch::Batch;
use super::database::{self, Tables, View};
use super::error::{Trouble, guarded};
use super::folder::{PromptFile, RECORDS};
use super::progress::{Progress, unix_ms};
use crate::store::seal::Digest;

/// A database that was found whole and fails again within this time is damaged in a way that no examination finds.
const SUSPECT_FOR: Duration = Duration::from_secs(60);

pub(super) struct Disk {
    pub shared: Arc<Shared>,
    /// A digest of the key that everything is encrypted with.
    key: u64,
    /// The last examination that found the database whole.
    suspicion: Cell<Option<Suspicion>>,
}

/// Why a database was examined that is whole, and when.
#[derive(Clone, Copy)]
struct Suspicion {
    by: Access,
    since: Instant,
}

/// Who could not read something in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// A tenant's records were looked up.
    Load,
    /// A change, or the look at what is to be changed.
    Change,
}

impl Disk {
    pub fn new(shared: Arc<Shared>) -> Disk {
        let key = shared.seal.digest(b"key", b"");
        let key = u64::from_le_bytes(*key.first_chunk().unwrap_or(&[0; 8]));
        Disk { shared, key, suspicion: Cell::new(None) }
    }

    /// Changes the database. What fails leaves it as it was, and opens it again if need be.
    pub fn transact<T>(
        &self,
        change: impl FnOnce(&mut Batch<'_>) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut written = Vec::new();
        let attempted = self.checked(|| {
            self.open_if_closed()?;
            attempt(&self.shared, &mut written, change)
        });
        match attempted {
            Ok((out, bytes, unneeded)) => {
                self.shared.bytes.store(bytes, Relaxed);
                unneeded.iter().for_each(|name| self.shared.folder.remove_prompt(name));
                if self.suspicion.get().is_some_and(|suspicion| suspicion.by == Access::Change) {
                    self.suspicion.set(None);
                }
                Ok(out)
            }
            Err(trouble) => {
                self.recover(&trouble, &written);
                Err(trouble)
            }
        }
    }

    /// Works with the database, and examines it if it seems to be damaged.
    fn checked<T>(&self, work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
        let examinations = self.shared.examinations.load(Relaxed);
        guarded(work).inspect_err(|trouble| {
            if trouble.is_damage_of_database() {
                self.examine(&trouble.to_string(), Access::Change, examinations);
            }
        })
    }

    /// Puts things right after a transaction has failed.
    fn recover(&self, trouble: &Trouble, written: &[Digest]) {
        match trouble {
            // It was examined, and opened.
            trouble if trouble.is_damage_of_database() => {}
            // After an error of the disk it takes nothing more until it is opened again.
            Trouble::Database(_) => {
                let _ = self.open_database();
            }
            // Of a prompt: the database has nothing to do with it.
            _ => {}
        }
        let Ok(needed) = self.needed_prompts() else { return };
        written
            .iter()
            .filter(|name| !needed.contains(*name))
            .for_each(|name| self.shared.folder.remove_prompt(name));
    }

    /// Something in the database could not be read after so many examinations. If it is damaged it is moved aside, and an
    /// empty one takes its place.
    pub fn examine(&self, reason: &str, by: Access, examinations: u64) {
        if examinations != self.shared.examinations.load(Relaxed) {
            // Others failed at the same time, and it was examined since.
            return;
        }
        self.shared.examinations.fetch_add(1, Relaxed);
        self.close_database();
        let fails_again =
            |suspicion: Suspicion| suspicion.by == by && suspicion.since.elapsed() < SUSPECT_FOR;
        if !self.suspicion.take().is_some_and(fails_again) {
            match database::open_examined(&self.shared.folder, self.key) {
                Ok(database) => {
                    tracing::warn!(
                        reason,
                        "the store's records could not be read; they were examined, and are whole"
                    );
                    *self.shared.database_alone() = Some(database);
                    self.suspicion.set(Some(Suspicion { by, since: Instant::now() }));
                    return;
                }
                // The disk's: it is opened again with the next change.
                Err(trouble) if !trouble.is_damage() => return,
                Err(_) => {}
            }
        }
        let records = self.shared.folder.path(RECORDS);
        let _ = self.shared.folder.move_aside(&records, reason).map(|()| self.open_database());
    }

    /// Opens the database at the start, and tidies up after the process before.
    pub fn begin(&self) -> Result<(), Trouble> {
        self.checked(|| {
            self.open_database()?;
            self.tidy()
        })
    }

    fn open_if_closed(&self) -> Result<(), Trouble> {
        let is_closed = self.shared.database().is_none();
        if is_closed { self.open_database() } else { Ok(()) }
    }

    /// Opens the database, again if need be, and takes prompts away that no record needs.
    pub fn open_database(&self) -> Result<(), Trouble> {
        // Closed first: a file is open once.
        self.close_database();
        let opened = database::open(&self.shared.folder, self.key)?;
        self.shared.folder.sync()?;
        self.shared.bytes.store(database::bytes(&opened)?, Relaxed);
        *self.shared.database_alone() = Some(opened);
        self.collect_orphans()
    }

    /// Closes the database, once nobody reads it any more.
    pub fn close_database(&self) {
        let closed = self.shared.database_alone().take();
        // It writes as it is closed.
        let _ = guarded(|| {
            drop(closed);
            Ok(())
        });
    }

    fn view(&self) -> Result<View, Trouble> {
        let database = self.shared.database();
        View::open(database.as_ref().ok_or_else(closed)?)
    }

    fn needed_prompts(&self) -> Result<HashSet<Digest>, Trouble> {
        self.view()?.prompts.iter()?.map(|row| Ok(*row?.0.value())).collect()
    }

    fn collect_orphans(&self) -> Result<(), Trouble> {
        let needed = self.needed_prompts()?;
        let mut progress = Progress::new("collecting prompts that no record needs");
        let mut foreign = 0;
        for file in self.shared.folder.prompts()? {
            match file {
                PromptFile::Whole(name) if needed.contains(&name) => {}
                PromptFile::Whole(name) => self.shared.folder.remove_prompt(&name),
                PromptFile::Unfinished(path) => {
                    let _ = fs::remove_file(path);
                }
                PromptFile::Foreign => foreign += 1,
            }
            progress.step();
        }
        if foreign > 0 {
            tracing::warn!(
                foreign,
                "files that are not ours lie among the store's prompts; they are left alone"
            );
        }
        Ok(())
    }

    /// Takes away what has been kept for long enough: records, and what was moved aside.
    pub fn tidy(&self) -> Result<(), Trouble> {
        // What cannot be removed now is tried again the next time.
        let _ = self.shared.folder.remove_old_aside(self.shared.limits.max_age_ms);
        self.checked(|| {
            self.open_if_closed()?;
            while self.has_ended_records()? {
                self.transact(|batch| batch.end_records())?;
            }
            Ok(())
        })
    }

    fn has_ended_records(&self) -> Result<bool, Trouble> {
        let first = self.view()?.ends.first()?.map(|(end, _)| end.value().0);
        Ok(first.is_some_and(|ends_ms| ends_ms <= unix_ms()))
    }
}

type Attempt<T> = (T, u64, BTreeSet<Digest>);

/// Changes the database in one transaction. Returns the number of bytes afterwards, and the prompts that nobody needs.
fn attempt<T>(
    shared: &Shared,
    written: &mut Vec<Digest>,
    change: impl FnOnce(&mut Batch<'_>) -> Result<T, Trouble>,
) -> Result<Attempt<T>, Trouble> {
    let database = shared.database();
    let Some(database) = database.as_ref() else { return Err(closed()) };
    let transaction = database::begin(database)?;
    let mut batch = Batch::new(shared, Tables::open(&transaction)?, written);
    let out = change(&mut batch)?;
    batch.make_room()?;
    let (bytes, unneeded) = batch.finish()?;
    transaction.commit()?;
    Ok((out, bytes, unneeded))
}

pub(super) fn closed() -> Trouble {
    std::io::Error::from(std::io::ErrorKind::NotConnected).into()
}
