//! A request beside the one that it continues.

use std::sync::Arc;

use super::flight::Flight;
use crate::engine::cache::breaks::Drift;
use crate::engine::family::outlines::Faded;
use crate::engine::request::prefix::Subject;
use crate::engine::request::recall::Remembered;

/// A request and the one that it continues, as they went out.
pub(super) struct Turns {
    pub last: LastTurn,
    pub now: Arc<Remembered>,
}

pub(super) enum LastTurn {
    Kept(Arc<Remembered>),
    Faded(Faded),
}

impl LastTurn {
    fn as_subject(&self) -> Subject<'_> {
        match self {
            LastTurn::Kept(last) => last.as_subject(),
            LastTurn::Faded(faded) => faded.outline.reading().without_bytes(),
        }
    }
}

impl Turns {
    /// None if nothing is known of the request that this one continues.
    pub fn of(flight: &Flight) -> Option<Turns> {
        let arrival = &flight.request.arrival;
        let last = match arrival.predecessor() {
            Some(last) => LastTurn::Kept(last.trace.forwarded()),
            None => LastTurn::Faded(arrival.faded.clone()?),
        };
        Some(Turns { last, now: flight.trace.forwarded() })
    }

    pub fn drift(&self) -> Drift {
        Drift::of(&self.last.as_subject(), &self.now.as_subject())
    }
}
