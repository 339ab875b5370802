//! The database: its tables, and how it is opened.
//!
//! The versions of a tenant rise by one with every change. They never come back: a tenant of which nothing was left begins
//! above all that went before it. All but `journals`, `dismissed` and `facts` can be computed from `records`; a test does.

use std::cell::RefCell;

use redb::{
    Builder, Database, ReadOnlyTable, ReadableDatabase as _, ReadableTable as _, Table, TableDefinition,
    TableHandle as _, WriteTransaction,
};

use super::error::{Trouble, guarded};
use super::folder::{Folder, RECORDS, private};
use super::progress::Progress;
use crate::store::seal::Digest;

/// The form of these tables. A later one reads this one.
const FORM: u64 = 1;

/// Pages in memory, besides those that a change holds: enough for the inner pages of what `store.max_bytes` bounds.
const CACHE_BYTES: usize = 16 << 20;

/// The tenant, the kind and the name of a record.
pub(super) type RecordName = (&'static Digest, &'static str, &'static str);
/// The version, the end of its life in unix milliseconds, the group, the names of its prompts one after the other, and the
/// body, sealed; none if the record was deleted.
pub(super) type RecordRow = (u64, u64, Option<&'static str>, &'static [u8], Option<&'static [u8]>);

type Definition<K, V> = TableDefinition<'static, K, V>;

const RECORDS_TABLE: Definition<RecordName, RecordRow> = TableDefinition::new("records");
/// The tenant and the version, to the kind and the name.
const ORDER: Definition<(&Digest, u64), (&str, &str)> = TableDefinition::new("order");
/// The end of life, the tenant and the version, to the kind and the name.
const ENDS: Definition<(u64, &Digest, u64), (&str, &str)> = TableDefinition::new("ends");
/// How often records name a prompt, and its bytes.
const PROMPTS: Definition<&Digest, (u64, u64)> = TableDefinition::new("prompts");
/// The last version of a tenant, and its bytes.
const TENANTS: Definition<&Digest, (u64, u64)> = TableDefinition::new("tenants");
/// How far a journal was taken in.
const JOURNALS: Definition<&str, u64> = TableDefinition::new("journals");
/// A journal, and a tenant that was forgotten while that was written.
const DISMISSED: Definition<(&str, &Digest), ()> = TableDefinition::new("dismissed");
const FACTS: Definition<&str, u64> = TableDefinition::new("facts");

/// The highest version of the tenants of which nothing is left.
pub(super) const VERSION: &str = "version";
const FORM_FACT: &str = "form";
const KEY_FACT: &str = "key";

/// All tables, to be changed together.
pub(super) struct Tables<'t> {
    pub records: Table<'t, RecordName, RecordRow>,
    pub order: Table<'t, (&'static Digest, u64), (&'static str, &'static str)>,
    pub ends: Table<'t, (u64, &'static Digest, u64), (&'static str, &'static str)>,
    pub prompts: Table<'t, &'static Digest, (u64, u64)>,
    pub tenants: Table<'t, &'static Digest, (u64, u64)>,
    pub journals: Table<'t, &'static str, u64>,
    pub dismissed: Table<'t, (&'static str, &'static Digest), ()>,
    pub facts: Table<'t, &'static str, u64>,
}

