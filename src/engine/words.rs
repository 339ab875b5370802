//! The shared words. Every variant that reaches a log line, a metric label or a header has one spelling,
//! its `as_str()`.

use std::fmt;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::breakpoints::Skip;
use super::fork::Refusal;

/// What a request is to a fan-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Neither brings results back to a fork point nor starts from one.
    Plain,
    /// Brings results back to a known fork point.
    Parent,
    /// A turn of a conversation that started from a fork point.
    Child,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Plain => "plain",
            Role::Parent => "parent",
            Role::Child => "child",
        }
    }
}

/// What is done to a request before it goes upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plan {
    /// The received bytes, untouched.
    Passthrough(Reason),
    /// One spelling, and breakpoints where they will be read.
    Aligned(Why),
    /// Put on its parent's prefix.
    Forked,
}

/// Why a request is aligned, and no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The mode is `align`, and that was done.
    Mode,
    /// It is nobody's child.
    NotAChild,
    /// The client has put it on its parent's history itself.
    ClientFork,
    /// No breakpoint was added, for this reason.
    Skipped(Skip),
    /// It is a child that is not forked, for this reason.
    Refused(Refusal),
}

impl Why {
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Mode => "align",
            Why::NotAChild => "not_a_child",
            Why::ClientFork => "client_fork",
            Why::Skipped(skip) => skip.as_str(),
            Why::Refused(refusal) => refusal.as_str(),
        }
    }
}

impl Plan {
    pub fn as_str(self) -> &'static str {
        match self {
            Plan::Passthrough(_) => "passthrough",
            Plan::Aligned(_) => "aligned",
            Plan::Forked => "forked",
        }
    }

    /// Why it is this plan and not one that does more.
    pub fn reason(self) -> &'static str {
        match self {
            Plan::Passthrough(reason) => reason.as_str(),
            Plan::Aligned(why) => why.as_str(),
            Plan::Forked => "none",
        }
    }
}

/// Why a request was left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Not `POST /v1/messages`: streamed through unread.
    Endpoint,
    /// The body is larger than `limits.body_bytes`: streamed through unread.
    BodyTooLarge,
    /// `limits.held_requests` bodies are in memory already: streamed through unread.
    HeldRequests,
    /// `limits.held_bytes` of bodies are in memory already: streamed through unread.
    HeldBytes,
    /// The request announces trailers, so its body is more than one piece of bytes: streamed through unread.
    Trailers,
    /// The request body is compressed: forwarded unread.
    ContentEncoding,
    /// The body is no JSON object, nests too deep or has too many parts: the upstream decides.
    NotJson,
    /// The body is signed: any change would break the signature.
    Signed,
    /// No credential: there is no tenant to act for.
    NoCredential,
    /// The configured mode is `observe`, or the request asked for it.
    Observe,
    /// A consumer login, and `identity.oauth` does not say otherwise.
    OAuth,
    /// Readers could disagree about what the request says.
    Ambiguous,
    /// What was made of an earlier request of the conversation was refused, and what came was not.
    Refused,
    /// It holds thinking of a prefix that is not known any more, and goes out with a request to drop it.
    LostPrefix,
    /// A bug of ours while reading.
    Internal,
}

impl Reason {
    pub const ALL: [Reason; 15] = [
        Reason::Endpoint,
        Reason::BodyTooLarge,
        Reason::HeldRequests,
        Reason::HeldBytes,
        Reason::Trailers,
        Reason::ContentEncoding,
        Reason::NotJson,
        Reason::Signed,
        Reason::NoCredential,
        Reason::Observe,
        Reason::OAuth,
        Reason::Ambiguous,
        Reason::Refused,
        Reason::LostPrefix,
        Reason::Internal,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Endpoint => "endpoint",
            Reason::BodyTooLarge => "body_too_large",
            Reason::HeldRequests => "held_requests",
            Reason::HeldBytes => "held_bytes",
            Reason::Trailers => "trailers",
            Reason::ContentEncoding => "content_encoding",
            Reason::NotJson => "not_json",
            Reason::Signed => "signed",
            Reason::NoCredential => "no_credential",
            Reason::Observe => "observe",
            Reason::OAuth => "oauth",
            Reason::Ambiguous => "ambiguous",
            Reason::Refused => "refused",
            Reason::LostPrefix => "lost_prefix",
            Reason::Internal => "internal",
        }
    }
}

