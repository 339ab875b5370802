//! Records: the form in which what is known of a tenant outlives the process.
//!
//! A record is a small JSON text with a version, and blobs: the prompts that it depends on. Stores keep them without
//! looking inside.

use bytes::Bytes;

use crate::engine::words::RecordKind;

/// The longest name of a record.
pub const NAME_CHARS_MAX: usize = 64;

/// The largest body of a record. What is larger belongs into a blob.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// The most blobs of one record.
pub const BLOBS_MAX: usize = 64;

/// The name of a record among those of its tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    pub kind: RecordKind,
    /// A digest in hex digits or an id: at most [`NAME_CHARS_MAX`] of `[0-9a-f-]`.
    pub name: String,
}

impl RecordKey {
    /// None if the name is not one of a record.
    pub fn new(kind: RecordKind, name: &str) -> Option<RecordKey> {
        let fits = (1..=NAME_CHARS_MAX).contains(&name.len());
        let is_name = name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'));
        (fits && is_name).then(|| RecordKey { kind, name: name.to_owned() })
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The fork point that it belongs to. A store on many machines may keep each group on another.
    pub group: Option<String>,
    /// A JSON object whose member `v` is the version of the record's form.
    pub body: Bytes,
    /// Prompts. The store keeps each once per tenant, by content.
    pub blobs: Vec<Bytes>,
    /// How long it lives, in milliseconds: after this write or, when it is read, from now on.
    pub ttl_ms: u64,
}

impl Record {
    /// Returns true if it is within its bounds.
    pub fn fits(&self) -> bool {
        self.body.len() <= BODY_BYTES_MAX && self.blobs.len() <= BLOBS_MAX
    }
}

/// A record that was written, or taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(RecordKey, Record),
    Delete(RecordKey),
}

impl Change {
    pub fn key(&self) -> &RecordKey {
        match self {
            Change::Put(key, _) | Change::Delete(key) => key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_made_of_hex_digits_and_dashes() {
        assert!(RecordKey::new(RecordKind::Child, "0af3-9").is_some());
        for bad in ["", "A0", "../x", "g", &"0".repeat(65)] {
            assert_eq!(RecordKey::new(RecordKind::Child, bad), None, "{bad}");
        }
    }
}
