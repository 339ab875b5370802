//! One request after the other through the stages, as the proxy takes them.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use forkpoint::engine::align::Rules;
use forkpoint::engine::answer::turn::Turn;
use forkpoint::engine::answer::usage::Usage;
use forkpoint::engine::cache::breakpoints::{self, Profile, Situation};
use forkpoint::engine::cache::prices::{ModelFacts, Prices};
use forkpoint::engine::decide::{Circumstances, Next, proceed};
use forkpoint::engine::family::arrival::Arrival;
use forkpoint::engine::family::claims::Claims;
use forkpoint::engine::family::conversation::Trace;
use forkpoint::engine::family::fanout::{self, Who};
use forkpoint::engine::fork::ForkPolicy;
use forkpoint::engine::gate::GateSettings;
use forkpoint::engine::policy::Policy;
use forkpoint::engine::prepare::{Preparation, Treatment};
use forkpoint::engine::request::edit;
use forkpoint::engine::request::prefix::Attribution;
use forkpoint::engine::request::recall::{Known, KnownLayer, Remembered};
use forkpoint::engine::respell::canonical::{self, Order, Thinking};
use forkpoint::engine::respell::system_block::SystemForm;
use forkpoint::engine::tenant::{ReadMode, ReadRequest, TenantAccess, View, accept, first_content, settle};
use forkpoint::engine::words::{Layer, Mode, Moment, TenantId};
use forkpoint::store::{Limits, Store, Tenant};

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
    system: SystemForm::Auto,
    diagnose: false,
};

/// The facts of the model that the bodies name.
const MODEL: ModelFacts = ModelFacts {
    minimum_tokens: Some(1_024),
    window_tokens: None,
    bound_thinking: false,
    string_is_block: false,
};

const TENANT: TenantId = TenantId([7; 32]);

/// The requests of each conversation after its first; of those that have one only, all.
pub fn run(case: &Case) -> Stages {
    let turns = case.bodies.turns(case.body_bytes);
    let script = Script::new(case.body_bytes, case.bodies, turns, false);
    let mut conversations: Vec<_> =
        (0..case.conversations).map(|number| Conversation::new(&script, number as u64 + 1)).collect();
    let limits = Limits { max_bytes: 256 << 20, recent_bytes: 64 << 20, tenant_share: 0.25 };
    let store = Store::new(limits, fanout::Rules::default(), GateSettings::default());
    let mut bench = Bench { store, policy: policy(), now: Moment(0), stages: Stages::default() };
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
    store: Store,
    policy: Policy,
    now: Moment,
    stages: Stages,
}

impl Bench {
    fn request(&mut self, conversation: &mut Conversation) {
        let mut body = Vec::with_capacity(conversation.next_len());
        conversation.next(0, &mut body);
        let body = Bytes::from(body);
        let (store, policy, now, stages) = (&self.store, &self.policy, self.now, &mut self.stages);
        self.now = now.after(1_000);

        let tenant = store.tenant(&TENANT);
        let is_known = store.known_tenant(&TENANT).is_some();
        let view = View { tenant: &*tenant, hint: None };
        let betas = std::iter::once("interleaved-thinking-2025-05-14");
        let read = || view.read(&body, RULES.attribution, ReadMode::Spelt(RULES.order), betas).unwrap();
        let arrival = stages.time(Stage::Read, read);
        stages.time(Stage::Name, || arrival.name());
        stages.requests += 1;
        stages.continued += usize::from(arrival.predecessor().is_some());
        if is_known {
            tenant.spellings(|table| parts(stages, &arrival, &view, table));
        }
        let request = ReadRequest {
            arrival: Box::new(arrival),
            hint: None,
            model: "claude-sonnet-4-6".to_owned(),
            version: String::new(),
            betas: "interleaved-thinking-2025-05-14".to_owned(),
            streams: true,
            came_at: now,
        };
        let preparation = Preparation {
            request: &request,
            who: Who::default(),
            claims: &Claims::default(),
            tenant: &*tenant,
            treatment: Treatment::Changed,
            policy,
            step: &|_| {},
            now,
        };
        let prepared = Box::new(stages.time(Stage::Align, || preparation.prepare()));
        let facts = Circumstances {
            ticket: store.ticket(),
            mode: Mode::Align,
            keeps_prefix: true,
            deadline: now.after(5_000),
            has_room: Some(true),
            is_last_round: true,
        };
        let next = || tenant.look(|state| proceed(request, prepared, state, policy, &facts, now));
        let Next::Send(departure) = stages.time(Stage::GoesOut, next) else { panic!("it waits") };
        let accepting = || {
            let tenant = store.admit(&TENANT, &tenant);
            accept(&*tenant, departure.flight, false, now)
        };
        let mut accepted = stages.time(Stage::Accepted, accepting);
        let usage = Usage { uncached: 12, cache_read: 48_211, cache_write_5m: 842, ..Usage::default() };
        let turn = Turn { bill: Some(usage.into()), ..Turn::default() };

        stages.time(Stage::Finished, || {
            first_content(&*tenant, &mut accepted, None, policy, now);
            settle(&*tenant, &mut accepted, Some(&turn), policy, now);
            drop(accepted);
        });
        stages.end_request();
    }
}

fn policy() -> Policy {
    Policy {
        align: RULES,
        fan_out: fanout::Rules::default(),
        fork: ForkPolicy::default(),
        prices: Arc::new(Prices::default()),
        body_bytes: 32 << 20,
        await_parent_ms: 3_000,
        holds_children_only: true,
        max_hold_ms: 5_000,
        reports_volatile: true,
    }
}

/// The steps of `engine::align::spell` and `mark`, one by one.
fn parts(stages: &mut Stages, arrival: &Arrival, view: &View<'_, Tenant>, table: &canonical::Table) {
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
    stages.time(Stage::Trace, || Trace::new(arrival, forwarded, plan.breakpoints));
}

/// As `engine::align` reads a respelt request.
struct Respelt<'a> {
    like: &'a Arc<Remembered>,
    view: &'a View<'a, Tenant>,
}

impl Known for Respelt<'_> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        Some(Arc::clone(self.like))
    }

    fn layers(&self, layer: Layer) -> Vec<Arc<KnownLayer>> {
        self.view.layers(layer)
    }
}
