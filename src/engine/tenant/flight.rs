//! A request on its way: what is known of it from when it goes out to the end of its answer.

use std::sync::Arc;

use super::relation::Relation;
use crate::engine::cache::entry::Parameters;
use crate::engine::cache::ledger::{BetaTrial, Prediction};
use crate::engine::cache::worlds::{Played, WorldPrompt, WorldPrompts};
use crate::engine::family::arrival::Arrival;
use crate::engine::family::conversation::{Conversation, Trace};
use crate::engine::family::fanout::{Binding, Draft};
use crate::engine::family::recent::{Hint, RecentId};
use crate::engine::fork::{ChildPrefix, Forecast};
use crate::engine::gate::Lesson;
use crate::engine::request::recall::Remembered;
use crate::engine::respell::canonical::{News, Pins};
use crate::engine::words::{Layer, Moment, Plan, SightingClass, Ticket};

/// A request that was read, and whose it is.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    pub arrival: Box<Arrival>,
    pub hint: Option<Hint>,
    /// The model that it asks for; empty if it names none.
    pub model: String,
    /// The betas that it asks for, as one list.
    pub betas: String,
    /// The version of the API that it asks for.
    pub version: String,
    /// True if its answer is to be streamed.
    pub streams: bool,
    pub came_at: Moment,
}

/// The way in which a request goes out.
#[derive(Debug)]
pub struct FlightPlan {
    pub plan: Plan,
    pub relation: Relation,
    /// The request in its own words and its one spelling.
    pub own: Arc<Remembered>,
    pub trace: Arc<Trace>,
    pub conversation: Conversation,
    /// News for the tenant's spellings, and for those of the conversation, once the upstream took the request.
    pub interns: News,
    pub pins: Pins,
    /// The request as its client sent it, if it goes out otherwise.
    pub as_sent: Option<Arc<Trace>>,
    /// The request as `align` sends it, if it goes out otherwise.
    pub aligned: Option<Arc<Trace>>,
    /// True if `align` would have spelt it as it came.
    pub would_be_as_it_came: bool,
    pub forecast: Option<Forecast>,
    /// For a child that is put on its parent's prefix now.
    pub first: Option<FirstPrefix>,
    /// The lesson for the gate, if its usage is to tell whether it waited long enough.
    pub lesson: Option<Lesson>,
}

/// The prefix that a child gets, and its parameters under the betas of its parent.
#[derive(Clone, Debug)]
pub struct FirstPrefix {
    pub prefix: Arc<ChildPrefix>,
    pub parents: Parameters,
    /// The model that it goes to.
    pub model: String,
}

/// A request as mode `align` would have sent it.
#[derive(Clone, Debug)]
pub struct Imagined {
    pub trace: Arc<Trace>,
    /// True if it would have gone out just as it did.
    pub is_as_sent: bool,
    /// True if it would have been spelt as it came.
    pub is_as_it_came: bool,
}

/// A request that went out and has not been answered.
#[derive(Debug)]
pub struct Flight {
    pub request: ReadRequest,
    pub plan: Plan,
    pub relation: Relation,
    /// The request in its own words and its one spelling.
    pub own: Arc<Remembered>,
    pub trace: Arc<Trace>,
    pub conversation: Conversation,
    pub forecast: Option<Forecast>,
    /// True if it asks for thinking of another prefix to be dropped, which its client has not done.
    pub drops_lost: bool,
    pub sent_at: Moment,
    pub ticket: Ticket,
    pub(super) interns: News,
    pub(super) pins: Pins,
    pub(super) lesson: Option<Lesson>,
    pub(super) would_be_as_it_came: bool,
    pub(super) prediction: Prediction,
    /// The test of whether its betas cost it anything, if its bill can tell.
    pub(super) trial: Option<BetaTrial>,
    /// The request as its client sent it, and as `align` sends it; none if it goes out so.
    pub(super) as_sent: Option<Arc<Trace>>,
    pub(super) aligned: Option<Arc<Trace>>,
    /// Its binding, if it is a child that is known as one already.
    pub(super) binding: Option<Binding>,
}

