//! One upstream call. The received path, query, headers and body go out as they came.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower_service::Service;

use crate::config;

use super::answer::UpstreamBody;
use super::client_pool::{ClientPool, PoolSlot};
use super::error::Fault;
use super::headers;
use super::not_found::Doubled;
use super::stall::{Upload, UploadEnd};

/// Shorter than the keep-alive of common servers, so that we close an idle connection before they do.
const POOL_IDLE: Duration = Duration::from_secs(50);
/// A dead HTTP/2 connection would otherwise hold its calls until `upstream.idle_s`.
const H2_PING_EVERY: Duration = Duration::from_secs(20);
const H2_PONG_WITHIN: Duration = Duration::from_secs(20);
/// The most headers of an answer. The parser fills a table of this many for each, so that room for thousands costs more
/// than everything else that is done with a small answer.
const ANSWER_HEADERS_MAX: usize = 256;
/// The most bytes of an answer that are read at once over HTTP/1, which also bounds its headers. They are in no account.
const ANSWER_READ_BYTES_MAX: usize = 64 * 1024;
/// The most connections of one client of ours that are kept for later.
const POOL_IDLE_MAX: usize = 256;
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

pub type BoxError = Box<dyn StdError + Send + Sync>;

pub type HttpClient = Client<Timed<HttpsConnector<HttpConnector>>, SentBody>;

pub struct Upstream {
    pool: ClientPool,
    connector: Timed<HttpsConnector<HttpConnector>>,
    scheme: Scheme,
    authority: Authority,
    /// The base URL's own path, without its trailing slash.
    path_prefix: String,
    idle: Duration,
}

/// The upstream's answer, and the call's place in the pool, to be kept until the answer has ended.
pub struct Answer {
    pub response: Response<UpstreamBody>,
    pub slot: PoolSlot,
}

/// Why no upstream client could be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("no root certificates found on this system: {0}")]
    Roots(#[from] std::io::Error),
    #[error("upstream.url has no scheme or host")]
    Url,
    #[error(transparent)]
    Report(#[from] crate::report::StartError),
}

impl Upstream {
    pub fn new(config: &config::Upstream) -> Result<Upstream, SetupError> {
        let scheme = config.url.scheme().ok_or(SetupError::Url)?.clone();
        let authority = config.url.authority().ok_or(SetupError::Url)?.clone();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(TCP_KEEPALIVE));
        let roots = HttpsConnectorBuilder::new();
        let (https, pool) = if scheme == Scheme::HTTPS {
            (roots.with_native_roots()?, ClientPool::several())
        } else {
            // No certificate is ever checked, so none needs to be installed.
            (roots.with_tls_config(no_roots()), ClientPool::single())
        };
        let https = https.https_or_http().enable_all_versions().wrap_connector(http);
        let connector = Timed { inner: https, limit: config.connect };
        let path_prefix = config.url.path().trim_end_matches('/').to_owned();
        Ok(Upstream { pool, connector, scheme, authority, path_prefix, idle: config.idle })
    }

    pub(super) fn client(&self) -> HttpClient {
        Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_IDLE_MAX)
            .http1_max_buf_size(ANSWER_READ_BYTES_MAX)
            .http1_max_headers(ANSWER_HEADERS_MAX)
            .http2_keep_alive_interval(H2_PING_EVERY)
            .http2_keep_alive_timeout(H2_PONG_WITHIN)
            .build(self.connector.clone())
    }

    /// Sends the request and waits for the head of the answer.
    pub async fn send(&self, mut request: Request<SentBody>) -> Result<Answer, Fault> {
        *request.uri_mut() = self.target(request.uri()).ok_or(Fault::Target)?;
        *request.version_mut() = Version::HTTP_11;
        headers::for_upstream(request.headers_mut());
        if let Some(length) = request.body().collected_length() {
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        if request.body().is_of_unknown_length() {
            // Otherwise the HTTP client takes a GET for one without a body.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let sent = request.body().sent_counter();
        let slot = self.pool.slot();
        let response = self.answered(slot.client(|| self.client()).request(request), sent).await?;
        match headers::check_answer(&response) {
            Ok(()) => Ok(Answer { response: response.map(UpstreamBody::new), slot }),
            Err(cause) => Err(Fault::Broken { upstream: self.name(), cause: cause.to_owned() }),
        }
    }

    /// Waits as long as either side moves.
    async fn answered(
        &self,
        answer: ResponseFuture,
        sent: Option<Arc<AtomicU64>>,
    ) -> Result<Response<Incoming>, Fault> {
        let mut answer = pin!(answer);
        let mut sent_before = 0;
        loop {
            match tokio::time::timeout(self.idle, answer.as_mut()).await {
                Ok(answer) => return answer.map_err(|error| self.fault(&error)),
                Err(_) => {
                    let sent_now = sent.as_ref().map_or(0, |count| count.load(Relaxed));
                    if sent_now == sent_before {
                        return Err(Fault::Silent { upstream: self.name() });
                    }
                    sent_before = sent_now;
                }
            }
        }
    }

    /// The received path and query, behind the base URL's own path.
    fn target(&self, received: &Uri) -> Option<Uri> {
        let path = received.path_and_query()?;
        let path = match self.path_prefix.as_str() {
            "" => path.clone(),
            // `OPTIONS *` asks about the server as a whole, not about a path of it.
            _ if path == "*" => path.clone(),
            _ if climbs_out(path.path()) => return None,
            prefix => PathAndQuery::try_from(format!("{prefix}{path}")).ok()?,
        };
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).ok()
    }

    /// Whose URL has a version too many, if a call to this path has two.
    pub(super) fn doubled(&self, path: &str) -> Option<Doubled> {
        Doubled::of(&self.path_prefix, path)
    }

    fn fault(&self, error: &ClientError) -> Fault {
        let upstream = self.name();
        if is_caused_by::<ClientGone>(error) {
            return Fault::ClientBody;
        }
        if let Some(UploadEnded(end)) = cause::<UploadEnded>(error) {
            return Fault::from(*end);
        }
        let cause = root_cause(error);
        if is_caused_by::<ConnectTimeout>(error) {
            Fault::ConnectTimeout { upstream }
        } else if error.is_connect() {
            Fault::Unreachable { upstream, cause }
        } else {
            Fault::Broken { upstream, cause }
        }
    }

    /// Scheme and host: what an error may tell a client. Whatever stands before an `@` is a secret.
    pub(super) fn name(&self) -> String {
        let authority = self.authority.as_str();
        format!("{}://{}", self.scheme, authority.rsplit('@').next().unwrap_or(authority))
    }
}

