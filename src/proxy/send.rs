//! Sends a request that was planned, and once more if what was made of it is refused.
//!
//! The second attempt is the bytes that came, or those with thinking left out that was bound to a prefix which is not
//! there any more. 429 and 5xx are relayed: whether to try again is the client's to say.

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderValue, Request};

use super::Proxy;
use super::error::Fault;
use super::exchange::Exchange;
use super::flight::{InFlight, note_stand_down};
use super::forward::{Answer, SentBody};
use super::handle::{Answered, MessagesCall};
use super::held::goes_on;
use super::plan::Planned;
use crate::engine::answer::refused::{DROP_BLOCK_BETA, drop_block};
use crate::engine::outgoing::{Outgoing, again};
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::edit::apply;
use crate::engine::request::identify::each_beta;
use crate::engine::tenant::{Attempt, Fallback, Flight, TenantAccess};
use crate::engine::words::{BodyDigest, Reason, UpstreamRefusal};

/// The header that names betas.
pub(super) const BETA: &str = "anthropic-beta";

/// The request to send after a refusal.
enum Second {
    /// The bytes that came.
    Original,
    /// The bytes that came, asking also for thinking of another prefix to be dropped.
    WithoutLostBlocks { pieces: Vec<Bytes>, betas: HeaderValue },
}

impl Proxy {
    /// Forwards what was made of a request, and what came if that is refused.
    pub(super) async fn send(
        &self,
        call: MessagesCall,
        planned: Planned,
        exchange: &mut Exchange,
    ) -> Result<Answered, Fault> {
        exchange.facts.sent_at = Some(Instant::now());
        exchange.show();
        let Planned { mut flight, mut outgoing } = planned;
        if let Some(held) = flight.flight().filter(|flight| flight.drops_lost) {
            outgoing = dropping(outgoing, call.body.read(), &exchange.caller.betas);
            exchange.facts.goes_out_as(held, &outgoing);
        }
        let mut answer = self.upstream.send(rewritten(&call, &outgoing, exchange)).await?;
        if goes_on(&flight) {
            return self.continued(answer, flight).await;
        }
        if !flight.flight().is_some_and(Flight::may_fall_back) {
            return Ok(Answered { answer, flight: Some(flight) });
        }
        let Some(refused) = self.refusal(&mut answer).await else {
            return Ok(Answered { answer, flight: Some(flight) });
        };
        let is_lost = refused == UpstreamRefusal::LostPrefix;
        let lost = if is_lost { without_lost_blocks(call.body.read(), &exchange.caller.betas) } else { None };
        let lost = lost.and_then(|(pieces, betas)| Some((pieces, HeaderValue::try_from(betas).ok()?)));
        let attempt = Attempt {
            is_rewritten: outgoing.pieces.is_some(),
            can_drop_lost: lost.is_some(),
            mode: exchange.caller.modes.in_force,
        };
        let fallback = flight.look(|state, flight| state.refused(flight, refused, &attempt));
        let second = match (fallback, lost) {
            (Some(Fallback::Original), _) => Second::Original,
            (Some(Fallback::WithoutLostBlocks), Some((pieces, betas))) => {
                Second::WithoutLostBlocks { pieces, betas }
            }
            _ => return Ok(Answered { answer, flight: Some(flight) }),
        };
        self.once_more(answer, refused, call, second, flight, exchange).await
    }

    /// Returns the kind of refusal, if the answer is one.
    pub(super) async fn refusal(&self, answer: &mut Answer) -> Option<UpstreamRefusal> {
        let status = answer.response.status().as_u16();
        // Only a 400 has more to say than its status.
        let said = if status == 400 { beginning(answer).await } else { Bytes::new() };
        UpstreamRefusal::of(status, &said)
    }

    /// Sends a refused request once more.
    async fn once_more(
        &self,
        first: Answer,
        refused: UpstreamRefusal,
        call: MessagesCall,
        second: Second,
        flight: InFlight,
        exchange: &mut Exchange,
    ) -> Result<Answered, Fault> {
        let was_forked = flight.flight().is_some_and(Flight::is_forked);
        let mut again = self.start_over(refused, &second, &flight, exchange);
        let is_original = matches!(second, Second::Original);
        let MessagesCall { mut parts, body, .. } = call;
        let body = match second {
            Second::Original => SentBody::whole(body.came().clone()),
            Second::WithoutLostBlocks { pieces, betas } => {
                parts.headers.insert(BETA, betas);
                body.changed(pieces, &mut parts.headers)
            }
        };
        let mut answer = self.upstream.send(Request::from_parts(parts, body)).await?;
        if is_original
            && answer.response.status().is_success()
            && let (Some(first), Some(again)) = (flight.flight(), &mut again)
            && again.look(|state, again| state.took_original(first, again, refused)) == Some(true)
        {
            note_stand_down(&self.metrics, flight.tenant(), first.relation.tool(), "refused");
        }
        // Nothing was written of what others wait for. They hear of it now, when they can know what to do instead.
        drop(flight);
        // Behind another prefix the model does not know its own thinking. That is no fault of the child's, and
        // nothing that its client could mend; what was said first may be.
        if was_forked
            && refused != UpstreamRefusal::LostPrefix
            && self.refusal(&mut answer).await == Some(UpstreamRefusal::LostPrefix)
        {
            return Ok(Answered { answer: first, flight: again });
        }
        Ok(Answered { answer, flight: again })
    }

