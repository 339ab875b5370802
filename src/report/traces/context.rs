//! The W3C trace context, which says which trace an exchange belongs to.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::engine::words::Hex;

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub [u8; 8]);

/// The content of a `traceparent` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub trace: TraceId,
    pub span: SpanId,
    pub sampled: bool,
}

impl Context {
    /// Returns the caller's context, if it sent exactly one that can be read.
    pub fn of(headers: &HeaderMap) -> Option<Context> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        let mut parts = value.to_str().ok()?.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // A later version may have more parts; this one has four.
        if hex::<1>(version)? == [0xFF] || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let (trace, span, [flags]) = (hex::<16>(trace)?, hex::<8>(span)?, hex::<1>(flags)?);
        let known = trace != [0; 16] && span != [0; 8];
        known.then_some(Context { trace: TraceId(trace), span: SpanId(span), sampled: flags & 1 == 1 })
    }

    pub fn header(&self) -> Option<HeaderValue> {
        let flags = u8::from(self.sampled);
        HeaderValue::try_from(format!("00-{}-{}-{flags:02x}", self.trace, self.span)).ok()
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if text.len() != 2 * N || !text.as_bytes().iter().all(lower) {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

/// Generates ids that cannot be guessed, and that no two exchanges share.
#[derive(Default)]
pub struct Ids {
    state: RandomState,
    next: AtomicU64,
}

impl Ids {
    fn number(&self) -> u64 {
        // Zero is not a valid id.
        self.state.hash_one(self.next.fetch_add(1, Relaxed)).max(1)
    }

    pub fn span(&self) -> SpanId {
        SpanId(self.number().to_be_bytes())
    }

    pub fn trace(&self) -> TraceId {
        let mut id = [0; 16];
        for (to, from) in
            id.iter_mut().zip([self.number(), self.number()].iter().flat_map(|n| n.to_be_bytes()))
        {
            *to = from;
        }
        TraceId(id)
    }
}

impl TraceId {
    /// Returns true if this trace belongs to the share that is kept. All processes agree on that.
    pub fn is_within(&self, share: f64) -> bool {
        let [.., a, b, c, d, e, f, g] = self.0;
        let number = u64::from_be_bytes([0, a, b, c, d, e, f, g]);
        (number as f64) < share * (1_u64 << 56) as f64
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(value: &str) -> Option<Context> {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, value.parse().unwrap());
        Context::of(&headers)
    }

    #[test]
    fn a_context_is_read_as_it_is_written_and_nothing_else_is_one() {
        let value = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let read = context(value).unwrap();
        assert!(read.sampled);
        assert_eq!(read.header().unwrap(), value);
        assert!(context("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more").is_some());
        for bad in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01",
        ] {
            assert_eq!(context(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_share_of_traces_is_kept() {
        let ids = Ids::default();
        let kept = (0..4_000).filter(|_| ids.trace().is_within(0.25)).count();
        assert!((800..1_200).contains(&kept), "{kept}");
        assert!(ids.trace().is_within(1.0) && !ids.trace().is_within(0.0));
    }
}