/// Returns true if a path leads above its own start for anybody who resolves its dots, whatever that one takes for a
/// separator or an encoding of one.
fn climbs_out(path: &str) -> bool {
    let plain = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    let mut depth = 0_i32;
    plain.split(['/', '\\']).any(|segment| {
        depth += match segment.split(';').next() {
            Some("..") => -1,
            Some("" | ".") | None => 0,
            Some(_) => 1,
        };
        depth < 0
    })
}

/// Lets all go first who are ready now, above all the connection that a request was just handed to. Unlike tokio's own
/// yielding this does not ask the system what else has become ready.
pub async fn yield_once() {
    let mut has_waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            Poll::Ready(())
        } else {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

fn no_roots() -> rustls::ClientConfig {
    rustls::ClientConfig::builder()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

/// The error and everything that caused it, outermost first.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |outer| {
        let outer: &'a (dyn StdError + 'static) = *outer;
        outer.source()
    })
}

fn cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    chain(error).find_map(|error| error.downcast_ref::<E>())
}

fn is_caused_by<E: StdError + 'static>(error: &(dyn StdError + 'static)) -> bool {
    cause::<E>(error).is_some()
}

fn root_cause(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().map_or_else(String::new, ToString::to_string)
}

/// A connector with a deadline over name look-up, TCP and TLS together.
#[derive(Clone)]
pub struct Timed<C> {
    inner: C,
    limit: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error("connect timed out")]
struct ConnectTimeout;

impl<C> Service<Uri> for Timed<C>
where
    C: Service<Uri>,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, limit) = (self.inner.call(uri), self.limit);
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => Err(ConnectTimeout.into()),
            }
        })
    }
}

/// The body of an upstream request.
pub struct SentBody {
    /// The bytes in memory already: the whole body, or the part that was read before it grew too large.
    pieces: VecDeque<Bytes>,
    rest: Option<Streamed>,
}

struct Streamed {
    body: Incoming,
    upload: Upload,
    sent: Arc<AtomicU64>,
}

/// The client's own body failed, which is no failure of the upstream.
#[derive(Debug, thiserror::Error)]
#[error("the client's body broke off")]
struct ClientGone;

#[derive(Debug, thiserror::Error)]
#[error("the client's body stalled")]
struct UploadEnded(UploadEnd);

impl SentBody {
    pub fn whole(body: Bytes) -> SentBody {
        SentBody::spliced([body])
    }

    pub fn spliced(pieces: impl IntoIterator<Item = Bytes>) -> SentBody {
        SentBody { pieces: pieces.into_iter().filter(|piece| !piece.is_empty()).collect(), rest: None }
    }

    pub fn streamed(body: Incoming, upload: Upload) -> SentBody {
        SentBody::spilled(Bytes::new(), body, upload)
    }

    pub fn spilled(head: Bytes, body: Incoming, upload: Upload) -> SentBody {
        let rest = Streamed { body, upload, sent: Arc::default() };
        SentBody { rest: Some(rest), ..SentBody::whole(head) }
    }

    /// The length of a body that is whole in memory; a streamed one keeps what its client stated.
    fn collected_length(&self) -> Option<usize> {
        self.rest.is_none().then(|| self.pieces_length())
    }

    fn is_of_unknown_length(&self) -> bool {
        !self.is_end_stream() && self.size_hint().exact().is_none()
    }

    fn pieces_length(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Counts the chunks that went out of a streamed body, so that a long upload is not taken for silence.
    fn sent_counter(&self) -> Option<Arc<AtomicU64>> {
        self.rest.as_ref().map(|rest| rest.sent.clone())
    }
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(piece) = self.pieces.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        match Pin::new(&mut rest.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::data_ref);
                rest.upload.progress(data.map_or(0, Bytes::len));
                rest.sent.fetch_add(1, Relaxed);
                Poll::Ready(frame.map(|frame| frame.map_err(|_| ClientGone.into())))
            }
            Poll::Pending => rest.upload.poll_end(cx).map(|end| Some(Err(UploadEnded(end).into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.rest.as_ref().is_none_or(|rest| rest.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let head = self.pieces_length();
        let mut hint =
            self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), |rest| rest.body.size_hint());
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + head as u64);
        }
        hint.set_lower(hint.lower() + head as u64);
        hint
    }
}
