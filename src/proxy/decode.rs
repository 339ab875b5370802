//! Decodes a copy of a compressed answer for observation. The client gets the compressed bytes.
//!
//! A few bytes can decode to gigabytes. So decoded bytes go straight into the sink, only the decoder's window is kept
//! here, and decoding stops for good once the output exceeds both the byte limit and [`RATIO_MAX`] times the input.

use std::io::{self, Write};

use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// The largest ratio of output to input. Streams of events compress by 5 to 20; bombs by hundreds.
const RATIO_MAX: u64 = 100;
/// The largest window that HTTP allows for zstd (RFC 9659): 8 MiB.
pub(super) const ZSTD_WINDOW_LOG_MAX: u32 = 23;
pub(super) const BROTLI_BUFFER_BYTES: usize = 4096;

/// Receives decoded bytes.
pub trait Sink: Send {
    fn take(&mut self, bytes: &[u8]);
}

pub struct Decoder<S: Sink> {
    coding: Coding<Meter<S>>,
    failed: bool,
}

enum Coding<W: Write> {
    Identity(W),
    Gzip(Box<MultiGzDecoder<W>>),
    /// The name means the zlib format, but some servers send raw deflate: the first byte decides.
    Deflate(Option<W>),
    Zlib(Box<ZlibDecoder<W>>),
    RawDeflate(Box<DeflateDecoder<W>>),
    Brotli(Box<brotli::DecompressorWriter<W>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, W>>),
}

impl<S: Sink> Decoder<S> {
    /// Returns `None` for an unknown coding: such an answer is relayed but not observed.
    pub fn new(headers: &HeaderMap, sink: S, output_bytes: usize) -> Option<Decoder<S>> {
        let mut names = headers.get_all(CONTENT_ENCODING).iter();
        let name = names.next().map_or(&b"identity"[..], |name| name.as_bytes());
        if names.next().is_some() {
            return None;
        }
        let meter = Meter { sink, input: 0, output: 0, allowance: output_bytes as u64 };
        let coding = match name.trim_ascii().to_ascii_lowercase().as_slice() {
            b"identity" | b"" => Coding::Identity(meter),
            b"gzip" | b"x-gzip" => Coding::Gzip(Box::new(MultiGzDecoder::new(meter))),
            b"deflate" => Coding::Deflate(Some(meter)),
            b"br" => Coding::Brotli(Box::new(brotli::DecompressorWriter::new(meter, BROTLI_BUFFER_BYTES))),
            b"zstd" => {
                let mut decoder = zstd::stream::write::Decoder::new(meter).ok()?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).ok()?;
                Coding::Zstd(Box::new(decoder))
            }
            _ => return None,
        };
        Some(Decoder { coding, failed: false })
    }

    /// Decodes one chunk into the sink at once. After a failure nothing more is decoded.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.failed || chunk.is_empty() {
            return;
        }
        self.choose_deflate(chunk);
        if let Some(meter) = self.coding.inner() {
            meter.input += chunk.len() as u64;
        }
        self.failed = self.coding.write(chunk).is_err();
    }

    /// Returns true if the copy is incomplete: broken compression, or too much of it.
    pub fn failed(&self) -> bool {
        self.failed
    }

    pub fn sink(&mut self) -> Option<&mut S> {
        self.coding.inner().map(|meter| &mut meter.sink)
    }

    fn choose_deflate(&mut self, chunk: &[u8]) {
        if let Coding::Deflate(meter) = &mut self.coding
            && let Some(meter) = meter.take()
        {
            self.coding = match chunk[0] & 0x0f {
                8 => Coding::Zlib(Box::new(ZlibDecoder::new(meter))),
                _ => Coding::RawDeflate(Box::new(DeflateDecoder::new(meter))),
            };
        }
    }
}