/// Which part of the API a path belongs to; the path itself may carry ids and is never logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    Messages,
    CountTokens,
    Batches,
    Models,
    Files,
    /// `/model/{id}/invoke` and `/model/{id}/invoke-with-response-stream`.
    Bedrock,
    /// `…/publishers/anthropic/models/{id}:rawPredict` and `:streamRawPredict`.
    Vertex,
    Other,
}

impl Endpoint {
    pub fn of(method: &http::Method, path: &str) -> Endpoint {
        match path {
            "/v1/messages" if method == http::Method::POST => Endpoint::Messages,
            "/v1/messages/count_tokens" => Endpoint::CountTokens,
            _ if bedrock_model(path).is_some() => Endpoint::Bedrock,
            _ if vertex_model(path) == Some("count-tokens") => Endpoint::CountTokens,
            _ if vertex_model(path).is_some() => Endpoint::Vertex,
            _ if under(path, "/v1/messages/batches") => Endpoint::Batches,
            _ if under(path, "/v1/models") => Endpoint::Models,
            _ if under(path, "/v1/files") => Endpoint::Files,
            _ => Endpoint::Other,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Endpoint::Messages => "messages",
            Endpoint::CountTokens => "count_tokens",
            Endpoint::Batches => "batches",
            Endpoint::Models => "models",
            Endpoint::Files => "files",
            Endpoint::Bedrock => "bedrock",
            Endpoint::Vertex => "vertex",
            Endpoint::Other => "other",
        }
    }

    /// Whether what comes back is a message, or a stream of one.
    pub fn answers_with_a_message(self) -> bool {
        matches!(self, Endpoint::Messages | Endpoint::Bedrock | Endpoint::Vertex)
    }

    /// The model that the path names, where it does. A resource name carries an account, and is none.
    pub fn model(self, path: &str) -> Option<String> {
        let model = match self {
            Endpoint::Bedrock => bedrock_model(path)?,
            Endpoint::Vertex => vertex_model(path)?,
            _ => return None,
        };
        Some(model.replace("%3A", ":").replace("%3a", ":").replace("%40", "@"))
            .filter(|model| !model.starts_with("arn:"))
    }
}

fn bedrock_model(path: &str) -> Option<&str> {
    let (model, call) = path.strip_prefix("/model/")?.split_once('/')?;
    matches!(call, "invoke" | "invoke-with-response-stream").then_some(model)
}

fn vertex_model(path: &str) -> Option<&str> {
    let (_, named) = path.split_once("/publishers/anthropic/models/")?;
    let (model, call) = named.split_once(':')?;
    matches!(call, "rawPredict" | "streamRawPredict").then_some(model)
}

fn under(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The last byte of the answer was handed on.
    Complete,
    /// The client went away first.
    ClientLeft,
    /// The upstream broke off, before or within its answer.
    UpstreamBroke,
    /// We answered ourselves: the request was refused, or the upstream could not be reached.
    Refused,
}

impl Ending {
    pub fn as_str(self) -> &'static str {
        match self {
            Ending::Complete => "complete",
            Ending::ClientLeft => "client_left",
            Ending::UpstreamBroke => "upstream_broke",
            Ending::Refused => "refused",
        }
    }
}

/// The digest of whoever pays: every credential header of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TenantId(pub [u8; 32]);

impl fmt::Display for TenantId {
    /// Eight hex digits: enough to tell tenants apart, useless to find a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0[..4], f)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A client-chosen id (session, agent); what is shown are eight hex digits of its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdDigest(pub [u8; 16]);

impl fmt::Display for IdDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0[..4], f)
    }
}

/// A point in time as the caller's clock counts it, in milliseconds since some start: the engine has no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    pub fn after(self, ms: u64) -> Moment {
        Moment(self.0.saturating_add(ms))
    }

    /// Milliseconds from an earlier moment; none if it is later.
    pub fn since(self, earlier: Moment) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The digest of a whole body: sixteen hex digits of its XXH3.
