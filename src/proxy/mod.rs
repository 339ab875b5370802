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

use futures_util::FutureExt;
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

/// A request that is ready to go upstream, and what we know about it.
struct Outgoing {
    request: Request<SentBody>,
    /// Gives the body's place under the hold limits back when dropped.
    permit: Option<collect::Permit>,
}

impl Proxy {
    pub fn new(config: Config, metrics: Arc<Metrics>) -> Result<Proxy, forward::SetupError> {
        let upstream = Upstream::new(&config.upstream)?;
        let held = Arc::new(Held::new(&config.limits, metrics.held.clone()));
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
        let outgoing = match recorder.facts.endpoint {
            Endpoint::Messages => self.read(request, &mut recorder.facts).await?,
            _ => self.pass(request, &mut recorder.facts),
        };
        recorder.facts.sent_at = Some(Instant::now());
        let answer = self.upstream.send(outgoing.request).await;
        drop(outgoing.permit);
        answer
    }

    /// Everything but Messages calls streams through unread.
    fn pass(&self, request: Request<Incoming>, facts: &mut Facts) -> Outgoing {
        facts.sender = Some(identify::sender(request.headers(), None, self.tenant_rule()));
        let (parts, body) = request.into_parts();
        let body = SentBody::streamed(body, self.config.limits.stall);
        Outgoing { request: Request::from_parts(parts, body), permit: None }
    }

    /// Collects the body of a Messages call and reads it. What cannot be read is forwarded all the same.
    async fn read(&self, request: Request<Incoming>, facts: &mut Facts) -> Result<Outgoing, Fault> {
        let (parts, body) = request.into_parts();
        let (body, permit) =
            match collect::collect(body, &parts.headers, &self.config.limits, &self.held).await? {
                Collected::Whole(body, permit) => (body, permit),
                Collected::Spilled(body, reason, permit) => {
                    facts.sender = Some(identify::sender(&parts.headers, None, self.tenant_rule()));
                    facts.plan = Plan::Passthrough(reason);
                    return Ok(Outgoing { request: Request::from_parts(parts, body), permit });
                }
            };
        let read_at = Instant::now();
        let spans = match parts.headers.contains_key(http::header::CONTENT_ENCODING) {
            true => Err(Reason::ContentEncoding),
            false => Anatomy::read(&body).map_err(|_| Reason::NotJson),
        };
        let user_id = spans.as_ref().ok().and_then(|spans| spans.user_id(&body));
        let sender = identify::sender(&parts.headers, user_id.as_deref(), self.tenant_rule());
        facts.plan = Plan::Passthrough(match &spans {
            Err(reason) => *reason,
            Ok(_) if identify::is_signed(&parts.headers) => Reason::Signed,
            Ok(_) if sender.tenant.is_none() => Reason::NoCredential,
            Ok(_) => match self.config.server.mode {
                Mode::Observe => Reason::Observe,
            },
        });
        if let Ok(spans) = &spans {
            facts.model = spans.model(&body).map(String::from);
            facts.stream = spans.stream(&body);
        }
        facts.sender = Some(sender);
        facts.received_bytes = Some(body.len());
        facts.received = Some(BodyDigest::of(&body));
        facts.sent = facts.received;
        facts.read_time = read_at.elapsed();
        Ok(Outgoing { request: Request::from_parts(parts, SentBody::whole(body)), permit: Some(permit) })
    }

    fn tenant_rule(&self) -> TenantRule<'_> {
        let identity = &self.config.identity;
        TenantRule { pepper: identity.pepper.reveal(), headers: &identity.tenant_headers }
    }
}
