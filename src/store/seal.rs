//! The form in which an external store holds bytes: compressed, and encrypted if there is a key.
//!
//! ```text
//! form (1)                          compressed or not, with a key or without
//! nonce (12)                        random, with a key only
//! bytes, compressed                 then a tag of 16, with a key only
//! ```
//!
//! With a key the context is authenticated too: what was closed for one tenant and name does not open for another.
//! The cipher is AES-256-GCM-SIV, which a repeated nonce does not break: replicas that share a key draw their nonces
//! independently.
//!
//! Names are sealed too: a [`Digest`] of the key, a context and the bytes. Without the key nobody can tell whether a store
//! holds a text that he knows.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

/// Bytes that are opened at most: more than any request, and small enough to defuse a decompression bomb.
pub const OPENED_MAX: usize = 64 << 20;

/// Fast, and a prompt becomes about a third of its size.
const ZSTD_LEVEL: i32 = 1;

/// Forms of the first version. What comes later gets other numbers, and these stay readable.
const RAW: u8 = 0x10;
const COMPRESSED: u8 = 0x11;
/// Added to a form if there is a key.
const KEYED: u8 = 0x02;

/// The name of something in a store, or the proof that it is whole.
pub type Digest = [u8; 32];

/// Closes and opens what leaves the process for a store.
pub struct Seal {
    key: Option<RandomizedNonceKey>,
    /// The key of all digests.
    names: Digest,
}

impl Seal {
    /// The key of the cipher is derived from `key`, which should hold at least 32 random bytes in any encoding.
    pub fn new(key: Option<&[u8]>) -> Seal {
        let derived = key.map(|key| blake3::derive_key("forkpoint store seal v1", key));
        // A key of 32 bytes is never refused.
        Seal {
            key: derived.and_then(|key| RandomizedNonceKey::new(&AES_256_GCM_SIV, &key).ok()),
            names: blake3::derive_key("forkpoint store names v1", key.unwrap_or_default()),
        }
    }

    /// Returns the digest of bytes in a context, such as the name of a prompt among those of a tenant.
    pub fn digest(&self, context: &[u8], bytes: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new_keyed(&self.names);
        hasher.update(&(context.len() as u64).to_le_bytes()).update(context).update(bytes);
        *hasher.finalize().as_bytes()
    }

    /// Closes bytes for a context, such as a tenant and a name. What could not be encrypted is empty, and never opens.
    pub fn close(&self, context: &[u8], plain: &[u8]) -> Vec<u8> {
        let (form, mut bytes) = match zstd::bulk::compress(plain, ZSTD_LEVEL) {
            Ok(compressed) if compressed.len() < plain.len() => (COMPRESSED, compressed),
            _ => (RAW, plain.to_vec()),
        };
        let Some(key) = &self.key else {
            bytes.insert(0, form);
            return bytes;
        };
        let form = form | KEYED;
        match key.seal_in_place_append_tag(Aad::from(authenticated(form, context)), &mut bytes) {
            Ok(nonce) => [&[form], nonce.as_ref().as_slice(), &bytes].concat(),
            Err(_) => Vec::new(),
        }
    }

    /// Opens what was closed for the same context, with the same key or, like here, without one. All else is `None`.
    pub fn open(&self, context: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        self.open_at_most(context, sealed, OPENED_MAX)
    }

