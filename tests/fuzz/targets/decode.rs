//! Decoding for observation: no bytes break it, none come out without end, and chunking changes nothing.
//!
//! The first byte chooses the coding and whether the rest is compressed already or is to be compressed first;
//! the second chooses the chunks.

#![no_main]

use std::io::Write;

use flate2::{Compression, write};
use forkpoint::proxy::decode::{Decoder, Sink};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use libfuzzer_sys::fuzz_target;

const CODINGS: [&str; 6] = ["identity", "gzip", "deflate", "raw deflate", "br", "zstd"];
/// The bytes that may come out of any input; beyond that, only a hundred times the bytes that went in.
const OUTPUT_BYTES: usize = 64 << 10;
const RATIO: usize = 100;

fuzz_target!(|input: &[u8]| {
    let [choice, step, rest @ ..] = input else { return };
    let coding = CODINGS[usize::from(choice & 0x7f) % CODINGS.len()];
    let step = usize::from(*step) + 1;
    if choice & 0x80 == 0 {
        let decoded = decode(coding, &compress(coding, rest), step);
        assert!(!decoded.failed, "{coding}");
        assert_eq!(decoded.bytes, rest, "{coding}");
        return;
    }
    let whole = decode(coding, rest, usize::MAX);
    let pieces = decode(coding, rest, step);
    if !whole.failed && !pieces.failed {
        // A stream that breaks off is neither failed nor complete: how much of its last block comes out depends on how
        // much of that the decoder was given at once.
        let (short, long) = if whole.bytes.len() < pieces.bytes.len() {
            (&whole.bytes, &pieces.bytes)
        } else {
            (&pieces.bytes, &whole.bytes)
        };
        assert!(long.starts_with(short), "{coding}");
    }
    for decoded in [whole, pieces] {
        assert!(decoded.bytes.len() <= OUTPUT_BYTES.max(rest.len() * RATIO), "{coding}");
    }
});

struct Decoded {
    bytes: Vec<u8>,
    failed: bool,
}

struct Collect(Vec<u8>);

impl Sink for Collect {
    fn take(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn decode(coding: &str, bytes: &[u8], step: usize) -> Decoded {
    let mut headers = HeaderMap::new();
    let name = coding.trim_start_matches("raw ");
    headers.insert(CONTENT_ENCODING, name.parse().expect("a header value"));
    let mut decoder = Decoder::new(&headers, Collect(Vec::new()), OUTPUT_BYTES).expect("a known coding");
    bytes.chunks(step).for_each(|chunk| decoder.push(chunk));
    let failed = decoder.failed();
    // Nothing was pushed, so nothing was chosen and nothing came out.
    let bytes = decoder.sink().map(|sink| std::mem::take(&mut sink.0)).unwrap_or_default();
    Decoded { bytes, failed }
}

fn compress(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let level = Compression::fast();
    match coding {
        "gzip" => finish(write::GzEncoder::new(Vec::new(), level), bytes, |encoder| encoder.finish()),
        "deflate" => finish(write::ZlibEncoder::new(Vec::new(), level), bytes, |encoder| encoder.finish()),
        "raw deflate" => {
            finish(write::DeflateEncoder::new(Vec::new(), level), bytes, |encoder| encoder.finish())
        }
        "br" => {
            let encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 1, 18);
            finish(encoder, bytes, |encoder| Ok(encoder.into_inner()))
        }
        "zstd" => zstd::encode_all(bytes, 1).expect("memory"),
        _ => bytes.to_vec(),
    }
}

fn finish<W: Write>(
    mut encoder: W,
    bytes: &[u8],
    end: impl FnOnce(W) -> std::io::Result<Vec<u8>>,
) -> Vec<u8> {
    encoder.write_all(bytes).and_then(|()| end(encoder)).expect("writing to memory")
}
