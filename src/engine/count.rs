//! A request that counts the tokens of a forked child: it counts what the child's next request will bring.

use bytes::Bytes;

use super::family::fanout::Who;
use super::fork;
use super::request::recall::Remembered;
use super::tenant::{Fate, Kind, Relation, TenantAccess, bound_child};
use super::words::{ForkNote, Moment};

/// A count of tokens on the prefix of a child.
#[derive(Debug)]
pub struct ChildCount {
    pub relation: Relation,
    pub pieces: Vec<Bytes>,
    /// The parent's betas and its own.
    pub betas: String,
    pub shared_bytes: usize,
    pub notes: Vec<ForkNote>,
}

/// Puts a count of tokens on the prefix of the forked child that it is of. None if it is of no child, or of one that
/// keeps its own prompt or begins with a summary of itself. `betas`: those that it asks for.
pub fn count_child<T: TenantAccess>(
    tenant: &T,
    request: &Remembered,
    who: Who,
    betas: &str,
    now: Moment,
) -> Option<ChildCount> {
    if request.summary().is_some() {
        return None;
    }
    let (binding, bound) = bound_child(tenant, request, None, &who, now)?;
    let Fate::Forked(prefix, fork) = &bound.fate else { return None };
    let composed = prefix.count(request);
    let betas = fork::betas(&fork.parent.betas, betas);
    Some(ChildCount {
        pieces: composed.body.pieces,
        betas,
        shared_bytes: composed.shared,
        notes: composed.notes,
        relation: Relation { who, why: "bound", kind: Kind::Bound(binding, bound), results: Vec::new() },
    })
}