/// A request that the upstream took.
#[derive(Debug)]
pub struct Accepted {
    pub flight: Box<Flight>,
    pub(super) recent: RecentId,
    /// The classes of its prefixes, layer by layer, against what came before.
    pub classes: [SightingClass; 4],
    /// The number of its turn, if it is a child's.
    pub child_turn: Option<u64>,
    /// Collects its answer, which may be a fan-out.
    pub(super) draft: Option<Draft>,
    /// True if later requests may name it as their parent, whatever its answer is.
    pub(super) keeps_snapshot: bool,
    /// True once its first content has come.
    pub(super) has_begun: bool,
    /// True if the tenant has learned from its bill.
    pub(super) is_billed: bool,
    /// The request as it plays in each world, and the outcome once its bill is known.
    pub(super) prompts: WorldPrompts,
    pub(super) played: Option<Box<Played>>,
}

impl Flight {
    /// The ledger's prediction at the time the request was sent.
    pub fn prediction(&self) -> &Prediction {
        &self.prediction
    }

    /// It is sent now, later than it was let go.
    pub fn sent_later(&mut self, now: Moment) {
        self.sent_at = now;
    }

    /// Returns true if it goes out otherwise than its client sent it.
    pub fn is_changed(&self) -> bool {
        self.as_sent.is_some()
    }

    pub fn is_forked(&self) -> bool {
        self.plan == Plan::Forked
    }

    /// The number of bytes of the larger of the two requests that are compared when this one is answered: itself, and
    /// the one that it continues.
    pub fn compared_bytes(&self) -> usize {
        let before = self.request.arrival.predecessor().map_or(0, |before| before.trace.sent_bytes());
        self.trace.sent_bytes().max(before)
    }

    /// Returns true if a conversation of its own words begins with it. A forked child has its parent's tools, and says
    /// nothing about how the conversations of those go on.
    pub(super) fn starts(&self) -> bool {
        let arrival = &self.request.arrival;
        !self.is_forked() && arrival.predecessor().is_none() && !arrival.received.is_answered()
    }

    /// Returns true if it goes on with a conversation in its own words, and finds nothing of its messages in the cache.
    pub(super) fn resumes(&self) -> bool {
        let anatomy = self.trace.reading().anatomy();
        let finds = self.prediction.read.is_some_and(|read| read.piece >= anatomy.tools + anatomy.system);
        !self.is_forked() && self.request.arrival.predecessor().is_some() && !finds
    }

    /// Returns true if a parameter differs from that of the turn before, so that nothing of the messages is read: an image
    /// came.
    pub(super) fn loses_messages(&self) -> bool {
        let last = self.request.arrival.predecessor().map(|last| &last.trace.parameters);
        last.is_some_and(|last| self.trace.parameters.differs(last, Layer::Messages).is_some())
    }

    /// The request as it plays in each world.
    pub(super) fn prompts(&self) -> WorldPrompts {
        let prompt = |trace: &Trace| {
            Arc::new(WorldPrompt::of(trace.reading(), &trace.breakpoints, trace.parameters.scope()))
        };
        let billed = prompt(&self.trace);
        let aligned = self.aligned.as_deref().map_or_else(|| Arc::clone(&billed), prompt);
        let sent = match &self.as_sent {
            None => Arc::clone(&billed),
            Some(as_sent) => {
                let marked = self.aligned.as_ref().unwrap_or(&self.trace);
                if Arc::ptr_eq(marked, as_sent) {
                    Arc::clone(&aligned)
                } else if marked.has_prompt_of(as_sent) {
                    Arc::new(aligned.with_fewer(as_sent.reading(), &as_sent.breakpoints))
                } else {
                    prompt(as_sent)
                }
            }
        };
        WorldPrompts { billed, sent, aligned }
    }
}

impl Accepted {
    /// Returns true once the first content of the answer has come.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns true if finished blocks are of interest.
    pub fn listens(&self) -> bool {
        self.draft.is_some()
    }
}
