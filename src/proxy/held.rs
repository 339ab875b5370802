//! Conversations that the server holds: what reading the rest of one takes, and what a refused one becomes.

use bytes::Bytes;

use super::Proxy;
use super::error::Fault;
use super::exchange::Exchange;
use super::flight::InFlight;
use super::forward::Answer;
use super::handle::{Answered, MessagesCall};
use super::send::beginning;
use crate::engine::answer::refused::{HeldRefusal, ThreadRefusal, is_refusal};
use crate::engine::tenant::{Fallback, TenantAccess, UnknownContinue, View};
use crate::engine::words::{Plan, Reason, UpstreamRefusal};
use crate::store::Met;

impl Proxy {
    /// The number of bytes that are read of a request: its body and, where the server holds the conversation that it goes
    /// on from, that too. They are charged to the request, or it goes out as it came.
    pub(super) async fn bytes_to_read(
        &self,
        met: &Met,
        body: &Bytes,
        exchange: &mut Exchange,
    ) -> Result<usize, Reason> {
        let view = View { tenant: &*met.tenant, hint: None };
        let held = self.large.work(exchange.caller.payer, body.len(), || view.held_bytes(body)).await;
        let (bytes, limits) = (body.len() + held, &self.config.limits);
        match &mut exchange.permit {
            _ if held == 0 => Ok(()),
            _ if bytes > limits.body_bytes => Err(Reason::BodyTooLarge),
            Some(permit) => permit.hold_conversation(held, limits),
            None => Err(Reason::Internal),
        }?;
        Ok(bytes)
    }

    /// The answer to a request that goes on from one which the server holds. It is never sent twice: the server takes one
    /// only. Where the conversation may be held otherwise than its client knows it, a refusal becomes a question for the
    /// whole of it, which then goes out as it comes.
    pub(super) async fn continued(
        &self,
        mut answer: Answer,
        mut flight: InFlight,
    ) -> Result<Answered, Fault> {
        if let Some(refusal) = self.held_refusal(&mut answer).await
            && flight.look(|state, flight| state.refused_held(flight, &refusal)) == Some(Fallback::AskWhole)
        {
            return Err(self.ask_whole(&answer));
        }
        Ok(Answered { answer, flight: Some(flight) })
    }

    /// Sends a call that could not be read, as it came. It may go on from an answer which is not known here, or from a
    /// conversation that is too large to be made whole.
    pub(super) async fn unplanned(
        &self,
        call: MessagesCall,
        reason: Reason,
        exchange: &mut Exchange,
    ) -> Result<Answered, Fault> {
        exchange.facts.plan = Plan::Passthrough(reason);
        let Answered { answer, .. } = self.unread(call.as_it_came(), exchange).await?;
        self.unknown(answer, &call, exchange).await
    }

    /// The answer to a request that was not read. If it goes on from a conversation that may be held otherwise than its
    /// client knows it, its client is asked for the whole of that, once.
    pub(super) async fn unknown(
        &self,
        mut answer: Answer,
        call: &MessagesCall,
        exchange: &Exchange,
    ) -> Result<Answered, Fault> {
        let Plan::Passthrough(Reason::UnknownThread | Reason::BodyTooLarge | Reason::HeldBytes) =
            exchange.facts.plan
        else {
            return Ok(Answered { answer, flight: None });
        };
        let refusal = self.held_refusal(&mut answer).await;
        if refusal.is_some_and(|refusal| refusal.thread == ThreadRefusal::Mismatch)
            && let Some(unknown) = UnknownContinue::read(call.body.read())
        {
            // Who has a conversation there is known to the upstream, and what its client was asked for is remembered.
            let found = self.store.tenant(&call.tenant);
            found.paid_by(exchange.caller.payer.tenant);
            if self.store.admit(&call.tenant, &found).look(|state| state.ask_whole(unknown)) {
                return Err(self.ask_whole(&answer));
            }
        }
        Ok(Answered { answer, flight: None })
    }

    /// Asks a client for its whole conversation. `refused` is what the upstream said.
    fn ask_whole(&self, refused: &Answer) -> Fault {
        self.metrics.fallbacks_total.with_label_values(&[UpstreamRefusal::Thread.as_str()]).inc();
        Fault::ThreadMismatch { request_id: refused.response.headers().get("request-id").cloned() }
    }

    /// Why a request that goes on from a held answer was refused, if it was.
    async fn held_refusal(&self, answer: &mut Answer) -> Option<HeldRefusal> {
        let status = answer.response.status().as_u16();
        let may_say = is_refusal(status) || status == 404;
        let said = if may_say { beginning(answer).await } else { Bytes::new() };
        HeldRefusal::of(status, &said)
    }
}

/// Returns true if a request goes on from an answer that the server holds.
pub(super) fn goes_on(flight: &InFlight) -> bool {
    flight.flight().is_some_and(|flight| flight.request.arrival.delta.is_some())
}
