//! `align`: one spelling, and breakpoints where they will be read. What the model reads stays the same.
//!
//! ```text
//! received ── canonicalize ──▶ forwarded ── breakpoints ──▶ pieces of shared bytes
//!                                  └── chain: what the cache compares
//! ```
//!
//! Rule: the pieces of a request that needs nothing are the received bytes themselves.

use std::sync::Arc;

use bytes::Bytes;

use super::anatomy::Layer;
use super::breakpoints::{self, Edit, Forwarded, Profile, Situation};
use super::canonical::{self, Choice, Limits, News, Order, Pins, Table, Thinking};
use super::conversation::{Conversation, Trace};
use super::diagnosis;
use super::entry::Parameters;
use super::prefix::Attribution;
use super::recall::{Known, KnownLayer, Remembered};
use super::types::Reason;

/// What the operator and the upstream ask for.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub order: Order,
    pub profile: Profile,
    pub attribution: Attribution,
    /// Whether the upstream is asked for its own verdict on misses.
    pub diagnose: bool,
}

/// What is known of the model, the tenant and the conversation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    pub bound_thinking: bool,
    pub minimum_tokens: Option<u64>,
    pub tokens_per_byte: Option<f64>,
    /// Whether the prefix of this request came before in another conversation.
    pub seen_before: bool,
    /// The share of conversations of this tenant and tool set that continue.
    pub continues: Option<f64>,
    /// Whether others come with the same tools and system prompt: the siblings of a child.
    pub has_siblings: bool,
}

/// A request that was read, and what it follows.
#[derive(Debug)]
pub struct Arrival {
    pub received: Arc<Remembered>,
    pub parameters: Parameters,
    pub before: Option<Before>,
}

/// The request that this one was found to be like.
#[derive(Clone, Debug)]
pub struct Before {
    pub trace: Arc<Trace>,
    /// Whether this one goes on where it ended.
    pub continued: bool,
}

impl Arrival {
    /// The request that this one continues.
    pub fn predecessor(&self) -> Option<&Arc<Trace>> {
        self.before.as_ref().filter(|before| before.continued).map(|before| &before.trace)
    }

    /// The conversation that this request is a turn of, if it was seen before.
    pub fn conversation(&self) -> Option<&Arc<Conversation>> {
        self.kin().filter(|_| self.predecessor().is_some() || self.received.is_answered())
    }

    /// The same, or another conversation that opens alike.
    pub fn kin(&self) -> Option<&Arc<Conversation>> {
        let before = self.before.as_ref()?;
        let alike = || self.received.starts_like(&before.trace.received);
        (before.continued || alike()).then_some(&before.trace.conversation)
    }

    /// A conversation of its own.
    fn start(&self, choice: Option<Choice>) -> Arc<Conversation> {
        Arc::new(match self.kin() {
            Some(kin) => kin.again(choice),
            None => Conversation::new(choice),
        })
    }
}

/// A request as it goes out.
#[derive(Debug)]
pub struct Aligned {
    /// For the next request of the conversation.
    pub trace: Arc<Trace>,
    pub body: Forwarded,
    pub plan: breakpoints::Plan,
    /// What the tenant's table is told once the upstream took the request.
    pub interns: News,
    pub pins: Pins,
}

/// Plans a request. `known` helps to read the respelt one.
pub fn align(
    arrival: &Arrival,
    table: &Table,
    known: &dyn Known,
    rules: Rules,
    facts: Facts,
) -> Result<Aligned, Reason> {
    let received = &arrival.received;
    if received.anatomy().ambiguous {
        return Err(Reason::Ambiguous);
    }
    let (canonical, conversation) = spell(arrival, table, rules.order, facts.bound_thinking);
    let forwarded = match canonical.replacements.is_empty() {
        true => Arc::clone(received),
        false => {
            let body = Bytes::from(canonical::splice(received.body(), &canonical.replacements).concat());
            let known = Respelt { received, known };
            Arc::new(Remembered::read(body, &known, rules.attribution).map_err(|_| Reason::Internal)?)
        }
    };
    let before = arrival.before.as_ref().map(|before| &*before.trace);
    let situation = Situation {
        profile: rules.profile,
        minimum_tokens: facts.minimum_tokens,
        tokens_per_byte: facts.tokens_per_byte,
        last_written: before.and_then(|before| before.entries_within(&forwarded).last().map(|e| e.piece)),
        seen_before: facts.seen_before,
        continues: facts.continues,
        has_siblings: facts.has_siblings,
        unread_from: arrival.conversation().and_then(|conversation| conversation.unread_from()),
    };
    let plan = breakpoints::plan(forwarded.body(), forwarded.anatomy(), &situation);
    let question = rules.diagnose.then(|| question(arrival, &forwarded)).flatten();
    let body = match question {
        None => breakpoints::apply(forwarded.body(), &plan.edits),
        Some(question) => {
            let mut edits = plan.edits.clone();
            edits.push(question);
            edits.sort_by_key(Edit::at);
            breakpoints::apply(forwarded.body(), &edits)
        }
    };
    let marks = plan.breakpoints.clone();
    let trace = Trace::new(arrival, forwarded, conversation, marks);
    Ok(Aligned { trace: Arc::new(trace), body, plan, interns: canonical.interns, pins: canonical.pins })
}

/// What a request that goes out as it came leaves behind.
pub fn untouched(arrival: &Arrival) -> Trace {
    let received = &arrival.received;
    let conversation = arrival.conversation().map_or_else(|| arrival.start(None), Arc::clone);
    let marks = breakpoints::of_client(received.body(), received.anatomy());
    Trace::new(arrival, Arc::clone(received), conversation, marks)
}

/// Asks the upstream to compare the prompt with that of the request before.
fn question(arrival: &Arrival, forwarded: &Remembered) -> Option<Edit> {
    let previous = arrival.predecessor().and_then(|trace| trace.answer()?.message_id.as_deref());
    let insertion = diagnosis::question(forwarded.body(), forwarded.anatomy(), previous)?;
    Some(Edit::inserting(insertion.at, insertion.bytes))
}

/// The spelling of a request, and the conversation that keeps it.
fn spell(
    arrival: &Arrival,
    table: &Table,
    order: Order,
    bound: bool,
) -> (canonical::Canonical, Arc<Conversation>) {
    let received = &arrival.received;
    let conversation = arrival.conversation();
    let chosen = conversation.and_then(|conversation| conversation.choice());
    let thinking = match (bound, &chosen) {
        (false, _) => Thinking::Free,
        (true, None) if !received.is_answered() => Thinking::Bound(canonical::Conversation::Started),
        (true, chosen) => Thinking::Bound(canonical::Conversation::Continued { choice: chosen.as_deref() }),
    };
    let canonical = canonical::canonicalize(received.body(), received.anatomy(), order, thinking, table);
    let starts = matches!(thinking, Thinking::Bound(canonical::Conversation::Started));
    let choice = starts.then(|| Choice::new(order, Limits::CONVERSATION));
    let conversation = match conversation {
        Some(conversation) if choice.is_none() => Arc::clone(conversation),
        _ => arrival.start(choice),
    };
    (canonical, conversation)
}

/// A respelt request is compared with the received one, and its layers with those that went out before.
struct Respelt<'a> {
    received: &'a Arc<Remembered>,
    known: &'a dyn Known,
}

impl Known for Respelt<'_> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        Some(Arc::clone(self.received))
    }

    fn layers(&self, layer: Layer) -> Vec<Arc<KnownLayer>> {
        self.known.layers(layer)
    }
}
