//! Requests that are rewritten: planned, sent, and sent once more if what was made of them is refused.
//!
//! ```text
//! read ─┬─ align ─ meet ─ [await the seal ─ fork] ─ hold ─┬─ send ─┬─ answer
//!       └────────── the fork point was stood down ────────┘        └─ 400, 413: once more ─ answer
//! ```
//!
//! The second attempt is the bytes that came, or those with thinking left out that stood on a prefix which is not
//! there any more. 429 and 5xx are relayed: whether to try again is the client's to say.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::error::Fault;
use super::family::{self, Family};
use super::fork::{BETA, Forked, tool_of};
use super::forward::{Answer, SentBody};
use super::record::{Recorder, warn_of_stand_down};
use super::{Modes, Proxy};
use crate::config::Mode;
use crate::engine::answer::refused::{DROP_BLOCK_BETA, drop_block};
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::edit::apply;
use crate::engine::words::{BodyDigest, Moment, Plan, Reason, UpstreamRefusal, Why};
use crate::store::ReadMode;

/// How often a request is planned: what is known may change while it is held back.
const ROUNDS_MAX: usize = 4;

impl Proxy {
    /// Forwards what is made of a body, and what came if that is refused.
    pub(super) async fn rewritten(
        &self,
        request: Request<SentBody>,
        body: Bytes,
        modes: Modes,
        deadline: Moment,
        recorder: &mut Recorder,
    ) -> Result<Answer, Fault> {
        self.read(&body, ReadMode::Spelt(self.rules.order), recorder);
        let (forked, pieces) = self.planned(&body, modes, deadline, recorder).await;
        let now = self.clock.now();
        recorder.facts.sent_at = Some(Instant::now());
        recorder.sent(now);
        let pieces = forked.as_ref().map(|forked| forked.pieces.clone()).or(pieces);
        if let (Some(tape), Some(pieces)) = (&mut recorder.tape, &pieces) {
            tape.forwards(pieces);
        }
        let (mut parts, received) = request.into_parts();
        let original = parts.clone();
        if let Some(forked) = &forked {
            forked.rewrite(&mut parts.headers, &recorder.facts.betas);
            if forked.betas != recorder.facts.betas
                && let Some(tape) = &mut recorder.tape
            {
                tape.forwards_betas(&forked.betas);
            }
        }
        let first = pieces.clone().map_or(received, SentBody::spliced);
        let mut answer = self.upstream.send(Request::from_parts(parts, first)).await?;
        let Some(refused) = self.refused(&mut answer, recorder).await else { return Ok(answer) };
        let second = self.second(refused, pieces.is_some(), &body, modes, recorder);
        let Some(second) = second else { return Ok(answer) };
        self.once_more(answer, refused, original, body, second, recorder).await
    }

    /// Returns the request to send, once nothing is to be waited for: on a parent's prefix, or else in these pieces.
    async fn planned(
        &self,
        body: &Bytes,
        modes: Modes,
        deadline: Moment,
        recorder: &mut Recorder,
    ) -> (Option<Forked>, Option<Vec<Bytes>>) {
        let mut rounds = 0;
        loop {
            rounds += 1;
            let mut pieces = self.align(body, recorder);
            if let Some(memo) = recorder.memo.as_mut().filter(|memo| memo.trace.is_none()) {
                memo.untouched();
            }
            self.recognise(recorder);
            let forked = self.forked(modes, deadline, recorder).await;
            if forked.is_none() && self.is_sibling(recorder) {
                pieces = self.align_sibling(body, recorder);
            }
            self.hold(recorder, deadline).await;
            if forked.is_none() || rounds >= ROUNDS_MAX || !has_lost_fork_point(recorder) {
                return (forked, pieces);
            }
            // What it waited for was refused, and would be once more.
            recorder.pass = None;
            undo(recorder);
        }
    }

    /// Returns true if a request that the configuration only observes now is of a child that was put on a prefix
    /// before: that child keeps it, unless its client asks for less itself.
    pub(super) fn keeps_prefix(&self, body: &Bytes, modes: Modes, recorder: &mut Recorder) -> bool {
        let now = self.clock.now();
        if modes.asked.is_some_and(|asked| asked < Mode::Fork) || now.0 >= self.prefixes_until.load(Relaxed) {
            return false;
        }
        self.read(body, ReadMode::AsItCame, recorder);
        let memo = recorder.memo.take();
        let Some((memo, sender)) = memo.as_ref().zip(recorder.facts.sender.as_ref()) else { return false };
        let Some(tenant) = memo.tenant() else { return false };
        let received = &memo.arrival.received;
        let who = recorder.facts.claims.who(received, sender);
        family::find(&tenant, received, &who, now).is_some_and(|(_, bound)| bound.is_forked())
    }

