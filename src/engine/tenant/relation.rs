//! The relation of a request to the fan-outs of its tenant.

use std::borrow::Cow;
use std::sync::Arc;

use super::{BoundChild, Fate, TenantAccess};
use crate::engine::family::claims::Claims;
use crate::engine::family::fanout::{
    Binding, Child, ChildName, ForkId, ForkPoint, Newcomer, Recognised, Sought, Toolset, Who, find_child,
    new_results, recognise,
};
use crate::engine::fork::experiment::ChildKind;
use crate::engine::fork::{SnapshotScope, is_snapshot};
use crate::engine::request::recall::Remembered;
use crate::engine::words::{BodyDigest, Layer, Moment, Rank, Role, WhyPlain};

/// A request among its relatives.
#[derive(Clone, Debug)]
pub struct Relation {
    pub who: Who,
    /// The reason why it belongs to no fan-out, or the certainty with which it belongs to one.
    pub why: &'static str,
    pub kind: Kind,
    /// The calls whose results it brings back, of a parent or a child that was seen before.
    pub results: Vec<String>,
}

/// The part of a request in a fan-out.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Neither a child nor the parent of a known fan-out.
    Plain,
    /// It brings results back to this fork point.
    Parent(Arc<ForkPoint>),
    /// A child on its first turn.
    Child(FirstSeen),
    /// A child that its client has put on its parent's history itself, on its first turn.
    ClientFork(FirstSeen),
    /// A later turn of a child, as it was decided when that came.
    Bound(Binding, BoundChild),
}

/// A child on its first turn.
#[derive(Clone, Debug)]
pub struct FirstSeen {
    pub child: Child,
    /// Its tools, by which it is known later.
    pub tools: Toolset,
    /// True if it is only a question to a turn that it names.
    pub is_snapshot: bool,
    /// The digest that it claims its call by, if it does.
    pub claim: Option<BodyDigest>,
}

impl Relation {
    pub fn plain(who: Who, why: &'static str) -> Relation {
        Relation { who, why, kind: Kind::Plain, results: Vec::new() }
    }

    /// Returns true if it names a parent that is not known.
    pub fn names_unknown_parent(&self) -> bool {
        self.why == WhyPlain::UnknownParent.as_str()
    }

    pub fn role(&self) -> Role {
        match self.kind {
            Kind::Plain => Role::Plain,
            Kind::Parent(_) => Role::Parent,
            Kind::Child(_) | Kind::ClientFork(_) | Kind::Bound(..) => Role::Child,
        }
    }

    /// The fork point that it comes from, or brings results back to; none for a child that was left on its own.
    pub fn fork(&self) -> Option<&Arc<ForkPoint>> {
        match &self.kind {
            Kind::Plain => None,
            Kind::Parent(fork) => Some(fork),
            Kind::Child(first) | Kind::ClientFork(first) => Some(&first.child.fork),
            Kind::Bound(_, bound) => match &bound.fate {
                Fate::Forked(_, fork) => Some(fork),
                Fate::Own(_) => None,
            },
        }
    }

    pub fn fork_id(&self) -> Option<ForkId> {
        match &self.kind {
            Kind::Bound(_, bound) => Some(bound.fork),
            _ => self.fork().map(|fork| fork.id),
        }
    }

    /// A child on its first turn, by whomever it was composed.
    pub fn newcomer(&self) -> Option<&FirstSeen> {
        match &self.kind {
            Kind::Child(first) | Kind::ClientFork(first) => Some(first),
            Kind::Plain | Kind::Parent(_) | Kind::Bound(..) => None,
        }
    }

    /// The decision for a child that was seen before.
    pub fn bound(&self) -> Option<&BoundChild> {
        match &self.kind {
            Kind::Bound(_, bound) => Some(bound),
            _ => None,
        }
    }

    /// The call that started a child, counted in its fan-out.
    pub fn call(&self) -> Option<usize> {
        match &self.kind {
            Kind::Bound(_, bound) => bound.call,
            _ => self.newcomer().and_then(|first| first.child.call),
        }
    }

    /// The tool that started a child; empty if it has named its parent itself.
    pub fn tool(&self) -> &str {
        match &self.kind {
            Kind::Bound(_, bound) => &bound.tool,
            _ => self.newcomer().map_or("", |first| tool_of(&first.child)),
        }
    }
}

