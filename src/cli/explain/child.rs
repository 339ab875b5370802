//! Explains how forkpoint would treat a child: its plan, why, and what it costs beside the other plans.
//!
//! The child is recognised, composed and decided by the functions of the proxy, by the same configuration. What only a
//! running proxy knows is assumed: the parent's entry is warm, the child as sent finds nothing, and children live as long as
//! `fork.horizon_turns` says.

use std::path::Path;
use std::sync::Arc;

use crate::engine::answer::sse::Framer;
use crate::engine::answer::turn::{Turn as Answer, TurnBuilder, TurnLimits, Wholeness};
use crate::engine::cache::worlds::Weights;
use crate::engine::family::arrival::Arrival;
use crate::engine::family::claims::Claims;
use crate::engine::family::conversation::Trace;
use crate::engine::family::fanout::{Child, Draft, ForkPoint, Parent, Who};
use crate::engine::fork::{
    self, Bills, ChildHabits, ChildOutlook, ChildRequest, ChildSources, Composed, FirstTurn, Forecast,
    ForkPolicy, ForkRules, NewChild, OwnWarmth, ParentPrefix, PrefixExtent, PromptSizes, SnapshotScope,
};
use crate::engine::gate::GateSettings;
use crate::engine::policy::Policy;
use crate::engine::prepare::{Preparation, Treatment};
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::Remembered;
use crate::engine::tenant::{Kind, ReadMode, ReadRequest, TenantAccess, View, relate};
use crate::engine::words::{CostUnit, ForkNote, IdDigest, Moment, Refusal, TenantId, Ttl};
use crate::store::{Limits, Store, Tenant};

use super::super::Failure;
use super::cost::BYTES_PER_TOKEN;
use super::{Exhibit, source};

/// Nobody else's requests are looked at.
const TENANT: TenantId = TenantId([0; 32]);
/// An agent is named; which one does not matter.
const AGENT: IdDigest = IdDigest([0; 16]);
const TURN_LIMITS: TurnLimits = TurnLimits { bytes: source::FILE_BYTES_MAX as usize, tool_uses: 256 };

/// One file is read, whatever its size.
const LIMITS: Limits = Limits { max_bytes: usize::MAX, recent_bytes: usize::MAX, tenant_share: 1.0 };

/// A question about a child.
pub struct Question<'a> {
    pub parent: &'a Path,
    pub answer: &'a Path,
    pub child: &'a Path,
    /// The recording whose requests these are where they are numbers.
    pub recording: Option<&'a Path>,
    pub policy: &'a Policy,
    pub gate: GateSettings,
    /// The child comes with an agent id, as those of Claude Code do.
    pub has_agent: bool,
    pub turns: Option<u16>,
}

/// The answer to a [`Question`].
pub struct Finding {
    pub names: [String; 3],
    /// Why not, if it is not forked: the role is in doubt, or a [`Refusal`].
    pub declined: Option<&'static str>,
    pub recognised: Option<Recognition>,
    pub layout: Option<Layout>,
    pub forecast: Option<Forecast>,
    pub policy: ForkPolicy,
    /// True if tokens come from what was billed for the parent.
    pub billed: bool,
}

/// How it is known to be a child.
pub struct Recognition {
    pub rank: &'static str,
    pub tool: Option<String>,
    pub call: Option<String>,
    pub siblings: u64,
}

/// The layout of the request that would be sent.
pub struct Layout {
    pub parent_prefix: PrefixExtent,
    pub composed: Composed,
    /// The paths of the breakpoints in what would be sent.
    pub marked: Vec<(String, Ttl)>,
    pub notes: Vec<ForkNote>,
    pub sizes: Option<PromptSizes>,
}

pub fn explain(question: &Question<'_>) -> Result<Finding, Failure> {
    let settings = question.policy;
    let rules = ForkRules { composes_refused: true, ..settings.fork_rules() };
    let parent = Exhibit::read(question.parent, question.recording, rules.attribution)?;
    let child = Exhibit::read(question.child, question.recording, rules.attribution)?;
    let answer = read_answer(question.answer, question.recording)?;
    let names = [&parent.name, &question.answer.display().to_string(), &child.name].map(String::clone);
    let billed = answer.usage().is_some_and(|usage| usage.uncached.saturating_add(usage.cached()) > 0);
    let policy = settings.fork.clone();
    let mut finding =
        Finding { names, declined: None, recognised: None, layout: None, forecast: None, policy, billed };
    let store = Store::new(LIMITS, settings.fan_out.clone(), question.gate);
    let tenant = store.tenant(&TENANT);
    let parent = as_it_goes_out(&tenant, arrival(&tenant, parent, rules.attribution)?, settings);
    let arrival = arrival(&tenant, child, rules.attribution)?;
    let own = &arrival.received;
    let who = Who::of(own, None, question.has_agent.then_some(AGENT));
    let child = match recognise(&tenant, (&*parent, &answer), settings.fork.snapshots, own, who) {
        Ok(child) => child,
        Err(why) => {
            finding.declined = Some(why);
            return Ok(finding);
        }
    };
    let call = child.call.and_then(|call| child.fork.calls.get(call));
    finding.recognised = Some(Recognition {
        rank: child.rank.as_str(),
        tool: call.map(|call| call.name.to_string()),
        call: call.map(|call| call.id.to_string()),
        siblings: fork::siblings(&child.fork, &finding.policy),
    });
    let request = ChildRequest { arrival: &arrival, own, betas: "", version: "", marks: &[], edits: &[] };
    let model = own.anatomy().model(own.body()).unwrap_or_default();
    let new = NewChild { child: &child, request, who: &who, model: &model };
    let gate_tokens = question.gate.min_tokens;
    let assumed = Assumed { turns: question.turns, is_warm: !parent.breakpoints.is_empty(), gate_tokens };
    let prepared = fork::prepare_child(&new, &rules, &assumed);
    let decided = prepared.decide(&rules, &assumed);
    finding.declined = decided.verdict.err().map(Refusal::as_str);
    finding.forecast = decided.forecast;
    finding.layout = prepared.into_first().map(Layout::of);
    Ok(finding)
}

