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

use crate::engine::answer::diagnosis;
use crate::engine::cache::breakpoints::{self, Profile, Situation, StaticEnds};
use crate::engine::family::arrival::Arrival;
use crate::engine::family::conversation::{Conversation, Trace};
use crate::engine::request::edit::{self, Edit, Forwarded};
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{Known, KnownLayer, Remembered};
use crate::engine::respell::canonical::{self, Choice, Limits, News, Order, Pins, Table, Thinking};
use crate::engine::respell::system_block::{self, SystemForm};
use crate::engine::words::{Layer, Reason};

/// The settings of the operator and the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub order: Order,
    pub system: SystemForm,
    pub profile: Profile,
    pub attribution: Attribution,
    /// True if the upstream is asked for its own verdict on misses.
    pub diagnose: bool,
}

/// Facts about the model, the tenant and the conversation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    pub bound_thinking: bool,
    /// The model reads a string `system` and one text block as the same prompt.
    pub string_is_block: bool,
    pub minimum_tokens: Option<u64>,
    pub tokens_per_byte: Option<f64>,
    /// True if other requests come with the same tools: the siblings of a child.
    pub has_siblings: bool,
    /// The last piece that they have too, of a fork that its client has made.
    pub shared: Option<usize>,
    /// The request goes out as it came, and so did those before it: what counts is what would have gone out.
    pub imagined: bool,
}

/// Facts that a tenant's traffic tells about a request as it will go out: in the one spelling that is learned by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// True if conversations of this tenant and tool set seldom continue.
    pub seldom_continues: bool,
    /// True if what this turn writes would hardly be read in time: the turns of its conversation mostly come too late, or
    /// it finds nothing of it and those of other conversations that found nothing were hardly followed.
    pub is_read_late: bool,
    /// The ends that other conversations are known to read.
    pub read_by_others: StaticEnds,
    /// The last piece that ends a cache entry of its conversation.
    pub last_written: Option<usize>,
}

/// A request in its one spelling.
#[derive(Debug)]
pub struct Spelt {
    pub forwarded: Arc<Remembered>,
    pub conversation: Conversation,
    /// The news for the tenant's table once the upstream took the request.
    pub interns: News,
    pub pins: Pins,
}

/// A request with its breakpoints.
#[derive(Debug)]
pub struct Marked {
    /// For the next request of the conversation.
    pub trace: Arc<Trace>,
    pub body: Forwarded,
    pub plan: breakpoints::Plan,
}

/// Gives a request its one spelling. `known` helps to read it.
pub fn spell(
    arrival: &Arrival,
    table: &Table,
    known: &dyn Known,
    rules: Rules,
    facts: &Facts,
) -> Result<Spelt, Reason> {
    let received = &arrival.received;
    if received.anatomy().ambiguous {
        return Err(Reason::Ambiguous);
    }
    if arrival.is_threaded() {
        // The server compares the fields of later turns with those of the first.
        let conversation = arrival.conversation().cloned().unwrap_or_else(|| arrival.start(None));
        let forwarded = Arc::clone(received);
        return Ok(Spelt { forwarded, conversation, interns: News::default(), pins: Pins::default() });
    }
    let (mut canonical, mut conversation) = canonicalize(arrival, table, rules.order, facts);
    conversation.system_is_block = system_is_block(arrival, rules, facts);
    if conversation.system_is_block {
        system_block::wrap(received.body(), received.anatomy(), &mut canonical.replacements);
    }
    let mut forwarded = respell(arrival, &canonical, known, rules.attribution)?;
    // Tools in their first order may bring an hour behind five minutes, which the upstream refuses.
    if !canonical.replacements.is_empty() && breakpoints::are_illegal(forwarded.body(), forwarded.anatomy()) {
        canonical = canonical::Canonical::default();
        forwarded = Arc::clone(received);
    }
    Ok(Spelt { forwarded, conversation, interns: canonical.interns, pins: canonical.pins })
}

/// Places the breakpoints of a request where they will be read.
pub fn mark(arrival: &Arrival, spelt: &Spelt, rules: Rules, facts: &Facts, habits: &Habits) -> Marked {
    let forwarded = &spelt.forwarded;
    let situation = Situation {
        profile: rules.profile,
        minimum_tokens: facts.minimum_tokens,
        tokens_per_byte: facts.tokens_per_byte,
        last_written: habits.last_written,
        seldom_continues: habits.seldom_continues && arrival.predecessor().is_none(),
        is_read_late: habits.is_read_late,
        read_by_others: habits.read_by_others,
        shared: facts.shared,
        unread_from: arrival.conversation().and_then(|conversation| conversation.unread_from()),
        held_pieces: arrival.delta.as_ref().map_or(0, |delta| delta.first_piece(forwarded.anatomy())),
    };
    let plan = breakpoints::plan(forwarded.body(), forwarded.anatomy(), &situation);
    let asks = rules.diagnose && !arrival.is_threaded();
    let question = if asks { question(arrival, forwarded) } else { None };
    let body = match (question, &arrival.delta) {
        (None, None) => edit::apply(forwarded.body(), &plan.edits),
        (_, Some(delta)) => edit::apply(&delta.body, &delta.edits(&plan.edits)),
        (Some(question), None) => {
            let mut edits = plan.edits.clone();
            edits.push(question);
            edits.sort_by_key(Edit::at);
            edit::apply(forwarded.body(), &edits)
        }
    };
    let trace = Arc::new(Trace::new(arrival, Arc::clone(forwarded), plan.breakpoints.clone()));
    Marked { trace, body, plan }
}

