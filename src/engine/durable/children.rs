//! Children: one record for what is decided of one for its life, and a small one for what changes with its turns.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::points::{CHANGING, Parents, PointText};
use crate::engine::family::fanout::{
    Bindable, ChildName, ForkId, ForkPoint, Rules, SavedMarks, Toolset, UnsavedChild, Who,
};
use crate::engine::fork::experiment::SavedLife;
use crate::engine::fork::{ChildPrefix, ParentPrefix, SavedChildPrefix, Sources};
use crate::engine::records::{self, Change, Record, RecordKey, Times, Writer};
use crate::engine::tenant::{BoundChild, Fate, SavedChild, SavedTurns, TenantAccess, TenantState};
use crate::engine::words::{Moment, RecordKind, TenantId, Why, digits};

#[derive(Serialize, Deserialize)]
struct ChildRecord {
    who: Who,
    tools: Toolset,
    child: SavedChild,
    fate: SavedFate,
}

/// A forked child holds all that its prefix is made of: it outlives its fork point.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SavedFate {
    Forked(Box<SavedForked>),
    Own(Why),
}

#[derive(Serialize, Deserialize)]
struct SavedForked {
    point: PointText,
    prefix: SavedChildPrefix,
}

#[derive(Serialize, Deserialize)]
struct TurnsRecord {
    turns: SavedTurns,
    marks: SavedMarks,
    #[serde(default)]
    life: Option<SavedLife>,
}

/// A child that was read.
pub struct ReadChild {
    name: ChildName,
    /// How long its record still lives.
    left_ms: u64,
    who: Who,
    tools: Toolset,
    child: SavedChild,
    fate: ReadFate,
}

enum ReadFate {
    Forked(Arc<ChildPrefix>, Box<ForkPoint>),
    Own(Why),
}

/// The turns of a child that were read.
pub struct ReadTurns {
    name: ChildName,
    turns: SavedTurns,
    marks: SavedMarks,
    life: Option<SavedLife>,
}

/// The parent prefixes that were read, so that siblings share them.
pub type Prefixes = HashMap<ForkId, Arc<ParentPrefix>>;

fn record_name(name: ChildName) -> String {
    format!("{}-{:x}", digits::of(&name.writer.0), name.number)
}

pub fn key(name: ChildName) -> Option<RecordKey> {
    RecordKey::new(RecordKind::Child, &record_name(name))
}

pub fn key_of_turns(name: ChildName) -> Option<RecordKey> {
    RecordKey::new(RecordKind::Child, &(record_name(name) + CHANGING))
}

/// Reads the name of a child, and whether the record is that of its turns.
pub fn named(name: &str) -> Option<(ChildName, bool)> {
    let (name, is_changing) = match name.strip_suffix(CHANGING) {
        // The number of a child may end in the same way, but not behind a second dash.
        Some(rest) if rest.contains('-') => (rest, true),
        _ => (name, false),
    };
    let (writer, number) = name.split_once('-')?;
    let writer = Writer(digits::read(writer)?);
    Some((ChildName { writer, number: u64::from_str_radix(number, 16).ok()? }, is_changing))
}

/// The records of a child that is to be written; none for each that is too large.
pub fn put(
    tenant: TenantId,
    name: ChildName,
    unsaved: &UnsavedChild<BoundChild>,
    life: Option<SavedLife>,
    times: Times,
) -> Vec<Option<Change>> {
    let UnsavedChild { value, who, tools, marks, is_new, ttl_ms } = unsaved;
    let (child, turns) = value.save();
    let group = Some(child.fork().name());
    let whole = || {
        let (fate, blobs) = match &value.fate {
            Fate::Own(why) => (SavedFate::Own(*why), Vec::new()),
            Fate::Forked(prefix, point) => {
                let (text, mut blobs) = PointText::of(point);
                let (prefix, own) = prefix.save(point);
                blobs.push(own);
                (SavedFate::Forked(Box::new(SavedForked { point: text, prefix })), blobs)
            }
        };
        let body = records::write(tenant, &ChildRecord { who: *who, tools: *tools, child, fate }, times)?;
        // It is written again when half of its time is over.
        let record = Record { group: group.clone(), body, blobs, ttl_ms: ttl_ms + ttl_ms / 2 };
        Some(Change::Put(key(name)?, record))
    };
    let turns = || {
        let body = records::write(tenant, &TurnsRecord { turns, marks: marks.clone(), life }, times)?;
        let record = Record { group: group.clone(), body, blobs: Vec::new(), ttl_ms: *ttl_ms };
        Some(Change::Put(key_of_turns(name)?, record))
    };
    let turns = turns();
    is_new.then(whole).into_iter().chain([turns]).collect()
}

