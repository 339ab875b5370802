//! The state known of one tenant.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use tokio::sync::Notify;

use super::forked::{Bound, SharedFacts};
use super::recent::{Hint, Recent};
use super::{Limits, Totals};
use crate::engine::cache::Worlds;
use crate::engine::cache::entry::Parameters;
use crate::engine::cache::learned::Learned;
use crate::engine::family::arrival::{Arrival, OriginalBody, Predecessor};
use crate::engine::family::conversation::Trace;
use crate::engine::family::fanout::{FanOuts, Rules};
use crate::engine::fork::experiment::ForkExperiment;
use crate::engine::request::json::Malformed;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{
    FirstAnswer, Known, KnownLayer, Last, Opening, Reading, Remembered, SharedParts,
};
use crate::engine::respell::canonical::{self, News, Order, Table};
use crate::engine::respell::echo::{self, Echoed};
use crate::engine::words::{Layer, SightingClass, TenantId};

#[derive(Debug)]
pub struct Tenant {
    recent: Mutex<Recent>,
    table: RwLock<Table>,
    learned: Mutex<Learned>,
    worlds: Mutex<Worlds>,
    fan_outs: Mutex<FanOuts<Bound>>,
    shared_facts: Mutex<SharedFacts>,
    experiment: Mutex<ForkExperiment>,
    /// Woken whenever an answer ends that may have fanned out.
    sealed: Notify,
    last_used: AtomicU64,
    /// True if any of its clients was seen to spell anew what it said before.
    respells: AtomicBool,
    recent_bytes_max: usize,
    limits: Limits,
    totals: Arc<Totals>,
}

impl Tenant {
    pub(super) fn new(id: TenantId, limits: Limits, rules: Rules, totals: Arc<Totals>) -> Tenant {
        Tenant {
            recent: Mutex::default(),
            table: RwLock::new(Table::new(spellings(limits))),
            learned: Mutex::default(),
            worlds: Mutex::default(),
            fan_outs: Mutex::new(FanOuts::new(id, rules)),
            shared_facts: Mutex::default(),
            experiment: Mutex::default(),
            sealed: Notify::new(),
            last_used: AtomicU64::new(0),
            respells: AtomicBool::new(false),
            recent_bytes_max: limits.share(limits.recent_bytes),
            limits,
            totals,
        }
    }

