//! Says in the log, once, that a base URL cannot be right: nobody finds anything behind it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use http::StatusCode;

/// A call or two may ask for a model that does not exist, which is a 404 too.
const CALLS: u32 = 3;

/// Whether the Messages calls of this process find their API.
#[derive(Debug, Default)]
pub struct NotFound {
    calls: AtomicU32,
    /// True once a call was found, or it was said that none are.
    is_settled: AtomicBool,
}

/// Whose URL has the version that the other adds too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubled {
    Client,
    Upstream,
}

impl Doubled {
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
    /// A Messages call was answered. `upstream` names who did; it is asked only where that is said.
    pub fn answered(&self, status: StatusCode, doubled: Option<Doubled>, upstream: impl FnOnce() -> String) {
        if self.is_settled.load(Relaxed) {
            return;
        }
        if status != StatusCode::NOT_FOUND {
            self.is_settled.store(true, Relaxed);
            return;
        }
        let is_certain = doubled.is_some() || self.calls.fetch_add(1, Relaxed) + 1 >= CALLS;
        if is_certain && !self.is_settled.swap(true, Relaxed) {
            tracing::warn!(upstream = upstream(), "{}", advice(doubled));
        }
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
