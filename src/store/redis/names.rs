//! The names under which a tenant's bytes are kept.
//!
//! Names are made by a BLAKE3 that is keyed by the tenant and by `store.key`: they hold no credential and no prompt, and
//! cannot be guessed from a prompt without the tenant. Record names alone are kept as they are: they are digests and ids.
//!
//! | key | kind | contents |
//! |---|---|---|
//! | `fp1:{tenant}:records` | sorted set | the records by version, deleted ones too for a while |
//! | `fp1:{tenant}:expiry` | sorted set | when each of them can be forgotten |
//! | `fp1:{tenant}:version` | hash | the first and the newest version, the first one after it was forgotten, and the server that wrote last; the generation that takes new chunks, its bytes, and the one before |
//! | `fp1:{tenant}:chunks` | sorted set | the names of all chunks, and when they end |
//! | `fp1:{tenant}:r:kind:name` | string | a record |
//! | `fp1:{tenant:part}:c:generation:name` | string | a chunk of a prompt |
//! | `fp1:{tenant:entry}:lease` | string | the owner of a lease |
//!
//! The part in braces chooses the node of a cluster. The small records of a tenant are together, since what is written
//! together is seen together. Its chunks and leases, which are nearly all of its bytes and of its traffic while many
//! children begin, are spread, so that one company key does not mean one node.
//!
//! A generation takes chunks until it has its share of bytes or the tenant is forgotten. The last two are kept. Since a name
//! has its generation, nobody takes a chunk away that somebody else has just written.

use crate::engine::records::RecordKey;
use crate::engine::words::TenantId;
pub use crate::engine::words::digits::of as hex;

/// The digest of a chunk, by which it is named.
pub type ChunkName = [u8; 16];

/// Makes the names of all tenants.
pub struct Names {
    key: [u8; 32],
}

/// The names of one tenant.
pub struct TenantNames {
    key: [u8; 32],
    tag: String,
}

impl Names {
    pub fn new(store_key: Option<&[u8]>) -> Names {
        Names { key: blake3::derive_key("forkpoint redis names v1", store_key.unwrap_or_default()) }
    }

    pub fn of(&self, tenant: TenantId) -> TenantNames {
        let key = *blake3::keyed_hash(&self.key, &tenant.0).as_bytes();
        let tag = hex(&keyed(&key, b"tenant", b""));
        TenantNames { key, tag }
    }
}

impl TenantNames {
    pub fn records(&self) -> String {
        format!("fp1:{{{}}}:records", self.tag)
    }

    pub fn expiry(&self) -> String {
        format!("fp1:{{{}}}:expiry", self.tag)
    }

    pub fn version(&self) -> String {
        format!("fp1:{{{}}}:version", self.tag)
    }

    pub fn chunks(&self) -> String {
        format!("fp1:{{{}}}:chunks", self.tag)
    }

    /// The beginning of the keys of records: their [`member`] follows.
    pub fn record_prefix(&self) -> String {
        format!("fp1:{{{}}}:r:", self.tag)
    }

    pub fn chunk(&self, generation: u64, name: &ChunkName) -> String {
        format!("fp1:{{{}:{:02x}}}:c:{}", self.tag, name[0], listed(generation, name))
    }

    pub fn lease(&self, entry: &str) -> String {
        format!("fp1:{{{}:{}}}:lease", self.tag, hex(&keyed(&self.key, b"lease", entry.as_bytes())))
    }

    /// The name of a chunk with these bytes.
    pub fn chunk_name(&self, bytes: &[u8]) -> ChunkName {
        keyed(&self.key, b"chunk", bytes)
    }

    /// The digest by which a record is known to be whole, and this one.
    pub fn record_digest(&self, member: &str, sealed: &[u8]) -> ChunkName {
        let inner = keyed(&self.key, b"record", sealed);
        keyed(&self.key, &inner, member.as_bytes())
    }