    /// Takes the changes to a request back, and records why it goes out again.
    fn start_over(
        &self,
        refused: UpstreamRefusal,
        second: &Second,
        first: &InFlight,
        exchange: &mut Exchange,
    ) -> Option<InFlight> {
        let (label, reason) = match (second, refused) {
            (Second::WithoutLostBlocks { .. }, _) => (UpstreamRefusal::LostPrefix, Reason::LostPrefix),
            (Second::Original, UpstreamRefusal::LostPrefix) => (UpstreamRefusal::Other, Reason::Refused),
            (Second::Original, refused) => (refused, Reason::Refused),
        };
        self.metrics.fallbacks_total.with_label_values(&[label.as_str()]).inc();
        let home = first.home().clone();
        let (ticket, now) = (self.store.ticket(), self.clock.now());
        let (request, plan) = again(first.flight()?, reason);
        let mut flight = home.tenant.look(|state| state.begin(request, plan, ticket, now));
        flight.drops_lost = matches!(second, Second::WithoutLostBlocks { .. });
        exchange.facts.plan = flight.plan;
        exchange.facts.goes_out_as(&flight, &Outgoing::default());
        if let Some(draft) = &mut exchange.sinks.draft {
            draft.refused();
        }
        if let Second::WithoutLostBlocks { pieces, .. } = second {
            exchange.facts.changed = Some(BodyDigest::of_pieces(pieces));
            if let Some(draft) = &mut exchange.sinks.draft {
                draft.forwards(pieces);
            }
        }
        Some(InFlight::new(home, flight))
    }
}

/// The beginning of an answer's body, which is relayed all the same.
pub(super) async fn beginning(answer: &mut Answer) -> Bytes {
    let headers = answer.response.headers().clone();
    answer.response.body_mut().peek(&headers).await
}

/// The request as it is sent: the pieces that were made of it, and a forked child's betas.
fn rewritten(call: &MessagesCall, outgoing: &Outgoing, exchange: &mut Exchange) -> Request<SentBody> {
    let mut parts = call.parts.clone();
    let body = match &outgoing.pieces {
        Some(pieces) => call.body.changed(pieces.clone(), &mut parts.headers),
        None => SentBody::whole(call.body.came().clone()),
    };
    if let (Some(draft), Some(pieces)) = (&mut exchange.sinks.draft, &outgoing.pieces) {
        draft.forwards(pieces);
    }
    // The betas of a forked child are its parent's and its own. Nothing is touched if those are the child's.
    if let Some(betas) = &outgoing.betas
        && *betas != exchange.caller.betas
    {
        if let Ok(value) = HeaderValue::try_from(betas) {
            parts.headers.insert(BETA, value);
        }
        if let Some(draft) = &mut exchange.sinks.draft {
            draft.forwards_betas(betas);
        }
    }
    Request::from_parts(parts, body)
}

/// The body with thinking of another prefix dropped from it, and the betas under which that is understood; none if it
/// has no place for that.
fn without_lost_blocks(body: &Bytes, betas: &str) -> Option<(Vec<Bytes>, String)> {
    let edit = drop_block(body, &Anatomy::read(body).ok()?)?;
    let is_asked = each_beta(betas).any(|beta| beta == DROP_BLOCK_BETA);
    let all = each_beta(betas).chain((!is_asked).then_some(DROP_BLOCK_BETA));
    let betas = all.collect::<Vec<_>>().join(",");
    Some((apply(body, &[edit]).pieces, betas))
}

/// What goes out where the server holds a conversation that had thinking dropped when it began: it compares the fields
/// that say so.
fn dropping(outgoing: Outgoing, body: &Bytes, betas: &str) -> Outgoing {
    let body = outgoing.pieces.as_ref().map_or_else(|| body.clone(), |pieces| pieces.concat().into());
    let made = without_lost_blocks(&body, outgoing.betas.as_deref().unwrap_or(betas));
    let Some((pieces, betas)) = made else { return outgoing };
    Outgoing { pieces: Some(pieces), betas: Some(betas), ..outgoing }
}
