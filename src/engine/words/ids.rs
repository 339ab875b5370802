//! Ids and digests, and points in time.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// The digest of the payer: every credential header of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub [u8; 32]);

impl TenantId {
    /// The id of a request that has none. Nothing is remembered under it.
    pub const NOBODY: TenantId = TenantId([0; 32]);
}

impl fmt::Display for TenantId {
    /// Eight hex digits: enough to tell tenants apart, useless to find a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0[..4]).fmt(f)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A client-chosen id (session, agent); what is shown are eight hex digits of its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdDigest(#[serde(with = "digits")] pub [u8; 16]);

impl fmt::Display for IdDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0[..4]).fmt(f)
    }
}

/// A point in time as the caller's clock counts it, in milliseconds since some start: the engine has no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    pub fn after(self, ms: u64) -> Moment {
        Moment(self.0.saturating_add(ms))
    }

    /// Milliseconds from an earlier moment; none if it is later.
    pub fn since(self, earlier: Moment) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The one member of a moment in a record. Nothing else that is written has this form, so that moments can be found in
/// a record and moved from one clock to another.
pub const MOMENT_MEMBER: &str = "@";

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(1))?;
        map.serialize_entry(MOMENT_MEMBER, &self.0)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Moment, D::Error> {
        #[derive(Deserialize)]
        struct Written {
            #[serde(rename = "@")]
            ms: u64,
        }
        Written::deserialize(from).map(|written| Moment(written.ms))
    }
}

/// The number of one request that goes to the upstream, at the gate and in every ledger. The caller gives them out,
/// rising: the lower, the earlier it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The digest of a whole body: sixteen hex digits of its XXH3.
///
/// It says whether two bodies are the same, and every body is digested as it comes and as it goes; so it is one
/// that costs little. Nothing that somebody could gain by forging depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BodyDigest(#[serde(with = "digits")] pub [u8; 8]);

impl BodyDigest {
    pub fn of(body: &[u8]) -> BodyDigest {
        BodyDigest(xxh3_64(body).to_be_bytes())
    }

    /// The digest of a body in pieces.
    pub fn of_pieces<Piece: AsRef<[u8]>>(pieces: impl IntoIterator<Item = Piece>) -> BodyDigest {
        let mut hasher = Xxh3Default::new();
        for piece in pieces {
            hasher.update(piece.as_ref());
        }
        BodyDigest(hasher.digest().to_be_bytes())
    }
}

impl fmt::Display for BodyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

/// A map whose keys are digests already, or hash as the first eight bytes of one.
///
/// A request looks up dozens of them, and the standard hasher would take a fifteenth of all that is done for a small
/// request. It is also what keeps a sender from choosing keys that collide; here nothing does, so that these maps belong
/// to one tenant and have few enough keys that a walk over all of them would do.
pub type DigestMap<K, V> = HashMap<K, V, BuildHasherDefault<DigestHasher>>;

/// Spreads the bits of a digest, and nothing more.
#[derive(Clone, Copy, Debug, Default)]
pub struct DigestHasher(u64);

impl DigestHasher {
    /// An odd number without a pattern in its bits.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
}

impl Hasher for DigestHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.write_u64(xxh3_64(bytes));
    }

    fn write_u64(&mut self, key: u64) {
        let key = (self.0 ^ key ^ (key >> 32)).wrapping_mul(Self::FACTOR);
        self.0 = key ^ (key >> 32);
    }
}

/// The first `N` bytes of a digest.
pub fn first<const N: usize>(digest: &[u8; 32]) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(digest) {
        *to = *from;
    }
    out
}

/// Shows bytes as lowercase hex digits, two for each.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for bytes in self.0.chunks(8) {
            let mut digits = [0; 16];
            for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
                pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            }
            f.write_str(std::str::from_utf8(&digits[..2 * bytes.len()]).unwrap_or_default())?;
        }
        Ok(())
    }
}

/// Digests as hex digits in records: `#[serde(with = "digits")]`.
pub mod digits {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serializer, de};

    /// Returns the digits of a digest.
    pub fn of(bytes: &[u8]) -> String {
        super::Hex(bytes).to_string()
    }

    /// Reads digits of exactly `N` bytes.
    pub fn read<const N: usize>(text: &str) -> Option<[u8; N]> {
        let mut out = [0; N];
        if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (to, at) in out.iter_mut().zip((0..).step_by(2)) {
            *to = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(out)
    }

    pub fn serialize<const N: usize, S: Serializer>(bytes: &[u8; N], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&of(bytes))
    }

    pub fn deserialize<'de, const N: usize, D: Deserializer<'de>>(from: D) -> Result<[u8; N], D::Error> {
        let text = Cow::<'de, str>::deserialize(from)?;
        read(&text).ok_or_else(|| de::Error::custom("not a digest"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_apart_by_milliseconds_and_never_less_than_none() {
        assert_eq!(Moment(5).after(3).since(Moment(1)), 7);
        assert_eq!(Moment(1).since(Moment(5)), 0);
        assert_eq!(Moment(1).after(u64::MAX), Moment(u64::MAX));
    }

    #[test]
    fn digests_and_moments_are_the_same_after_a_record() {
        let digest = IdDigest(*b"0123456789abcdef");
        let text = serde_json::to_string(&(digest, Moment(7))).unwrap();
        assert_eq!(text, r#"["30313233343536373839616263646566",{"@":7}]"#);
        assert_eq!(serde_json::from_str::<(IdDigest, Moment)>(&text).unwrap(), (digest, Moment(7)));
        for bad in ["", "3", "+f", "zz", "é"] {
            assert_eq!(digits::read::<1>(bad), None, "{bad}");
        }
    }

    #[test]
    fn digests_show_only_their_first_digits() {
        assert_eq!(TenantId([0xab; 32]).to_string(), "abababab");
        assert_eq!(Hex(b"\x00\x01\x0f\x10\xab\xff~~~").to_string(), "00010f10abff7e7e7e");
        assert_eq!(Hex(&[]).to_string(), "");
        assert_eq!(BodyDigest::of(b"").to_string(), "2d06800538d394c2");
        let pieces = ["ab", "", "c"].map(bytes::Bytes::from);
        assert_eq!(BodyDigest::of_pieces(&pieces), BodyDigest::of(b"abc"));
    }
}