    /// The same, but for what would become larger than `bytes_max`.
    pub fn open_at_most(&self, context: &[u8], sealed: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
        let (form, rest) = sealed.split_first()?;
        let bytes = match (&self.key, form & KEYED != 0) {
            (None, false) => rest.to_vec(),
            (Some(key), true) => {
                let (nonce, rest) = rest.split_at_checked(NONCE_LEN)?;
                let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
                let mut bytes = rest.to_vec();
                let context = Aad::from(authenticated(*form, context));
                let opened = key.open_in_place(nonce, context, &mut bytes).ok()?.len();
                bytes.truncate(opened);
                bytes
            }
            _ => return None,
        };
        match form & !KEYED {
            RAW => (bytes.len() <= bytes_max).then_some(bytes),
            COMPRESSED => decompress(&bytes, bytes_max),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").field("has_key", &self.key.is_some()).finish()
    }
}

fn authenticated(form: u8, context: &[u8]) -> Vec<u8> {
    [&[form], context].concat()
}

fn decompress(bytes: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let size = zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten()?;
    let size = usize::try_from(size).ok().filter(|size| *size <= bytes_max)?;
    let plain = zstd::bulk::decompress(bytes, size).ok()?;
    (plain.len() == size).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyed() -> Seal {
        Seal::new(Some(b"0123456789abcdef0123456789abcdef"))
    }

    fn prompt() -> Vec<u8> {
        br#"{"role":"user","content":"look at every file of the tree"}"#.repeat(500)
    }

    #[test]
    fn what_is_closed_opens_again_smaller_in_between() {
        for seal in [Seal::new(None), keyed()] {
            for plain in [Vec::new(), b"x".to_vec(), prompt()] {
                let sealed = seal.close(b"tenant/name", &plain);
                assert_eq!(seal.open(b"tenant/name", &sealed), Some(plain.clone()));
                assert!(sealed.len() <= plain.len() / 3 + 30, "{} of {}", sealed.len(), plain.len());
            }
        }
    }

    #[test]
    fn with_a_key_no_word_is_readable_and_no_other_context_opens_it() {
        let sealed = keyed().close(b"tenant a", b"a secret of tenant a");
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_eq!(keyed().open(b"tenant b", &sealed), None);
        assert_eq!(Seal::new(Some(b"another key")).open(b"tenant a", &sealed), None);
    }

    #[test]
    fn equal_bytes_are_closed_differently_each_time() {
        let seal = keyed();
        assert_ne!(seal.close(b"c", b"equal"), seal.close(b"c", b"equal"));
    }

    #[test]
    fn without_a_key_nothing_keyed_opens_and_with_one_nothing_unkeyed_does() {
        let plain = Seal::new(None);
        assert_eq!(keyed().open(b"c", &plain.close(b"c", &prompt())), None);
        assert_eq!(plain.open(b"c", &keyed().close(b"c", &prompt())), None);
    }

    #[test]
    fn a_changed_byte_anywhere_does_not_open() {
        let seal = keyed();
        let sealed = seal.close(b"c", b"some bytes");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(seal.open(b"c", &changed), None, "byte {at}");
            assert_eq!(seal.open(b"c", &sealed[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn garbage_and_bombs_do_not_open() {
        let seal = Seal::new(None);
        for garbage in [&b""[..], b"\x00", b"\x11", b"\x11not zstd at all", b"\xff\xff\xff"] {
            assert_eq!(seal.open(b"c", garbage), None);
        }
        let bomb = seal.close(b"c", &vec![0; OPENED_MAX + 1]);
        assert!(bomb.len() < 10_000);
        assert_eq!(seal.open(b"c", &bomb), None);
        let sealed = seal.close(b"c", &prompt());
        assert_eq!(seal.open_at_most(b"c", &sealed, prompt().len() - 1), None);
    }

    #[test]
    fn a_digest_depends_on_the_key_the_context_and_the_bytes() {
        let digest = keyed().digest(b"tenant a", b"a prompt");
        assert_eq!(digest, keyed().digest(b"tenant a", b"a prompt"));
        assert_ne!(digest, Seal::new(None).digest(b"tenant a", b"a prompt"));
        assert_ne!(digest, keyed().digest(b"tenant b", b"a prompt"));
        assert_ne!(digest, keyed().digest(b"tenant a", b"another"));
        assert_ne!(keyed().digest(b"ab", b"c"), keyed().digest(b"a", b"bc"));
    }

    #[test]
    fn it_never_shows_its_key() {
        assert_eq!(format!("{:?}", keyed()), "Seal { has_key: true }");
    }
}
