//! A request most of whose bytes are another's: kept as slices of those, and put together when they are asked for.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::{Known, Malformed, Reading, Remembered};
use crate::engine::request::prefix::Attribution;

/// A request that was read, without a copy of what others hold anyway.
#[derive(Debug)]
pub struct InParts {
    parts: Vec<Bytes>,
    reading: Arc<Reading>,
    shared: Shared,
    /// Bytes that are held for this request alone.
    own: usize,
}

/// The request that others are made of: held once, however many there are.
#[derive(Clone, Debug)]
pub struct Shared {
    pub request: Arc<Remembered>,
    /// Returns the shared bytes of a request in parts: this one's, its answer's, and what all reply to that.
    pub bytes: usize,
    /// About how many of them come behind this request's.
    pub answer: usize,
}

impl Shared {
    /// About how much memory this takes.
    pub fn memory_bytes(&self) -> usize {
        self.request.memory_bytes() + self.answer
    }
}

impl InParts {
    /// Reads a request. `received` is kept anyway; `own` is where its other parts are slices of, and is not kept.
    pub fn read(
        mut parts: Vec<Bytes>,
        shared: Shared,
        received: &Remembered,
        own: &Remembered,
        known: &dyn Known,
        attribution: Attribution,
    ) -> Result<(InParts, Remembered), Malformed> {
        let whole = Remembered::read(parts.concat().into(), known, attribution)?;
        let is_of = |body: &Bytes, part: &Bytes| addresses(body).contains(&addresses(part).start);
        let (mut received_bytes, mut all) = (0, 0);
        for part in &mut parts {
            all += part.len();
            if is_of(&received.body, part) {
                received_bytes += part.len();
            } else if is_of(&own.body, part) {
                // A slice would keep all of a body in memory that is not kept otherwise.
                *part = Bytes::copy_from_slice(part);
            }
        }
        let held = all.saturating_sub(shared.bytes).saturating_sub(received_bytes);
        let reading = Arc::clone(&whole.reading);
        Ok((InParts { parts, reading, shared, own: held }, whole))
    }

    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    pub(in crate::engine) fn shared_reading(&self) -> &Arc<Reading> {
        &self.reading
    }

    /// The number of its bytes.
    pub fn body_bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// The request as it was read.
    pub fn whole(&self) -> Remembered {
        Remembered { body: self.parts.concat().into(), reading: Arc::clone(&self.reading) }
    }

    /// Returns the request that it is made of.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// About how much memory this takes, beside what is shared.
    pub fn memory_bytes(&self) -> usize {
        size_of::<InParts>() + self.own + self.parts.len() * size_of::<Bytes>() + self.reading.memory_bytes()
    }
}

/// Returns the addresses of bytes in memory.
fn addresses(bytes: &Bytes) -> Range<usize> {
    let range = bytes.as_ptr_range();
    range.start.addr()..range.end.addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::recall::Nothing;

    fn read(body: String) -> Arc<Remembered> {
        Arc::new(Remembered::read(body.into(), &Nothing, Attribution::Counted).unwrap())
    }

    fn body(words: &str) -> String {
        format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}]}}"#)
    }

    /// A request on all but the last two bytes of another, with words of its own.
    fn on(parent: &Arc<Remembered>, received: &Remembered, own: &Remembered) -> (InParts, Remembered) {
        let (head, words) = (parent.body().len() - 2, own.body().len());
        let parts = vec![
            parent.body().slice(..head),
            Bytes::from_static(b","),
            own.body().slice(13..words - 2),
            Bytes::from_static(b"]}"),
        ];
        let shared = Shared { request: Arc::clone(parent), bytes: head, answer: 0 };
        InParts::read(parts, shared, received, own, &Nothing, Attribution::Counted).unwrap()
    }

    /// Whether a part is a slice of this body.
    fn shares(request: &InParts, body: &Bytes) -> bool {
        request.parts.iter().any(|part| addresses(body).contains(&addresses(part).start))
    }

    #[test]
    fn what_is_kept_in_parts_is_read_like_the_whole() {
        let (parent, child) = (read(body("p")), read(body("c")));
        let (kept, whole) = on(&parent, &child, &child);
        let expected =
            r#"{"messages":[{"role":"user","content":"p"},{"role":"user","content":"c"}]}"#.to_owned();
        assert_eq!((kept.whole(), &whole), (whole.clone(), &*read(expected)));
        assert_eq!(kept.reading(), &*kept.whole());
    }

    #[test]
    fn fifty_on_one_request_hold_none_of_its_bytes_themselves() {
        let parent = read(body(&"p".repeat(200_000)));
        let kept: Vec<_> = (0..50)
            .map(|number| {
                let child = read(body(&format!("{number} {}", "c".repeat(2_000))));
                on(&parent, &child, &child).0
            })
            .collect();
        for kept in &kept {
            assert!(shares(kept, parent.body()));
            let others =
                kept.parts.iter().filter(|part| !addresses(parent.body()).contains(&addresses(part).start));
            assert!(others.map(Bytes::len).sum::<usize>() < 3_000);
            assert!(kept.memory_bytes() < 3_000, "{}", kept.memory_bytes());
        }
    }

    #[test]
    fn a_body_that_is_not_kept_otherwise_is_not_kept_for_a_part_of_it() {
        let (parent, received, own) = (read(body("p")), read(body("came")), read(body("went")));
        let (respelt, _) = on(&parent, &received, &own);
        assert!(!shares(&respelt, own.body()));
        let (same, _) = on(&parent, &own, &own);
        assert!(shares(&same, own.body()), "it is kept as the received one");
        let words = own.body().len() - 15;
        assert_eq!(respelt.memory_bytes() - same.memory_bytes(), words, "and is counted there");
    }
}
