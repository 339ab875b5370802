//! Says in the log, once, that a base URL cannot be right: nobody finds anything behind it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use bytes::Bytes;
use http::StatusCode;

use super::Proxy;
use super::forward::Answer;
use super::send::beginning;
use crate::engine::answer::refused::{is_api_error, is_of_thread};

/// A call or two may ask for a model that does not exist, which is a 404 too.
const CALLS: u32 = 3;

/// Whether the Messages calls of this process find their API.
#[derive(Debug, Default)]
pub struct NotFound {
    calls: AtomicU32,
    /// True once a call was found, or it was said that none are.
    is_settled: AtomicBool,
    /// True once it was said that a path has its version twice. That others find the API says nothing about that path.
    is_doubled_said: AtomicBool,
}

/// Whose URL has the version that the other adds too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubled {
    Client,
    Upstream,
}

impl Doubled {
    /// The label of `forkpoint_misdirected_total`.
    pub fn as_str(self) -> &'static str {
        match self {
            Doubled::Client => "client",
            Doubled::Upstream => "upstream",
        }
    }

    /// Returns whose URL to change, if the path of a call has its version twice. `prefix` is the path of
    /// `upstream.url`.
    pub fn of(prefix: &str, path: &str) -> Option<Doubled> {
        if path.contains("/v1/v1/") {
            Some(Doubled::Client)
        } else if prefix.ends_with("/v1") && path.starts_with("/v1/") {
            Some(Doubled::Upstream)
        } else {
            None
        }
    }
}

impl NotFound {
    /// A Messages call was answered. `is_of_api`: the API has said what is not there, a model or a thread. `upstream`
    /// names who answered; it is asked only where that is said.
    pub fn answered(
        &self,
        status: StatusCode,
        doubled: Option<Doubled>,
        is_of_api: bool,
        upstream: impl FnOnce() -> String,
    ) {
        if status != StatusCode::NOT_FOUND {
            self.is_settled.store(true, Relaxed);
            return;
        }
        let is_certain = match doubled {
            Some(_) => true,
            None if is_of_api || self.is_settled.load(Relaxed) => false,
            None => self.calls.fetch_add(1, Relaxed) + 1 >= CALLS,
        };
        let is_said = if doubled.is_some() { &self.is_doubled_said } else { &self.is_settled };
        if is_certain && !is_said.swap(true, Relaxed) {
            tracing::warn!(upstream = upstream(), "{}", advice(doubled));
        }
    }

    /// Returns true if the body of a 404 tells more than its status: nothing is certain yet.
    pub fn asks_body(&self, status: StatusCode, doubled: Option<Doubled>) -> bool {
        status == StatusCode::NOT_FOUND && (doubled.is_some() || !self.is_settled.load(Relaxed))
    }
}

impl Proxy {
    /// Notes if a Messages call did not find its API. `is_of_api_path`: its path is the one that the API has, where an
    /// error of the API's says that a model or a thread does not exist.
    pub(super) async fn note_not_found(
        &self,
        answer: &mut Answer,
        doubled: Option<Doubled>,
        is_of_api_path: bool,
    ) {
        let status = answer.response.status();
        let asks = self.not_found.asks_body(status, doubled);
        let said = if asks { beginning(answer).await } else { Bytes::new() };
        // Who knows of threads is the API, whatever the path.
        if is_of_thread(&said) {
            return;
        }
        if let (Some(doubled), StatusCode::NOT_FOUND) = (doubled, status) {
            self.metrics.misdirected_total.with_label_values(&[doubled.as_str()]).inc();
        }
        let is_of_api = is_of_api_path && is_api_error(&said);
        self.not_found.answered(status, doubled, is_of_api, || self.upstream.name());
    }
}

fn advice(doubled: Option<Doubled>) -> &'static str {
    match doubled {
        Some(Doubled::Client) => {
            "a Messages call went to /v1/v1/messages and got a 404: leave /v1 out of the client's base URL, it adds \
             that itself"
        }
        Some(Doubled::Upstream) => {
            "a Messages call went to /v1/v1/messages and got a 404: leave /v1 out of upstream.url, clients add that \
             themselves"
        }
        None => {
            "every Messages call got a 404: does the client's base URL or upstream.url lack a path? Anthropic's SDKs \
             add /v1 themselves; the Vercel AI SDK wants it in its base URL"
        }
    }
}
