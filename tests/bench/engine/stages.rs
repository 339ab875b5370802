//! One request after the other through the stages, as `proxy::Proxy` takes them.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use forkpoint::engine::align::Rules;
use forkpoint::engine::answer::turn::Turn;
use forkpoint::engine::answer::usage::Usage;
use forkpoint::engine::cache::breakpoints::{self, Profile, Situation};
use forkpoint::engine::cache::prices::ModelFacts;
use forkpoint::engine::family::arrival::Arrival;
use forkpoint::engine::family::conversation::{Conversation as Shared, Trace};
use forkpoint::engine::family::fanout;
use forkpoint::engine::request::edit;
use forkpoint::engine::request::prefix::Attribution;
use forkpoint::engine::request::recall::{Known, KnownLayer, Remembered};
use forkpoint::engine::respell::canonical::{self, Order, Thinking};
use forkpoint::engine::words::{Layer, Moment, TenantId};
use forkpoint::proxy::memo::{Memo, Owner};
use forkpoint::store::{Limits, Memory, ReadMode, Store, View};

use crate::allocated;
use crate::bodies::{Conversation, Script};
use crate::cases::Case;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Total,
    Read,
    Name,
    Align,
    Canonicalize,
    Splice,
    ReadAgain,
    Plan,
    Apply,
    Trace,
    GoesOut,
    Accepted,
    Finished,
}

/// In the order of the table.
pub const STAGES: [Stage; 13] = [
    Stage::Read,
    Stage::Name,
    Stage::Align,
    Stage::Canonicalize,
    Stage::Splice,
    Stage::ReadAgain,
    Stage::Plan,
    Stage::Apply,
    Stage::Trace,
    Stage::GoesOut,
    Stage::Accepted,
    Stage::Finished,
    Stage::Total,
];

impl Stage {
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Name => "name",
            Stage::Read => "read",
            Stage::Align => "align",
            Stage::Canonicalize => "canonicalize",
            Stage::Splice => "splice",
            Stage::ReadAgain => "read again",
            Stage::Plan => "plan",
            Stage::Apply => "apply",
            Stage::Trace => "trace",
            Stage::GoesOut => "goes out",
            Stage::Accepted => "accepted",
            Stage::Finished => "finished",
            Stage::Total => "total",
        }
    }

    /// Returns true for a part of `align`.
    pub fn is_part(self) -> bool {
        Stage::Canonicalize <= self && self <= Stage::Trace
    }
}

#[derive(Clone, Copy, Default)]
pub struct Cost {
    pub us: f64,
    pub allocations: f64,
    pub bytes: f64,
}

#[derive(Default)]
pub struct Stages {
    costs: BTreeMap<Stage, Vec<Cost>>,
    total: Cost,
    pub requests: usize,
    /// The number of requests that were found to go on where an earlier one ended.
    pub continued: usize,
}

impl Stages {
    pub fn of(&self, stage: Stage) -> &[Cost] {
        self.costs.get(&stage).map_or(&[], Vec::as_slice)
    }

    fn time<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let before = allocated();
        let started = Instant::now();
        let result = black_box(work());
        let us = started.elapsed().as_nanos() as f64 / 1e3;
        let after = allocated();
        let (allocations, bytes) = ((after.0 - before.0) as f64, (after.1 - before.1) as f64);
        let cost = Cost { us, allocations, bytes };
        self.costs.entry(stage).or_default().push(cost);
        if !stage.is_part() {
            self.total.us += cost.us;
            self.total.allocations += cost.allocations;
            self.total.bytes += cost.bytes;
        }
        result
    }

    fn end_request(&mut self) {
        let total = std::mem::take(&mut self.total);
        self.costs.entry(Stage::Total).or_default().push(total);
    }
}

const RULES: Rules = Rules {
    order: Order::FirstSeen,
    profile: Profile::Anthropic,
    attribution: Attribution::Stripped,
    diagnose: false,
};

/// The facts of the model that the bodies name.
const MODEL: ModelFacts =
    ModelFacts { minimum_tokens: Some(1_024), window_tokens: None, bound_thinking: false };

const TENANT: TenantId = TenantId([7; 32]);

/// The requests of each conversation after its first; of those that have one only, all.
pub fn run(case: &Case) -> Stages {
    let turns = case.bodies.turns(case.body_bytes);
    let script = Script::new(case.body_bytes, case.bodies, turns, false);
    let mut conversations: Vec<_> =
        (0..case.conversations).map(|number| Conversation::new(&script, number as u64 + 1)).collect();
    let store = Memory::new(
        Limits { max_bytes: 256 << 20, recent_bytes: 64 << 20, tenant_share: 0.25 },
        fanout::Rules::default(),
    );
    let mut bench = Bench { store: Arc::new(store), now: Moment(0), stages: Stages::default() };
    for conversation in &mut conversations {
        bench.request(conversation);
        if turns > 0 {
            bench.stages = Stages::default();
        }
    }
    if case.interleaved {
        for _ in 0..turns {
            conversations.iter_mut().for_each(|conversation| bench.request(conversation));
        }
    } else {
        for conversation in &mut conversations {
            (0..turns).for_each(|_| bench.request(conversation));
        }
    }
    bench.stages
}

