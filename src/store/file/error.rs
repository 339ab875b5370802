//! What goes wrong with a folder, and the word for it.

use std::io::{self, ErrorKind};
use std::panic::AssertUnwindSafe;

use crate::engine::words::StoreError;

/// The reason why something was not read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Database(Box<redb::Error>),
    #[error("it was written by a newer version of forkpoint (form {0})")]
    Newer(u64),
    #[error("another process has it")]
    Locked,
    #[error("it has no room")]
    Full,
    #[error("{0}")]
    Foreign(&'static str),
}

macro_rules! from_database {
    ($($error:ident)+) => {$(
        impl From<redb::$error> for Trouble {
            fn from(error: redb::$error) -> Trouble {
                Trouble::Database(Box::new(error.into()))
            }
        }
    )+};
}

from_database!(StorageError TableError TransactionError CommitError DatabaseError);

/// Runs something that reads or changes the database. What is damaged may break an assumption of the database before it is
/// found to be damaged.
pub(super) fn guarded<T>(run: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(run));
    outcome.unwrap_or(Err(Trouble::Foreign("it cannot be read")))
}

impl Trouble {
    /// The word for it in metrics and logs.
    pub fn word(&self) -> StoreError {
        match self {
            Trouble::Io(error) => word_of(error),
            Trouble::Database(error) => match &**error {
                redb::Error::Io(error) => word_of(error),
                redb::Error::DatabaseAlreadyOpen => StoreError::Locked,
                _ if self.is_damage() => StoreError::Garbage,
                _ => StoreError::Down,
            },
            Trouble::Locked => StoreError::Locked,
            Trouble::Full => StoreError::Full,
            Trouble::Newer(_) | Trouble::Foreign(_) => StoreError::Garbage,
        }
    }

    /// Returns true if a file is damaged or not ours: then it is of no use to anybody.
    pub fn is_damage(&self) -> bool {
        match self {
            Trouble::Io(error) => is_damage(error),
            Trouble::Database(error) => match &**error {
                redb::Error::Io(error) => is_damage(error),
                redb::Error::Corrupted(_)
                | redb::Error::UpgradeRequired(_)
                | redb::Error::RepairAborted
                | redb::Error::TableTypeMismatch { .. }
                | redb::Error::TypeDefinitionChanged { .. }
                | redb::Error::TableIsMultimap(_)
                | redb::Error::LockPoisoned(_) => true,
                _ => false,
            },
            Trouble::Foreign(_) => true,
            Trouble::Newer(_) | Trouble::Locked | Trouble::Full => false,
        }
    }

    /// Returns true if it is the database that is damaged, and not a prompt or a journal beside it.
    pub fn is_damage_of_database(&self) -> bool {
        self.is_damage() && !matches!(self, Trouble::Io(_))
    }
}

fn word_of(error: &io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => StoreError::Full,
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => StoreError::ReadOnly,
        _ if is_damage(error) => StoreError::Garbage,
        _ => StoreError::Down,
    }
}

fn is_damage(error: &io::Error) -> bool {
    // A symbolic link where a file should be is not followed, and fails as a loop.
    let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    is_link
        || matches!(
            error.kind(),
            ErrorKind::InvalidData
                | ErrorKind::UnexpectedEof
                | ErrorKind::IsADirectory
                | ErrorKind::NotADirectory
        )
}