/// Returns the trace of a request that goes out as it came.
pub fn untouched(arrival: &Arrival) -> Trace {
    let received = match &arrival.came {
        None => Arc::clone(&arrival.received),
        Some(came) => Arc::new(arrival.received.astray(came.from)),
    };
    let marks = breakpoints::of_client(received.body(), received.anatomy());
    Trace::new(arrival, received, marks)
}

/// Asks the upstream to compare the prompt with that of the request before.
fn question(arrival: &Arrival, forwarded: &Remembered) -> Option<Edit> {
    let last = arrival.predecessor().and_then(|last| last.outcome.answer.as_ref());
    let previous = last.and_then(|answer| answer.message_id.as_deref());
    diagnosis::question(forwarded.body(), forwarded.anatomy(), previous)
}

/// The request in its one spelling.
fn respell(
    arrival: &Arrival,
    canonical: &canonical::Canonical,
    known: &dyn Known,
    attribution: Attribution,
) -> Result<Arc<Remembered>, Reason> {
    let received = &arrival.received;
    if canonical.replacements.is_empty() {
        return Ok(Arc::clone(received));
    }
    let body = Bytes::from(canonical::splice(received.body(), &canonical.replacements).concat());
    // What stood on another's prefix has nothing in common with this but its messages, which the received has too.
    let like = arrival.before.as_ref().and_then(|before| before.trace.whole()).unwrap_or(received);
    let known = RespeltFrom { like, known };
    Remembered::read(body, &known, attribution).map(Arc::new).map_err(|_| Reason::Internal)
}

/// The spelling of a request, and the conversation that keeps it.
fn canonicalize(
    arrival: &Arrival,
    table: &Table,
    order: Order,
    facts: &Facts,
) -> (canonical::Canonical, Conversation) {
    let received = &arrival.received;
    let conversation = arrival.conversation();
    let chosen = conversation.and_then(|conversation| conversation.choice());
    let thinking = match (facts.bound_thinking, &chosen) {
        (false, _) => Thinking::Free,
        (true, None) if !received.is_answered() => Thinking::Bound(canonical::Conversation::Started),
        (true, _) => Thinking::Bound(canonical::Conversation::Continued { choice: chosen }),
    };
    let canonical =
        canonical::respell_read(received, arrival.settled(facts.imagined), order, thinking, table);
    let starts = matches!(thinking, Thinking::Bound(canonical::Conversation::Started));
    let choice = starts.then(|| Choice::new(order, Limits::CONVERSATION));
    let conversation = match conversation {
        Some(conversation) if choice.is_none() => conversation.clone(),
        _ => arrival.start(choice),
    };
    (canonical, conversation)
}

/// Decides if a string `system` goes out as a block: as the conversation began. One whose start was not seen keeps its
/// own where its thinking is bound to that.
fn system_is_block(arrival: &Arrival, rules: Rules, facts: &Facts) -> bool {
    match arrival.conversation() {
        Some(conversation) => conversation.system_is_block,
        None if facts.bound_thinking && arrival.received.is_answered() => false,
        None => rules.system.makes_blocks(facts.string_is_block && rules.profile != Profile::Automatic),
    }
}

/// A respelt request is compared with what went out before it, or with what came if nothing did.
struct RespeltFrom<'a> {
    like: &'a Arc<Remembered>,
    known: &'a dyn Known,
}

impl Known for RespeltFrom<'_> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        Some(Arc::clone(self.like))
    }

    fn layers(&self, layer: Layer) -> Vec<Arc<KnownLayer>> {
        self.known.layers(layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cache::entry::Parameters;
    use crate::engine::request::recall::Nothing;
    use crate::engine::words::TenantId;

    /// Returns the body that goes out for this one, and the news for the table.
    fn forward(body: &str, order: Order, table: &Table) -> (String, News) {
        let attribution = Attribution::Stripped;
        let received = Remembered::read(Bytes::from(body.to_owned()), &Nothing, attribution).unwrap();
        let parameters =
            Parameters::read(TenantId::NOBODY, received.body(), received.anatomy(), std::iter::empty());
        let arrival = Arrival::alone(received, parameters);
        let rules = Rules {
            order,
            profile: Profile::Anthropic,
            attribution,
            system: SystemForm::Auto,
            diagnose: false,
        };
        let facts = Facts::default();
        let spelt = spell(&arrival, table, &Nothing, rules, &facts).unwrap();
        let marked = mark(&arrival, &spelt, rules, &facts, &Habits::default());
        (String::from_utf8(marked.body.pieces.concat()).unwrap(), spelt.interns)
    }

    const LONG: &str = r#"{"name":"b","cache_control":{"type":"ephemeral","ttl":"1h"}}"#;
    const SHORT: &str = r#"{"name":"a","cache_control":{"type":"ephemeral"}}"#;

    #[test]
    fn tools_whose_markers_would_be_refused_in_another_order_keep_theirs() {
        let mut table = Table::new(Limits::TENANT);
        table.remember(forward(r#"{"tools":[{"name":"a"},{"name":"b"}]}"#, Order::FirstSeen, &table).1);
        let body = format!(r#"{{"tools":[{LONG},{SHORT}]}}"#);
        for order in [Order::FirstSeen, Order::Sorted] {
            assert_eq!(forward(&body, order, &table).0, body);
        }
        let plain = r#"{"tools":[{"name":"b"},{"name":"a"}]}"#;
        let (forwarded, _) = forward(plain, Order::FirstSeen, &table);
        assert!(forwarded.starts_with(r#"{"tools":[{"name":"a"},{"name":"b""#), "{forwarded}");
    }
}
