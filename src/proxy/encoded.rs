//! Decodes a request body that came compressed, so that it can be read.
//!
//! A few bytes can decode to gigabytes. So no coding gives out more than `limits.body_bytes`, and what is given out
//! counts as held while it grows. A body that is cut off or corrupt is not read at all: the upstream decides.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::collect::{Permit, without_spare};
use super::decode::{BROTLI_BUFFER_BYTES, ZSTD_WINDOW_LOG_MAX};
use crate::config::Limits;
use crate::engine::words::Reason;

/// Nobody compresses a body more often.
const CODINGS_MAX: usize = 2;
/// The most that is decoded in one step.
const STEP_BYTES: usize = 64 << 10;

/// A coding of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Coding {
    /// The codings of a body in the order in which they were applied; none if one of them is not known.
    pub fn all(headers: &HeaderMap) -> Option<Vec<Coding>> {
        let lines = headers.get_all(CONTENT_ENCODING).iter();
        let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        let names = names.map(|name| name.trim_ascii().to_ascii_lowercase());
        let codings = names.filter(|name| !matches!(&name[..], b"" | b"identity"));
        let codings: Option<Vec<Coding>> = codings.map(|name| Coding::named(&name)).collect();
        codings.filter(|codings| codings.len() <= CODINGS_MAX)
    }

    fn named(name: &[u8]) -> Option<Coding> {
        match name {
            b"gzip" | b"x-gzip" => Some(Coding::Gzip),
            b"deflate" => Some(Coding::Deflate),
            b"br" => Some(Coding::Brotli),
            b"zstd" => Some(Coding::Zstd),
            _ => None,
        }
    }

    /// Returns what `encoded` decodes to.
    fn decode(self, encoded: Source) -> io::Result<Source> {
        let encoded = BufReader::new(encoded);
        Ok(match self {
            Coding::Gzip => Box::new(MultiGzDecoder::new(encoded)),
            Coding::Deflate => Box::new(Inflated { encoded, inflate: None, has_ended: false }),
            Coding::Brotli => Box::new(brotli::Decompressor::new(encoded, BROTLI_BUFFER_BYTES)),
            Coding::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(encoded)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
        })
    }
}

type Source = Box<dyn Read + Send>;

/// A body that is being decoded.
pub struct Decoding {
    source: Source,
    decoded: Vec<u8>,
}

impl Decoding {
    pub fn new(body: Bytes, codings: &[Coding], limits: &Limits) -> Result<Decoding, Reason> {
        let mut source: Source = Box::new(Cursor::new(body));
        for coding in codings.iter().rev() {
            let decoded = coding.decode(source).map_err(reason)?;
            source = Box::new(Limited { decoded, left: limits.body_bytes });
        }
        Ok(Decoding { source, decoded: Vec::new() })
    }

    /// Decodes until there are `bytes`, or the body has ended: then it returns true.
    pub fn decode(&mut self, bytes: usize, permit: &mut Permit, limits: &Limits) -> Result<bool, Reason> {
        while self.decoded.len() < bytes {
            let start = self.decoded.len();
            self.decoded.resize(start + STEP_BYTES, 0);
            let read = self.source.read(&mut self.decoded[start..]);
            let read = read.map_err(reason)?;
            self.decoded.truncate(start + read);
            if read == 0 {
                return Ok(true);
            }
            permit.grow(read, limits)?;
        }
        Ok(false)
    }

    pub fn finish(self) -> Bytes {
        without_spare(self.decoded)
    }
}

fn reason(error: io::Error) -> Reason {
    match error.kind() {
        io::ErrorKind::FileTooLarge => Reason::BodyTooLarge,
        _ => Reason::ContentEncoding,
    }
}

/// Fails once more comes out than is allowed.
struct Limited {
    decoded: Source,
    left: usize,
}

impl Read for Limited {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.decoded.read(out)?;
        self.left = self.left.checked_sub(read).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}

/// The name `deflate` means the zlib format, but some clients send raw deflate: the first byte decides. The readers of
/// `flate2` take a stream that is cut off for one that has ended; this one does not.
struct Inflated {
    encoded: BufReader<Source>,
    inflate: Option<Decompress>,
    has_ended: bool,
}

impl Read for Inflated {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let encoded = self.encoded.fill_buf()?;
            if self.has_ended {
                return if encoded.is_empty() { Ok(0) } else { Err(io::ErrorKind::InvalidData.into()) };
            }
            let is_zlib = encoded.first().is_some_and(|byte| byte & 0x0f == 8);
            let inflate = self.inflate.get_or_insert_with(|| Decompress::new(is_zlib));
            let (taken, given) = (inflate.total_in(), inflate.total_out());
            let status = inflate.decompress(encoded, out, FlushDecompress::None)?;
            let taken = (inflate.total_in() - taken) as usize;
            let given = (inflate.total_out() - given) as usize;
            self.encoded.consume(taken);
            self.has_ended = status == Status::StreamEnd;
            if given > 0 {
                return Ok(given);
            }
            if taken == 0 && !self.has_ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const NAMES: [&str; 5] = ["gzip", "deflate", "raw deflate", "br", "zstd"];

