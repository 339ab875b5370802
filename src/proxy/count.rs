//! `count_tokens` of a forked child: the count is of what will be sent. Nothing is billed, bound or learned by it.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderValue, Method, Request};

use super::Proxy;
use super::caller::Caller;
use super::error::Fault;
use super::exchange::Exchange;
use super::forward::SentBody;
use super::handle::{Answered, MessagesCall};
use super::large;
use super::record::FamilyFacts;
use super::send::BETA;
use crate::engine::count::{ChildCount, count_child};
use crate::engine::request::recall::Remembered;
use crate::engine::tenant::View;
use crate::engine::words::{BodyDigest, Endpoint, Plan, Reason};
use crate::store::Tenant;

impl Proxy {
    /// Returns true if a request may count the tokens of a child that has a prefix. A child keeps its prefix even in mode
    /// `observe`, unless its client asks for less.
    pub(super) fn may_count_child(&self, method: &Method, endpoint: Endpoint, caller: &Caller) -> bool {
        endpoint == Endpoint::CountTokens
            && method == Method::POST
            && caller.modes.keeps_prefix()
            && matches!(caller.observed, None | Some(Reason::Observe))
            && self.may_have_prefix(self.clock.now())
    }

    /// Sends a count of tokens: that of a forked child on its prefix, and once more as it came if that is refused; any
    /// other as it came.
    pub(super) async fn count(&self, call: MessagesCall, exchange: &mut Exchange) -> Result<Answered, Fault> {
        let MessagesCall { tenant, parts, mut body, .. } = call;
        let (opened, payer) = (self.open(&mut body, &mut exchange.permit).await, exchange.caller.payer);
        if let Err(reason) = opened {
            exchange.facts.plan = Plan::Passthrough(reason);
            self.name_unread(&body, exchange).await;
        }
        let tenant = self.store.meet(&tenant).await.tenant;
        let read = AssertUnwindSafe(|| {
            opened.ok()?;
            self.read_count(&tenant, body.read(), exchange)
        });
        let counted =
            self.large.work(payer, large::weight(body.read()), || std::panic::catch_unwind(read)).await;
        exchange.facts.sent_at = Some(Instant::now());
        if let Some(ChildCount { pieces, betas, .. }) = counted.unwrap_or_default() {
            let mut parts = parts.clone();
            if betas != exchange.caller.betas
                && let Ok(betas) = HeaderValue::try_from(betas)
            {
                parts.headers.insert(BETA, betas);
            }
            let sent = body.changed(pieces, &mut parts.headers);
            let request = Request::from_parts(parts, sent);
            let mut answer = self.upstream.send(request).await?;
            let Some(refused) = self.refusal(&mut answer).await else {
                return Ok(Answered { answer, flight: None });
            };
            self.metrics.fallbacks_total.with_label_values(&[refused.as_str()]).inc();
            let facts = &mut exchange.facts;
            (facts.plan, facts.changed) = (Plan::Passthrough(Reason::Refused), None);
            (facts.shared_bytes, facts.notes) = (0, Vec::new());
        }
        let answer =
            self.upstream.send(Request::from_parts(parts, SentBody::whole(body.came().clone()))).await?;
        Ok(Answered { answer, flight: None })
    }

    /// Reads a count of tokens, and puts it on the prefix of the child that it is of.
    fn read_count(&self, tenant: &Tenant, body: &Bytes, exchange: &mut Exchange) -> Option<ChildCount> {
        let started = Instant::now();
        let caller = &exchange.caller;
        let mut sender = caller.sender.clone();
        let view = View { tenant, hint: caller.hint() };
        let request = Remembered::read(body.clone(), &view, self.policy.align.attribution).ok()?;
        if let Some(user_id) = request.anatomy().user_id(body) {
            sender.hint(&user_id);
        }
        let who = caller.claims.who(&request, &sender);
        let counted = count_child(tenant, &request, who, &caller.betas, self.clock.now())?;
        exchange.learn(body, request.anatomy());
        let facts = &mut exchange.facts;
        facts.family = FamilyFacts::of(&counted.relation);
        facts.plan = Plan::Forked;
        facts.notes.clone_from(&counted.notes);
        facts.shared_bytes = counted.shared_bytes;
        facts.received = Some(BodyDigest::of(body));
        facts.changed = Some(BodyDigest::of_pieces(&counted.pieces));
        facts.overhead.fork += started.elapsed();
        Some(counted)
    }
}