pub fn read<T: TenantAccess>(
    tenant: &T,
    (id, name, record): (TenantId, ChildName, &Record),
    (parents, prefixes): (&mut Parents, &mut Prefixes),
    rules: &Rules,
    times: Times,
) -> Option<ReadChild> {
    let ChildRecord { who, tools, child, fate } = records::read(id, &record.body, times)?;
    let fate = match fate {
        SavedFate::Own(why) => ReadFate::Own(why),
        SavedFate::Forked(forked) => {
            let SavedForked { point: text, prefix } = *forked;
            if text.id() != child.fork() {
                return None;
            }
            let point = text.read(&record.blobs, parents, tenant, rules)?;
            let (turn, own) = text.behind_parent(&record.blobs)?;
            let sources = Sources { parent: point.parent.request.body(), turn, own: own.first()? };
            let known = prefixes.get(&point.id).cloned();
            let known = known.or_else(|| tenant.look(|state| state.prefixes.get(&point)));
            let prefix = prefix.restore(&point.parent, &sources, known)?;
            prefixes.insert(point.id, Arc::clone(prefix.parent_prefix()));
            ReadFate::Forked(Arc::new(prefix), Box::new(point))
        }
    };
    Some(ReadChild { name, left_ms: record.ttl_ms, who, tools, child, fate })
}

pub fn read_turns(id: TenantId, name: ChildName, record: &Record, times: Times) -> Option<ReadTurns> {
    let TurnsRecord { turns, marks, life } = records::read(id, &record.body, times)?;
    Some(ReadTurns { name, turns, marks, life })
}

impl ReadChild {
    /// Binds the child, unless it is known.
    pub fn restore(self, state: &mut TenantState, now: Moment) -> bool {
        if state.fan_outs.named_child(self.name).is_some() {
            return false;
        }
        let fate = match self.fate {
            ReadFate::Own(why) => Fate::Own(why),
            ReadFate::Forked(prefix, point) => {
                let point = state.fan_outs.shared_point(*point);
                state.prefixes.keep_restored(&point, prefix.parent_prefix());
                Fate::Forked(prefix, point)
            }
        };
        let value = self.child.restore(fate);
        let (bytes, point) = (value.memory_bytes(), value.point().cloned());
        let child = Bindable { tools: self.tools, who: self.who, value, bytes, point };
        state.fan_outs.restore_child(self.name, child, self.left_ms, now).is_some()
    }
}

impl ReadTurns {
    /// Takes over what another process knows of a child's turns. A turn is counted when it begins and marked as it goes
    /// on, so marks may be news of a turn that is known.
    pub fn restore(self, state: &mut TenantState, now: Moment) {
        let Some(binding) = state.fan_outs.named_child(self.name) else { return };
        let is_first = state.fan_outs.children().get(binding).is_some_and(|bound| bound.turns() == 0);
        let is_later = state.fan_outs.restore_marks(binding, &self.marks, is_first);
        let Some(bound) = state.fan_outs.restored_child_mut(binding) else { return };
        let is_more = bound.restore_turns(&self.turns, is_later);
        let tool = Arc::clone(&bound.tool);
        if let (true, Some(life)) = (is_more || is_later, self.life) {
            state.experiment.restore_life(binding, &tool, life, now);
        }
    }
}