    /// The context that is authenticated with what is encrypted.
    pub fn context(&self, name: &[u8]) -> Vec<u8> {
        [&self.key, name].concat()
    }
}

/// The name of a record among those of its tenant, as one word.
pub fn member(key: &RecordKey) -> String {
    format!("{}:{}", key.kind.as_str(), key.name)
}

/// The name of a chunk in the list of them. Generation 0 is that of chunks from before there were any.
pub fn listed(generation: u64, name: &ChunkName) -> String {
    if generation == 0 { hex(name) } else { format!("{generation}:{}", hex(name)) }
}

/// Reads the generation and the name of a chunk in the list.
pub fn parse_listed(text: &str) -> Option<(u64, ChunkName)> {
    match text.split_once(':') {
        None => Some((0, parse_chunk_name(text)?)),
        Some((generation, name)) => Some((generation.parse().ok()?, parse_chunk_name(name)?)),
    }
}

/// Reads the name of a chunk from hex digits.
pub fn parse_chunk_name(text: &str) -> Option<ChunkName> {
    let mut name = ChunkName::default();
    if text.len() != 2 * name.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(name)
}

fn keyed(key: &[u8; 32], domain: &[u8], bytes: &[u8]) -> ChunkName {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&[domain.len() as u8]).update(domain).update(bytes);
    let mut name = ChunkName::default();
    hasher.finalize_xof().fill(&mut name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::words::RecordKind;

    const ONE: TenantId = TenantId([1; 32]);

    #[test]
    fn names_differ_by_tenant_and_by_key() {
        let names = Names::new(None);
        let (one, other) = (names.of(ONE), names.of(TenantId([2; 32])));
        assert_ne!(one.chunk_name(b"a prompt"), other.chunk_name(b"a prompt"));
        assert_ne!(one.records(), other.records());
        assert_ne!(one.lease("e"), other.lease("e"));
        let keyed = Names::new(Some(b"a key")).of(ONE);
        assert_ne!(one.chunk_name(b"a prompt"), keyed.chunk_name(b"a prompt"));
        assert_ne!(one.records(), keyed.records());
    }

    #[test]
    fn chunks_and_leases_of_one_tenant_have_many_tags() {
        let names = Names::new(None).of(ONE);
        let tag = |key: String| key.split(['{', '}']).nth(1).unwrap().to_owned();
        let chunks = (0..200_u8).map(|n| tag(names.chunk(u64::from(n), &names.chunk_name(&[n]))));
        assert!(chunks.collect::<std::collections::HashSet<_>>().len() > 100);
        assert_ne!(tag(names.lease("a")), tag(names.lease("b")));
        let together =
            [names.records(), names.expiry(), names.version(), names.chunks(), names.record_prefix()];
        assert!(together.into_iter().map(tag).all(|one| one == tag(names.records())));
    }

    #[test]
    fn a_digest_tells_records_of_equal_bytes_apart() {
        let names = Names::new(None).of(ONE);
        assert_ne!(names.record_digest("child:1", b"x"), names.record_digest("child:2", b"x"));
        assert_eq!(
            member(&RecordKey { kind: RecordKind::ForkPoint, name: "0a-1".to_owned() }),
            "fork_point:0a-1"
        );
    }

    #[test]
    fn the_name_of_a_chunk_is_read_as_it_is_written() {
        let name = Names::new(None).of(ONE).chunk_name(b"a prompt");
        assert_eq!(parse_chunk_name(&hex(&name)), Some(name));
        for generation in [0, 1, u64::MAX] {
            assert_eq!(parse_listed(&listed(generation, &name)), Some((generation, name)));
        }
        assert_eq!(parse_listed(&format!("x:{}", hex(&name))), None);
        for bad in
            ["", "0a", &"g".repeat(32), &"0".repeat(33), &"é".repeat(16), "+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1"]
        {
            assert_eq!(parse_chunk_name(bad), None, "{bad}");
        }
    }
}
