//! Decides if a child may be forked: strict about everything that it would get from its parent.

use std::borrow::Cow;
use std::collections::BTreeSet;

use memchr::memmem;

use super::fields::{self, Comparison};
use super::opening::{self, Opening};
use super::policy::{ForkPolicy, Late, ToolsPolicy};
use super::said::{self, Said};
use super::words;
use crate::engine::family::fanout::{Child, ForkPoint, Rules, Who, is_forked_by_shape};
use crate::engine::request::anatomy::{Form, Member, Piece};
use crate::engine::request::json;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{Rank, Refusal, Spawning};

/// Decides if this request, which was recognised as a child, may be forked; `rules` say which tools start agents. Whether
/// it pays is asked later.
pub fn eligible(
    request: &Remembered,
    child: &Child,
    who: &Who,
    policy: &ForkPolicy,
    rules: &Rules,
) -> Result<(), Refusal> {
    let parent = &*child.fork.parent.request;
    let explicit = child.rank == Rank::Explicit;
    if is_ambiguous(request) || is_ambiguous(parent) {
        return Err(Refusal::Ambiguous);
    }
    let is_question = child.fork.parent.is_forwarded && is_snapshot(request, child);
    if (child.fork.is_nested && !is_question) || is_forked_by_shape(request) {
        return Err(Refusal::Nested);
    }
    if request.summary().is_some() || fields::value(request, fields::COMPACTION).is_some() {
        return Err(Refusal::Compaction);
    }
    if !explicit && child.spawning() == Spawning::Unknown {
        return Err(Refusal::UnknownTool);
    }
    check_call(child, who, policy)?;
    check_seal(child, policy)?;
    if parent.anatomy().messages.last().is_none_or(|last| last.has_role(parent.body(), "assistant")) {
        return Err(Refusal::Prefill);
    }
    let call = child.call.and_then(|call| child.fork.calls.get(call));
    Opening::read(request, parent, call, policy)?;
    let model = request.anatomy().model(request.body());
    // A child that names its parent takes its model too, unless it asks for one itself.
    if model != parent.anatomy().model(parent.body())
        && !(explicit && fields::value(request, "model").is_none())
    {
        return Err(Refusal::Model);
    }
    let trusted = who.agent.is_some() || policy.tools_policy == ToolsPolicy::Subset;
    check_tools(request, &child.fork, explicit, trusted, rules)?;
    let comparison = Comparison { child: request, parent, lenient: explicit, inherit: &policy.inherit };
    comparison.refusal().map_or(Ok(()), Err)?;
    if shows_more(request, parent) {
        return Err(Refusal::Media);
    }
    if policy.holds_out(child.fork.id) && !is_snapshot(request, child) {
        Err(Refusal::Holdout)
    } else {
        Ok(())
    }
}

/// Returns true if a child could be forked once its parent's answer has ended; no other has to wait for that.
pub fn may_be_forked_once_sealed(
    request: &Remembered,
    child: &Child,
    who: &Who,
    policy: &ForkPolicy,
    rules: &Rules,
) -> bool {
    let policy = match policy.late {
        Late::Partial => Cow::Borrowed(policy),
        Late::Passthrough => Cow::Owned(ForkPolicy { late: Late::Partial, ..policy.clone() }),
    };
    // The seal shows which call a child is of whose call has not finished.
    matches!(eligible(request, child, who, &policy, rules), Ok(()) | Err(Refusal::Unsealed))
}

/// Returns true if a child is only a message to a turn that it names: a summary, a suggestion. It is no agent that a
/// call has started: without the parent's context it means nothing, so that no other plan can be compared with.
pub fn is_snapshot(request: &Remembered, child: &Child) -> bool {
    let parent = &*child.fork.parent.request;
    let said = |of: &Remembered| sorted(&tools(of, |_, _| false), |of, tool| said::piece(of.body(), tool));
    child.rank == Rank::Explicit
        && child.call.is_none()
        && opening::instructions(request, parent).is_empty()
        && (request.anatomy().tools == 0 || said(request) == said(parent))
}

/// Returns true if readers could disagree about a request, or about one of its fields.
fn is_ambiguous(request: &Remembered) -> bool {
    let (body, anatomy) = (request.body(), request.anatomy());
    let mut seen = BTreeSet::new();
    let is_new = |member: &Member| json::text(body, &member.key).is_some_and(|key| seen.insert(key));
    anatomy.ambiguous || !anatomy.members.iter().all(is_new)
}

/// Checks the agent that was started: by whom, and of which kind.
fn check_call(child: &Child, who: &Who, policy: &ForkPolicy) -> Result<(), Refusal> {
    let sessions = [who.session, child.fork.parent.who.session];
    if sessions.into_iter().flatten().any(|session| policy.excludes(session.shown)) {
        return Err(Refusal::Coordinator);
    }
    child.call.map_or(Ok(()), |call| check_kind(&child.fork, call, policy))
}

