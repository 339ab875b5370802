//! Any chunking of a stream gives the events of the whole, and the same verdict about its size.
//!
//! The first two bytes choose the limit and the cuts; the rest is the stream.

#![no_main]

use forkpoint::engine::answer::sse::Framer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [limit, step, stream @ ..] = input else { return };
    // Small limits are met often; the largest is never met.
    let limit = if *limit == u8::MAX { usize::MAX } else { usize::from(*limit) };
    let whole = frame([stream], limit);
    assert_eq!(frame(stream.chunks(1), limit), whole, "byte by byte");
    assert_eq!(frame(stream.chunks(usize::from(*step) + 1), limit), whole, "in steps of {step} + 1");
    assert_eq!(frame(uneven(stream, *step), limit), whole, "uneven, from {step}");
    assert!(whole.events.iter().all(|(_, data)| data.len() <= limit));
});

#[derive(Debug, PartialEq)]
struct Framed {
    events: Vec<(Vec<u8>, Vec<u8>)>,
    overflowed: bool,
}

fn frame<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, limit: usize) -> Framed {
    let mut framer = Framer::new(limit);
    let mut events = Vec::new();
    for chunk in chunks {
        framer.push(chunk, |event| events.push((event.name.to_vec(), event.data.to_vec())));
    }
    Framed { events, overflowed: framer.overflowed() }
}

/// Chunks of changing lengths, empty ones among them.
fn uneven(mut stream: &[u8], seed: u8) -> Vec<&[u8]> {
    let mut chunks = Vec::new();
    let mut length = usize::from(seed);
    while !stream.is_empty() {
        length = (length * 5 + 3) % 17;
        let (chunk, rest) = stream.split_at(length.min(stream.len()));
        chunks.push(chunk);
        stream = rest;
    }
    chunks
}
