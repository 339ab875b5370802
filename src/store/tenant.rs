//! One tenant: its state behind one lock, its spellings behind another.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll};

use super::Limits;
use super::budget::{Budget, ByteKind, change};
use super::durable::Link;
use super::shared::SharedState;
use super::weights::SharedWeights;
use crate::engine::cache::worlds::{Segment, Weights};
use crate::engine::family::fanout::Rules;
use crate::engine::gate::GateSettings;
use crate::engine::respell::canonical::{self, News, Table};
use crate::engine::tenant::{TenantAccess, TenantState};
use crate::engine::words::{Moment, TenantId, Ticket};

#[derive(Debug)]
pub struct Tenant {
    id: TenantId,
    /// Whom its requests are charged to, once one has come.
    payer: OnceLock<TenantId>,
    shared: SharedState,
    spellings: RwLock<Table>,
    last_used: AtomicU64,
    /// Its bytes, to be looked at without a lock.
    bytes: TenantBytes,
    /// True once the store has forgotten it: requests that are on their way may still have it.
    is_forgotten: AtomicBool,
    limits: Limits,
    budget: Arc<Budget>,
    weights: Arc<SharedWeights>,
    /// Its part in what outlives this process, if anything does.
    link: Option<Link>,
}

/// The bytes of a tenant, by kind.
#[derive(Debug, Default)]
struct TenantBytes {
    recent: AtomicUsize,
    fan_outs: AtomicUsize,
    spellings: AtomicUsize,
}

/// The sizes of a tenant that count towards those of all tenants.
#[derive(Clone, Copy, Default)]
struct Sizes {
    recent_bytes: usize,
    fork_bytes: usize,
}

impl Sizes {
    fn of(state: &TenantState) -> Sizes {
        Sizes { recent_bytes: state.recent.bytes(), fork_bytes: state.fan_outs.bytes() }
    }
}

impl Tenant {
    pub(super) fn new(
        id: TenantId,
        limits: Limits,
        rules: Rules,
        gate: GateSettings,
        budget: Arc<Budget>,
        weights: Arc<SharedWeights>,
    ) -> Tenant {
        let state = TenantState::new(id, rules, gate, limits.share(limits.recent_bytes));
        Tenant {
            id,
            payer: OnceLock::new(),
            shared: SharedState::new(state),
            spellings: RwLock::new(Table::new(spelling_limits(limits))),
            last_used: AtomicU64::new(0),
            bytes: TenantBytes::default(),
            is_forgotten: AtomicBool::new(false),
            limits,
            budget,
            weights,
            link: None,
        }
    }

    /// From now on its changes are noted and, once it is admitted, written.
    pub(super) fn link_to(&mut self, link: Link) {
        self.look(|state| state.save_as(link.writer()));
        self.link = Some(link);
    }

    pub(super) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    pub(super) fn id(&self) -> TenantId {
        self.id
    }

    /// Its requests are charged to this credential, which may have other tenants.
    pub fn paid_by(&self, payer: TenantId) {
        self.payer.get_or_init(|| payer);
    }

    pub(super) fn payer(&self) -> TenantId {
        self.payer.get().copied().unwrap_or(self.id)
    }

    /// A request of it was accepted, now or before a restart.
    pub(super) fn admit(&self) {
        if let Some(link) = &self.link {
            link.admit(self.look(|state| state.has_unsaved()));
        }
    }

    /// Ready as soon as a request does not wait until this moment any more.
    pub fn poll_wait(&self, ticket: Ticket, until: Moment, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.poll_wait(ticket, until, cx)
    }

    /// Throws the waker of a request away that does not wait any more.
    pub fn forget_waker(&self, ticket: Ticket) {
        self.shared.forget_waker(ticket);
    }

    /// Returns the number of its bytes that count towards `store.max_bytes`.
    pub(super) fn kept_bytes(&self) -> usize {
        self.bytes.fan_outs.load(Relaxed).saturating_add(self.bytes.spellings.load(Relaxed))
    }

    /// Returns the number of bytes of its recent requests.
    pub(super) fn recent_bytes(&self) -> usize {
        self.bytes.recent.load(Relaxed)
    }

    /// Forgets which spellings came first; `false` if there were none. A conversation that depends on its own has them.
    pub(super) fn forget_spellings(&self) -> bool {
        let mut table = self.spellings.write().unwrap_or_else(PoisonError::into_inner);
        let before = table.bytes();
        *table = Table::new(spelling_limits(self.limits));
        let after = table.bytes();
        drop(table);
        self.count_spellings(before, after);
        after < before
    }

    pub fn has_forked_children(&self) -> bool {
        self.look(|state| state.fan_outs.has_forked_children())
    }

    pub(super) fn used(&self, at: u64) {
        self.last_used.store(at, Relaxed);
    }

    pub(super) fn forget(&self) {
        self.is_forgotten.store(true, Relaxed);
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Relaxed)
    }

    pub(super) fn last_used(&self) -> u64 {
        self.last_used.load(Relaxed)
    }

    fn count(&self, before: Sizes, after: Sizes) {
        self.budget.change(ByteKind::Recent, before.recent_bytes, after.recent_bytes);
        change(&self.bytes.recent, before.recent_bytes, after.recent_bytes);
        self.budget.change(ByteKind::FanOuts, before.fork_bytes, after.fork_bytes);
        change(&self.bytes.fan_outs, before.fork_bytes, after.fork_bytes);
    }

    fn count_spellings(&self, before: usize, after: usize) {
        self.budget.change(ByteKind::Spellings, before, after);
        change(&self.bytes.spellings, before, after);
    }
}

impl TenantAccess for Tenant {
    fn look<T>(&self, look: impl FnOnce(&mut TenantState) -> T) -> T {
        let (before, out, after, unsaved) = self.shared.look(|state| {
            let before = Sizes::of(state);
            let out = look(state);
            (before, out, Sizes::of(state), state.has_unsaved())
        });
        self.count(before, after);
        if let Some(link) = &self.link {
            link.changed(unsaved);
        }
        out
    }

    fn spellings<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.spellings.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn learn(&self, news: News) {
        if news.is_empty() {
            return;
        }
        let mut table = self.spellings.write().unwrap_or_else(PoisonError::into_inner);
        let before = table.bytes();
        table.remember(news);
        let after = table.bytes();
        drop(table);
        self.count_spellings(before, after);
    }

    fn weights(&self, model: &str) -> Weights {
        self.weights.of(model)
    }

    fn weigh(&self, model: &str, segments: &[Segment]) {
        self.weights.learn(model, segments);
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let sizes = self.look(|state| Sizes::of(state));
        self.count(sizes, Sizes::default());
        self.budget.change(ByteKind::Spellings, self.spellings(Table::bytes), 0);
    }
}

fn spelling_limits(limits: Limits) -> canonical::Limits {
    let most = canonical::Limits::TENANT;
    canonical::Limits { bytes: most.bytes.min(limits.share(limits.max_bytes)), ..most }
}
