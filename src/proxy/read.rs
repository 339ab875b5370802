//! Reads a call by what is known of its tenant: the bytes that came, and the conversation that they go on from.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;

use super::Proxy;
use super::body::CallBody;
use super::collect::Permit;
use super::exchange::Exchange;
use super::flight::Home;
use super::handle::MessagesCall;
use super::large;
use crate::engine::family::fanout::Who;
use crate::engine::request::recall::Reading;
use crate::engine::tenant::{ReadMode, ReadRequest, View};
use crate::engine::words::{BodyDigest, Reason, Recall, Step};
use crate::store::Met;

/// The time between two notes about forgotten conversations.
const FORGOTTEN_NOTE_MS: u64 = 600_000;

/// A request that was read.
pub(super) struct Read {
    pub home: Home,
    /// True if other processes may have written of its tenant since this one has heard of that.
    pub may_be_behind: bool,
    pub request: ReadRequest,
    pub who: Who,
}

impl Proxy {
    /// Makes a body readable.
    pub(super) async fn open(&self, body: &mut CallBody, permit: &mut Option<Permit>) -> Result<(), Reason> {
        let permit = permit.as_mut().ok_or(Reason::Internal)?;
        body.open(permit, &self.config.limits, &self.large).await
    }

    /// Names a body that was not read by its bytes.
    pub(super) async fn name_unread(&self, body: &CallBody, exchange: &mut Exchange) {
        let (payer, body) = (exchange.caller.payer, body.read());
        let digest = self.large.work(payer, body.len(), || BodyDigest::of(body)).await;
        exchange.facts.received = Some(digest);
    }

    /// Opens the body of a call, and reads it by what is known of its tenant.
    pub(super) async fn read(
        &self,
        call: &mut MessagesCall,
        mode: ReadMode,
        exchange: &mut Exchange,
    ) -> Result<Read, Reason> {
        let read = self.read_body(call, mode, exchange).await;
        if read.is_err() && exchange.facts.received.is_none() {
            self.name_unread(&call.body, exchange).await;
        }
        read
    }

    async fn read_body(
        &self,
        call: &mut MessagesCall,
        mode: ReadMode,
        exchange: &mut Exchange,
    ) -> Result<Read, Reason> {
        self.open(&mut call.body, &mut exchange.permit).await?;
        let known = self.store.known_tenant(&call.tenant);
        let met = match exchange.met.take() {
            Some(met) if known.is_none_or(|known| Arc::ptr_eq(&known, &met.tenant)) => met,
            _ => self.store.meet(&call.tenant).await,
        };
        met.tenant.paid_by(exchange.caller.payer.tenant);
        let read = self.read_once(&met, call.body.read(), mode, exchange).await;
        let is_unknown = matches!(read, Err(Reason::UnknownThread));
        if is_unknown && met.was_known && self.store.news(&met.tenant).await {
            return self.read_once(&met, call.body.read(), mode, exchange).await;
        }
        read
    }

    async fn read_once(
        &self,
        met: &Met,
        body: &Bytes,
        mode: ReadMode,
        exchange: &mut Exchange,
    ) -> Result<Read, Reason> {
        let weight = self.bytes_to_read(met, body, exchange).await?.max(large::weight(body));
        let payer = exchange.caller.payer;
        self.large.work(payer, weight, || self.read_by(met, body, mode, exchange)).await
    }

    /// Reads a body. A bug in here must not cost the client its answer.
    fn read_by(
        &self,
        met: &Met,
        body: &Bytes,
        mode: ReadMode,
        exchange: &mut Exchange,
    ) -> Result<Read, Reason> {
        let started = Instant::now();
        let read = AssertUnwindSafe(|| self.recall(met, body, mode, exchange));
        let read = std::panic::catch_unwind(read).unwrap_or_else(|_| {
            self.metrics.panicked(Step::Read);
            Err(Reason::Internal)
        });
        let read = read.and_then(|read| {
            let Some(permit) = &mut exchange.permit else { return Ok(read) };
            let reading = Reading::memory_bytes(&read.request.arrival.received);
            permit.charge_reading(reading, &self.config.limits).map(|()| read)
        });
        exchange.facts.overhead.read += started.elapsed();
        if read.is_ok() && exchange.sinks.draft.is_some() {
            exchange.body = Some(body.clone());
        }
        read
    }

    fn recall(
        &self,
        met: &Met,
        body: &Bytes,
        mode: ReadMode,
        exchange: &mut Exchange,
    ) -> Result<Read, Reason> {
        self.panics.at(Step::Read);
        let hint = exchange.caller.hint();
        let tenant = Arc::clone(&met.tenant);
        let view = View { tenant: &*tenant, hint };
        let betas = std::iter::once(exchange.caller.betas.as_str());
        let policy = self.policy_of(exchange.facts.endpoint);
        let arrival = view.read(body, policy.align.attribution, mode, betas)?;
        exchange.learn(arrival.received.body(), arrival.received.anatomy());
        let Exchange { caller, facts, .. } = exchange;
        facts.received = Some(arrival.name());
        facts.recall = Some((self.store.name(), arrival.recall));
        if arrival.recall == Recall::Forgotten {
            self.note_forgotten();
        }
        let who = caller.claims.who(&arrival.received, &caller.sender);
        let request = ReadRequest {
            arrival: Box::new(arrival),
            hint,
            model: facts.model.clone().unwrap_or_default(),
            betas: caller.betas.clone(),
            version: caller.version.clone(),
            streams: facts.stream,
            came_at: self.clock.now(),
        };
        let home = Home { tenant, policy: Arc::clone(policy), clock: Arc::clone(&self.clock) };
        Ok(Read { home, may_be_behind: met.was_known, request, who })
    }

    /// Says, once in a while, that conversations are forgotten before they go on.
    fn note_forgotten(&self) {
        let (now, quiet) = (self.clock.now(), self.quiet_until.load(Relaxed));
        let is_due = now.0 >= quiet;
        let until = now.after(FORGOTTEN_NOTE_MS).0;
        if is_due && self.quiet_until.compare_exchange(quiet, until, Relaxed, Relaxed).is_ok() {
            tracing::warn!(
                key = "store.recent_bytes",
                "conversations are forgotten before they go on, and their cache breaks go unnoticed: more room is needed"
            );
        }
    }
}