    /// A child that is put on its parent's prefix.
    async fn forked(&self, modes: Modes, deadline: Moment, recorder: &mut Recorder) -> Option<Forked> {
        recorder.facts.ends_without_tail = recorder.facts.is_child_without_tail();
        // Whoever stands on a prefix keeps it when the configuration says otherwise later: without it the model
        // would refuse what it thought itself.
        let keeps = modes.asked.is_none_or(|asked| asked == Mode::Fork) && stands_on_prefix(recorder);
        if modes.in_force < Mode::Fork && !keeps {
            self.forecast_fork(recorder);
            return None;
        }
        self.await_seal(recorder, deadline).await;
        self.fork(recorder)
    }

    /// Returns true if a request is to be planned again, now that it is known to have siblings: nothing was to be
    /// marked for one that comes alone, nor where a client's own fork leaves its parent.
    fn is_sibling(&self, recorder: &mut Recorder) -> bool {
        let Recorder { facts, memo, family, .. } = recorder;
        let (Plan::Aligned(_), Some(memo)) = (facts.plan, memo) else { return false };
        let family = family.as_ref().and_then(|family| family.newcomer().zip(family.own()));
        memo.shared = family.and_then(|(child, own)| child.err()?.last_shared(own));
        memo.has_siblings = facts.ends_without_tail;
        memo.has_siblings || memo.shared.is_some()
    }

    fn align_sibling(&self, body: &Bytes, recorder: &mut Recorder) -> Option<Vec<Bytes>> {
        let plan = recorder.facts.plan;
        let pieces = self.align(body, recorder);
        if let (Plan::Aligned(Why::Refused(_) | Why::ClientFork), Plan::Aligned(_)) =
            (plan, recorder.facts.plan)
        {
            recorder.facts.plan = plan;
        }
        pieces
    }

    /// Why a rewritten request was refused, if it was.
    async fn refused(&self, answer: &mut Answer, recorder: &Recorder) -> Option<UpstreamRefusal> {
        match recorder.facts.plan {
            Plan::Aligned(_) | Plan::Forked => self.says(answer).await,
            Plan::Passthrough(_) => None,
        }
    }

    /// Returns the kind of refusal, if the answer is one.
    async fn says(&self, answer: &mut Answer) -> Option<UpstreamRefusal> {
        let status = answer.response.status().as_u16();
        if !matches!(status, 400 | 413) {
            return None;
        }
        let headers = answer.response.headers().clone();
        let said = answer.response.body_mut().peek(&headers, self.config.upstream.idle).await;
        UpstreamRefusal::of(status, &said)
    }

    /// Returns the request to send after a refusal, if any.
    fn second(
        &self,
        refused: UpstreamRefusal,
        rewritten: bool,
        body: &Bytes,
        modes: Modes,
        recorder: &Recorder,
    ) -> Option<Second> {
        let rescued = match refused {
            UpstreamRefusal::LostPrefix if may_have_lost_prefix(modes, recorder) => {
                without_lost_blocks(body, recorder)
            }
            _ => None,
        };
        rescued.or_else(|| (rewritten && self.may_fall_back(recorder)).then_some(Second::Original))
    }

    fn may_fall_back(&self, recorder: &Recorder) -> bool {
        let conversation = recorder.memo.as_ref().and_then(|memo| memo.conversation());
        recorder.facts.plan == Plan::Forked || conversation.is_some_and(|one| one.may_fall_back())
    }

    /// Sends a refused request once more.
    async fn once_more(
        &self,
        first: Answer,
        refused: UpstreamRefusal,
        mut parts: Parts,
        body: Bytes,
        second: Second,
        recorder: &mut Recorder,
    ) -> Result<Answer, Fault> {
        let was_forked = recorder.facts.plan == Plan::Forked;
        self.starts_over(refused, &second, recorder);
        let is_original = matches!(second, Second::Original);
        let body = match second {
            Second::Original => SentBody::whole(body),
            Second::WithoutLostBlocks { pieces, betas } => {
                parts.headers.insert(BETA, betas);
                SentBody::spliced(pieces)
            }
        };
        let mut answer = self.upstream.send(Request::from_parts(parts, body)).await?;
        if is_original && answer.response.status().is_success() {
            self.stand_down(was_forked, refused, recorder);
        }
        // Nothing was written of what others wait for. They hear of it now, when they can know what to do instead.
        recorder.pass = None;
        // Behind another prefix the model does not know its own thinking. That is no fault of the child's, and
        // nothing that its client could mend; what was said first may be.
        if was_forked
            && refused != UpstreamRefusal::LostPrefix
            && self.says(&mut answer).await == Some(UpstreamRefusal::LostPrefix)
        {
            return Ok(first);
        }
        Ok(answer)
    }

