//! Is everything in a folder as it must be? All tables are computed from the records and compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use redb::ReadableTable as _;

use super::super::batch::row_bytes;
use super::super::database::{self, View};
use super::super::folder::{Folder, PromptFile};
use crate::store::seal::{Digest, Seal};

/// Checks a folder that no process has: every table follows from the records, and every prompt is there whole, and no other.
pub fn check(path: &Path, seal: Seal) {
    let folder = Folder::open(path).unwrap();
    let _lock = folder.lock(std::time::Duration::from_secs(10)).unwrap();
    let key = u64::from_le_bytes(*seal.digest(b"key", b"").first_chunk().unwrap());
    let database = database::open(&folder, key).unwrap();
    let view = View::open(&database).unwrap();

    let (mut order, mut expected_ends) = (BTreeSet::new(), BTreeSet::new());
    let mut needed: BTreeMap<Digest, (u64, Digest)> = BTreeMap::new();
    let mut bytes: BTreeMap<Digest, u64> = BTreeMap::new();
    for row in view.records.iter().unwrap() {
        let (record, row) = row.unwrap();
        let (tenant, kind, name) = record.value();
        let (version, ends_ms, _, names, sealed) = row.value();
        order.insert((*tenant, version, kind.to_owned(), name.to_owned()));
        expected_ends.insert((ends_ms, version, *tenant, kind.to_owned(), name.to_owned()));
        assert!(
            view.tenants.get(tenant).unwrap().unwrap().value().0 >= version,
            "a version is beyond the last"
        );
        *bytes.entry(*tenant).or_default() += row_bytes(names.len(), sealed.map(<[u8]>::len));
        for name in names.as_chunks::<32>().0 {
            needed.entry(*name).or_insert((0, *tenant)).0 += 1;
        }
    }
    let found: BTreeSet<_> = view
        .order
        .iter()
        .unwrap()
        .map(|row| {
            let (place, record) = row.unwrap();
            let ((tenant, version), (kind, name)) = (place.value(), record.value());
            (*tenant, version, kind.to_owned(), name.to_owned())
        })
        .collect();
    assert!(found == order, "the order is not that of the records");
    let found: BTreeSet<_> = view
        .ends
        .iter()
        .unwrap()
        .map(|row| {
            let (end, record) = row.unwrap();
            let ((ends_ms, tenant, version), (kind, name)) = (end.value(), record.value());
            (ends_ms, version, *tenant, kind.to_owned(), name.to_owned())
        })
        .collect();
    assert!(found == expected_ends, "the ends are not those of the records");

    let mut named = 0;
    for row in view.prompts.iter().unwrap() {
        let (name, row) = row.unwrap();
        let (times, size) = row.value();
        let (expected, tenant) = needed[name.value()];
        assert_eq!(times, expected, "a prompt is named so often");
        *bytes.entry(tenant).or_default() += size;
        let sealed = folder.read_prompt(name.value()).unwrap();
        let context = super::super::prompt_context(&tenant, name.value());
        let prompt = seal.open(&context, &sealed).expect("a prompt does not open");
        assert_eq!(seal.digest(&tenant, &prompt), *name.value(), "a prompt is another one");
        named += 1;
    }
    assert_eq!(named, needed.len(), "a prompt of a record is unknown");
    for row in view.tenants.iter().unwrap() {
        let (tenant, row) = row.unwrap();
        assert_eq!(row.value().1, bytes.remove(tenant.value()).unwrap_or(0), "the bytes of a tenant");
    }
    assert!(bytes.is_empty(), "a tenant is not known");
    let mut files = 0;
    for file in folder.prompts().unwrap() {
        assert!(matches!(file, PromptFile::Whole(name) if needed.contains_key(&name)), "an orphan");
        files += 1;
    }
    assert_eq!(files, needed.len());
}
