//! The store that outlives this process, as the configuration names it.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::config::{self, Config, StoreKind};
use crate::store::records::{Options, Place};
use crate::store::seal::Seal;

use super::Failure;

/// Shorter keys can be guessed.
const KEY_BYTES_MIN: usize = 32;
/// A longer file is something else by mistake.
const KEY_BYTES_MAX: usize = 4096;
/// The permission of everybody to read a file.
const READ_BY_OTHERS: u32 = 0o004;

/// How the store is opened, if there is one besides the memory of this process.
pub fn options(config: &Config) -> Result<Option<Options>, Failure> {
    let store = &config.store;
    if store.kind == StoreKind::Memory {
        return Ok(None);
    }
    let key = key(config)?;
    let place = match (store.kind, &store.url) {
        (StoreKind::Memory, _) | (StoreKind::Redis, None) => return Ok(None),
        (StoreKind::File, _) => Place::File(store.path.clone().map_or_else(state_folder, Ok)?),
        (StoreKind::Redis, Some(url)) => Place::Redis { url: url.reveal().to_owned(), key: key.clone() },
    };
    Ok(Some(Options {
        place,
        seal: Seal::new(key.as_deref()),
        max_bytes: store.max_bytes as u64,
        tenant_share: store.tenant_share,
        deadline: store.deadline,
        lock_wait: store.lock_wait,
        max_age: store.max_age,
    }))
}

/// What the store is and where, to be shown.
pub fn described(options: &Options) -> String {
    let name = options.place.name();
    match &options.place {
        Place::File(path) => format!("{name}, in {}", path.display()),
        Place::Redis { url, .. } => format!("{name}, at {}", config::masked_url(url)),
    }
}

/// The folder of a user who names none.
fn state_folder() -> Result<PathBuf, Failure> {
    let folder = |name: &str| {
        // systemd names several with colons between them.
        let value = std::env::var(name).ok()?.split(':').next().map(PathBuf::from);
        value.filter(|folder| folder.is_absolute())
    };
    let found = folder("STATE_DIRECTORY")
        .or_else(|| Some(folder("XDG_STATE_HOME")?.join("forkpoint")))
        .or_else(|| Some(folder("HOME")?.join(".local/state/forkpoint")));
    found.ok_or_else(|| {
        Failure::usage("store.kind = \"file\": there is no folder for it, since HOME is not set")
            .hint("set store.path (FORKPOINT_STORE__PATH) to a folder, such as /var/lib/forkpoint")
    })
}

/// The key that the store is encrypted with, if there is one.
fn key(config: &Config) -> Result<Option<Vec<u8>>, Failure> {
    let store = &config.store;
    let key = match &store.key_file {
        Some(path) => read_key(path).map_err(|error| {
            Failure::usage(format!("store.key_file = \"{}\": {error}", path.display()))
                .hint("write one with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)")
        })?,
        None if store.key.is_empty() => return Ok(None),
        None => store.key.reveal().as_bytes().to_vec(),
    };
    if key.len() < KEY_BYTES_MIN {
        tracing::warn!(
            bytes = key.len(),
            "the store's key is short: 32 random bytes or more cannot be guessed"
        );
    }
    Ok(Some(key))
}

/// The reason why a file with a key cannot be used.
#[derive(Debug, thiserror::Error)]
enum KeyError {
    #[error("it cannot be read: {0}")]
    Read(#[from] std::io::Error),
    #[error("others on this machine may read it (mode {0:03o}); chmod 600 it")]
    Open(u32),
    #[error("it must hold one key of at most {KEY_BYTES_MAX} bytes")]
    Shape,
}

/// Reads a key from a file, without the white space around it.
fn read_key(path: &Path) -> Result<Vec<u8>, KeyError> {
    let file = File::open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o777;
    if mode & READ_BY_OTHERS != 0 {
        return Err(KeyError::Open(mode));
    }
    let mut bytes = Vec::new();
    file.take(KEY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    let key = bytes.trim_ascii();
    if key.is_empty() || bytes.len() > KEY_BYTES_MAX { Err(KeyError::Shape) } else { Ok(key.to_vec()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(text: &str, mode: u32) -> Result<Vec<u8>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        read_key(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_file_is_private_and_holds_one_key() {
        assert_eq!(key_of(" a key\n", 0o600), Ok(b"a key".to_vec()));
        assert_eq!(key_of("a key", 0o440), Ok(b"a key".to_vec()));
        assert!(key_of("a key", 0o644).unwrap_err().contains("(mode 644)"));
        for bad in ["", " \n", &"k".repeat(KEY_BYTES_MAX + 1)] {
            assert!(key_of(bad, 0o600).unwrap_err().contains("one key"));
        }
        assert!(read_key(Path::new("/nowhere/key")).unwrap_err().to_string().contains("cannot be read"));
    }
}