    /// The spellings that were seen first.
    pub fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn learn(&self, news: News) {
        if news.is_empty() {
            return;
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let before = table.bytes();
        table.remember(news);
        let after = table.bytes();
        drop(table);
        add(&self.totals.spelling_bytes, before, after);
    }

    /// Remembers a request that was accepted, in the place of the one that it continues.
    pub fn remember(&self, trace: Arc<Trace>, hint: Option<Hint>, continued: Option<&Arc<Trace>>) {
        let read = trace.reading();
        let repeats = continued.is_some_and(|old| {
            let statics = read.anatomy().tools + read.anatomy().system;
            old.reading().shared_pieces(read) >= statics
        });
        if let Some(sent) = trace.whole()
            && !trace.is_as_it_came(false)
        {
            trace.conversation.respelt(sent);
            self.respells.store(true, Relaxed);
        }
        // What stands on another's prefix has that one's, and no client sends it so.
        let whole = if repeats { None } else { trace.whole() };
        let layer = |layer| Some((layer, whole?.layer(layer)?));
        let layers: Vec<_> = [Layer::Tools, Layer::System].into_iter().filter_map(layer).collect();
        let mut recent = self.recent();
        let before = recent.bytes();
        for (layer, value) in layers {
            recent.learn_layer(layer, value);
        }
        recent.insert(trace, hint, continued);
        let room = self.recent_bytes_max;
        while recent.bytes() > room && recent.forget_oldest(room) {}
        let after = recent.bytes();
        drop(recent);
        add(&self.totals.recent_bytes, before, after);
    }

    /// Locks and returns what its traffic taught.
    pub fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the prefixes of a request, and classes them.
    pub fn sight(&self, request: &Reading, before: Option<&Reading>) -> [SightingClass; 4] {
        let mut learned = self.learned();
        let known = learned.prefixes();
        let classes = learned.sight(request, before);
        let now = learned.prefixes();
        drop(learned);
        for (layer, total) in self.totals.prefixes.iter().enumerate() {
            add(total, known[layer], now[layer]);
        }
        classes
    }

    /// Its entries in the provider's cache, and those that it would have otherwise.
    pub fn worlds(&self) -> MutexGuard<'_, Worlds> {
        self.worlds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its fork points, snapshots and children. How many there are and what they hold is counted when `with` returns.
    pub fn with_fan_outs<T>(&self, with: impl FnOnce(&mut FanOuts<Bound>) -> T) -> T {
        let mut fan_outs = self.fan_outs();
        let before = (fan_outs.points().len(), fan_outs.bytes());
        let out = with(&mut fan_outs);
        let after = (fan_outs.points().len(), fan_outs.bytes());
        drop(fan_outs);
        add(&self.totals.forks, before.0, after.0);
        add(&self.totals.fork_bytes, before.1, after.1);
        out
    }

    /// Locks and returns what the children of each fan-out share.
    pub fn shared_facts(&self) -> MutexGuard<'_, SharedFacts> {
        self.shared_facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks and returns the record of what became of its children.
    pub fn experiment(&self) -> MutexGuard<'_, ForkExperiment> {
        self.experiment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who wait for the end of a parent's answer.
    pub fn sealed(&self) -> &Notify {
        &self.sealed
    }

    /// Returns the number of its bytes that count towards `store.max_bytes`.
    pub(super) fn kept_bytes(&self) -> usize {
        self.fan_outs().bytes() + self.table().bytes()
    }

    pub(super) fn has_forked_children(&self) -> bool {
        self.fan_outs().has_forked_children()
    }

    /// Forgets which spellings came first; whether there were any. A conversation that depends on its own has them.
    pub(super) fn forget_spellings(&self) -> bool {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let before = table.bytes();
        *table = Table::new(spellings(self.limits));
        let after = table.bytes();
        drop(table);
        add(&self.totals.spelling_bytes, before, after);
        after < before
    }

    pub(super) fn recent_bytes(&self) -> usize {
        self.recent().bytes()
    }

    pub(super) fn forget_oldest_body(&self) -> bool {
        let mut recent = self.recent();
        let before = recent.bytes();
        let forgot = recent.forget_oldest(self.recent_bytes_max);
        let after = recent.bytes();
        drop(recent);
        add(&self.totals.recent_bytes, before, after);
        forgot
    }

    pub(super) fn used(&self, at: u64) {
        self.last_used.store(at, Relaxed);
    }

    pub(super) fn last_used(&self) -> u64 {
        self.last_used.load(Relaxed)
    }

    fn fan_outs(&self) -> MutexGuard<'_, FanOuts<Bound>> {
        self.fan_outs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let recent = self.recent_bytes();
        let spellings = self.table().bytes();
        add(&self.totals.recent_bytes, recent, 0);
        add(&self.totals.spelling_bytes, spellings, 0);
        let prefixes = self.learned().prefixes();
        for (layer, total) in self.totals.prefixes.iter().enumerate() {
            add(total, prefixes[layer], 0);
        }
        let (forks, bytes) = {
            let fan_outs = self.fan_outs();
            (fan_outs.points().len(), fan_outs.bytes())
        };
        add(&self.totals.forks, forks, 0);
        add(&self.totals.fork_bytes, bytes, 0);
    }
}

fn spellings(limits: Limits) -> canonical::Limits {
    let most = canonical::Limits::TENANT;
    canonical::Limits { bytes: most.bytes.min(limits.share(limits.max_bytes)), ..most }
}

fn add(total: &std::sync::atomic::AtomicUsize, before: usize, after: usize) {
    if after >= before {
        total.fetch_add(after - before, Relaxed);
    } else {
        total.fetch_sub(before - after, Relaxed);
    }
}

/// How a request is read.
#[derive(Clone, Debug)]
pub enum ReadMode {
    /// It goes out as it came.
    AsItCame,
    /// It may go out in another spelling, and the tenant's order is this.
    Spelt(Order),
}

/// A tenant as one request sees it; nobody, if the tenant is not known yet.
pub struct View<'a> {
    pub id: TenantId,
    pub tenant: Option<&'a Tenant>,
    pub hint: Option<Hint>,
}