impl<S: Sink> Coding<Meter<S>> {
    fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        // Without a flush the decoder would keep the last events until more bytes arrive.
        let both = |writer: &mut dyn Write| writer.write_all(chunk).and_then(|()| writer.flush());
        match self {
            Coding::Identity(meter) => both(meter),
            Coding::Gzip(decoder) => both(decoder),
            Coding::Deflate(_) => Ok(()),
            Coding::Zlib(decoder) => both(decoder),
            Coding::RawDeflate(decoder) => both(decoder),
            Coding::Brotli(decoder) => both(decoder),
            Coding::Zstd(decoder) => both(decoder),
        }
    }

    fn inner(&mut self) -> Option<&mut Meter<S>> {
        match self {
            Coding::Identity(meter) => Some(meter),
            Coding::Gzip(decoder) => Some(decoder.get_mut()),
            Coding::Deflate(meter) => meter.as_mut(),
            Coding::Zlib(decoder) => Some(decoder.get_mut()),
            Coding::RawDeflate(decoder) => Some(decoder.get_mut()),
            Coding::Brotli(decoder) => Some(decoder.get_mut()),
            Coding::Zstd(decoder) => Some(decoder.get_mut()),
        }
    }
}

/// Compares the bytes that come out with those that went in.
struct Meter<S> {
    sink: S,
    input: u64,
    output: u64,
    allowance: u64,
}

impl<S: Sink> Write for Meter<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output += bytes.len() as u64;
        if self.output > self.allowance && self.output > self.input * RATIO_MAX {
            return Err(io::Error::other("decompression bomb"));
        }
        self.sink.take(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Collect(Vec<u8>);

    impl Sink for Collect {
        fn take(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
    }

    fn decoder(coding: &str, output_bytes: usize) -> Option<Decoder<Collect>> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, coding.parse().unwrap());
        Decoder::new(&headers, Collect(Vec::new()), output_bytes)
    }

    fn encode(coding: &str, text: &[u8]) -> Vec<u8> {
        use flate2::{Compression, write};
        match coding {
            "gzip" => {
                let mut encoder = write::GzEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = write::ZlibEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "raw deflate" => {
                let mut encoder = write::DeflateEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "br" => {
                let mut out = Vec::new();
                brotli::CompressorWriter::new(&mut out, 4096, 5, 22).write_all(text).unwrap();
                out
            }
            "zstd" => zstd::encode_all(text, 3).unwrap(),
            _ => text.to_vec(),
        }
    }

    const CODINGS: [&str; 6] = ["identity", "gzip", "deflate", "raw deflate", "br", "zstd"];

    #[test]
    fn every_coding_is_decoded_byte_by_byte() {
        let text = "event: ping\ndata: {\"é\":1}\n\n".repeat(50).into_bytes();
        for coding in CODINGS {
            let mut decoder = decoder(coding.trim_start_matches("raw "), 1 << 20).unwrap();
            for byte in encode(coding, &text) {
                decoder.push(&[byte]);
            }
            assert!(!decoder.failed(), "{coding}");
            assert!(decoder.sink().unwrap().0 == text, "{coding}");
        }
    }

    #[test]
    fn a_bomb_is_left_alone_soon() {
        let bomb = vec![b'x'; 64 << 20];
        for coding in CODINGS.iter().filter(|coding| **coding != "identity") {
            let mut decoder = decoder(coding.trim_start_matches("raw "), 1 << 20).unwrap();
            decoder.push(&encode(coding, &bomb));
            assert!(decoder.failed(), "{coding}");
            assert!(decoder.sink().unwrap().0.len() < 16 << 20, "{coding}");
        }
    }

    #[test]
    fn broken_and_unknown_codings_are_not_observed() {
        let mut broken = decoder("gzip", 1 << 20).unwrap();
        broken.push(b"this is no gzip at all");
        assert!(broken.failed());
        assert!(decoder("gzip, br", 1).is_none());
        assert!(decoder("rot13", 1).is_none());
    }
}
