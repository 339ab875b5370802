//! The upstream refused a request: what comes of that, and what is known of its conversation from then on.

use super::{Flight, Kind, TenantState};
use crate::engine::answer::refused::{HeldRefusal, ThreadRefusal};
use crate::engine::family::conversation::Conversation;
use crate::engine::words::{Mode, Origin, Plan, Reason, UpstreamRefusal};

/// The consequence of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The client is told of it.
    None,
    /// The bytes that came go out.
    Original,
    /// The bytes that came go out, asking for thinking of another prefix to be dropped.
    WithoutLostBlocks,
    /// The client is asked for the whole conversation.
    AskWhole,
}

/// Facts about a request that was sent, besides what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// True if other bytes went out than came.
    pub is_rewritten: bool,
    /// True if the bytes that came can ask for thinking of another prefix to be dropped.
    pub can_drop_lost: bool,
    /// The mode in force for it.
    pub mode: Mode,
}

impl Flight {
    /// Returns true if a refusal may be due to what was made of it, or of the turns before it.
    pub fn may_fall_back(&self) -> bool {
        matches!(self.plan, Plan::Aligned(_) | Plan::Forked | Plan::Passthrough(Reason::Refused))
    }
}

impl TenantState {
    /// The upstream refused a request. A conversation goes out once more only once.
    pub fn refused(&mut self, flight: &mut Flight, refusal: UpstreamRefusal, attempt: &Attempt) -> Fallback {
        let is_lost = refusal == UpstreamRefusal::LostPrefix;
        // A conversation that goes out as it comes from now on may have thinking of turns that did not.
        if !flight.may_fall_back() || (matches!(flight.plan, Plan::Passthrough(_)) && !is_lost) {
            return Fallback::None;
        }
        if is_lost && attempt.can_drop_lost && may_have_lost_prefix(flight, attempt.mode) {
            return Fallback::WithoutLostBlocks;
        }
        let falls_back = attempt.is_rewritten
            && (flight.is_forked()
                || self.change_conversation(&mut flight.conversation, Conversation::may_fall_back));
        if falls_back { Fallback::Original } else { Fallback::None }
    }

    /// The upstream took a request as it came that it had refused as it was made. Returns true if no further children of
    /// its fan-out are forked because of that.
    pub fn took_original(&mut self, first: &Flight, again: &mut Flight, refusal: UpstreamRefusal) -> bool {
        if !first.is_forked() {
            self.change_conversation(&mut again.conversation, Conversation::stand_down);
            return false;
        }
        // A bound child keeps its prefix: only those that come after it are left alone. That one has outgrown what
        // the upstream takes says nothing about them.
        let has_outgrown = matches!(first.relation.kind, Kind::Bound(..))
            && matches!(refusal, UpstreamRefusal::Window | UpstreamRefusal::TooLarge);
        first.relation.fork_id().is_some_and(|fork| !has_outgrown && self.prefixes.stand_down(fork))
    }

    /// The upstream refused a request that goes on from an answer which it holds. Where it may hold the conversation
    /// otherwise than its client knows it, the client is asked for the whole of it, once.
    pub fn refused_held(&mut self, flight: &mut Flight, refusal: &HeldRefusal) -> Fallback {
        let may_ask = match refusal.thread {
            ThreadRefusal::Mismatch => {
                flight.is_changed() || flight.drops_lost || flight.conversation.was_changed()
            }
            ThreadRefusal::Other => is_our_doing(flight, refusal),
            ThreadRefusal::Taken | ThreadRefusal::Lost => false,
        };
        let asks = may_ask && self.change_conversation(&mut flight.conversation, Conversation::ask_whole);
        if asks || refusal.thread == ThreadRefusal::Lost {
            self.release_thread(flight);
        }
        if asks { Fallback::AskWhole } else { Fallback::None }
    }

    /// The answer that a request goes on from is of no use any more: the server has lost it, or its client was asked for
    /// the whole conversation.
    fn release_thread(&mut self, flight: &Flight) {
        let last = flight.request.arrival.predecessor();
        if let Some(name) = last.and_then(|last| self.recent.release(last)) {
            self.unsaved.held(&name);
        }
    }

    /// Changes a conversation, as the tenant knows it and as a request of it does. Returns what the tenant's says.
    fn change_conversation<R>(
        &mut self,
        own: &mut Conversation,
        change: impl Fn(&mut Conversation) -> R,
    ) -> R {
        let of_own = change(own);
        let kept = own.id.and_then(|id| self.recent.conversation_mut(id));
        kept.map(change).unwrap_or(of_own)
    }
}

/// Returns true if thinking in this request may be bound to a prefix that it had from us and goes out without. A
/// client that breaks the prefix of its own conversation is told so, as it would be without us.
fn may_have_lost_prefix(flight: &Flight, mode: Mode) -> bool {
    if let Some(bound) = flight.relation.bound().filter(|bound| bound.is_forked()) {
        return !flight.is_forked() || bound.has_strayed;
    }
    let conversation = &flight.conversation;
    conversation.was_forked() || (mode == Mode::Fork && !conversation.is_its_own())
}

/// Returns true if a request that goes on from a held answer was refused for what was made of it: a marker that its
/// client did not set, or the prefix that it was put on.
fn is_our_doing(flight: &Flight, refusal: &HeldRefusal) -> bool {
    let is_of_prefix = matches!(refusal.why, Some(UpstreamRefusal::LostPrefix | UpstreamRefusal::Window));
    let is_marked = flight.trace.breakpoints.iter().any(|mark| mark.origin != Origin::Client);
    (flight.is_forked() && is_of_prefix) || (is_marked && refusal.names_marker)
}