/// The parent as the proxy sends it, of which nothing else is known.
fn as_it_goes_out(tenant: &Tenant, arrival: Arrival, policy: &Policy) -> Arc<Trace> {
    let (body, anatomy) = (arrival.received.body(), arrival.received.anatomy());
    let (model, who) = (anatomy.model(body).unwrap_or_default(), Who::of(&arrival.received, None, None));
    let request = ReadRequest {
        model: model.into_owned(),
        streams: anatomy.stream(body),
        arrival: Box::new(arrival),
        hint: None,
        betas: String::new(),
        version: String::new(),
        came_at: Moment(0),
    };
    let preparation = Preparation {
        request: &request,
        who,
        claims: &Claims::default(),
        tenant,
        treatment: Treatment::Changed,
        policy,
        step: &|_| {},
        now: Moment(0),
    };
    preparation.prepare().own.trace
}

/// Returns the child of the fan-out in the answer to this parent, or why the request is no child.
fn recognise(
    tenant: &Tenant,
    (parent, answer): (&Trace, &Answer),
    snapshots: SnapshotScope,
    own: &Arc<Remembered>,
    who: Who,
) -> Result<Child, &'static str> {
    let request = parent.forwarded();
    let leader = Who::of(&request, None, None);
    let parent = Parent { written: parent.breakpoints.last().copied(), ..Parent::new(request, leader) };
    let draft = Draft::begin(parent, false);
    let rules = tenant.look(|state| Arc::clone(state.fan_outs.points().rules()));
    let ended = draft.end(answer, &rules);
    tenant.look(|state| state.fan_outs.seal(ended, Moment(0))).map_err(|dropped| dropped.as_str())?;
    let relation = relate(tenant, own, None, who, &Claims::default(), snapshots, Moment(0));
    match relation.kind {
        Kind::Child(first) => Ok(first.child),
        _ => Err(relation.why),
    }
}

/// Assumptions in the place of what only a running proxy knows.
struct Assumed {
    turns: Option<u16>,
    /// The parent has written an entry.
    is_warm: bool,
    gate_tokens: u64,
}

impl ChildSources for Assumed {
    fn tokens_per_byte(&self, _: &str) -> Option<f64> {
        Some(1.0 / BYTES_PER_TOKEN as f64)
    }

    fn weights(&self, _: &str) -> Option<Weights> {
        None
    }

    fn shared_prefix(
        &self,
        _: &ForkPoint,
        make: impl FnOnce() -> Result<ParentPrefix, Refusal>,
    ) -> Result<Arc<ParentPrefix>, Refusal> {
        make().map(Arc::new)
    }
}

impl ChildOutlook for Assumed {
    fn is_stood_down(&self) -> bool {
        false
    }

    fn decided(&self) -> Option<Forecast> {
        None
    }

    fn habits(&self) -> ChildHabits {
        ChildHabits { turns: self.turns.map(f64::from), ..ChildHabits::default() }
    }

    fn read_bytes(&self, first: &FirstTurn) -> Option<u64> {
        self.is_warm.then(|| first.composed.prefix.parent_prefix().extent().entry)
    }

    fn so_far(&self, _: CostUnit) -> Bills {
        Bills::default()
    }

    fn gate_tokens(&self) -> u64 {
        self.gate_tokens
    }

    fn own_warmth(&self) -> OwnWarmth {
        OwnWarmth::default()
    }
}

impl Layout {
    fn of(first: FirstTurn) -> Layout {
        let FirstTurn { composed, sizes, .. } = first;
        let anatomy = composed.trace.reading().anatomy();
        let marked = composed.request.breakpoints.iter();
        let marked = marked.map(|point| (anatomy.path(point.piece), point.ttl)).collect();
        let parent_prefix = composed.prefix.parent_prefix().extent();
        Layout { parent_prefix, composed: composed.request, marked, notes: composed.notes, sizes }
    }
}

/// Reads a request of a tenant that nothing is known of.
fn arrival(tenant: &Tenant, exhibit: Exhibit, attribution: Attribution) -> Result<Arrival, Failure> {
    let view = View { tenant, hint: None };
    view.read(&exhibit.body.into(), attribution, ReadMode::AsItCame, std::iter::empty())
        .map_err(|_| Failure::new(format!("{}: not a request", exhibit.name)))
}

/// The message as the API returned it, or the events of a stream. What a message without its envelope lacks is
/// filled in.
fn read_answer(operand: &Path, recording: Option<&Path>) -> Result<Answer, Failure> {
    let (name, bytes) = source::load_answer(operand, recording)?;
    let is_json = bytes.trim_ascii_start().starts_with(b"{");
    let mut answer = if is_json {
        Answer::from_json(&bytes, TURN_LIMITS)
    } else {
        let mut builder = TurnBuilder::new(TURN_LIMITS);
        Framer::new(TURN_LIMITS.bytes).push(&bytes, |event| builder.push(event.data));
        builder.finish()
    };
    if answer.wholeness != Wholeness::Whole {
        return Err(Failure::new(format!("{name}: not a whole assistant message"))
            .hint("give the answer's JSON as it came, with its content as a list of blocks, or the events of its stream"));
    }
    answer.id.get_or_insert_with(|| "msg_answer".to_owned());
    answer.stop_reason.get_or_insert_with(|| "tool_use".to_owned());
    Ok(answer)
}
