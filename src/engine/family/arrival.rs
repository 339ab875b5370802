//! A request that was read, and what it follows.

use std::sync::Arc;

use bytes::Bytes;

use super::conversation::{Conversation, Outcome, Trace};
use super::fanout::ChildName;
use super::outlines::Faded;
use super::recent::RecentId;
use super::thread::Delta;
use crate::engine::cache::entry::Parameters;
use crate::engine::request::recall::{Like, Remembered, SharedParts};
use crate::engine::respell::canonical::Choice;
use crate::engine::words::{BodyDigest, Moment, Recall, Ttl};

/// A request that was read, and what it follows.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// In the spelling of its conversation, if it came in another and that was seen before it was read.
    pub received: Arc<Remembered>,
    /// The body as it came then.
    pub came: Option<OriginalBody>,
    /// The part of it that came, if the server holds the rest.
    pub delta: Option<Delta>,
    /// True if its client was asked for the whole of a conversation that was not known here.
    pub is_asked_for: bool,
    pub parameters: Parameters,
    pub before: Option<Predecessor>,
    /// The conversation that it is a turn of, if no request of that is known any more but what it depends on.
    pub chosen: Option<Conversation>,
    /// The request that this one continues, if only the outline of that is known.
    pub faded: Option<Faded>,
    /// The degree to which the conversation was remembered.
    pub recall: Recall,
}

/// A request that came in another spelling than it was read in.
#[derive(Clone, Debug)]
pub struct OriginalBody {
    pub body: Bytes,
    /// The first piece that was spelt otherwise.
    pub from: usize,
}

/// The request that this one was found to be like.
#[derive(Clone, Debug)]
pub struct Predecessor {
    pub id: RecentId,
    pub trace: Arc<Trace>,
    pub outcome: Outcome,
    pub conversation: Conversation,
    /// The parts that are byte for byte as they came there.
    pub same: SharedParts,
    /// That is how it went out there, too.
    pub as_sent: bool,
    /// True if this one goes on where it ended.
    pub continued: bool,
}

impl Predecessor {
    /// Takes as the predecessor of a request in whose spelling that one was read.
    pub fn sent(self, received: &Remembered, like: Option<Like>) -> Predecessor {
        let is_last = |like: &Like| self.trace.whole().is_some_and(|last| Arc::ptr_eq(last, &like.request));
        let same = like.filter(is_last).map(|like| like.same).unwrap_or_default();
        let continued = self.trace.is_continued_by(received, false);
        Predecessor { same, as_sent: true, continued, ..self }
    }

    /// Returns true if it was the first of its conversation, and an entry that it wrote could be read at `now`. One on
    /// its parent's prefix says nothing about conversations with those tools.
    pub fn is_read_by(&self, now: Moment) -> bool {
        let is_first = !self.trace.received.is_answered() && !self.conversation.was_forked();
        is_first && self.is_followed_in_time(now)
    }

    /// Returns true if what it wrote for five minutes is still there.
    pub fn is_followed_in_time(&self, now: Moment) -> bool {
        now.since(self.outcome.sent) < Ttl::FiveMinutes.ms()
    }

    /// Returns true if it went out in the spelling that it came in. `imagined`: or would have, had it been aligned.
    fn is_as_it_came(&self, imagined: bool) -> bool {
        if imagined { self.outcome.would_be_as_it_came } else { self.trace.is_as_it_came() }
    }
}

impl Arrival {
    /// A request that nothing is known of.
    pub fn alone(received: Remembered, parameters: Parameters) -> Arrival {
        Arrival {
            received: Arc::new(received),
            came: None,
            delta: None,
            is_asked_for: false,
            parameters,
            before: None,
            chosen: None,
            faded: None,
            recall: Recall::New,
        }
    }

    /// The request that this one continues.
    pub fn predecessor(&self) -> Option<&Predecessor> {
        self.before.as_ref().filter(|before| before.continued)
    }

    /// The bytes that came.
    pub fn body(&self) -> &Bytes {
        match (&self.delta, &self.came) {
            (Some(delta), _) => &delta.body,
            (None, Some(came)) => &came.body,
            (None, None) => self.received.body(),
        }
    }

    /// Returns true if the server holds the conversation.
    pub fn is_threaded(&self) -> bool {
        self.received.anatomy().is_threaded(self.received.body())
    }

    /// The child whose turn it goes on from, if the server holds that.
    pub fn held_child(&self) -> Option<ChildName> {
        self.delta.as_ref()?;
        self.predecessor()?.outcome.child
    }

    /// Returns true if its client was asked for the whole conversation, which goes out as it comes since then.
    pub fn is_asked_whole(&self) -> bool {
        self.is_asked_for || self.predecessor().is_some_and(|last| last.conversation.is_asked_whole())
    }

    /// Returns true if it goes on from a request that asked for thinking of another prefix to be dropped. The server
    /// compares its fields with those, which its client has not sent.
    pub fn drops_lost(&self) -> bool {
        self.delta.is_some() && self.predecessor().is_some_and(|last| last.outcome.drops_lost)
    }

    /// Names the bytes that came: [`Remembered::digest`].
    pub fn name(&self) -> BodyDigest {
        if let Some(delta) = &self.delta {
            return BodyDigest::of(&delta.body);
        }
        let name = self.received.digest();
        let came = |came: &OriginalBody| BodyDigest::of_pieces([&name.0[..], &came.body.len().to_le_bytes()]);
        self.came.as_ref().map_or(name, came)
    }

    /// Takes the request as it came: it is to go out so.
    pub fn take_as_it_came(&mut self) {
        let Some(came) = self.came.take() else { return };
        if let Ok(received) = self.received.reread(came.body) {
            self.received = Arc::new(received);
            self.before.iter_mut().for_each(|before| before.same = SharedParts::default());
        }
    }

    /// Returns the parts that have their spelling already: those of the request that it continues, where that went out
    /// as it came.
    /// `imagined`: or would have, had it been aligned.
    pub fn settled(&self, imagined: bool) -> SharedParts {
        let has_spelling = |before: &&Predecessor| {
            before.continued && (before.is_as_it_came(imagined) || before.as_sent && !imagined)
        };
        self.before.as_ref().filter(has_spelling).map(|before| before.same).unwrap_or_default()
    }

    /// The conversation that this request is a turn of, if it was seen before.
    pub fn conversation(&self) -> Option<&Conversation> {
        // One that was asked for was not known: others may open alike.
        let is_known = self.predecessor().is_some() || (self.received.is_answered() && !self.is_asked_for);
        let known = if is_known { self.similar_conversation() } else { None };
        known.or(self.chosen.as_ref())
    }

    /// Returns the conversation of this request, or another that opens alike.
    pub fn similar_conversation(&self) -> Option<&Conversation> {
        let before = self.before.as_ref()?;
        let alike = || self.received.starts_like(&before.trace.received);
        (before.continued || alike()).then_some(&before.conversation)
    }

    /// A conversation of its own.
    pub fn start(&self, choice: Option<Choice>) -> Conversation {
        let from_start = !self.received.is_answered();
        match self.similar_conversation() {
            Some(similar) => similar.again(choice, from_start),
            None => Conversation::new(choice, from_start),
        }
    }
}