struct Bench {
    store: Arc<dyn Store>,
    now: Moment,
    stages: Stages,
}

impl Bench {
    fn request(&mut self, conversation: &mut Conversation) {
        let mut body = Vec::with_capacity(conversation.next_len());
        conversation.next(0, &mut body);
        let body = Bytes::from(body);
        let (store, now, stages) = (&self.store, self.now, &mut self.stages);
        self.now = now.after(1_000);

        let tenant = store.tenant(&TENANT);
        let view = View { id: TENANT, tenant: tenant.as_deref(), hint: None };
        let betas = std::iter::once("interleaved-thinking-2025-05-14");
        let read = || view.read(&body, RULES.attribution, ReadMode::Spelt(RULES.order), betas).unwrap();
        let arrival = stages.time(Stage::Read, read);
        stages.time(Stage::Name, || arrival.name());
        stages.requests += 1;
        stages.continued += usize::from(arrival.predecessor().is_some());
        let owner = Owner {
            tenant: TENANT,
            hint: None,
            model: "claude-sonnet-4-6".to_owned(),
            facts: MODEL,
            max_hold_ms: 5_000,
            prices: Arc::default(),
            reports_volatile: true,
        };
        let mut memo = Memo::new(store, owner, arrival, now);
        let aligned = stages.time(Stage::Align, || memo.plan(RULES, now)).unwrap();
        if let Some(tenant) = &tenant {
            parts(stages, &memo.arrival, &view, &tenant.table());
        }
        stages.time(Stage::GoesOut, || {
            memo.aligned(aligned);
            memo.sent(now);
        });
        stages.time(Stage::Accepted, || memo.accepted());
        let usage = Usage { uncached: 12, cache_read: 48_211, cache_write_5m: 842, ..Usage::default() };
        let turn = Turn { usage: Some(usage), ..Turn::default() };
        stages.time(Stage::Finished, || {
            memo.begun(None, now);
            memo.finished(Some(&turn), now);
            drop(memo);
        });
        stages.end_request();
    }
}

/// The steps of `engine::align::align`, one by one.
fn parts(stages: &mut Stages, arrival: &Arrival, view: &View<'_>, table: &canonical::Table) {
    let received = &arrival.received;
    let spelling = stages.time(Stage::Canonicalize, || {
        canonical::respell_read(received, arrival.settled(false), RULES.order, Thinking::Free, table)
    });
    let forwarded = if spelling.replacements.is_empty() {
        Arc::clone(received)
    } else {
        let body = stages.time(Stage::Splice, || {
            Bytes::from(canonical::splice(received.body(), &spelling.replacements).concat())
        });
        let like = arrival.before.as_ref().and_then(|before| before.trace.whole()).unwrap_or(received);
        let known = Respelt { like, view };
        let read = || Remembered::read(body, &known, RULES.attribution).unwrap();
        Arc::new(stages.time(Stage::ReadAgain, read))
    };
    let before = arrival.before.as_ref().map(|before| &*before.trace);
    let plan = stages.time(Stage::Plan, || {
        let last_written = before.and_then(|before| Some(before.breakpoints.last()?.piece));
        let minimum_tokens = MODEL.minimum_tokens;
        let unread_from = arrival.conversation().and_then(|conversation| conversation.unread_from());
        let situation =
            Situation { minimum_tokens, last_written, unread_from, ..Situation::new(RULES.profile) };
        breakpoints::plan(forwarded.body(), forwarded.anatomy(), &situation)
    });
    stages.time(Stage::Apply, || edit::apply(forwarded.body(), &plan.edits));
    let shared = arrival.conversation().map_or_else(|| Arc::new(Shared::new(None, true)), Arc::clone);
    stages.time(Stage::Trace, || Trace::new(arrival, forwarded, shared, plan.breakpoints));
}

/// As `engine::align` reads a respelt request.
struct Respelt<'a> {
    like: &'a Arc<Remembered>,
    view: &'a View<'a>,
}

impl Known for Respelt<'_> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        Some(Arc::clone(self.like))
    }

    fn layers(&self, layer: Layer) -> Vec<Arc<KnownLayer>> {
        self.view.layers(layer)
    }
}
