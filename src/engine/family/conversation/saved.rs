//! The last request of a conversation that the server holds, as it is kept beyond this process.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::super::arrival::Predecessor;
use super::super::fanout::ChildName;
use super::super::thread::HeldAnswer;
use super::{Answer, Conversation, Forwarded, Outcome, Trace};
use crate::engine::answer::usage::Usage;
use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::cache::entry::{Parameters, SavedParameters};
use crate::engine::cache::worlds::Lead;
use crate::engine::family::recent::AcceptedRequest;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{Nothing, Remembered};
use crate::engine::respell::canonical::Pins;
use crate::engine::words::{Moment, TenantId};

/// Such a request beside its bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedThread {
    message_id: String,
    strips_attribution: bool,
    parameters: SavedParameters,
    breakpoints: Vec<Breakpoint>,
    conversation: Conversation,
    sent: Moment,
    begun: Option<Moment>,
    would_be_as_it_came: bool,
    usage: Option<Usage>,
    is_silent: bool,
    is_summary: bool,
    #[serde(default)]
    drops_lost: bool,
    #[serde(default)]
    child: Option<ChildName>,
}

/// The bytes of such a request.
#[derive(Clone, Debug)]
pub struct ThreadBytes {
    pub received: Bytes,
    /// None if it went out as it came.
    pub forwarded: Option<Bytes>,
    /// Empty if the answer said nothing.
    pub answer: Bytes,
}

impl SavedThread {
    /// None if the server does not hold the answer to this request.
    pub fn of(message_id: &str, last: &Predecessor) -> Option<(SavedThread, ThreadBytes)> {
        let Predecessor { trace, outcome, conversation, .. } = last;
        let HeldAnswer { message, is_summary } = outcome.held.as_ref()?;
        let saved = SavedThread {
            message_id: message_id.to_owned(),
            strips_attribution: trace.received.attribution() == Attribution::Stripped,
            parameters: trace.parameters.save(),
            breakpoints: trace.breakpoints.clone(),
            conversation: conversation.clone(),
            sent: outcome.sent,
            begun: outcome.begun,
            would_be_as_it_came: outcome.would_be_as_it_came,
            usage: outcome.answer.as_ref().and_then(|answer| answer.usage),
            is_silent: message.is_none(),
            is_summary: *is_summary,
            drops_lost: outcome.drops_lost,
            child: outcome.child,
        };
        let forwarded = (!trace.is_as_it_came()).then(|| trace.forwarded().body().clone());
        let (received, answer) = (trace.received.body().clone(), message.clone().unwrap_or_default());
        Some((saved, ThreadBytes { received, forwarded, answer }))
    }

    pub fn message_id(&self) -> &str {
        &self.message_id
    }

    /// Reads it again; none if its bytes are no requests.
    pub fn restore(self, tenant: TenantId, bytes: ThreadBytes) -> Option<(AcceptedRequest, HeldAnswer)> {
        let attribution = if self.strips_attribution { Attribution::Stripped } else { Attribution::Counted };
        let read = |body: Bytes| Remembered::read(body, &Nothing, attribution).ok().map(Arc::new);
        let received = read(bytes.received)?;
        let forwarded = match bytes.forwarded {
            Some(body) => read(body)?,
            None => Arc::clone(&received),
        };
        let pieces = forwarded.anatomy().pieces.len();
        if self.breakpoints.iter().any(|point| point.piece >= pieces) {
            return None;
        }
        let trace = Trace {
            received,
            forwarded: Forwarded::Whole(forwarded),
            breakpoints: self.breakpoints,
            parameters: Parameters::restored(tenant, self.parameters),
        };
        let answer = Answer { message_id: Some(self.message_id), usage: self.usage };
        let outcome = Outcome {
            sent: self.sent,
            resumes: false,
            begun: self.begun,
            lead: Lead::default(),
            would_be_as_it_came: self.would_be_as_it_came,
            answer: Some(answer),
            held: None,
            child: self.child,
            drops_lost: self.drops_lost,
        };
        let message = (!self.is_silent).then_some(bytes.answer);
        if message
            .as_ref()
            .is_some_and(|message| serde_json::from_slice::<serde::de::IgnoredAny>(message).is_err())
        {
            return None;
        }
        let request = AcceptedRequest {
            trace: Arc::new(trace),
            resumes: false,
            outcome,
            conversation: self.conversation,
            pins: Pins::default(),
            hint: None,
            spelling: None,
            layers: Vec::new(),
            faded: None,
        };
        Some((request, HeldAnswer { message, is_summary: self.is_summary }))
    }
}
