//! What is known of one tenant ⇄ records that outlive this process.
//!
//! ```text
//! take_changes   what has changed is taken from the state under its lock ─ written into records without it ─ changes
//! restore        changes ─ read without the lock ─ merged into the state under it
//! ```
//!
//! | record | name | what it holds |
//! |---|---|---|
//! | fork point | its id | the parent's request and the turn, as blobs; how its calls start agents |
//! | | its id, `-1` | who has started from its calls, what has come back, what was decided for its children |
//! | child | writer, number | whose it is; its fate: all that its prefix is made of, or why it keeps its own |
//! | | writer, number, `-1` | its turns, and the marks by which it is known |
//! | worlds | writer, part | entries in the provider's cache, and counted prefixes: a 64th of them |
//! | | writer | the paces of answers, and until when something may not be known |
//! | learned | `0` | habits of conversations, tokens to a byte, holds; tools and sessions that start and name agents |
//! | | a digest of a tool | what became of the children of that tool |
//! | thread | a digest of the id of its last answer | a conversation that the server holds: the request and the answer |
//! | spelling | a digest of it | the spellings of tools and prompts that one request has brought first, or of inputs |
//!
//! The rules: what this process knows of its own children counts, whatever a record says. A record that is damaged, of
//! another tenant, or of a later version says nothing. Knowledge that is lost never becomes a saving.

mod blobs;
mod children;
mod learned;
mod points;
mod spellings;
mod threads;
mod worlds;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::cache::worlds::{SavedPart, SavedWorlds};
use crate::engine::family::fanout::{ChildName, ForkId, Rules, UnsavedFanOuts};
use crate::engine::fork::experiment::{SavedLife, SavedTool};
use crate::engine::records::{self, Change, Record, RecordKey, Times, Writer};
use crate::engine::respell::canonical::FirstSpellings;
use crate::engine::tenant::{BoundChild, SavedDecision, TenantAccess, TenantState, UnsavedThread, Urgency};
use crate::engine::words::{RecordKind, TenantId};
use children::{Prefixes, ReadChild, ReadTurns};
use learned::{Lessons, Traffic};
pub use learned::{restore_weights, take_weights};
use points::{Parents, ReadClaims, ReadPoint};
use threads::ReadThread;

/// The way in which what has changed is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Only what conversations depend on.
    Soon,
    /// Everything.
    All,
    /// Everything, and nothing comes after it: the process ends.
    Last,
}

impl Pace {
    /// Returns true if anything of this urgency is taken.
    pub fn takes(self, urgency: Option<Urgency>) -> bool {
        match self {
            Pace::Soon => urgency == Some(Urgency::Soon),
            Pace::All | Pace::Last => urgency.is_some(),
        }
    }
}

/// The origin of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Everything that a store knows of a tenant which this process sees first. `is_shared`: other processes write too.
    Everything { is_shared: bool },
    /// The changes that were written since.
    Since,
}

/// The result of merging the changes of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Records that were read.
    pub records: usize,
    /// Records that cannot be read.
    pub unreadable: usize,
}

/// What has changed of a tenant, as records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// To be written in this order.
    pub changes: Vec<Change>,
    /// Records that are too large to be written.
    pub too_large: usize,
}

/// The parts of a tenant's state that are to be written into records.
#[derive(Default)]
struct TakenState {
    all: bool,
    /// True if the spellings of tools and prompts are written again.
    renews_spellings: bool,
    writer: Writer,
    spellings: Vec<FirstSpellings>,
    fan_outs: UnsavedFanOuts<BoundChild>,
    decisions: Vec<SavedDecision>,
    lives: Vec<Option<SavedLife>>,
    parts: Vec<(u32, SavedPart)>,
    worlds: Option<SavedWorlds>,
    traffic: Option<Traffic>,
    tools: Vec<SavedTool>,
    threads: Vec<UnsavedThread>,
}

impl TakenState {
    /// None if nothing of the tenant outlives this process.
    fn from(state: &mut TenantState, pace: Pace, times: Times) -> Option<TakenState> {
        let writer = state.unsaved.writer()?;
        let all = state.take_all();
        let fan_outs = state.fan_outs.take_unsaved(all, times.now);
        let decisions = fan_outs.claims.iter().map(|(fork, ..)| state.prefixes.save(*fork)).collect();
        let life = |child: &(ChildName, _)| state.experiment.save_life(state.fan_outs.named_child(child.0)?);
        let lives = fan_outs.children.iter().map(life).collect();
        let spellings = state.unsaved.take_spellings();
        let next = times.now.after(spellings::RENEWED_AFTER_MS);
        let renews_spellings = state.unsaved.take_renewal(!spellings.is_empty() || all, times.now, next);
        let threads = state.take_threads(all);
        let mut unsaved = TakenState {
            writer,
            all,
            spellings,
            fan_outs,
            decisions,
            lives,
            threads,
            renews_spellings,
            ..TakenState::default()
        };
        let is_last = pace == Pace::Last;
        if all || pace != Pace::Soon {
            let is_new = state.worlds.has_unsaved() || all || is_last;
            unsaved.parts = state.worlds.take_unsaved(all, times);
            unsaved.worlds = is_new.then(|| state.worlds.save(is_last, times.now));
            let has_learned = state.unsaved.take_learned() | state.fan_outs.take_changed_habits();
            unsaved.traffic = (has_learned || all).then(|| Traffic::of(state, times));
            unsaved.tools = state.experiment.take_unsaved(all);
        }
        Some(unsaved)
    }

