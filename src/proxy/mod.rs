//! The request path: collect, read, forward, observe, record.
//!
//! # Disconnects
//!
//! A client that leaves drops the future (or the answer's body) of its request, and with it the upstream
//! call: HTTP/1 closes that upstream connection, HTTP/2 resets the one stream. The recorder travels with
//! whichever of the two is alive, so the exchange is recorded exactly once.

pub mod server;
pub mod collect;
pub mod headers;
pub mod forward;
pub mod lanes;
pub mod gate;
pub mod observe;
pub mod decode;
pub mod record;
pub mod stall;
pub mod slow_reader;
pub mod error;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::CONTENT_ENCODING;
use http::{Request, Response};
use hyper::body::Incoming;

use crate::config::{Config, Mode};
use crate::engine::anatomy::Anatomy;
use crate::engine::identify::{self, TenantRule};
use crate::engine::types::{BodyDigest, Endpoint, Plan, Reason};
use crate::metrics::Metrics;

use collect::{Collected, Held};
use error::Fault;
use forward::{Answer, SentBody, Upstream};
use observe::AnswerBody;
use record::{Facts, Recorder};

/// Everything that requests share.
pub struct Proxy {
    config: Config,
    upstream: Upstream,
    held: Arc<Held>,
    metrics: Arc<Metrics>,
}

/// A request that is ready to go upstream.
struct Outgoing {
    request: Request<SentBody>,
    /// The body of a Messages call, to be read while the upstream works.
    body: Option<Bytes>,
    /// Gives the body's place under the hold limits back when dropped.
    permit: Option<collect::Permit>,
}

impl Proxy {
    pub fn new(config: Config, metrics: Arc<Metrics>) -> Result<Proxy, forward::SetupError> {
        let upstream = Upstream::new(&config.upstream)?;
        let held = Arc::new(Held::new(&config.limits, &metrics.held));
        Ok(Proxy { config, upstream, held, metrics })
    }

    /// One exchange, whatever happens: a fault of ours becomes an answer, never a broken connection.
    pub async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let endpoint = Endpoint::of(request.method(), request.uri().path());
        let mut recorder = Recorder::new(self.metrics.clone(), Facts::new(endpoint));
        let exchange = AssertUnwindSafe(self.exchange(request, &mut recorder)).catch_unwind().await;
        let answer = match exchange.unwrap_or(Err(Fault::Internal)) {
            Ok(answer) => observe::relay(answer, recorder, &self.config),
            Err(fault) => fault.answer(recorder, &self.config),
        };
        slow_reader::handed_on();
        Ok(answer)
    }

    /// An answer for a request that is not even looked at.
    pub fn refuse(&self, fault: Fault) -> Response<AnswerBody> {
        fault.answer(Recorder::new(self.metrics.clone(), Facts::new(Endpoint::Other)), &self.config)
    }

    async fn exchange(&self, request: Request<Incoming>, recorder: &mut Recorder) -> Result<Answer, Fault> {
        headers::check(&request)?;
        let facts = &mut recorder.facts;
        let outgoing = self.prepare(request, facts).await?;
        facts.sent_at = Some(Instant::now());
        // The bytes go out first: in this mode nothing in them decides anything, and the upstream takes far
        // longer to answer than we take to read.
        let reading = async {
            tokio::task::yield_now().await;
            if let Some(body) = &outgoing.body {
                self.read(body, facts);
            }
        };
        let (answer, ()) = tokio::join!(self.upstream.send(outgoing.request), reading);
        drop(outgoing.permit);
        answer
    }

    /// Names the sender and collects the body of a Messages call; everything else streams through unread.
    async fn prepare(&self, request: Request<Incoming>, facts: &mut Facts) -> Result<Outgoing, Fault> {
        let (parts, body) = request.into_parts();
        let limits = &self.config.limits;
        let sender = identify::sender(&parts.headers, self.tenant_rule());
        let reason = match self.config.server.mode {
            _ if parts.headers.contains_key(CONTENT_ENCODING) => Reason::ContentEncoding,
            _ if identify::is_signed(&parts.headers) => Reason::Signed,
            _ if sender.tenant.is_none() => Reason::NoCredential,
            Mode::Observe => Reason::Observe,
        };
        facts.sender = Some(sender);
        if facts.endpoint != Endpoint::Messages {
            let body = SentBody::streamed(body, limits.stall);
            return Ok(Outgoing { request: Request::from_parts(parts, body), body: None, permit: None });
        }
        facts.plan = Plan::Passthrough(reason);
        match collect::collect(body, &parts.headers, limits, &self.held).await? {
            Collected::Whole(body, permit) => Ok(Outgoing {
                request: Request::from_parts(parts, SentBody::whole(body.clone())),
                body: Some(body),
                permit: Some(permit),
            }),
            Collected::Spilled(body, reason, permit) => {
                facts.plan = Plan::Passthrough(reason);
                Ok(Outgoing { request: Request::from_parts(parts, body), body: None, permit })
            }
        }
    }

    /// Reads a Messages body. A bug in here must not cost the client its answer.
    fn read(&self, body: &Bytes, facts: &mut Facts) {
        let started = Instant::now();
        facts.received_bytes = Some(body.len());
        facts.received = Some(BodyDigest::of(body));
        facts.sent = facts.received;
        if facts.plan.reason() != Reason::ContentEncoding {
            match std::panic::catch_unwind(|| Anatomy::read(body)) {
                Ok(Ok(anatomy)) => facts.learn(body, &anatomy),
                Ok(Err(_)) => facts.plan = Plan::Passthrough(Reason::NotJson),
                Err(_) => facts.plan = Plan::Passthrough(Reason::Internal),
            }
        }
        facts.read_time = started.elapsed();
    }

    fn tenant_rule(&self) -> TenantRule<'_> {
        let identity = &self.config.identity;
        TenantRule { pepper: identity.pepper.reveal(), headers: &identity.tenant_headers }
    }
}
