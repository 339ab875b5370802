//! The form of a record in Redis.
//!
//! ```text
//! digest (16)      of the tenant, the record's name and all that follows
//! sealed           a line of JSON that names the chunks of the blobs, then the body
//! ```

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::chunks::CHUNK_BYTES_MAX;
use super::names::{ChunkName, TenantNames, hex, member, parse_chunk_name};
use crate::engine::records::{BLOBS_BYTES_MAX, BLOBS_MAX, BODY_BYTES_MAX, Record, RecordKey};
use crate::engine::words::RecordKind;
use crate::store::seal::Seal;

/// The version of this form. One of a later version is left alone: a newer process of a rolling upgrade reads it.
pub const VERSION: u32 = 1;

/// The largest record in Redis: its body, and the names of its chunks.
pub const FORM_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

/// The line before the body. Unknown members are passed over, so that a later version may have more.
#[derive(Serialize, Deserialize)]
struct Header {
    v: u32,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default)]
    blobs: Vec<BlobHeader>,
    /// That of all chunks.
    #[serde(default)]
    generation: u64,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Serialize, Deserialize)]
struct BlobHeader {
    bytes: usize,
    chunks: Vec<String>,
}

/// A blob, by its chunks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChunkedBlob {
    pub bytes: usize,
    pub chunks: Vec<ChunkName>,
}

/// A record without the bytes of its blobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    pub group: Option<String>,
    pub body: Bytes,
    pub blobs: Vec<ChunkedBlob>,
    pub generation: u64,
}

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is damaged, or another's.
    Damaged,
    /// A newer process has written it.
    Later,
}

/// The form of one version for the records of a tenant.
pub struct Form<'a> {
    pub names: &'a TenantNames,
    pub seal: &'a Seal,
    pub version: u32,
}

impl Form<'_> {
    /// Closes a record whose blobs are kept by chunks of a generation. None if it cannot be encrypted.
    pub fn close(
        &self,
        key: &RecordKey,
        record: &Record,
        blobs: &[ChunkedBlob],
        generation: u64,
    ) -> Option<Vec<u8>> {
        let member = member(key);
        let blob = |blob: &ChunkedBlob| BlobHeader {
            bytes: blob.bytes,
            chunks: blob.chunks.iter().map(|name| hex(name)).collect(),
        };
        let header = Header {
            v: self.version,
            key: member.clone(),
            group: record.group.clone(),
            blobs: blobs.iter().map(blob).collect(),
            generation,
        };
        let mut plain = serde_json::to_vec(&header).ok()?;
        plain.push(b'\n');
        plain.extend_from_slice(&record.body);
        let sealed = self.seal.close(&self.names.context(member.as_bytes()), &plain);
        if sealed.is_empty() {
            return None;
        }
        Some([self.names.record_digest(&member, &sealed).as_slice(), &sealed].concat())
    }

    /// Opens a record.
    pub fn open(&self, member: &str, form: &[u8]) -> Result<Outline, Unreadable> {
        let (header, body) = self.plain(member, form).ok_or(Unreadable::Damaged)?;
        // Looked at first: a later version may have another header.
        let Version { v } = serde_json::from_slice(&header).map_err(|_| Unreadable::Damaged)?;
        if v > self.version {
            return Err(Unreadable::Later);
        }
        outline(&header, member, body).ok_or(Unreadable::Damaged)
    }

    /// The line before the body, and the body.
    fn plain(&self, member: &str, form: &[u8]) -> Option<(Bytes, Bytes)> {
        let (digest, sealed) = form.split_first_chunk::<16>()?;
        if *digest != self.names.record_digest(member, sealed) {
            return None;
        }
        let plain = self.seal.open_at_most(&self.names.context(member.as_bytes()), sealed, FORM_BYTES_MAX)?;
        let end = memchr::memchr(b'\n', &plain)?;
        let plain = Bytes::from(plain);
        Some((plain.slice(..end), plain.slice(end + 1..)))
    }
}

fn outline(header: &[u8], member: &str, body: Bytes) -> Option<Outline> {
    let header: Header = serde_json::from_slice(header).ok()?;
    if header.key != member || header.blobs.len() > BLOBS_MAX {
        return None;
    }
    let blobs: Vec<ChunkedBlob> = header.blobs.into_iter().map(opened_blob).collect::<Option<_>>()?;
    let bytes = blobs.iter().try_fold(0_usize, |sum, blob| sum.checked_add(blob.bytes))?;
    if bytes > BLOBS_BYTES_MAX {
        return None;
    }
    Some(Outline { group: header.group, body, blobs, generation: header.generation })
}

fn opened_blob(blob: BlobHeader) -> Option<ChunkedBlob> {
    let chunks: Vec<ChunkName> =
        blob.chunks.iter().map(|name| parse_chunk_name(name)).collect::<Option<_>>()?;
    let most = chunks.len().checked_mul(CHUNK_BYTES_MAX)?;
    (blob.bytes <= most).then_some(ChunkedBlob { bytes: blob.bytes, chunks })
}

/// Reads the key of a record from its name in Redis.
pub fn parse_member(member: &str) -> Option<RecordKey> {
    let (kind, name) = member.split_once(':')?;
    let kind = RecordKind::ALL.into_iter().find(|known| known.as_str() == kind)?;
    RecordKey::new(kind, name)
}

#[cfg(test)]
mod tests {
    use super::super::names::Names;
    use super::*;
    use crate::engine::words::TenantId;

    fn names(tenant: u8) -> TenantNames {
        Names::new(None).of(TenantId([tenant; 32]))
    }

    fn key(name: &str) -> RecordKey {
        RecordKey { kind: RecordKind::Child, name: name.to_owned() }
    }

