//! The folder: who has it, its prompts, and what is moved out of the way.
//!
//! ```text
//! lock                       locked by the process that has the folder
//! records.redb               the records
//! prompts/<digest>           the prompts that records depend on, each in a file of its own
//! journals/<name>.journal    what processes wrote that had handed the folder over
//! *.corrupt-<unix>           what was damaged or not ours, and lay in the place of the above
//! ```
//!
//! Symbolic links inside it are not followed.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::Trouble;
use super::progress::unix_ms;
use crate::engine::words::digits;
use crate::store::seal::{Digest, OPENED_MAX};

pub(super) const RECORDS: &str = "records.redb";
pub(super) const PROMPTS: &str = "prompts";
pub(super) const JOURNALS: &str = "journals";
const LOCK: &str = "lock";

/// The pause between two looks at a lock that another process has.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The most things that were moved aside and are kept; of more the oldest goes.
const MOVED_ASIDE_MAX: usize = 4;
const MOVED_ASIDE: &str = ".corrupt-";

/// The largest file of a prompt: sealed, a prompt that compresses to nothing less is a little larger than it was.
const PROMPT_FILE_MAX: u64 = OPENED_MAX as u64 + 1024;

/// The folder of a store.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes the folder and what belongs in it, as far as it is not there.
    pub fn open(path: &Path) -> Result<Folder, Trouble> {
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        for parent in missing.into_iter().filter_map(Path::parent) {
            // One that this user may not read cannot be synchronised; the store is of use even so.
            let _ = sync_folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
        }
        let mode = fs::metadata(path)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            // It may be a mount, or hold more than ours: its mode is not ours to change.
            tracing::warn!(
                path = %path.display(),
                mode = format_args!("{mode:03o}"),
                "others may look into the store's folder; chmod 700 it (its files are readable by this user alone)"
            );
        }
        Ok(Folder { path: path.to_owned() })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes the folders inside; to be called by whoever has the lock.
    pub fn prepare(&self) -> Result<(), Trouble> {
        for name in [PROMPTS, JOURNALS] {
            let path = self.path(name);
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
                self.move_aside(&path, "it is no folder")?;
            }
            DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        }
        Ok(self.sync()?)
    }

    /// Makes the names in the folder itself durable.
    pub fn sync(&self) -> io::Result<()> {
        sync_folder(&self.path)
    }

    /// Takes the lock that says who has the folder, and waits for it if need be. It is free again when the file is closed.
    pub fn lock(&self, wait: Duration) -> Result<File, Trouble> {
        let file = private().create(true).open(self.path(LOCK))?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(error.into()),
                Err(TryLockError::WouldBlock) if began.elapsed() >= wait => return Err(Trouble::Locked),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            }
        }
    }

    /// Writes a prompt: once this returns, and its folder is synchronised, it is there whole.
    pub fn write_prompt(&self, name: &Digest, sealed: &[u8]) -> io::Result<()> {
        let (path, fresh) = (self.prompt(name), self.path(PROMPTS).join(format!("new-{}", digits::of(name))));
        let write = || {
            let mut file = private().create(true).truncate(true).open(&fresh)?;
            file.write_all(sealed)?;
            file.sync_data()?;
            fs::rename(&fresh, &path)
        };
        write().inspect_err(|_| {
            let _ = fs::remove_file(&fresh);
        })
    }

    /// Makes the names of all prompts durable that were written.
    pub fn sync_prompts(&self) -> io::Result<()> {
        sync_folder(&self.path(PROMPTS))
    }

    /// Reads a prompt, sealed.
    pub fn read_prompt(&self, name: &Digest) -> io::Result<Vec<u8>> {
        let file = open_regular(&self.prompt(name))?;
        let mut bytes = Vec::with_capacity(file.metadata()?.len().min(PROMPT_FILE_MAX) as usize);
        file.take(PROMPT_FILE_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Takes a prompt away that no record needs.
    pub fn remove_prompt(&self, name: &Digest) {
        // What cannot be removed now is an orphan, and collected at the next start.
        let _ = fs::remove_file(self.prompt(name));
    }

    pub fn prompt(&self, name: &Digest) -> PathBuf {
        self.path(PROMPTS).join(digits::of(name))
    }

    /// The files among the prompts.
    pub fn prompts(&self) -> io::Result<impl Iterator<Item = PromptFile>> {
        let entries = fs::read_dir(self.path(PROMPTS))?;
        Ok(entries.flatten().map(|entry| {
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            match (digest(name), name.strip_prefix("new-").and_then(digest)) {
                (Some(name), _) => PromptFile::Whole(name),
                (None, Some(_)) => PromptFile::Unfinished(entry.path()),
                (None, None) => PromptFile::Foreign,
            }
        }))
    }

    /// Moves something aside that is damaged or not ours, and reports it. Of those that were moved before, some are kept.
    pub fn move_aside(&self, path: &Path, why: &str) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut second = unix_ms() / 1000;
        let mut aside = self.path(&format!("{name}{MOVED_ASIDE}{second}"));
        while fs::symlink_metadata(&aside).is_ok() {
            second += 1;
            aside = self.path(&format!("{name}{MOVED_ASIDE}{second}"));
        }
        fs::rename(path, &aside)?;
        self.sync()?;
        tracing::warn!(
            path = %path.display(),
            moved_to = %aside.display(),
            why,
            "something in the store's folder is damaged or not ours and was moved aside; what it held is not known any \
             more; delete it, or keep it to find out what happened"
        );
        self.keep_few_aside()
    }

    fn keep_few_aside(&self) -> io::Result<()> {
        let mut aside = self.aside()?;
        aside.sort();
        let more = aside.len().saturating_sub(MOVED_ASIDE_MAX);
        aside.drain(..more).try_for_each(|(_, path)| remove(&path))
    }

    /// Takes away what was moved aside longer ago than this.
    pub fn remove_old_aside(&self, max_age_ms: u64) -> io::Result<()> {
        let oldest = unix_ms().saturating_sub(max_age_ms) / 1000;
        let aside = self.aside()?.into_iter();
        aside.filter(|(second, _)| *second < oldest).try_for_each(|(_, path)| remove(&path))
    }

    /// What was moved aside, and when, in seconds.
    fn aside(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let aside = |entry: fs::DirEntry| Some((moved_aside_at(entry.file_name().to_str()?)?, entry.path()));
        Ok(fs::read_dir(&self.path)?.flatten().filter_map(aside).collect())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// A file among the prompts.
pub(super) enum PromptFile {
    Whole(Digest),
    /// Its writer was killed.
    Unfinished(PathBuf),
    Foreign,
}

/// When something of ours was moved aside, in seconds, by its name.
fn moved_aside_at(name: &str) -> Option<u64> {
    let (name, second) = name.rsplit_once(MOVED_ASIDE)?;
    let is_ours =
        matches!(name, RECORDS | PROMPTS | JOURNALS) || name.ends_with(".journal") || digest(name).is_some();
    if is_ours { second.parse().ok() } else { None }
}

/// How files are opened: by this user alone, and never through a symbolic link.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(not_followed());
    options
}

/// Opens a file to read it, if it is one.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(not_followed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Symbolic links are refused, and a pipe does not block.
fn not_followed() -> i32 {
    use rustix::fs::OFlags;
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Reads the name of a prompt.
fn digest(name: &str) -> Option<Digest> {
    digits::read(name).filter(|digest| digits::of(digest) == name)
}
