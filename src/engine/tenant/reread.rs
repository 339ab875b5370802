//! A turn of a child that brings results which its parent had read.

use std::sync::Arc;

use super::flight::Flight;
use super::{TenantAccess, TenantState};
use crate::engine::family::fanout::{Binding, ForkPoint};
use crate::engine::family::reread::{NewResults, ParentResults};

/// The results of one turn that the child's parent had read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reread {
    pub results: u64,
    /// An estimate, by bytes; 0 if nothing was billed yet.
    pub tokens: u64,
}

/// The results of a child's parent.
enum RereadParent {
    Digested(Arc<ParentResults>),
    Known(Arc<ForkPoint>),
}

/// Returns the results that this turn of a child brings and that its parent had read. Bodies are read between the looks.
pub(super) fn reread<T: TenantAccess>(tenant: &T, flight: &Flight, child: Binding) -> Reread {
    // The child's own words: a forked child's parent is part of what it is sent, and not of these.
    let Some(new) = NewResults::of(&flight.own) else { return Reread::default() };
    let messages = flight.own.anatomy().messages.len();
    let parent = match tenant.look(|state| state.parent_of(child, messages)) {
        None => return Reread::default(),
        Some(RereadParent::Digested(results)) => results,
        Some(RereadParent::Known(point)) => {
            let results = Arc::new(ParentResults::of(&point.parent.request));
            tenant.look(|state| state.digested_parents.keep(point.id, Arc::clone(&results)));
            results
        }
    };
    let again = new.read_again(&parent);
    let ratio = tenant.look(|state| state.learned.tokens_per_byte(&flight.request.model));
    let tokens = (again.bytes as f64 * ratio.unwrap_or(0.0)).round() as u64;
    Reread { results: again.results, tokens }
}

impl TenantState {
    /// The results of a child's parent, unless its fork point was forgotten, or the results of a turn with this many
    /// messages were looked at before: a turn that is sent again brings nothing new.
    fn parent_of(&mut self, child: Binding, messages: usize) -> Option<RereadParent> {
        let bound = self.fan_outs.child_mut(child)?;
        if bound.is_snapshot || std::mem::replace(&mut bound.looked_at, messages) == messages {
            return None;
        }
        let (fork, own_point) = (bound.fork, bound.point().cloned());
        if let Some(results) = self.digested_parents.get(fork) {
            return Some(RereadParent::Digested(results));
        }
        own_point.or_else(|| self.fan_outs.points().get(fork).cloned()).map(RereadParent::Known)
    }
}
