//! The answers that forkpoint gives itself: whose fault it was, the status, and what to do next, in the format of the
//! API's errors.

use std::fmt;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::config::Config;
use crate::engine::words::Ending;

use super::exchange::Exchange;
use super::observe::AnswerBody;
use super::stall::UploadEnd;

/// The reasons for which forkpoint answers itself. Every other answer comes from the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client asked for a tunnel.
    Connect,
    /// The client asked for another protocol on this connection.
    Upgrade,
    /// The body's length is stated twice, or in a way that two readers could see differently.
    Length,
    /// The request target is neither a path nor `OPTIONS *`.
    Target,
    /// The client's body broke off or is framed wrongly.
    ClientBody,
    /// The client sent nothing of its body for `limits.stall_s`.
    ClientStalled,
    /// There are `limits.connections` exchanges already, or as many as this sender may have; or another took the place of
    /// an upload of which nothing came.
    Connections,
    /// The request needs a parent that is not known.
    UnknownParent,
    /// The server holds the conversation of the request otherwise than its client knows it. With the id under which the
    /// upstream refused it.
    ThreadMismatch { request_id: Option<HeaderValue> },
    /// No connection to the upstream could be made, with the error of the system.
    Unreachable { upstream: String, cause: String },
    /// No connection to the upstream could be made within `upstream.connect_ms`.
    ConnectTimeout { upstream: String },
    /// The upstream was connected, and sent no byte of an answer for `upstream.idle_s`.
    Silent { upstream: String },
    /// The upstream closed or garbled the connection before its answer.
    Broken { upstream: String, cause: String },
    /// A bug in forkpoint.
    Internal,
}

impl Fault {
    /// Every [`Fault::reason`].
    pub const REASONS: [&str; 14] = [
        "connect",
        "upgrade",
        "ambiguous_length",
        "target",
        "client_body",
        "client_stalled",
        "connections",
        "unknown_parent",
        "thread_mismatch",
        "upstream_unreachable",
        "upstream_connect_timeout",
        "upstream_silent",
        "upstream_broke",
        "internal",
    ];

    pub fn reason(&self) -> &'static str {
        match self {
            Fault::Connect => "connect",
            Fault::Upgrade => "upgrade",
            Fault::Length => "ambiguous_length",
            Fault::Target => "target",
            Fault::ClientBody => "client_body",
            Fault::ClientStalled => "client_stalled",
            Fault::Connections => "connections",
            Fault::UnknownParent => "unknown_parent",
            Fault::ThreadMismatch { .. } => "thread_mismatch",
            Fault::Unreachable { .. } => "upstream_unreachable",
            Fault::ConnectTimeout { .. } => "upstream_connect_timeout",
            Fault::Silent { .. } => "upstream_silent",
            Fault::Broken { .. } => "upstream_broke",
            Fault::Internal => "internal",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Fault::Connect | Fault::Upgrade => StatusCode::NOT_IMPLEMENTED,
            Fault::Length | Fault::Target | Fault::ClientBody => StatusCode::BAD_REQUEST,
            Fault::ClientStalled => StatusCode::REQUEST_TIMEOUT,
            Fault::Connections => StatusCode::SERVICE_UNAVAILABLE,
            Fault::UnknownParent => StatusCode::CONFLICT,
            Fault::ThreadMismatch { .. } => StatusCode::NOT_FOUND,
            Fault::Unreachable { .. } | Fault::ConnectTimeout { .. } | Fault::Broken { .. } => {
                StatusCode::BAD_GATEWAY
            }
            Fault::Silent { .. } => StatusCode::GATEWAY_TIMEOUT,
            Fault::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the API's name for this kind of error.
    fn kind(&self) -> &'static str {
        match self {
            Fault::Connect | Fault::Upgrade | Fault::Length | Fault::Target | Fault::ClientBody => {
                "invalid_request_error"
            }
            Fault::UnknownParent => "conflict_error",
            Fault::ThreadMismatch { .. } => "not_found_error",
            Fault::ClientStalled | Fault::Silent { .. } => "timeout_error",
            Fault::Connections => "overloaded_error",
            Fault::Unreachable { .. }
            | Fault::ConnectTimeout { .. }
            | Fault::Broken { .. }
            | Fault::Internal => "api_error",
        }
    }