impl<'t> Tables<'t> {
    pub fn open(transaction: &'t WriteTransaction) -> Result<Tables<'t>, Trouble> {
        Ok(Tables {
            records: transaction.open_table(RECORDS_TABLE)?,
            order: transaction.open_table(ORDER)?,
            ends: transaction.open_table(ENDS)?,
            prompts: transaction.open_table(PROMPTS)?,
            tenants: transaction.open_table(TENANTS)?,
            journals: transaction.open_table(JOURNALS)?,
            dismissed: transaction.open_table(DISMISSED)?,
            facts: transaction.open_table(FACTS)?,
        })
    }
}

/// The tables that are read to know a tenant, as they were at one moment.
pub(super) struct View {
    pub records: ReadOnlyTable<RecordName, RecordRow>,
    pub order: ReadOnlyTable<(&'static Digest, u64), (&'static str, &'static str)>,
    pub tenants: ReadOnlyTable<&'static Digest, (u64, u64)>,
    pub prompts: ReadOnlyTable<&'static Digest, (u64, u64)>,
    pub ends: ReadOnlyTable<(u64, &'static Digest, u64), (&'static str, &'static str)>,
}

impl View {
    pub fn open(database: &Database) -> Result<View, Trouble> {
        let transaction = database.begin_read()?;
        Ok(View {
            records: transaction.open_table(RECORDS_TABLE)?,
            order: transaction.open_table(ORDER)?,
            tenants: transaction.open_table(TENANTS)?,
            prompts: transaction.open_table(PROMPTS)?,
            ends: transaction.open_table(ENDS)?,
        })
    }
}

/// Begins a change that is durable, and whose crash leaves nothing to repair.
pub(super) fn begin(database: &Database) -> Result<WriteTransaction, Trouble> {
    let mut transaction = database.begin_write()?;
    transaction.set_quick_repair(true);
    Ok(transaction)
}

/// Opens the database of a folder. One that is damaged or not ours is moved aside, and an empty one takes its place.
pub(super) fn open(folder: &Folder, key: u64) -> Result<Database, Trouble> {
    match open_as_is(folder, key) {
        Err(trouble) if trouble.is_damage() => {
            folder.move_aside(&folder.path(RECORDS), &trouble.to_string())?;
            open_as_is(folder, key)
        }
        opened => opened,
    }
}

/// Opens the database of a folder if it is whole.
pub(super) fn open_examined(folder: &Folder, key: u64) -> Result<Database, Trouble> {
    let mut database = open_as_is(folder, key)?;
    guarded(move || {
        let is_whole = database.check_integrity()?;
        if is_whole { Ok(database) } else { Err(Trouble::Foreign("its pages do not agree")) }
    })
}

fn open_as_is(folder: &Folder, key: u64) -> Result<Database, Trouble> {
    let file = private().create(true).open(folder.path(RECORDS))?;
    if !file.metadata()?.is_file() {
        return Err(Trouble::Foreign("it is no file"));
    }
    guarded(|| {
        let progress = RefCell::new(Progress::new("repairing its records"));
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .set_repair_callback(move |_| progress.borrow_mut().step())
            .create_file(file)?;
        check(&database, key)?;
        Ok(database)
    })
}

/// Checks that the tables are ours, and makes them if the database is new.
fn check(database: &Database, key: u64) -> Result<(), Trouble> {
    let transaction = begin(database)?;
    let is_new = transaction.list_tables()?.next().is_none();
    let is_ours = transaction.list_tables()?.any(|table| table.name() == "facts");
    if !is_new && !is_ours {
        return Err(Trouble::Foreign("it is another program's database"));
    }
    let mut tables = Tables::open(&transaction)?;
    let fact = |tables: &Tables<'_>, name| Ok::<_, Trouble>(tables.facts.get(name)?.map(|fact| fact.value()));
    match fact(&tables, FORM_FACT)? {
        Some(form) if form > FORM => return Err(Trouble::Newer(form)),
        Some(_) => {}
        None => {
            tables.facts.insert(FORM_FACT, FORM)?;
        }
    }
    let old_key = fact(&tables, KEY_FACT)?;
    if old_key.is_some_and(|old| old != key) {
        tracing::warn!(
            "the store was written with another store.key: what it knew is not known any more, and goes when its time \
             is over, unless forkpoint is started with that key again"
        );
    }
    if old_key != Some(key) {
        tables.facts.insert(KEY_FACT, key)?;
    }
    drop(tables);
    transaction.commit()?;
    Ok(())
}

/// Returns the number of bytes of all tenants.
pub(super) fn bytes(database: &Database) -> Result<u64, Trouble> {
    let mut bytes = 0;
    for row in View::open(database)?.tenants.iter()? {
        bytes += row?.1.value().1;
    }
    Ok(bytes)
}