    fn records(self, id: TenantId, times: Times) -> Taken {
        let mut taken = Taken::default();
        taken.extend(self.spellings.iter().flat_map(|first| spellings::changes(id, first, times)));
        let UnsavedFanOuts { points, claims, children } = self.fan_outs;
        taken.extend(points.into_iter().map(|(fork, known)| match known {
            Some((point, since, ttl_ms)) => points::put(id, &point, since, ttl_ms, times),
            None => points::key(fork).map(Change::Delete),
        }));
        let decided = claims.into_iter().zip(self.decisions);
        taken.extend(decided.map(|(claims, decision)| points::put_claims(id, claims, decision, times)));
        for ((name, known), life) in children.into_iter().zip(self.lives) {
            taken.extend(match known {
                Some(child) => children::put(id, name, &child, life, times),
                None => {
                    let keys = [children::key(name), children::key_of_turns(name)];
                    keys.into_iter().map(|key| key.map(Change::Delete)).collect()
                }
            });
        }
        taken.extend(self.threads.iter().map(|thread| threads::change(id, thread, times)));
        let writer = self.writer;
        taken.extend(self.parts.into_iter().map(|part| worlds::put_part(id, writer, part, times)));
        taken.extend(self.worlds.iter().map(|worlds| worlds::put(id, writer, worlds, times)));
        taken.extend(self.traffic.iter().map(|traffic| learned::put_traffic(id, traffic, times)));
        taken.extend(self.tools.iter().map(|tool| learned::put_tool(id, tool, times)));
        taken
    }
}

impl Taken {
    /// Adds changes; none is one that is too large.
    fn extend(&mut self, changes: impl IntoIterator<Item = Option<Change>>) {
        for change in changes {
            match change {
                Some(Change::Put(_, record)) if !record.fits() => self.too_large += 1,
                Some(change) => self.changes.push(change),
                None => self.too_large += 1,
            }
        }
    }
}

/// Takes what has changed of a tenant, as records. If they cannot be written, the tenant's
/// [`save_all_anew`](TenantState::save_all_anew) makes good for it.
pub fn take_changes<T: TenantAccess>(tenant: &T, pace: Pace, times: Times) -> Taken {
    let unsaved = tenant.look(|state| Some((state.id, TakenState::from(state, pace, times)?)));
    let Some((id, mut unsaved)) = unsaved else { return Taken::default() };
    if unsaved.all {
        unsaved.spellings = tenant.spellings(|table| table.all_spellings());
    } else if unsaved.renews_spellings {
        let [all, inputs] =
            [tenant.spellings(|table| table.all_spellings()), std::mem::take(&mut unsaved.spellings)];
        unsaved.spellings = all.iter().map(|first| first.apart()[0].clone()).collect();
        unsaved.spellings.extend(inputs.iter().map(|first| first.apart()[1].clone()));
    }
    unsaved.records(id, times)
}

/// As [`take_changes`], where nothing is too large.
#[cfg(test)]
pub fn take_unsaved<T: TenantAccess>(tenant: &T, pace: Pace, times: Times) -> Vec<Change> {
    take_changes(tenant, pace, times).changes
}

/// Merges what a store has sent of a tenant into what is known of it. An answer that came in parts is given as one.
pub fn restore<T: TenantAccess>(tenant: &T, changes: &[Change], origin: Origin, times: Times) -> Restored {
    let (id, writer, rules) =
        tenant.look(|state| (state.id, state.unsaved.writer(), Arc::clone(state.fan_outs.points().rules())));
    let own = if origin == Origin::Since { writer } else { None };
    let mut reader = RecordReader { tenant, id, own, rules: &rules, times, found: FoundRecords::default() };
    let mut restored = Restored::default();
    for change in changes {
        let read = match change {
            Change::Put(key, record) => reader.read(key, record),
            Change::Delete(key) => reader.gone(key),
        };
        match read {
            Some(()) => restored.records += 1,
            None if is_later(change) => {}
            None => restored.unreadable += 1,
        }
    }
    reader.found.merge(tenant, origin, times);
    restored
}

/// Returns true if a change is for a newer process.
fn is_later(change: &Change) -> bool {
    matches!(change, Change::Put(_, record) if records::is_later(&record.body))
}

/// Reads records, without the tenant's lock.
struct RecordReader<'a, T> {
    tenant: &'a T,
    id: TenantId,
    /// The writer whose records are no news.
    own: Option<Writer>,
    rules: &'a Rules,
    times: Times,
    found: FoundRecords,
}

