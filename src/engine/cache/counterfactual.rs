//! Estimates, carefully, the bill of a request had it gone out otherwise.
//!
//! The bill gives the tokens; where a prompt is another one they are scaled by its bytes. What would have
//! been read from the cache is told by the ledger, which also knows entries that are only there because requests
//! were aligned: so a request as sent is taken to read rather too much than too little.

use super::breakpoints::Breakpoint;
use super::entry::prefix_bytes;
use crate::engine::answer::usage::Usage;
use crate::engine::request::recall::Reading;
use crate::engine::words::Ttl;

/// Returns the billed usage as it would have been without a cache.
pub fn uncached(billed: &Usage) -> Usage {
    Usage {
        uncached: billed.uncached.saturating_add(billed.cached()),
        output: billed.output,
        ..Usage::default()
    }
}

/// A prompt as its client sent it.
#[derive(Clone, Copy, Debug)]
pub struct AsSent<'a> {
    pub received: &'a Reading,
    /// The client's own.
    pub breakpoints: &'a [Breakpoint],
    /// Tokens that its own markers would have found.
    pub read: u64,
    pub minimum_tokens: u64,
}

impl AsSent<'_> {
    /// The bill for it, given that of what went out.
    pub fn usage(&self, forwarded: &Reading, billed: &Usage) -> Usage {
        let prompt = |request: &Reading| prefix_bytes(request.anatomy(), usize::MAX - 1);
        let (sent_bytes, out_bytes) = (prompt(self.received), prompt(forwarded));
        let all = billed.uncached.saturating_add(billed.cached());
        let scaled = |tokens: u64, part: u64, whole: u64| {
            if whole == 0 { 0 } else { (tokens as f64 * part as f64 / whole as f64).round() as u64 }
        };
        let tokens = scaled(all, sent_bytes, out_bytes);
        let Some(last) = self.breakpoints.last() else {
            return Usage { uncached: tokens, output: billed.output, ..Usage::default() };
        };
        let marked = prefix_bytes(self.received.anatomy(), last.piece);
        let marked = Some(scaled(tokens, marked, sent_bytes)).filter(|marked| *marked >= self.minimum_tokens);
        let marked = marked.unwrap_or(0);
        let read = self.read.min(marked);
        let written = marked - read;
        let mut usage =
            Usage { uncached: tokens - marked, cache_read: read, output: billed.output, ..Usage::default() };
        match last.ttl {
            Ttl::FiveMinutes => usage.cache_write_5m = written,
            Ttl::OneHour => usage.cache_write_1h = written,
        }
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cache::breakpoints::of_client;
    use crate::engine::request::prefix::Attribution;
    use crate::engine::request::recall::{Nothing, Remembered};
    use bytes::Bytes;

    fn request(body: &str) -> Remembered {
        Remembered::read(Bytes::copy_from_slice(body.as_bytes()), &Nothing, Attribution::Counted).unwrap()
    }

    fn as_sent(body: &str, out: &str, read: u64, billed: &Usage) -> Usage {
        let received = request(body);
        let breakpoints = of_client(received.body(), received.anatomy());
        let sent = AsSent { received: &received, breakpoints: &breakpoints, read, minimum_tokens: 4 };
        sent.usage(&request(out), billed)
    }

    const BILLED: Usage =
        Usage { uncached: 10, cache_read: 80, cache_write_5m: 10, cache_write_1h: 0, output: 7 };

    #[test]
    fn without_markers_nothing_is_cached() {
        let body = r#"{"system":"abc","messages":[{"role":"user","content":"defg"}]}"#;
        assert_eq!(as_sent(body, body, 50, &BILLED), Usage { uncached: 100, output: 7, ..Usage::default() });
        assert_eq!(uncached(&BILLED), Usage { uncached: 100, output: 7, ..Usage::default() });
    }

    #[test]
    fn what_is_marked_is_read_as_far_as_it_is_warm_and_written_else() {
        let body = r#"{"system":[{"type":"text","text":"abc","cache_control":{"type":"ephemeral","ttl":"1h"}}],"messages":[{"role":"user","content":"defghijklmnopqrstuvwxyzabcde"}]}"#;
        let usage = as_sent(body, body, 20, &BILLED);
        assert_eq!((usage.cache_read, usage.cache_write_5m, usage.output), (20, 0, 7));
        assert_eq!(usage.uncached + usage.cached(), 100, "all of the prompt is billed once");
        assert!(usage.cache_write_1h > 0);
        let cold = as_sent(body, body, 0, &BILLED);
        assert_eq!(cold.cache_write_1h, usage.cache_write_1h + 20);
    }

    #[test]
    fn a_shorter_prompt_has_fewer_tokens() {
        let own = r#"{"messages":[{"role":"user","content":"abcdefgh"}]}"#;
        let out =
            r#"{"system":"abcdefghabcdefghabcdefghabcd","messages":[{"role":"user","content":"abcdefgh"}]}"#;
        assert_eq!(as_sent(own, out, 0, &BILLED).uncached, 25);
    }
}