/// Checks that the agent that a call starts is of a kind that is forked.
pub fn check_kind(fork: &ForkPoint, call: usize, policy: &ForkPolicy) -> Result<(), Refusal> {
    let input = fork.input(call).unwrap_or_default();
    let member = |name: &str| {
        let value = json::member(&input, 0, name).filter(|value| &input[value.clone()] != b"null")?;
        // What is no string names no kind that we know.
        Some(json::text(&input, &value).map_or_else(|| "?".to_owned(), |text| text.into_owned()))
    };
    let special = |field: &String| member(field).is_some_and(|kind| !policy.general_types.contains(&kind));
    if policy.specialist_fields.iter().any(special) {
        Err(Refusal::Specialist)
    } else if member("team_name").is_some_and(|team| !team.is_empty()) {
        Err(Refusal::Teammate)
    } else if member("isolation").as_deref() == Some("remote") {
        Err(Refusal::Isolation)
    } else {
        Ok(())
    }
}

fn check_seal(child: &Child, policy: &ForkPolicy) -> Result<(), Refusal> {
    match (child.fork.is_sealed(), policy.late) {
        (true, _) => Ok(()),
        (false, Late::Passthrough) => Err(Refusal::Late),
        (false, Late::Partial) => {
            child.call.and_then(|call| child.fork.calls.get(call)).map(|_| ()).ok_or(Refusal::Unsealed)
        }
    }
}

/// A child's tools are its parent's. It may lack those that start agents; others where somebody keeps it to its own.
/// Order does not count: the parent's comes back.
fn check_tools(
    request: &Remembered,
    fork: &ForkPoint,
    explicit: bool,
    trusted: bool,
    rules: &Rules,
) -> Result<(), Refusal> {
    let parent = &*fork.parent.request;
    if request.anatomy().tools == 0 {
        return if explicit { Ok(()) } else { Err(Refusal::NoTools) };
    }
    let written = |of: &'_ Remembered| {
        of.anatomy().member(of.body(), "tools").map(|value| of.body().slice(value.clone()))
    };
    if written(request) == written(parent) {
        return Ok(());
    }
    let called =
        |name: &str| fork.calls.iter().any(|call| call.spawning != Spawning::Unknown && *call.name == *name);
    let starts_agents = |of: &Remembered, tool: &Piece| {
        words::name_of(of.body(), tool).is_some_and(|name| rules.lists(&name) || called(&name))
    };
    let (own, parents) = (tools(request, starts_agents), tools(parent, starts_agents));
    // Those it may lack; but one that its parent has not it would lose, whatever it is for.
    let known: BTreeSet<_> = words::tool_names(parent).into_iter().collect();
    let names = words::tool_names(request);
    if names.iter().any(|name| !known.contains(name)) {
        return Err(Refusal::ToolsDiffer);
    }
    // Most are spelt alike; what they say is worth reading only if one is not.
    match compare(&own, &parents, |of, tool| tool.unmarked(of.body()), trusted) {
        Ok(()) => Ok(()),
        Err(_) => compare(&own, &parents, |of, tool| said::piece(of.body(), tool), trusted),
    }
}

type ToolDefinition<'r> = (&'r Remembered, &'r Piece);

/// The tools of a request that start no agents.
fn tools<'r>(
    of: &'r Remembered,
    starts_agents: impl Fn(&Remembered, &Piece) -> bool,
) -> Vec<ToolDefinition<'r>> {
    let all = of.anatomy().pieces[..of.anatomy().tools].iter();
    all.filter(|tool| !starts_agents(of, tool)).map(|tool| (of, tool)).collect()
}

fn compare<'r, K: Ord>(
    own: &[ToolDefinition<'r>],
    parents: &[ToolDefinition<'r>],
    key: impl Fn(&'r Remembered, &'r Piece) -> K,
    trusted: bool,
) -> Result<(), Refusal> {
    let (own, parents) = (sorted(own, &key), sorted(parents, &key));
    // Each of its own is one of its parent's, and no two are the same one: a set of tools has no name that would be
    // refused if it came twice.
    let mut theirs = parents.iter();
    if !own.iter().all(|own| theirs.any(|parents| parents == own)) {
        Err(Refusal::ToolsDiffer)
    } else if own.len() < parents.len() && !trusted {
        Err(Refusal::ToolsSubset)
    } else {
        Ok(())
    }
}

fn sorted<'r, K: Ord>(tools: &[ToolDefinition<'r>], key: impl Fn(&'r Remembered, &'r Piece) -> K) -> Vec<K> {
    let mut keys: Vec<K> = tools.iter().map(|(of, tool)| key(of, tool)).collect();
    keys.sort_unstable();
    keys
}

/// Returns true if a child shows an image or a document that its parent does not.
fn shows_more(request: &Remembered, parent: &Remembered) -> bool {
    let shown = |of: &Remembered| -> BTreeSet<Said> {
        let anatomy = of.anatomy();
        let messages = anatomy.pieces[anatomy.tools + anatomy.system..].iter();
        let media = messages.filter(|piece| is_media(of.body(), piece));
        media.map(|piece| said::piece(of.body(), piece)).collect()
    };
    let own = shown(request);
    !own.is_empty() && !own.is_subset(&shown(parent))
}

/// An image, a document, or what may hold one.
fn is_media(body: &[u8], piece: &Piece) -> bool {
    let words = [&b"\"image\""[..], b"\"document\"", b"\"file_id\""];
    piece.form == Form::Block
        && piece.may_hold_blocks(body)
        && words.iter().any(|word| memmem::find(&body[piece.span.clone()], word).is_some())
}