///
/// It says whether two bodies are the same, and every body is digested as it comes and as it goes; so it is one
/// that costs little. Nothing that somebody could gain by forging depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BodyDigest(pub [u8; 8]);

impl BodyDigest {
    pub fn of(body: &[u8]) -> BodyDigest {
        BodyDigest(xxh3_64(body).to_be_bytes())
    }

    /// The same of a body in pieces.
    pub fn of_pieces<Piece: AsRef<[u8]>>(pieces: impl IntoIterator<Item = Piece>) -> BodyDigest {
        let mut hasher = Xxh3Default::new();
        for piece in pieces {
            hasher.update(piece.as_ref());
        }
        BodyDigest(hasher.digest().to_be_bytes())
    }
}

impl fmt::Display for BodyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

/// The first `N` bytes of a digest.
pub fn first<const N: usize>(digest: &[u8; 32]) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(digest) {
        *to = *from;
    }
    out
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 16];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    f.write_str(std::str::from_utf8(&digits[..2 * bytes.len().min(8)]).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_post_to_the_exact_path_is_a_messages_call() {
        let post = http::Method::POST;
        assert_eq!(Endpoint::of(&post, "/v1/messages"), Endpoint::Messages);
        assert_eq!(Endpoint::of(&http::Method::GET, "/v1/messages"), Endpoint::Other);
        assert_eq!(Endpoint::of(&post, "/v1/messages/"), Endpoint::Other);
        assert_eq!(Endpoint::of(&post, "/v1/messages/count_tokens"), Endpoint::CountTokens);
        assert_eq!(Endpoint::of(&post, "/v1/messages/batches/x/results"), Endpoint::Batches);
        assert_eq!(Endpoint::of(&post, "/v1/modelsx"), Endpoint::Other);
    }

    #[test]
    fn calls_of_other_clouds_are_known_by_their_paths_and_name_their_model() {
        let post = http::Method::POST;
        let vertex = "/v1/projects/p/locations/l/publishers/anthropic/models";
        for (path, endpoint, model) in [
            (
                "/model/anthropic.claude-x-v1%3A0/invoke".into(),
                Endpoint::Bedrock,
                Some("anthropic.claude-x-v1:0"),
            ),
            ("/model/x/invoke-with-response-stream".into(), Endpoint::Bedrock, Some("x")),
            ("/model/arn%3Aaws%3Abedrock%3Aus%3A123%3Ax/invoke".into(), Endpoint::Bedrock, None),
            ("/model/x/converse".into(), Endpoint::Other, None),
            (format!("{vertex}/claude-x@20250101:rawPredict"), Endpoint::Vertex, Some("claude-x@20250101")),
            (format!("{vertex}/claude-x:streamRawPredict"), Endpoint::Vertex, Some("claude-x")),
            (format!("{vertex}/count-tokens:rawPredict"), Endpoint::CountTokens, None),
            (format!("{vertex}/claude-x:predict"), Endpoint::Other, None),
        ] {
            let found = Endpoint::of(&post, &path);
            assert_eq!((found, found.model(&path).as_deref()), (endpoint, model), "{path}");
        }
    }

    #[test]
    fn every_reason_has_its_own_spelling() {
        let spellings: std::collections::HashSet<_> = Reason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(spellings.len(), Reason::ALL.len());
    }

    #[test]
    fn moments_are_apart_by_milliseconds_and_never_less_than_none() {
        assert_eq!(Moment(5).after(3).since(Moment(1)), 7);
        assert_eq!(Moment(1).since(Moment(5)), 0);
        assert_eq!(Moment(1).after(u64::MAX), Moment(u64::MAX));
    }

    #[test]
    fn digests_show_only_their_first_digits() {
        assert_eq!(TenantId([0xab; 32]).to_string(), "abababab");
        assert_eq!(BodyDigest::of(b"").to_string(), "2d06800538d394c2");
        let pieces = ["ab", "", "c"].map(bytes::Bytes::from);
        assert_eq!(BodyDigest::of_pieces(&pieces), BodyDigest::of(b"abc"));
    }
}
