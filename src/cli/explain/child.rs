//! What forkpoint would make of a child: its plan, why, and what it costs beside the other plans.
//!
//! The same pure functions decide here as in the proxy. What only a running proxy knows is assumed: the parent's
//! entry is warm, the child as sent finds nothing, and children live as long as `fork.horizon_turns` says.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::config::Config;
use crate::engine::breakpoints::{Breakpoint, Profile};
use crate::engine::fanout::{Child, Draft, Forks, Newcomer, Parent, Recognised, Rules, Who};
use crate::engine::fork::{
    self, Composed, Extent, Facts, Forecast, Habits, Market, Policy, Prefix, Sizes, Trunk, Turn,
};
use crate::engine::prefix::Attribution;
use crate::engine::prices::Prices;
use crate::engine::recall::{Nothing, Remembered};
use crate::engine::sse::Framer;
use crate::engine::turn::{Turn as Answer, TurnBuilder, TurnLimits, Wholeness};
use crate::engine::words::{ForkNote, IdDigest, Moment, Refusal, TenantId, Ttl};

use super::super::Failure;
use super::cost::BYTES_PER_TOKEN;
use super::{Exhibit, load, report};

/// Nobody else's requests are looked at.
const TENANT: TenantId = TenantId([0; 32]);
/// An agent is named; which one does not matter.
const AGENT: IdDigest = IdDigest([0; 16]);
const LIMITS: TurnLimits = TurnLimits { bytes: super::FILE_BYTES_MAX as usize, tool_uses: 256 };

/// What is asked about a child.
pub struct Question<'a> {
    pub parent: &'a Path,
    pub answer: &'a Path,
    pub child: &'a Path,
    pub attribution: Attribution,
    /// The child comes with an agent id, as those of Claude Code do.
    pub has_agent: bool,
    pub turns: Option<u16>,
}

/// What is answered.
pub struct Finding {
    pub names: [String; 3],
    /// Why not, if it is not forked: the role is in doubt, or a [`Refusal`].
    pub declined: Option<&'static str>,
    pub recognised: Option<Recognition>,
    pub layout: Option<Layout>,
    pub forecast: Option<Forecast>,
    pub policy: Policy,
    /// Whether tokens come from what was billed for the parent.
    pub billed: bool,
}

/// How it is known to be a child.
pub struct Recognition {
    pub rank: &'static str,
    pub tool: Option<String>,
    pub call: Option<String>,
    pub siblings: u64,
}

/// What would be sent.
pub struct Layout {
    pub trunk: Extent,
    pub composed: Composed,
    /// The paths of the breakpoints in what would be sent.
    pub marked: Vec<(String, Ttl)>,
    pub notes: Vec<ForkNote>,
    pub sizes: Option<Sizes>,
}

pub fn explain(question: &Question<'_>, prices: &Prices) -> Result<Finding, Failure> {
    let parent = Exhibit::read(question.parent, question.attribution)?;
    let child = Exhibit::read(question.child, question.attribution)?;
    let answer = read_answer(question.answer)?;
    let policy = Policy::default();
    let names = [&parent.name, &question.answer.display().to_string(), &child.name].map(String::clone);
    let billed = answer.usage.is_some_and(|usage| usage.uncached.saturating_add(usage.cached()) > 0);
    let mut finding =
        Finding { names, declined: None, recognised: None, layout: None, forecast: None, policy, billed };
    let written = report::plan_alone(&parent).breakpoints.last().copied();
    let (parent, own) = (remembered(parent, question.attribution)?, remembered(child, question.attribution)?);
    let who = Who::of(&own, None, question.has_agent.then_some(AGENT), question.has_agent);
    let mut forks = Forks::new(TENANT, Rules::default());
    let found = match recognise(&mut forks, parent, &answer, written, &own, who) {
        Ok(found) => found,
        Err(why) => {
            finding.declined = Some(why);
            return Ok(finding);
        }
    };
    let call = found.call.and_then(|call| found.fork.calls.get(call));
    finding.recognised = Some(Recognition {
        rank: found.rank.as_str(),
        tool: call.map(|call| call.name.to_string()),
        call: call.map(|call| call.id.to_string()),
        siblings: fork::siblings(&found.fork, &finding.policy),
    });
    let facts = Facts { rules: forks.rules(), stood_down: false };
    let eligible = fork::eligible(&own, &found, &who, &finding.policy, &facts);
    let planned = plan(&mut finding, &found, &own, written, question, prices);
    finding.declined = eligible.and(planned).err().map(Refusal::as_str);
    Ok(finding)
}

