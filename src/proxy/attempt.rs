//! Requests that are rewritten: planned, sent, and sent once more if what was made of them is refused.
//!
//! ```text
//! read ─ align ─ meet ─ [await the seal ─ fork] ─ hold ─ send ─┬─ answer
//!                                                              └─ 400, 413: once more ─ answer
//! ```
//!
//! The second attempt is the bytes that came. 429 and 5xx are relayed: whether to try again is the client's to say.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request};
use std::time::Instant;

use super::Proxy;
use super::error::Fault;
use super::family::Family;
use super::fork::{BETA, Forked};
use super::forward::{Answer, SentBody};
use super::record::Recorder;
use crate::config::Mode;
use crate::engine::breakpoints::apply;
use crate::engine::refused::{DROP_BLOCK_BETA, Refused, drop_block};
use crate::engine::types::{Moment, Plan, Reason, Why};

impl Proxy {
    /// Forwards what is made of a body, and what came if that is refused.
    pub(super) async fn rewritten(
        &self,
        request: Request<SentBody>,
        body: Bytes,
        mode: Mode,
        deadline: Moment,
        recorder: &mut Recorder,
    ) -> Result<Answer, Fault> {
        self.read(&body, recorder);
        let mut pieces = self.align(&body, recorder);
        if let Some(memo) = recorder.memo.as_mut().filter(|memo| memo.trace.is_none()) {
            memo.untouched();
        }
        self.meet(recorder);
        let forked = self.forked(mode, deadline, recorder).await;
        if forked.is_none() && self.is_sibling(recorder) {
            pieces = self.align_sibling(&body, recorder);
        }
        self.hold(recorder, deadline).await;
        if let Some(memo) = recorder.memo.as_ref().filter(|_| forked.is_some() || pieces.is_some()) {
            let tenant = memo.tenant();
            recorder.facts.own_read = tenant.map_or(0, |tenant| memo.own_read(&tenant, self.clock.now()));
        }
        recorder.facts.sent_at = Some(Instant::now());
        recorder.sent(self.clock.now());
        let pieces = forked.as_ref().map(|forked| forked.pieces.clone()).or(pieces);
        if let (Some(tape), Some(pieces)) = (&mut recorder.tape, &pieces) {
            tape.forwards(pieces);
        }
        let (mut parts, received) = request.into_parts();
        let original = parts.clone();
        if let Some(forked) = &forked {
            forked.rewrite(&mut parts.headers, &recorder.facts.betas);
        }
        let first = pieces.clone().map_or(received, SentBody::spliced);
        let mut answer = self.upstream.send(Request::from_parts(parts, first)).await?;
        let Some(refused) = self.refused(&mut answer, recorder).await else { return Ok(answer) };
        let second = match refused {
            Refused::LostPrefix if is_unbound(recorder) => {
                self.without_lost_blocks(original, &body, recorder)
            }
            _ if pieces.is_some() && self.may_fall_back(recorder) => {
                Some(Request::from_parts(original, SentBody::whole(body.clone())))
            }
            _ => None,
        };
        let Some(second) = second else { return Ok(answer) };
        drop(answer);
        let was_forked = recorder.facts.plan == Plan::Forked;
        self.starts_over(refused, recorder);
        let answer = self.upstream.send(second).await?;
        if answer.response.status().is_success() && refused != Refused::LostPrefix {
            self.stand_down(was_forked, recorder);
        }
        Ok(answer)
    }

    /// A child that is put on its parent's prefix.
    async fn forked(&self, mode: Mode, deadline: Moment, recorder: &mut Recorder) -> Option<Forked> {
        recorder.facts.ends_without_tail = recorder.facts.is_child_without_tail();
        if mode < Mode::Fork {
            self.foresee(recorder);
            return None;
        }
        self.await_seal(recorder, deadline).await;
        self.fork(recorder)
    }

    /// Whether a request is to be planned again, now that it is known to have siblings: nothing was to be marked
    /// for one that comes alone, nor where a client's own fork leaves its parent.
    fn is_sibling(&self, recorder: &mut Recorder) -> bool {
        let Recorder { facts, memo, family, .. } = recorder;
        let Some(memo) = memo.as_mut().filter(|_| matches!(facts.plan, Plan::Aligned(_))) else {
            return false;
        };
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
    async fn refused(&self, answer: &mut Answer, recorder: &Recorder) -> Option<Refused> {
        let status = answer.response.status().as_u16();
        if !matches!(status, 400 | 413) || !matches!(recorder.facts.plan, Plan::Aligned(_) | Plan::Forked) {
            return None;
        }
        let headers = answer.response.headers().clone();
        let said = answer.response.body_mut().peek(&headers, self.config.upstream.idle).await;
        Refused::of(status, &said)
    }

    fn may_fall_back(&self, recorder: &Recorder) -> bool {
        let conversation = recorder.memo.as_ref().and_then(|memo| memo.conversation());
        recorder.facts.plan == Plan::Forked || conversation.is_some_and(|one| one.may_fall_back())
    }

    /// The request as it came, which asks for thinking of another prefix to be dropped.
    fn without_lost_blocks(
        &self,
        mut parts: Parts,
        body: &Bytes,
        recorder: &Recorder,
    ) -> Option<Request<SentBody>> {
        let received = &recorder.memo.as_ref()?.arrival.received;
        let edit = drop_block(received.body(), received.anatomy())?;
        let betas = crate::engine::fork::betas(&recorder.facts.betas, [DROP_BLOCK_BETA]);
        parts.headers.insert(BETA, HeaderValue::try_from(betas).ok()?);
        Some(Request::from_parts(parts, SentBody::spliced(apply(body, &[edit]).pieces)))
    }

    /// What was made of the request is forgotten.
    fn starts_over(&self, refused: Refused, recorder: &mut Recorder) {
        self.metrics.fallbacks_total.with_label_values(&[refused.as_str()]).inc();
        let Recorder { facts, memo, family, .. } = recorder;
        facts.sent = facts.received;
        facts.plan = Plan::Passthrough(match refused {
            Refused::LostPrefix => Reason::LostPrefix,
            _ => Reason::Refused,
        });
        facts.notes.clear();
        facts.shared_bytes = 0;
        facts.markers_added = 0;
        let Some(memo) = memo else { return };
        if let (Some(family), Some(tenant)) = (family, memo.tenant()) {
            family.release(&tenant);
        }
        memo.untouched();
        memo.sent(self.clock.now());
    }

    /// What came was accepted where what was made of it was not.
    fn stand_down(&self, was_forked: bool, recorder: &Recorder) {
        let Some(memo) = &recorder.memo else { return };
        if !was_forked {
            if let Some(conversation) = memo.conversation() {
                conversation.stand_down();
            }
            return;
        }
        // A bound child keeps its prefix: only those that come after it are left alone.
        let newcomer = recorder.family.as_ref().filter(|family| family.newcomer().is_some());
        if let (Some(fork), Some(tenant)) = (newcomer.and_then(Family::fork_id), memo.tenant()) {
            tenant.fanouts().stand_down(fork);
            self.metrics.standdowns_total.with_label_values(&["refused"]).inc();
        }
    }
}

/// Whether nothing was decided for this request earlier.
fn is_unbound(recorder: &Recorder) -> bool {
    recorder.facts.plan != Plan::Forked
        && recorder.family.as_ref().is_none_or(|family| family.bound().is_none())
}
