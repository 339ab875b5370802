//! The admin port: the live page, health, readiness, metrics, and pages for operators.
//!
//! It answers only to names of this machine. A web page may point a name of its own at 127.0.0.1, or at an address
//! that only its visitors can reach, and have their browsers read from there. Such a request carries that name in
//! its Host header and gets a 421. Beyond loopback the port also asks for a token. The metrics port, which has
//! health and metrics only, asks for none, and answers scrapers by any name unless it is on loopback.

pub mod api;
pub mod events;
pub mod page;
pub mod token;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tower_service::Service as _;

use crate::engine::words::StoreError;
use crate::metrics::{Exposition, Metrics};
use crate::proxy::door::{Answer, Door, Room};
use crate::proxy::live::Live;
use crate::store::Store;
use token::Token;

/// The most connections at once. Operators, probes and scrapers are few; for one more, the oldest has to go, so that
/// nobody can keep a probe from its answer.
const CONNECTIONS_MAX: usize = 64;
/// The header with the age of an exposition in milliseconds: 0 unless it is shared with an earlier scrape.
static AGE: HeaderName = HeaderName::from_static("x-forkpoint-age-ms");
/// The pause after a failed accept, so that the loop does not spin when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Readiness for new requests: true while serving, false once a drain begins. It does not depend on the upstream: a
/// broken upstream must not take every proxy out of rotation. Nor does it depend on the store behind the memory: one that
/// fails is said to be degraded.
#[derive(Clone, Default)]
pub struct Readiness {
    is_ready: Arc<AtomicBool>,
    store: Option<Arc<Store>>,
}

impl Readiness {
    /// The readiness of a proxy with this store.
    pub fn of(store: &Arc<Store>) -> Readiness {
        Readiness { store: Some(Arc::clone(store)), ..Readiness::default() }
    }

    pub fn set(&self, ready: bool) {
        self.is_ready.store(ready, SeqCst);
    }

    fn is_ready(&self) -> bool {
        self.is_ready.load(SeqCst)
    }

    /// Returns the name and the error of a store that fails.
    fn degraded(&self) -> Option<(&'static str, StoreError)> {
        let condition = self.store.as_ref()?.condition()?;
        Some((condition.store, condition.error?))
    }
}

/// Returns the pages for probes and scrapers: health and metrics.
pub fn router(metrics: Arc<Metrics>, readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(readiness))
        .route("/metrics", get(render).with_state(Exposition::of(metrics)))
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "try /healthz, /readyz, /metrics or, on the admin port, / and /api/config\n",
            )
        })
}

/// Returns all pages of the admin port; with a token only its bearers see what they hold.
pub fn pages(live: &Live, metrics: Arc<Metrics>, readiness: Readiness, token: Option<Token>) -> Router {
    let data = router(metrics.clone(), readiness)
        .merge(api::router(live.clone(), metrics))
        .merge(events::router(live));
    let data = match token {
        Some(token) => token::guard(data, token, live.now().config().admin.open_metrics),
        None => data,
    };
    data.merge(page::router())
}

/// The Host headers that a port answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// `localhost` and IP addresses: nobody else can point them here.
    OfThisMachine,
    Any,
}

impl Hosts {
    /// Returns the hosts of the metrics port: any, unless it is on loopback.
    pub fn of_metrics(listener: &TcpListener) -> Hosts {
        let is_loopback =
            listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
        if is_loopback { Hosts::OfThisMachine } else { Hosts::Any }
    }
}

/// Serves one of the ports for operators; its connections have the deadlines of the proxy's own.
pub async fn serve(listener: TcpListener, router: Router, hosts: Hosts, live: Live, port: &'static str) {
    let router = match hosts {
        Hosts::OfThisMachine => router.layer(middleware::from_fn(names_of_this_machine)),
        Hosts::Any => router,
    };
    let door = Door::new(live.now().metrics().connections.with_label_values(&[port]));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let visit = door.enter(Room { idle: CONNECTIONS_MAX, all: CONNECTIONS_MAX }).await;
                let (limits, router) = (live.now().config().limits.clone(), router.clone());
                tokio::spawn(async move {
                    let answer = |request: Request<Incoming>| {
                        let answered = router.clone().call(request.map(Body::new));
                        async move { answered.await.unwrap_or_else(|never| match never {}) }
                    };
                    visit.serve(stream, &limits, answer).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Answer for Body {
    /// The size of what is still being written is not known.
    fn is_at_hand(&self) -> bool {
        self.size_hint().exact().is_some()
    }
}

async fn names_of_this_machine(request: Request, next: Next) -> Response {
    let target = request.uri().authority().map(Authority::as_str);
    let headers = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or(""));
    if headers.chain(target).all(is_of_this_machine) {
        next.run(request).await
    } else {
        let hint = "this port answers to localhost and to IP addresses only\n";
        (StatusCode::MISDIRECTED_REQUEST, hint).into_response()
    }
}

/// Returns true for `localhost` and IP addresses, which nobody else can point here.
fn is_of_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    name.eq_ignore_ascii_case("localhost") || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

async fn readyz(State(readiness): State<Readiness>) -> (StatusCode, Cow<'static, str>) {
    if !readiness.is_ready() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".into());
    }
    let text = match readiness.degraded() {
        Some((store, error)) => format!("ready\ndegraded store={store} error={}\n", error.as_str()).into(),
        None => "ready\n".into(),
    };
    (StatusCode::OK, text)
}

async fn render(State(exposition): State<Exposition>) -> Response {
    match exposition.text().await {
        Ok((text, age)) => {
            let age = age.as_millis().to_string();
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind), (AGE.clone(), age.as_str())], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("metrics: {error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_nobody_else_can_give_away_are_ours() {
        for ours in ["localhost", "LocalHost:8788", "127.0.0.1", "127.0.0.1:8788", "[::1]:8788", "10.1.2.3:1"]
        {
            assert!(is_of_this_machine(ours), "{ours}");
        }
        for foreign in
            ["evil.example", "evil.example:8788", "localhost.evil.example", "", "127.0.0.1.evil.example"]
        {
            assert!(!is_of_this_machine(foreign), "{foreign}");
        }
    }
}
