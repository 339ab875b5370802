//! Clients that mean no good. What they are answered does not matter; what everybody else is answered does.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Sockets that a hostile client keeps open at a time.
const OPEN: usize = 32;
/// The time that it reads what it is answered.
const READS_FOR: Duration = Duration::from_secs(5);
/// Distance of the bytes that are changed in a mangled request.
const MANGLED_EVERY: usize = 37;

/// The means of a hostile client.
#[derive(Clone, Copy, Debug)]
pub enum Means {
    /// Connections on which nothing is said.
    Silence,
    /// Uploads without a credential, one byte each.
    Trickle,
    /// Uploads with an invented credential each, one byte each.
    Invented,
    /// Requests with bytes changed at random.
    Mangled,
    /// The same uploads as streams of HTTP/2.
    Multiplexed,
    /// Large requests with an invented credential, of whose answers nothing is read.
    Deaf,
    /// Whole requests of a client that closes its side at once.
    HalfClosed,
    /// Bodies of a hundred thousand blocks.
    ManyBlocks,
    /// Bodies that are a thousand times as large as what comes.
    Bombs,
    /// Requests whose upstream fails.
    UpstreamFaults,
}

/// Streams of one hostile connection.
const STREAMS: u32 = 64;
const BLOCKS: usize = 100_000;
const BOMB_BYTES: usize = 24 << 20;
const LARGE_BYTES: usize = 1 << 20;

/// One hostile client, and the connections that it keeps open.
pub struct Hostile {
    means: Means,
    open: Vec<TcpStream>,
    random: u64,
}

impl Hostile {
    pub fn new(means: Means, seed: u64) -> Hostile {
        Hostile { means, open: Vec::new(), random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// One more attempt, with its number. An error is that no connection was made.
    pub fn attempt(&mut self, target: SocketAddr, number: u64) -> io::Result<()> {
        let mut stream = TcpStream::connect(target)?;
        stream.set_read_timeout(Some(READS_FOR))?;
        stream.set_write_timeout(Some(READS_FOR))?;
        // It may be refused and closed at any byte, which is no failure.
        let said = match self.means {
            Means::Silence => Ok(()),
            Means::Trickle => stream.write_all(&upload("")),
            Means::Invented => stream.write_all(&upload(&format!("x-api-key: invented-{number}\r\n"))),
            Means::Mangled => self.mangled(&mut stream),
            Means::Multiplexed => stream.write_all(&streams(number)),
            Means::Deaf => stream.write_all(&call(number, "", &text(LARGE_BYTES))),
            Means::HalfClosed => closing(&mut stream, &call(number % 7, "", &text(99))),
            Means::ManyBlocks => closing(&mut stream, &call(number % 7, "", &blocks())),
            Means::Bombs => bomb().and_then(|bomb| {
                closing(&mut stream, &call(number % 7, "content-encoding: gzip\r\n", &bomb))
            }),
            Means::UpstreamFaults => {
                let fault = ["cut", "garbage", "refused"][(number % 3) as usize];
                let header = format!("x-bench-fault: {fault}\r\n");
                closing(&mut stream, &call(number % 7, &header, &text(99)))
            }
        };
        drop(said);
        self.open.push(stream);
        if self.open.len() > OPEN {
            self.open.remove(0);
        }
        Ok(())
    }

    fn mangled(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        let body = r#"{"model":"claude-sonnet-4-6","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nhost: h\r\nx-api-key: hostile\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut bytes = [head.as_bytes(), body.as_bytes()].concat();
        for _ in 0..=bytes.len() / MANGLED_EVERY {
            let at = self.draw() % bytes.len();
            bytes[at] = self.draw() as u8;
        }
        stream.write_all(&bytes)?;
        stream.shutdown(Shutdown::Write)?;
        stream.read_to_end(&mut Vec::new()).map(drop)
    }

    fn draw(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize
    }
}

fn upload(headers: &str) -> Vec<u8> {
    format!("POST /v1/messages HTTP/1.1\r\nhost: h\r\n{headers}content-length: 100000\r\n\r\n{{").into_bytes()
}

/// A Messages call of a hostile client.
fn call(key: u64, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: h\r\nx-api-key: hostile-{key}\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn text(bytes: usize) -> Vec<u8> {
    said(&format!("\"{}\"", "x".repeat(bytes)))
}

fn blocks() -> Vec<u8> {
    said(&format!("[{}]", vec!["1"; BLOCKS].join(",")))
}

fn said(content: &str) -> Vec<u8> {
    format!(
        r#"{{"model":"claude-sonnet-4-6","max_tokens":9,"messages":[{{"role":"user","content":{content}}}]}}"#
    )
    .into_bytes()
}

fn bomb() -> io::Result<Vec<u8>> {
    let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    coder.write_all(&text(BOMB_BYTES))?;
    coder.finish()
}

/// Sends a request, closes this side, and reads what is answered.
fn closing(stream: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    stream.write_all(request)?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

/// The beginning of a connection of HTTP/2 with uploads of one byte each.
fn streams(number: u64) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for stream in 0..STREAMS {
        let key = format!("invented-{number}-{stream}");
        let mut fields = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/v1/messages"),
            (":authority", "h"),
            ("x-api-key", key.as_str()),
            ("content-length", "1000"),
        ] {
            // A literal field that is not indexed; all lengths fit into seven bits.
            fields.push(0);
            for part in [name, value] {
                fields.push(part.len() as u8);
                fields.extend_from_slice(part.as_bytes());
            }
        }
        bytes.extend(frame(1, 4, 2 * stream + 1, &fields));
        bytes.extend(frame(0, 0, 2 * stream + 1, b"{"));
    }
    bytes
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len().to_be_bytes();
    [&length[length.len() - 3..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
