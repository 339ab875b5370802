//! The thread that writes: what is queued goes into one transaction.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::disk::{Access, Disk, closed};
use super::error::{Trouble, guarded};
use super::folder::Folder;
use super::journal::{Entry, FollowedJournal, Journal};
use super::progress::unix_ms;
use super::{Limits, Shared};
use crate::engine::records::{Change, RecordKey};
use crate::engine::words::StoreError;
use crate::store::records::Options;
use crate::store::seal::Digest;

/// The most that is written in one transaction.
const GROUP_JOBS: usize = 256;
const GROUP_BYTES: usize = 8 << 20;

/// How often a start is tried with a database that looks damaged: whole or not, it is moved aside the second time.
const STARTS: usize = 3;

/// How often records whose time is over are taken away.
const TIDY_EVERY: Duration = Duration::from_secs(10);

/// How often journals are looked at that another process writes; and how often after one could not be taken in.
const FOLLOW_EVERY: Duration = Duration::from_millis(25);
const FOLLOW_AGAIN: Duration = Duration::from_secs(1);

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// Something to do for the writer.
pub(super) enum Job {
    Write(Digest, Vec<Change>, Answer<u64>),
    Forget(Digest, Answer<bool>),
    /// Takes in what journals hold.
    Follow(Answer<()>),
    /// Takes records away that cannot be read, each if it still has this version.
    Damaged(Digest, Vec<(RecordKey, u64)>),
    /// Finds out whether the database is damaged, for this reason, unless it was examined more often than so.
    Examine(String, u64),
    HandOver(Answer<()>),
    Close(Answer<()>),
}

/// A write, and who waits for it.
type Write = (Digest, Vec<Change>, Answer<u64>);

pub(super) struct Writer {
    disk: Disk,
    jobs: Receiver<Job>,
    /// A job that was taken from the queue and does not belong to the group.
    next: Option<Job>,
    state: State,
    tidied: Instant,
}

enum State {
    /// This process has the folder, and follows the journals of others.
    Owner {
        _lock: File,
        journals: Vec<FollowedJournal>,
        /// True if a journal could not be taken in.
        has_failed: bool,
    },
    /// It has handed the folder over.
    HandedOver(Journal),
    Closed,
}

/// Opens a folder: takes its lock, opens the database, and collects what a crash has left.
pub(super) fn open(path: &Path, options: Options, jobs: Receiver<Job>) -> Result<Writer, Trouble> {
    let folder = Folder::open(path)?;
    let lock = folder.lock(options.lock_wait)?;
    folder.prepare()?;
    let share = |bytes: u64| (bytes as f64 * options.tenant_share) as u64;
    let limits = Limits {
        max_bytes: options.max_bytes,
        tenant_bytes: share(options.max_bytes),
        loaded_bytes: share(options.max_bytes),
        max_age_ms: u64::try_from(options.max_age.as_millis()).unwrap_or(u64::MAX),
    };
    let shared = Arc::new(Shared {
        folder,
        seal: options.seal,
        limits,
        database: RwLock::new(None),
        bytes: AtomicU64::new(0),
        follows: AtomicBool::new(false),
        has_handed_over: AtomicBool::new(false),
        examinations: AtomicU64::new(0),
        damaged: AtomicU64::new(0),
        forgotten: Mutex::default(),
    });
    let state = State::Owner { _lock: lock, journals: Vec::new(), has_failed: false };
    let mut writer = Writer { disk: Disk::new(shared), jobs, next: None, state, tidied: Instant::now() };
    for _ in 1..STARTS {
        match guarded(|| writer.begin()) {
            // It was examined.
            Err(trouble) if trouble.is_damage_of_database() => {}
            begun => return begun.map(|()| writer),
        }
    }
    guarded(|| writer.begin()).map(|()| writer)
}

