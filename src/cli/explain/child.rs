//! Explains how forkpoint would treat a child: its plan, why, and what it costs beside the other plans.
//!
//! [`fork::plan_child`] decides here as in the proxy, by the same configuration. What only a running proxy knows is
//! assumed: the parent's entry is warm, the child as sent finds nothing, and children live as long as
//! `fork.horizon_turns` says.

use std::path::Path;
use std::sync::Arc;

use crate::engine::answer::sse::Framer;
use crate::engine::answer::turn::{Turn as Answer, TurnBuilder, TurnLimits, Wholeness};
use crate::engine::cache::breakpoints::{self, Breakpoint, Situation};
use crate::engine::cache::entry::Parameters;
use crate::engine::family::arrival::Arrival;
use crate::engine::family::fanout::{self, Child, Draft, FanOuts, Newcomer, Parent, Recognised, Who};
use crate::engine::fork::{
    self, ChildHabits, ChildRequest, Composed, ComposedChild, Forecast, ForkRules, NewChild, ParentPrefix,
    Policy, PrefixExtent, PromptSizes, TenantView,
};
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{ForkNote, IdDigest, Moment, Refusal, TenantId, Ttl};
use crate::store::{ReadMode, View};

use super::super::Failure;
use super::cost::BYTES_PER_TOKEN;
use super::{Exhibit, load};

/// Nobody else's requests are looked at.
const TENANT: TenantId = TenantId([0; 32]);
/// An agent is named; which one does not matter.
const AGENT: IdDigest = IdDigest([0; 16]);
const LIMITS: TurnLimits = TurnLimits { bytes: super::FILE_BYTES_MAX as usize, tool_uses: 256 };

/// A question about a child.
pub struct Question<'a> {
    pub parent: &'a Path,
    pub answer: &'a Path,
    pub child: &'a Path,
    pub rules: ForkRules<'a>,
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
    pub policy: Policy,
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
    let rules = question.rules;
    let parent = Exhibit::read(question.parent, rules.attribution)?;
    let child = Exhibit::read(question.child, rules.attribution)?;
    let answer = read_answer(question.answer)?;
    let names = [&parent.name, &question.answer.display().to_string(), &child.name].map(String::clone);
    let billed = answer.usage.is_some_and(|usage| usage.uncached.saturating_add(usage.cached()) > 0);
    let policy = rules.policy.clone();
    let mut finding =
        Finding { names, declined: None, recognised: None, layout: None, forecast: None, policy, billed };
    let planned = breakpoints::plan(&parent.body, &parent.anatomy, &Situation::new(rules.profile));
    let written = planned.breakpoints.last().copied();
    let parent = arrival(parent, rules.attribution)?.received;
    let arrival = arrival(child, rules.attribution)?;
    let own = &*arrival.received;
    let who = Who::of(own, None, question.has_agent.then_some(AGENT), question.has_agent);
    let mut fan_outs = FanOuts::new(TENANT, rules.fan_out.clone());
    let child = match recognise(&mut fan_outs, parent, &answer, written, own, who) {
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
    let conversation = Arc::default();
    let request = ChildRequest { arrival: &arrival, own, conversation: &conversation, betas: "" };
    let model = own.anatomy().model(own.body()).unwrap_or_default();
    let new = NewChild { child: &child, request, who: &who, model: &model };
    let assumed = Assumed { turns: question.turns, is_warm: written.is_some() };
    let plan = fork::plan_child(&new, &rules, &assumed);
    finding.declined = plan.verdict.err().map(Refusal::as_str);
    finding.forecast = plan.forecast;
    finding.layout = plan.composed.map(|composed| Layout::of(composed, plan.sizes));
    Ok(finding)
}

/// The child of this fan-out, or why it is none.
fn recognise(
    fan_outs: &mut FanOuts<()>,
    request: Arc<Remembered>,
    answer: &Answer,
    written: Option<Breakpoint>,
    own: &Remembered,
    who: Who,
) -> Result<Child, &'static str> {
    let leader = Who::of(&request, None, None, who.marks_agents);
    let parent = Parent { written, ..Parent::new(request, leader) };
    let draft = Draft::begin(parent, false).map_err(|dropped| dropped.as_str())?;
    let ended = draft.end(answer, fan_outs.points().rules());
    fan_outs.seal(ended, Moment(0)).map_err(|dropped| dropped.as_str())?;
    let newcomer = Newcomer { request: own, who, explicit: None };
    match fanout::recognise(&newcomer, |sought| fan_outs.recognise(sought, Moment(0))) {
        Recognised::Child(child) => Ok(child),
        Recognised::ClientFork(_) => Err("client_fork"),
        Recognised::Parent(_) => Err("results"),
        Recognised::Ambiguous => Err("ambiguous"),
        Recognised::Plain(why) => Err(why.as_str()),
    }
}

/// Assumptions in the place of what only a running proxy knows.
struct Assumed {
    turns: Option<u16>,
    /// The parent has written an entry.
    is_warm: bool,
}

impl TenantView for Assumed {
    fn is_stood_down(&self) -> bool {
        false
    }

    fn habits(&self) -> ChildHabits {
        ChildHabits { turns: self.turns.map(f64::from), ..ChildHabits::default() }
    }

    fn tokens_per_byte(&self, _: &str) -> Option<f64> {
        Some(1.0 / BYTES_PER_TOKEN as f64)
    }

    fn shared_prefix(
        &self,
        make: impl FnOnce() -> Result<ParentPrefix, Refusal>,
    ) -> Result<Arc<ParentPrefix>, Refusal> {
        make().map(Arc::new)
    }

    fn read_bytes(&self, _: &str, composed: &ComposedChild, _: &Parameters) -> Option<u64> {
        self.is_warm.then(|| composed.prefix.parent_prefix().extent().entry)
    }

    fn sent_warm(&self) -> u64 {
        0
    }
}

impl Layout {
    fn of(child: ComposedChild, sizes: Option<PromptSizes>) -> Layout {
        let ComposedChild { prefix, request, trace, notes, .. } = child;
        let anatomy = trace.reading().anatomy();
        let marked = request.breakpoints.iter().map(|point| (anatomy.path(point.piece), point.ttl)).collect();
        Layout { parent_prefix: prefix.parent_prefix().extent(), composed: request, marked, notes, sizes }
    }
}

/// Reads a request of a tenant that nothing is known of.
fn arrival(exhibit: Exhibit, attribution: Attribution) -> Result<Arrival, Failure> {
    let view = View { id: TENANT, tenant: None, hint: None };
    view.read(&exhibit.body.into(), attribution, ReadMode::AsItCame, std::iter::empty())
        .map_err(|_| Failure::new(format!("{}: not a request", exhibit.name)))
}

/// The message as the API returned it, or the events of a stream. What a message without its envelope lacks is
/// filled in.
fn read_answer(path: &Path) -> Result<Answer, Failure> {
    let (name, bytes) = load(path)?;
    let is_json = bytes.trim_ascii_start().starts_with(b"{");
    let mut answer = if is_json {
        Answer::from_json(&bytes, LIMITS)
    } else {
        let mut builder = TurnBuilder::new(LIMITS);
        Framer::new(LIMITS.bytes).push(&bytes, |event| builder.push(event.data));
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