    fn record() -> Record {
        Record {
            group: Some("00ff".to_owned()),
            body: Bytes::from_static(b"{\"v\":1,\n\"text\":\"\\n\"}"),
            blobs: Vec::new(),
            ttl_ms: 1_000,
        }
    }

    fn blobs() -> Vec<ChunkedBlob> {
        vec![
            ChunkedBlob { bytes: 20_000, chunks: vec![[1; 16], [0xfe; 16]] },
            ChunkedBlob { bytes: 0, chunks: Vec::new() },
        ]
    }

    fn close(names: &TenantNames, seal: &Seal, generation: u64) -> Vec<u8> {
        let form = Form { names, seal, version: VERSION };
        form.close(&key("a"), &record(), &blobs(), generation).unwrap()
    }

    fn open(names: &TenantNames, seal: &Seal, member: &str, form: &[u8]) -> Result<Outline, Unreadable> {
        Form { names, seal, version: VERSION }.open(member, form)
    }

    fn outline(generation: u64) -> Outline {
        let Record { group, body, .. } = record();
        Outline { group, body, blobs: blobs(), generation }
    }

    #[test]
    fn a_record_opens_as_it_was_closed() {
        for seal in [Seal::new(None), Seal::new(Some(b"a key of thirty-two random bytes"))] {
            let form = close(&names(1), &seal, 7);
            assert_eq!(open(&names(1), &seal, "child:a", &form), Ok(outline(7)));
        }
    }

    #[test]
    fn another_tenants_or_another_record_does_not_open() {
        let seal = Seal::new(None);
        let form = close(&names(1), &seal, 7);
        assert_eq!(open(&names(2), &seal, "child:a", &form), Err(Unreadable::Damaged));
        assert_eq!(open(&names(1), &seal, "child:b", &form), Err(Unreadable::Damaged));
        assert_eq!(open(&names(1), &seal, "thread:a", &form), Err(Unreadable::Damaged));
    }

    #[test]
    fn a_changed_byte_or_a_cut_does_not_open() {
        let seal = Seal::new(None);
        let form = close(&names(1), &seal, 7);
        for at in 0..form.len() {
            let mut changed = form.clone();
            changed[at] ^= 0x10;
            assert_eq!(open(&names(1), &seal, "child:a", &changed), Err(Unreadable::Damaged), "byte {at}");
            assert_eq!(
                open(&names(1), &seal, "child:a", &form[..at]),
                Err(Unreadable::Damaged),
                "cut at {at}"
            );
        }
    }

    /// A record as the first version closed it: written once, with `UPDATE=1`, and never again.
    #[test]
    fn a_form_of_the_first_version_opens() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/store/redis-form-v1.hex");
        let seal = Seal::new(Some(b"a key of thirty-two random bytes"));
        if std::env::var_os("UPDATE").is_some() && !std::path::Path::new(file).exists() {
            let form = close(&names(1), &seal, 7);
            std::fs::write(file, hex(&form) + "\n").unwrap();
        }
        let kept = std::fs::read_to_string(file).unwrap();
        let digits = kept.trim().as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        let form: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        // It is from before there were generations.
        assert_eq!(open(&names(1), &seal, "child:a", &form), Ok(outline(0)));
    }

    /// Closes a header as this version would.
    fn forged(header: &str) -> Result<Outline, Unreadable> {
        let (names, seal) = (names(1), Seal::new(None));
        let plain = format!("{header}\n{{}}");
        let sealed = seal.close(&names.context(b"child:a"), plain.as_bytes());
        let form = [names.record_digest("child:a", &sealed).as_slice(), &sealed].concat();
        open(&names, &seal, "child:a", &form)
    }

    #[test]
    fn a_later_version_is_not_read_and_unknown_members_are_passed_over() {
        assert!(forged(r#"{"v":1,"key":"child:a","blobs":[],"later":{"x":1}}"#).is_ok());
        assert!(forged(r#"{"v":1,"key":"child:a"}"#).is_ok());
        for later in [r#"{"v":2,"key":"child:a","blobs":[]}"#, r#"{"v":2,"blobs":{"of":"another form"}}"#] {
            assert_eq!(forged(later), Err(Unreadable::Later));
        }
    }

    /// A blob of one chunk, many times.
    fn many_chunks(chunk: &str) -> String {
        let chunks = vec![format!("\"{chunk}\""); 64].join(",");
        format!(r#"{{"bytes":{},"chunks":[{chunks}]}}"#, 64 * CHUNK_BYTES_MAX)
    }

    #[test]
    fn impossible_headers_are_damage() {
        let chunk = "0".repeat(32);
        for blobs in [
            r#"[{"bytes":1,"chunks":[]}]"#.to_owned(),
            format!(r#"[{{"bytes":{},"chunks":["{chunk}"]}}]"#, CHUNK_BYTES_MAX + 1),
            r#"[{"bytes":1,"chunks":["zz"]}]"#.to_owned(),
            r#"[{"bytes":-1,"chunks":[]}]"#.to_owned(),
            format!("[{}]", vec![r#"{"bytes":0,"chunks":[]}"#; BLOBS_MAX + 1].join(",")),
            // One chunk, named over and over, would take all memory.
            format!("[{}]", vec![&*many_chunks(&chunk); BLOBS_MAX].join(",")),
        ] {
            assert_eq!(
                forged(&format!(r#"{{"v":1,"key":"child:a","blobs":{blobs}}}"#)),
                Err(Unreadable::Damaged),
                "{blobs}"
            );
        }
    }

    #[test]
    fn only_names_of_records_are_read_as_such() {
        assert_eq!(parse_member("child:0a"), Some(key("0a")));
        for bad in ["", "child", "child:", "child:../x", "sibling:0a", "child:A"] {
            assert_eq!(parse_member(bad), None, "{bad}");
        }
    }
}