/// Everything that was read. What depends on something else is merged after that, in whatever order both came.
#[derive(Default)]
struct FoundRecords {
    parents: Parents,
    prefixes: Prefixes,
    points: Vec<ReadPoint>,
    claims: Vec<ReadClaims>,
    children: Vec<ReadChild>,
    turns: Vec<ReadTurns>,
    dropped: Vec<ForkId>,
    parts: Vec<(u32, SavedPart)>,
    worlds: Vec<SavedWorlds>,
    lessons: Vec<Lessons>,
    threads: Vec<ReadThread>,
}

impl<T: TenantAccess> RecordReader<'_, T> {
    fn read(&mut self, key: &RecordKey, record: &Record) -> Option<()> {
        let RecordReader { tenant, id, own, rules, times, ref mut found } = *self;
        match key.kind {
            RecordKind::Spelling => spellings::restore(tenant, id, record, times)?,
            RecordKind::ForkPoint => match key.name.strip_suffix(points::CHANGING) {
                Some(name) => found.claims.push(points::read_claims(id, name, record, times)?),
                None => {
                    let point = points::read(tenant, id, (key, record), &mut found.parents, rules, times)?;
                    found.points.push(point);
                }
            },
            RecordKind::Child => {
                let (name, is_changing) = children::named(&key.name)?;
                if is_changing {
                    found.turns.push(children::read_turns(id, name, record, times)?);
                } else {
                    let known = (&mut found.parents, &mut found.prefixes);
                    found.children.push(children::read(tenant, (id, name, record), known, rules, times)?);
                }
            }
            RecordKind::Worlds => match worlds::named(&key.name)? {
                // What this process has written comes back, and may be older than what it knows.
                (by, _) if Some(by) == own => {}
                (_, Some(number)) => found.parts.push((number, records::read(id, &record.body, times)?)),
                (_, None) => found.worlds.push(records::read(id, &record.body, times)?),
            },
            RecordKind::Learned => found.lessons.push(learned::read(id, key, record, times)?),
            RecordKind::Thread => found.threads.push(threads::read(id, key, record, times)?),
        }
        Some(())
    }

    /// A record was taken away.
    fn gone(&mut self, key: &RecordKey) -> Option<()> {
        if key.kind == RecordKind::ForkPoint {
            self.found.dropped.extend(ForkId::named(&key.name));
        }
        Some(())
    }
}

impl FoundRecords {
    fn merge<T: TenantAccess>(mut self, tenant: &T, origin: Origin, times: Times) {
        let now = times.now;
        let is_torn = self.is_torn(origin);
        if origin == (Origin::Everything { is_shared: false }) {
            // The process that read the answers of these fork points has ended, so they will not be sealed.
            self.points.retain(|read| read.point.is_sealed());
            // Each process has written what the one before it knew, too: the last word counts.
            let newest: BTreeMap<u32, SavedPart> = self.parts.into_iter().collect();
            self.parts = newest.into_iter().collect();
        }
        self.points.sort_by_key(|read| read.since);
        for ReadPoint { point, since } in self.points {
            tenant.look(|state| {
                let fork = point.id;
                state.fan_outs.restore_point(point, since, now);
                state.seal_heard(fork);
            });
        }
        for ReadClaims { fork, claims, decision } in self.claims {
            tenant.look(|state| {
                if state.fan_outs.restore_claims(fork, claims) {
                    state.prefixes.restore(fork, decision);
                }
            });
        }
        for fork in self.dropped {
            tenant.look(|state| {
                state.fan_outs.drop_pending(fork);
                state.seal_heard(fork);
            });
        }
        for child in self.children {
            tenant.look(|state| child.restore(state, now));
        }
        for turns in self.turns {
            tenant.look(|state| turns.restore(state, now));
        }
        self.threads.into_iter().for_each(|thread| thread.restore(tenant));
        for (_, part) in self.parts {
            tenant.look(|state| state.worlds.restore_part(part, times));
        }
        for lessons in self.lessons {
            tenant.look(|state| match lessons {
                Lessons::Traffic(traffic) => traffic.restore(state),
                Lessons::Tool(tool) => state.experiment.restore(*tool, now),
            });
        }
        tenant.look(|state| {
            self.worlds.into_iter().for_each(|worlds| state.worlds.restore(worlds, now));
            if is_torn {
                state.worlds.lose_track(now);
            }
            state.fan_outs.expire_children(now);
        });
    }

    /// Returns true if entries may be missing: nothing is known of them though there were children, or the process that
    /// wrote them was killed before it had written all.
    fn is_torn(&self, origin: Origin) -> bool {
        let Origin::Everything { is_shared } = origin else { return false };
        let had_children = !self.children.is_empty() || !self.points.is_empty();
        match self.worlds.iter().map(SavedWorlds::is_closed).max() {
            None => had_children,
            Some(_) if is_shared => false,
            // The records of a process that ended before the last one are as they were when that began.
            Some(_) => {
                !self.worlds.iter().max_by_key(|worlds| worlds.saved_at()).is_some_and(SavedWorlds::is_closed)
            }
        }
    }
}