/// The tool that started a child; empty if it has named its parent itself.
pub fn tool_of(child: &Child) -> &str {
    child.call.and_then(|call| child.fork.calls.get(call)).map_or("", |call| &call.name)
}

/// The kind of a child, by its request in its own words and one spelling.
pub fn kind_of<'a>(child: &'a Child, own: &Remembered) -> ChildKind<'a> {
    ChildKind { tool: tool_of(child), tools: own.chain().layer(own.anatomy(), Layer::Tools) }
}

/// Recognises a request, in its one spelling. Its texts and tools are read between the looks. `held`: the child whose
/// turn it goes on from, if the server holds that.
pub fn relate<T: TenantAccess>(
    tenant: &T,
    request: &Arc<Remembered>,
    held: Option<ChildName>,
    who: Who,
    claims: &Claims,
    snapshots: SnapshotScope,
    now: Moment,
) -> Relation {
    let results = || new_results(request).map(Cow::into_owned).collect();
    let related = |why: &'static str, kind: Kind| {
        let brings_results = matches!(kind, Kind::Parent(_) | Kind::Bound(..));
        Relation { who, why, kind, results: if brings_results { results() } else { Vec::new() } }
    };
    if let Some((binding, bound)) = bound_child(tenant, request, held, &who, now) {
        return related("bound", Kind::Bound(binding, bound));
    }
    let first = |child: Child, claim: Option<BodyDigest>| {
        let known = |spelt| tenant.look(|state| state.fan_outs.children().toolset(spelt));
        let (tools, is_snapshot) = (Toolset::of(request, known), is_snapshot(request, &child));
        FirstSeen { child, tools, is_snapshot, claim }
    };
    let newcomer = Newcomer { request, who, explicit: claims.explicit() };
    let ask = |sought: &Sought<'_>| tenant.look(|state| state.fan_outs.recognise(sought, now));
    let find_snapshot = || tenant.look(|state| state.fan_outs.find_snapshot(&newcomer, now));
    match recognise(&newcomer, ask) {
        Recognised::Plain(WhyPlain::UnknownParent | WhyPlain::NoForkPoint)
            if snapshots == SnapshotScope::Latest =>
        {
            match find_snapshot() {
                Ok(child) => related(child.rank.as_str(), Kind::Child(first(child, None))),
                Err(why) => Relation::plain(who, why.as_str()),
            }
        }
        Recognised::Plain(why) => Relation::plain(who, why.as_str()),
        Recognised::Ambiguous => Relation::plain(who, "ambiguous"),
        Recognised::Parent(fork) => related("results", Kind::Parent(fork)),
        // A fan-out of a child, which may be asked about as it went out.
        Recognised::Child(child, body) if child.fork.is_nested && child.rank == Rank::Explicit => {
            match find_snapshot() {
                Ok(turn) if is_snapshot(request, &turn) => {
                    related(turn.rank.as_str(), Kind::Child(first(turn, None)))
                }
                _ => related(child.rank.as_str(), Kind::Child(first(child, Some(body)))),
            }
        }
        Recognised::Child(child, body) => related(child.rank.as_str(), Kind::Child(first(child, Some(body)))),
        Recognised::ClientFork(child) => related("client_fork", Kind::ClientFork(first(child, None))),
    }
}

/// Finds the child that a request is a later turn of, and what was decided for it. `held`: the child whose turn it goes on
/// from, if the server holds that.
pub fn bound_child<T: TenantAccess>(
    tenant: &T,
    request: &Remembered,
    held: Option<ChildName>,
    who: &Who,
    now: Moment,
) -> Option<(Binding, BoundChild)> {
    let by_name = held.and_then(|name| {
        tenant.look(|state| {
            let binding = state.fan_outs.find_held(name, now)?;
            Some((binding, state.fan_outs.children().get(binding)?.clone()))
        })
    });
    if by_name.is_some() {
        return by_name;
    }
    find_child(request, |marks| {
        tenant.look(|state| {
            let found = state.fan_outs.find(marks, who, now)?;
            let bound = |binding| Some((binding, state.fan_outs.children().get(binding)?.clone()));
            Ok(found.and_then(bound))
        })
    })
}