    /// Forgets the changes to the request, and records why it goes out again.
    fn starts_over(&self, refused: UpstreamRefusal, second: &Second, recorder: &mut Recorder) {
        let (label, reason) = match (second, refused) {
            (Second::WithoutLostBlocks { .. }, _) => (UpstreamRefusal::LostPrefix, Reason::LostPrefix),
            (Second::Original, UpstreamRefusal::LostPrefix) => (UpstreamRefusal::Other, Reason::Refused),
            (Second::Original, refused) => (refused, Reason::Refused),
        };
        self.metrics.fallbacks_total.with_label_values(&[label.as_str()]).inc();
        undo(recorder);
        let Recorder { facts, memo, tape, .. } = recorder;
        facts.plan = Plan::Passthrough(reason);
        if let Second::WithoutLostBlocks { pieces, .. } = second {
            facts.sent = Some(BodyDigest::of_pieces(pieces));
        }
        if let Some(tape) = tape {
            tape.refused();
            if let Second::WithoutLostBlocks { pieces, .. } = second {
                tape.forwards(pieces);
            }
        }
        let Some(memo) = memo else { return };
        memo.untouched();
        memo.sent(self.clock.now());
    }

    /// Stands down where the request was accepted as it came, but not as it was changed.
    fn stand_down(&self, was_forked: bool, refused: UpstreamRefusal, recorder: &Recorder) {
        let Some(memo) = &recorder.memo else { return };
        if !was_forked {
            if let Some(conversation) = memo.conversation() {
                conversation.stand_down();
            }
            return;
        }
        // A bound child keeps its prefix: only those that come after it are left alone. That one has outgrown what
        // the upstream takes says nothing about them.
        let has_outgrown = |family: &&Family| {
            family.newcomer().is_none()
                && matches!(refused, UpstreamRefusal::Window | UpstreamRefusal::TooLarge)
        };
        let Some(family) = recorder.family.as_ref().filter(|family| !has_outgrown(family)) else { return };
        if let (Some(fork), Some(tenant)) = (family.fork_id(), memo.tenant())
            && tenant.shared_facts().stand_down(fork)
        {
            self.metrics.standdowns_total.with_label_values(&["refused"]).inc();
            let newcomer = family.newcomer().map(|child| tool_of(child.unwrap_or_else(|child| child)));
            let bound = family.bound().map(|bound| &*bound.tool);
            warn_of_stand_down(memo, newcomer.or(bound).unwrap_or_default(), "refused");
        }
    }
}

/// The request to send after a refusal.
enum Second {
    /// The bytes that came.
    Original,
    /// The bytes that came, asking also for thinking of another prefix to be dropped.
    WithoutLostBlocks { pieces: Vec<Bytes>, betas: HeaderValue },
}

fn without_lost_blocks(body: &Bytes, recorder: &Recorder) -> Option<Second> {
    let edit = drop_block(body, &Anatomy::read(body).ok()?)?;
    let betas = crate::engine::fork::betas(&recorder.facts.betas, [DROP_BLOCK_BETA]);
    let betas = HeaderValue::try_from(betas).ok()?;
    Some(Second::WithoutLostBlocks { pieces: apply(body, &[edit]).pieces, betas })
}

/// Forgets the changes to the request.
fn undo(recorder: &mut Recorder) {
    let Recorder { facts, memo, family, .. } = recorder;
    facts.sent = facts.received;
    facts.notes.clear();
    facts.shared_bytes = 0;
    facts.markers_added = 0;
    if let (Some(family), Some(tenant)) = (family, memo.as_ref().and_then(|memo| memo.tenant())) {
        family.release(&tenant);
    }
}

/// Returns true if the fork point of a child that has come now was stood down while it waited.
fn has_lost_fork_point(recorder: &Recorder) -> bool {
    let family = recorder.family.as_ref().filter(|family| family.newcomer().is_some());
    let tenant = recorder.memo.as_ref().and_then(|memo| memo.tenant());
    let fork = family.and_then(Family::fork_id);
    fork.zip(tenant).is_some_and(|(fork, tenant)| tenant.shared_facts().is_stood_down(fork))
}

/// Returns true if this is a later turn of a child that was put on its parent's prefix.
fn stands_on_prefix(recorder: &Recorder) -> bool {
    let bound = recorder.family.as_ref().and_then(Family::bound);
    bound.is_some_and(|bound| bound.is_forked())
}

/// Returns true if thinking in this request may be bound to a prefix that it had from us and goes out without. A
/// client that breaks the prefix of its own conversation is told so, as it would be without us.
fn may_have_lost_prefix(modes: Modes, recorder: &Recorder) -> bool {
    let bound = recorder.family.as_ref().and_then(Family::bound).filter(|bound| bound.is_forked());
    if let Some(bound) = bound {
        return recorder.facts.plan != Plan::Forked || bound.has_strayed;
    }
    let conversation = recorder.memo.as_ref().and_then(|memo| memo.conversation());
    conversation.is_some_and(|one| one.was_forked() || (modes.in_force == Mode::Fork && !one.is_its_own()))
}