impl Writer {
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.disk.shared)
    }

    fn begin(&mut self) -> Result<(), Trouble> {
        self.disk.begin()?;
        self.find_journals()
    }

    /// Works until nobody can give it a job any more.
    pub fn run(mut self) {
        while self.next_step() {}
        self.close();
    }

    /// Does what is to be done next; `false` if nobody can give it a job any more.
    fn next_step(&mut self) -> bool {
        let job = match self.next.take() {
            Some(job) => Ok(job),
            None => self.jobs.recv_timeout(self.pause()),
        };
        if let Err(RecvTimeoutError::Disconnected) = job {
            return false;
        }
        // What fails has told whoever asked, and was examined if it is the database that failed.
        let _ = guarded(|| {
            match job {
                Ok(job) => self.work(job),
                Err(_) => self.follow()?,
            }
            self.tidy()
        });
        true
    }

    /// The longest time to wait for a job.
    fn pause(&self) -> Duration {
        match &self.state {
            State::Owner { has_failed: true, .. } => FOLLOW_AGAIN,
            State::Owner { journals, .. } if !journals.is_empty() => FOLLOW_EVERY,
            _ => TIDY_EVERY,
        }
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Write(tenant, changes, answer) => {
                let group = self.group((tenant, changes, answer));
                self.write_group(group);
            }
            Job::Forget(tenant, answer) => send(answer, self.forget(tenant)),
            Job::Follow(answer) => send(answer, self.follow()),
            Job::Damaged(tenant, records) => self.take_damaged(tenant, &records),
            Job::Examine(reason, examinations) => {
                if let State::Owner { .. } = self.state {
                    self.disk.examine(&reason, Access::Load, examinations);
                }
            }
            Job::HandOver(answer) => send(answer, self.hand_over()),
            Job::Close(answer) => {
                self.close();
                send(answer, Ok(()));
            }
        }
    }

    /// Adds the writes that are queued behind one.
    fn group(&mut self, first: Write) -> Vec<Write> {
        let mut bytes = size(&first.1);
        let mut group = vec![first];
        while group.len() < GROUP_JOBS && bytes < GROUP_BYTES {
            match self.jobs.try_recv() {
                Ok(Job::Write(tenant, changes, answer)) => {
                    bytes += size(&changes);
                    group.push((tenant, changes, answer));
                }
                Ok(other) => {
                    self.next = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        group
    }

    fn write_group(&mut self, group: Vec<Write>) {
        if group.len() > 1
            && let Ok(versions) = self.write(&group)
        {
            for ((_, _, answer), version) in group.into_iter().zip(versions) {
                send(answer, Ok(version));
            }
            return;
        }
        // What fails in a group fails alone.
        for write in group {
            let written = self.write(std::slice::from_ref(&write)).map(|versions| versions.first().copied());
            send(write.2, written.map(Option::unwrap_or_default));
        }
    }

    /// Writes changes in one transaction. Returns the version of each.
    fn write(&mut self, group: &[Write]) -> Result<Vec<u64>, Trouble> {
        let at_ms = unix_ms();
        match &mut self.state {
            State::Owner { .. } => self.disk.transact(|batch| {
                group.iter().map(|(tenant, changes, _)| batch.write(tenant, changes, at_ms)).collect()
            }),
            State::HandedOver(journal) => {
                let entry = |(tenant, changes, _): &Write| Entry {
                    tenant: *tenant,
                    at_ms,
                    changes: Some(changes.clone()),
                };
                let entries: Vec<Entry> = group.iter().map(entry).collect();
                journal.write(&entries, &self.disk.shared.seal)?;
                Ok(vec![0; group.len()])
            }
            State::Closed => Err(closed()),
        }
    }

    fn forget(&mut self, tenant: Digest) -> Result<bool, Trouble> {
        match &mut self.state {
            State::Owner { journals, .. } => self.disk.transact(|batch| {
                // Whoever writes them may still know it.
                journals.iter().try_for_each(|journal| batch.dismiss(&journal.name, &tenant))?;
                batch.forget(&tenant)
            }),
            State::HandedOver(journal) => {
                let entry = Entry { tenant, at_ms: unix_ms(), changes: None };
                journal.write(&[entry], &self.disk.shared.seal).map(|()| true)
            }
            State::Closed => Err(closed()),
        }
    }

    /// Takes away what cannot be read, so that it may be written anew. Prompts are not moved aside: their time is bounded.
    fn take_damaged(&mut self, tenant: Digest, records: &[(RecordKey, u64)]) {
        if !matches!(self.state, State::Owner { .. }) {
            return;
        }
        let taken = self.disk.transact(|batch| {
            for (key, version) in records {
                batch.take_version(&tenant, key, *version)?;
            }
            Ok(())
        });
        tracing::warn!(
            records = records.len(),
            taken_away = taken.is_ok(),
            "records of the store are damaged, or lack a prompt; what they held is not known any more"
        );
    }

    /// Takes away, from time to time, what has been kept for long enough.
    fn tidy(&mut self) -> Result<(), Trouble> {
        let State::Owner { .. } = self.state else { return Ok(()) };
        if self.tidied.elapsed() < TIDY_EVERY {
            return Ok(());
        }
        self.tidied = Instant::now();
        self.disk.tidy()
    }

    /// Finds the journals that others have written or still write, and takes in what they hold.
    fn find_journals(&mut self) -> Result<(), Trouble> {
        let (mut found, foreign) = FollowedJournal::all(&self.disk.shared.folder)?;
        for path in foreign {
            self.disk.shared.folder.move_aside(&path, "it is no journal")?;
        }
        let names: Vec<String> = found.iter().map(|journal| journal.name.clone()).collect();
        self.disk.transact(|batch| {
            for journal in &mut found {
                journal.offset = batch.journal(&journal.name)?;
            }
            batch.keep_journals(&names)
        })?;
        if let State::Owner { journals, .. } = &mut self.state {
            *journals = found;
        }
        // What cannot be taken in now is tried again: the rest of the store is of use without it.
        let _ = self.follow();
        Ok(())
    }

    /// Takes in what journals hold by now.
    fn follow(&mut self) -> Result<(), Trouble> {
        let State::Owner { journals, .. } = &mut self.state else { return Ok(()) };
        let mut left = Vec::new();
        let mut outcome = Ok(());
        for mut journal in std::mem::take(journals) {
            match self.take_in(&mut journal) {
                Ok(true) => {}
                Ok(false) => left.push(journal),
                Err(trouble) => {
                    outcome = Err(trouble);
                    left.push(journal);
                }
            }
        }
        self.disk.shared.follows.store(!left.is_empty(), Relaxed);
        if let State::Owner { journals, has_failed, .. } = &mut self.state {
            *journals = left;
            if let Err(trouble) = &outcome
                && !*has_failed
            {
                tracing::warn!(reason = %trouble, "a journal of the store cannot be taken in; it is tried again");
            }
            *has_failed = outcome.is_err();
        }
        outcome
    }

    /// Takes in a journal. Returns true if it is over and has been removed.
    fn take_in(&mut self, journal: &mut FollowedJournal) -> Result<bool, Trouble> {
        loop {
            let part = journal.read(&self.disk.shared.seal)?;
            if !part.entries.is_empty() {
                let name = &journal.name;
                self.disk.transact(|batch| {
                    part.entries.iter().try_for_each(|entry| batch.take_in(name, entry))?;
                    batch.note_journal(name, part.offset)
                })?;
                journal.offset = part.offset;
            }
            if part.is_damaged {
                let why = "it is damaged, or written with another store.key";
                self.disk.shared.folder.move_aside(&journal.path, why)?;
                return Ok(true);
            }
            if part.is_over {
                fs::remove_file(&journal.path)?;
                return Ok(true);
            }
            if part.entries.is_empty() {
                return Ok(false);
            }
        }
    }

    /// Lets go of the folder. What is written from now on goes to a journal.
    fn hand_over(&mut self) -> Result<(), Trouble> {
        let State::Owner { .. } = self.state else { return Ok(()) };
        let journal = Journal::begin(&self.disk.shared.folder, self.disk.shared.limits.max_bytes);
        self.disk.shared.has_handed_over.store(true, Relaxed);
        self.let_go();
        let journal = journal.inspect_err(|trouble| {
            tracing::warn!(
                reason = %trouble,
                "the store's journal cannot be begun; what is learned until the end is lost"
            );
        })?;
        self.state = State::HandedOver(journal);
        Ok(())
    }

    fn close(&mut self) {
        self.let_go();
        if let State::HandedOver(journal) = std::mem::replace(&mut self.state, State::Closed) {
            journal.end();
        }
    }

    /// Closes the database, waits for those who read it, and then lets go of the lock.
    fn let_go(&mut self) {
        self.disk.close_database();
        self.disk.shared.follows.store(false, Relaxed);
        if let State::Owner { .. } = self.state {
            self.state = State::Closed;
        }
    }
}

fn send<T>(answer: Answer<T>, outcome: Result<T, Trouble>) {
    // Who asked may have given up.
    let _ = answer.send(outcome.map_err(|trouble| trouble.word()));
}

/// The bytes of changes, prompts included.
fn size(changes: &[Change]) -> usize {
    changes
        .iter()
        .map(|change| match change {
            Change::Put(_, record) => {
                record.body.len() + record.blobs.iter().map(|blob| blob.len()).sum::<usize>()
            }
            Change::Delete(_) => 0,
        })
        .sum()
}
