//! The database and the prompts of a folder that this process has: changed together, and opened again after a failure.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redb::ReadableTable as _;

use super::Shared;
use super::batch::Batch;
use super::database::{self, Tables, View};
use super::error::{Trouble, guarded};
use super::folder::{PromptFile, RECORDS};
use super::progress::{Progress, unix_ms};
use crate::store::seal::Digest;

pub(super) struct Disk {
    pub shared: Arc<Shared>,
    /// A digest of the key that everything is encrypted with.
    key: u64,
    was_examined: AtomicBool,
}

impl Disk {
    pub fn new(shared: Arc<Shared>) -> Disk {
        let key = shared.seal.digest(b"key", b"");
        let key = u64::from_le_bytes(*key.first_chunk().unwrap_or(&[0; 8]));
        Disk { shared, key, was_examined: AtomicBool::new(false) }
    }

    /// Changes the database. What fails leaves it as it was, and opens it again if need be.
    pub fn transact<T>(
        &self,
        change: impl FnOnce(&mut Batch<'_>) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        if self.shared.database().is_none() {
            self.open_database()?;
        }
        let mut written = Vec::new();
        match guarded(|| attempt(&self.shared, &mut written, change)) {
            Ok((out, bytes, unneeded)) => {
                self.shared.bytes.store(bytes, Relaxed);
                unneeded.iter().for_each(|name| self.shared.folder.remove_prompt(name));
                Ok(out)
            }
            Err(trouble) => {
                self.recover(&trouble, &written);
                Err(trouble)
            }
        }
    }

    /// Puts things right after a transaction has failed.
    fn recover(&self, trouble: &Trouble, written: &[Digest]) {
        match trouble {
            // Of a prompt: the database has nothing to do with it.
            Trouble::Io(_) => {}
            trouble if trouble.is_damage() => self.examine(&trouble.to_string()),
            // After an error of the disk it takes nothing more until it is opened again.
            Trouble::Database(_) => {
                let _ = self.open_database();
            }
            _ => {}
        }
        let Ok(needed) = self.needed_prompts() else { return };
        written
            .iter()
            .filter(|name| !needed.contains(*name))
            .for_each(|name| self.shared.folder.remove_prompt(name));
    }

    /// Something in the database could not be read. If it is damaged it is moved aside, and an empty one takes its place.
    pub fn examine(&self, reason: &str) {
        self.close_database();
        let was_examined = self.was_examined.swap(true, Relaxed);
        // What looks whole and fails again is of no use either.
        if !was_examined && let Ok(database) = database::open_examined(&self.shared.folder, self.key) {
            *self.shared.database_alone() = Some(database);
            return;
        }
        let records = self.shared.folder.path(RECORDS);
        let _ = self.shared.folder.move_aside(&records, reason).map(|()| self.open_database());
    }

    /// Opens the database, again if need be, and takes prompts away that no record needs.
    pub fn open_database(&self) -> Result<(), Trouble> {
        // Closed first: a file is open once.
        self.close_database();
        let opened = database::open(&self.shared.folder, self.key)?;
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

    /// Takes records away whose time is over.
    pub fn end_records(&self) -> Result<(), Trouble> {
        while self.has_ended_records()? {
            self.transact(|batch| batch.end_records())?;
        }
        Ok(())
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