impl View<'_> {
    /// Reads a request and finds what it follows.
    pub fn read<'b>(
        &self,
        body: &Bytes,
        attribution: Attribution,
        way: ReadMode,
        betas: impl Iterator<Item = &'b str>,
    ) -> Result<Arrival, Malformed> {
        let (last, read, repeated, came) = match way {
            ReadMode::AsItCame => return self.read_as_it_came(body, attribution, betas),
            ReadMode::Spelt(order) => match self.echo(body, order) {
                None => return self.read_as_it_came(body, attribution, betas),
                Some((last, Echoed { body: echoed, from, same })) => {
                    (last, echoed, same, Some(OriginalBody { body: body.clone(), from }))
                }
            },
        };
        let sent = last.forwarded();
        let known = Last { request: &sent, repeated };
        let (received, like) = Remembered::recall(read, &known, attribution)?;
        let before = Predecessor::sent(last, &received, like);
        Ok(self.arrival(received, came, Some(before), betas))
    }

    fn read_as_it_came<'b>(
        &self,
        body: &Bytes,
        attribution: Attribution,
        betas: impl Iterator<Item = &'b str>,
    ) -> Result<Arrival, Malformed> {
        let (received, like) = Remembered::recall(body.clone(), self, attribution)?;
        let before = self.tenant.zip(like).and_then(|(tenant, like)| {
            let recent = tenant.recent();
            let (trace, hinted) = recent.trace_of(&like.request, self.hint.as_ref())?;
            let trace = if hinted { trace } else { recent.closest(trace, &received) };
            drop(recent);
            let continued = trace.is_continued_by(&received, hinted);
            let is_like = Arc::ptr_eq(&trace.received, &like.request);
            let same = if is_like { like.same } else { SharedParts::default() };
            Some(Predecessor { trace, same, as_sent: false, continued })
        });
        Ok(self.arrival(received, None, before, betas))
    }

    fn arrival<'b>(
        &self,
        received: Remembered,
        came: Option<OriginalBody>,
        before: Option<Predecessor>,
        betas: impl Iterator<Item = &'b str>,
    ) -> Arrival {
        let (body, anatomy) = (received.body(), received.anatomy());
        let parameters = match &before {
            Some(before) => Parameters::read_after(&before.trace.parameters, body, anatomy, betas),
            None => Parameters::read(self.id, body, anatomy, betas),
        };
        let chosen = match (&before, self.tenant) {
            (None | Some(Predecessor { continued: false, .. }), Some(tenant)) => {
                tenant.recent().chosen(&received, self.hint)
            }
            _ => None,
        };
        Arrival { received: Arc::new(received), came, parameters, before, chosen }
    }

    /// The request in the spelling of the conversation that it continues, and the last request of that.
    fn echo(&self, body: &Bytes, order: Order) -> Option<(Arc<Trace>, Echoed)> {
        let tenant = self.tenant.filter(|tenant| tenant.respells.load(Relaxed))?;
        let hinted = || tenant.recent().hinted(self.hint.as_ref()?).cloned();
        let opened = || -> Vec<_> {
            let opening = Opening::glimpse(body);
            opening.map_or_else(Vec::new, |opening| tenant.recent().opened(opening).cloned().collect())
        };
        let candidates = hinted().map_or_else(opened, |trace| vec![trace]);
        candidates.into_iter().find_map(|trace| {
            let may_echo =
                trace.conversation.order(order) == Order::FirstSeen && !trace.conversation.is_stood_down();
            if !may_echo {
                return None;
            }
            let last = trace.whole()?;
            let echoed = echo::echo(body, last, trace.conversation.spelling().as_mut()?)?;
            Some((trace, echoed))
        })
    }
}

impl Known for View<'_> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        let recent = self.tenant?.recent();
        recent.hinted(self.hint.as_ref()?).map(|trace| Arc::clone(&trace.received))
    }

    fn opened(&self, opening: Opening) -> Vec<Arc<Remembered>> {
        let Some(tenant) = self.tenant else { return Vec::new() };
        tenant.recent().opened(opening).map(|trace| Arc::clone(&trace.received)).collect()
    }

    fn answered(&self, opening: Opening, answer: Option<FirstAnswer>) -> Vec<Arc<Remembered>> {
        let Some(tenant) = self.tenant else { return Vec::new() };
        let recent = tenant.recent();
        recent.answered(opening, answer).map(|trace| Arc::clone(&trace.received)).collect()
    }

    fn layers(&self, layer: Layer) -> Vec<Arc<KnownLayer>> {
        self.tenant.map_or_else(Vec::new, |tenant| tenant.recent().layers(layer))
    }
}