/// The child of this fan-out, or why it is none.
fn recognise(
    forks: &mut Forks,
    request: Arc<Remembered>,
    answer: &Answer,
    written: Option<Breakpoint>,
    own: &Remembered,
    who: Who,
) -> Result<Child, &'static str> {
    let leader = Who::of(&request, None, None, who.marks_agents);
    let parent = Parent { written, ..Parent::new(request, leader) };
    let draft = Draft::begin(parent, false).map_err(|dropped| dropped.as_str())?;
    forks.seal(draft, answer, Moment(0)).map_err(|dropped| dropped.as_str())?;
    match forks.recognise(&Newcomer { request: own, who, explicit: None }, Moment(0)) {
        Recognised::Child(child) => Ok(child),
        Recognised::ClientFork(_) => Err("client_fork"),
        Recognised::Parent(_) => Err("results"),
        Recognised::Ambiguous => Err("ambiguous"),
        Recognised::Plain(why) => Err(why.as_str()),
    }
}

/// Lays the child out and foresees its cost, as far as either can be done.
fn plan(
    finding: &mut Finding,
    child: &Child,
    own: &Remembered,
    written: Option<Breakpoint>,
    question: &Question<'_>,
    prices: &Prices,
) -> Result<(), Refusal> {
    let policy = finding.policy.clone();
    let trunk = Arc::new(Trunk::of(&child.fork, child.call, written, question.attribution)?);
    let (prefix, mut notes) = Prefix::of(&trunk, own, child, &policy)?;
    let composed = prefix.compose(own, Turn::First, Profile::Anthropic);
    notes.extend(composed.notes.iter().copied());
    let sizes = Sizes::of(&trunk, &child.fork, &composed, own, Some(1.0 / BYTES_PER_TOKEN as f64));
    let name = own.anatomy().model(own.body()).unwrap_or_default();
    let facts = prices.facts(&name);
    let (parent, body_bytes) = (&child.fork.parent.request, Config::default().limits.body_bytes);
    let fits = fork::fits(&composed, sizes.as_ref(), own, parent, facts, body_bytes, &policy);
    let model = prices.model(&name);
    let market = Market {
        price: model.and_then(|model| model.price.as_ref()),
        multipliers: model.map(|model| model.multipliers).unwrap_or_default(),
        facts,
        siblings: fork::siblings(&child.fork, &policy),
        warm: written.is_some(),
        cold_messages: false,
        sent_warm: 0,
        entry_ttl: trunk.ttl(),
        ttl: composed.breakpoints.last().map_or(Ttl::FiveMinutes, |point| point.ttl),
    };
    let habits = Habits { turns: question.turns.map(f64::from), ..Habits::default() };
    finding.forecast = sizes.as_ref().and_then(|sizes| Forecast::of(sizes, &habits, &market, &policy));
    let marked = marked(&composed)?;
    finding.layout = Some(Layout { trunk: trunk.extent(), composed, marked, notes, sizes });
    fits?;
    fork::decide(finding.forecast.as_ref(), &policy)
}

fn marked(composed: &Composed) -> Result<Vec<(String, Ttl)>, Refusal> {
    let body = Bytes::from(composed.body.pieces.concat());
    let read = Remembered::read(body, &Nothing, Attribution::Counted).map_err(Refusal::unreadable)?;
    let path = |point: &Breakpoint| (read.anatomy().path(point.piece), point.ttl);
    Ok(composed.breakpoints.iter().map(path).collect())
}

fn remembered(exhibit: Exhibit, attribution: Attribution) -> Result<Arc<Remembered>, Failure> {
    let name = exhibit.name;
    Remembered::read(exhibit.body.into(), &Nothing, attribution)
        .map(Arc::new)
        .map_err(|_| Failure::new(format!("{name}: not a request")))
}

/// The message as the API returned it, or the events of a stream. What a message without its envelope lacks is
/// filled in.
fn read_answer(path: &Path) -> Result<Answer, Failure> {
    let (name, bytes) = load(path)?;
    let is_json = bytes.trim_ascii_start().starts_with(b"{");
    let mut answer = match is_json {
        true => Answer::from_json(&bytes, LIMITS),
        false => {
            let mut builder = TurnBuilder::new(LIMITS);
            Framer::new(LIMITS.bytes).push(&bytes, |event| builder.push(event.data));
            builder.finish()
        }
    };
    if answer.wholeness != Wholeness::Whole {
        return Err(Failure::new(format!("{name}: not a whole assistant message"))
            .hint("give the answer's JSON as it came, with its content as a list of blocks, or the events of its stream"));
    }
    answer.id.get_or_insert_with(|| "msg_answer".to_owned());
    answer.stop_reason.get_or_insert_with(|| "tool_use".to_owned());
    Ok(answer)
}
