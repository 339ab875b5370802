//! Headers: those that must not cross a hop are removed, as are our own, and ambiguous requests are refused.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, response};

use super::error::Fault;

/// Headers that concern one connection only (RFC 9110 §7.6.1).
static HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];
const OURS: &str = "x-forkpoint-";

/// Refuses requests that cannot be forwarded without guessing.
pub fn check<B>(request: &Request<B>) -> Result<(), Fault> {
    let headers = request.headers();
    if request.method() == Method::CONNECT {
        return Err(Fault::Connect);
    }
    // A client that offers h2c also takes an answer in HTTP/1.1; other upgrades are needed. An offer that is not also
    // an option of the connection is none (RFC 9110 §7.8).
    let offers_upgrade = list(headers, CONNECTION).any(|option| is(option, b"upgrade"));
    if offers_upgrade && list(headers, UPGRADE).any(|offer| !is(offer, b"h2c")) {
        return Err(Fault::Upgrade);
    }
    if request.version() < Version::HTTP_2 {
        check_length(headers)?;
    }
    let path = request.uri().path();
    let whole_server = path == "*" && request.method() == Method::OPTIONS;
    if path.starts_with('/') || whole_server { Ok(()) } else { Err(Fault::Target) }
}

/// Refuses a body whose length is ambiguous: requests are smuggled by lengths that two readers see differently.
fn check_length(headers: &HeaderMap) -> Result<(), Fault> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let first = lengths.next();
    let agree = lengths.all(|other| Some(other) == first);
    let digits = first.is_none_or(|length| length.as_bytes().iter().all(u8::is_ascii_digit));
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked = encodings.next();
    let plain = chunked.is_none_or(|value| is(value.as_bytes(), b"chunked")) && encodings.next().is_none();
    if agree && digits && plain && !(first.is_some() && chunked.is_some()) {
        Ok(())
    } else {
        Err(Fault::Length)
    }
}

/// The elements of a header that is a list.
fn list(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    headers.get_all(name).into_iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
}

fn is(value: &[u8], word: &[u8]) -> bool {
    value.trim_ascii().eq_ignore_ascii_case(word)
}

/// Makes received headers fit for the upstream. Everything else stays as it came, duplicates included.
pub fn for_upstream(headers: &mut HeaderMap) {
    let takes_trailers = takes_trailers(headers);
    strip_hop_by_hop(headers);
    if takes_trailers {
        // The field holds for one hop, and HTTP/1.1 wants that said with it.
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    strip_ours(headers);
    // The HTTP client that sends the request writes the upstream's name here.
    headers.remove(HOST);
}

/// Returns an error if the head of an answer cannot be relayed without guessing.
pub fn check_answer<B>(answer: &Response<B>) -> Result<(), &'static str> {
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err("it changed the protocol, and nobody had asked for that");
    }
    let mut encodings = answer.headers().get_all(TRANSFER_ENCODING).iter();
    match (encodings.next(), encodings.next()) {
        (None, _) => Ok(()),
        (Some(one), None) if is(one.as_bytes(), b"chunked") => Ok(()),
        // Our HTTP client decodes chunks only, and the header that names other codings is not passed on.
        _ => Err("its body has a transfer encoding other than chunked"),
    }
}

/// Makes the head of an answer fit for the client. Everything else stays as it came.
pub fn for_client(head: &mut response::Parts) {
    // The version is that of this hop.
    head.version = Version::HTTP_11;
    if head.headers.contains_key(TRANSFER_ENCODING) {
        // Chunks override a length (RFC 9112 §6.3), so the length may be wrong.
        head.headers.remove(CONTENT_LENGTH);
    }
    strip_hop_by_hop(&mut head.headers);
    // Only forkpoint may set these.
    strip_ours(&mut head.headers);
}

fn strip_ours(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(OURS)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        list(headers, CONNECTION).filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();
    for name in named {
        headers.remove(name);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(TE);
}

fn takes_trailers(headers: &HeaderMap) -> bool {
    list(headers, TE).any(|coding| is(coding, b"trailers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut builder = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap()
    }

    fn verdict(headers: &[(&str, &str)]) -> Option<Fault> {
        check(&request("POST", "/v1/messages", headers)).err()
    }

    #[test]
    fn lengths_that_could_be_read_two_ways_are_refused() {
        assert_eq!(verdict(&[("content-length", "5")]), None);
        assert_eq!(verdict(&[("content-length", "5"), ("content-length", "5")]), None);
        assert_eq!(verdict(&[("transfer-encoding", "Chunked")]), None);
        for bad in [
            &[("content-length", "5"), ("content-length", "6")][..],
            &[("content-length", "+5")],
            &[("content-length", "5"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "identity")],
        ] {
            assert_eq!(verdict(bad), Some(Fault::Length), "{bad:?}");
        }
    }

    #[test]
    fn tunnels_and_upgrades_are_refused_but_an_h2c_offer_is_not() {
        assert_eq!(check(&request("CONNECT", "host:443", &[])).err(), Some(Fault::Connect));
        let connection = ("connection", "keep-alive, Upgrade");
        assert_eq!(verdict(&[connection, ("upgrade", "websocket")]), Some(Fault::Upgrade));
        assert_eq!(verdict(&[connection, ("upgrade", "h2c")]), None);
        assert_eq!(verdict(&[("upgrade", "websocket")]), None, "nobody asked the connection to change");
    }

    #[test]
    fn only_what_belongs_to_the_hop_or_to_us_is_dropped() {
        let request = request(
            "POST",
            "/",
            &[
                ("connection", "close, X-Hop"),
                ("x-hop", "1"),
                ("te", "gzip, trailers"),
                ("keep-alive", "1"),
                ("x-forkpoint-mode", "observe"),
                ("host", "here"),
                ("x-api-key", "k"),
                ("accept", "a"),
                ("accept", "b"),
                ("trailer", "x-sum"),
            ],
        );
        let mut headers = request.headers().clone();
        for_upstream(&mut headers);
        let left: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
        let kept = [
            ("x-api-key", "k"),
            ("accept", "a"),
            ("accept", "b"),
            ("trailer", "x-sum"),
            ("te", "trailers"),
            ("connection", "te"),
        ];
        assert_eq!(left.len(), kept.len(), "{left:?}");
        for kept in kept {
            assert!(left.contains(&kept), "{kept:?}");
        }
    }
}