    /// Returns the record's word for how the exchange ended.
    fn ending(&self) -> Ending {
        match self {
            Fault::Broken { .. } | Fault::Silent { .. } => Ending::UpstreamBroke,
            _ => Ending::Refused,
        }
    }

    pub fn answer(self, mut exchange: Exchange, config: &Config) -> Response<AnswerBody> {
        exchange.facts.status = Some(self.status());
        exchange.facts.fault = Some(self.reason());
        let mut response = self.response();
        if config.server.response_headers {
            exchange.mark(response.headers_mut());
        }
        // This header is always set, so that our errors can be distinguished from the upstream's.
        response.headers_mut().insert("x-forkpoint-reason", HeaderValue::from_static(self.reason()));
        exchange.finish(self.ending(), None, None);
        response
    }

    /// Returns the answer alone, for connections without a request to record.
    pub fn response(&self) -> Response<AnswerBody> {
        let mut error = serde_json::json!({
            "type": "error",
            "error": { "type": self.kind(), "message": format!("forkpoint: {self}") },
        });
        if let Fault::ThreadMismatch { .. } = self {
            // By this code every client knows to send the whole conversation again.
            error["error"]["details"] = serde_json::json!({ "error_code": "thread_not_found" });
        }
        let mut response = Response::new(AnswerBody::own(Bytes::from(error.to_string())));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("x-forkpoint-reason", HeaderValue::from_static(self.reason()));
        if let Fault::ThreadMismatch { request_id: Some(id) } = self {
            headers.insert("request-id", id.clone());
        }
        if *self == Fault::UnknownParent {
            // SDKs try a 409 again; the parent will not be known then either.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if matches!(self, Fault::ClientBody | Fault::ClientStalled | Fault::Length | Fault::Connections) {
            // The next bytes of this connection may be no request.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<UploadEnd> for Fault {
    fn from(end: UploadEnd) -> Fault {
        match end {
            UploadEnd::Stalled => Fault::ClientStalled,
            UploadEnd::Displaced => Fault::Connections,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Connect => write!(f, "CONNECT is not supported; point the client's base URL here instead"),
            Fault::Upgrade => write!(f, "protocol upgrades are not supported; send plain HTTP requests"),
            Fault::Length => {
                write!(f, "the length of the body is ambiguous; send one content-length or chunked encoding")
            }
            Fault::UnknownParent => write!(
                f,
                "the parent that x-forkpoint-parent names is not known here, never seen or forgotten; send the \
                 conversation whole, or leave x-forkpoint-parent-required out"
            ),
            Fault::ThreadMismatch { .. } => write!(
                f,
                "the server holds this conversation otherwise than it is known here; replay the full conversation \
                 with thread: {{\"type\": \"create\"}} to start a new thread"
            ),
            Fault::Target => write!(f, "the request target must be a path such as /v1/messages"),
            Fault::ClientBody => write!(f, "the request body broke off or is framed wrongly"),
            Fault::ClientStalled => write!(f, "the request body stalled; see limits.stall_s"),
            Fault::Connections => write!(f, "too many requests at once; retry, or raise limits.connections"),
            Fault::Unreachable { upstream, cause } => {
                write!(f, "cannot reach the upstream {upstream}: {cause}; check upstream.url")
            }
            Fault::ConnectTimeout { upstream } => {
                write!(f, "no connection to the upstream {upstream} in time; see upstream.connect_ms")
            }
            Fault::Silent { upstream } => {
                write!(f, "the upstream {upstream} stayed silent for too long; see upstream.idle_s")
            }
            Fault::Broken { upstream, cause } => {
                write!(f, "the upstream {upstream} broke off before its answer: {cause}")
            }
            Fault::Internal => write!(f, "internal error; the request was not completed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_listed() {
        let upstream = String::new;
        let faults = [
            Fault::Connect,
            Fault::Upgrade,
            Fault::Length,
            Fault::Target,
            Fault::ClientBody,
            Fault::ClientStalled,
            Fault::Connections,
            Fault::UnknownParent,
            Fault::ThreadMismatch { request_id: None },
            Fault::Unreachable { upstream: upstream(), cause: String::new() },
            Fault::ConnectTimeout { upstream: upstream() },
            Fault::Silent { upstream: upstream() },
            Fault::Broken { upstream: upstream(), cause: String::new() },
            Fault::Internal,
        ];
        assert_eq!(faults.map(|fault| fault.reason()), Fault::REASONS);
    }
}