    fn encode(name: &str, text: &[u8]) -> Vec<u8> {
        use flate2::{Compression, write};
        let mut out = Vec::new();
        let level = Compression::best();
        match name {
            "gzip" => write::GzEncoder::new(&mut out, level).write_all(text).unwrap(),
            "deflate" => write::ZlibEncoder::new(&mut out, level).write_all(text).unwrap(),
            "raw deflate" => write::DeflateEncoder::new(&mut out, level).write_all(text).unwrap(),
            "br" => brotli::CompressorWriter::new(&mut out, 4096, 5, 22).write_all(text).unwrap(),
            _ => out = zstd::encode_all(text, 3).unwrap(),
        }
        out
    }

    fn limits(body_bytes: usize, held_bytes: usize) -> Limits {
        Limits { body_bytes, held_bytes, ..crate::config::Config::default().limits }
    }

    fn decoded(names: &str, body: Vec<u8>, limits: &Limits) -> Result<Bytes, Reason> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, names.parse().unwrap());
        let codings = Coding::all(&headers).ok_or(Reason::ContentEncoding)?;
        let mut permit = Permit::of_a_test(limits);
        let mut decoding = Decoding::new(body.into(), &codings, limits)?;
        while !decoding.decode(usize::MAX, &mut permit, limits)? {}
        Ok(decoding.finish())
    }

    fn text() -> Vec<u8> {
        (0..40_000_u32)
            .flat_map(|number| format!("{},", number.wrapping_mul(2_654_435_761)).into_bytes())
            .collect()
    }

    #[test]
    fn every_coding_is_decoded_and_so_is_one_within_another() {
        let (text, limits) = (text(), limits(1 << 20, 1 << 30));
        for name in NAMES {
            let known = name.trim_start_matches("raw ");
            let body = encode(name, &text);
            assert!(decoded(known, body.clone(), &limits).unwrap() == text, "{name}");
            let twice = encode("gzip", &body);
            assert!(decoded(&format!("{known}, x-GZIP,identity"), twice, &limits).unwrap() == text, "{name}");
        }
        assert!(decoded("identity", text.clone(), &limits).unwrap() == text);
    }

    #[test]
    fn what_is_cut_off_corrupt_or_followed_by_more_is_not_read() {
        let (text, limits) = (text(), limits(1 << 20, 1 << 30));
        for name in NAMES {
            let known = name.trim_start_matches("raw ");
            let body = encode(name, &text);
            for end in [0, 1, body.len() / 2, body.len() - 1] {
                let found = decoded(known, body[..end].to_vec(), &limits);
                assert!(found.as_ref().is_err() || found.as_ref().is_ok_and(Bytes::is_empty), "{name} {end}");
            }
            let mut corrupt = body.clone();
            corrupt[body.len() / 2..].fill(0xff);
            assert!(decoded(known, corrupt, &limits).map_or(true, |found| found != text), "{name}");
        }
        let more = [encode("deflate", &text), b"more".to_vec()].concat();
        assert_eq!(decoded("deflate", more, &limits).unwrap_err(), Reason::ContentEncoding);
        for unknown in ["rot13", "gzip, rot13", "gzip, gzip, gzip"] {
            assert_eq!(decoded(unknown, text.clone(), &limits).unwrap_err(), Reason::ContentEncoding);
        }
    }

    #[test]
    fn no_more_is_decoded_than_the_limits_allow() {
        let bomb = vec![b' '; 8 << 20];
        for name in NAMES {
            let known = name.trim_start_matches("raw ");
            let body = encode(name, &bomb);
            let found =
                |body_bytes, held_bytes| decoded(known, body.clone(), &limits(body_bytes, held_bytes));
            assert_eq!(found(8 << 20, 1 << 30).unwrap().len(), 8 << 20, "{name}");
            assert_eq!(found((8 << 20) - 1, 1 << 30).unwrap_err(), Reason::BodyTooLarge, "{name}");
            assert_eq!(found(8 << 20, 4 << 20).unwrap_err(), Reason::HeldBytes, "{name}");
        }
        // What lies between two codings is bounded too.
        let twice = encode("gzip", &encode("gzip", &bomb));
        let found = decoded("gzip, gzip", twice, &limits(4 << 10, 1 << 30));
        assert_eq!(found.unwrap_err(), Reason::BodyTooLarge);
    }
}
