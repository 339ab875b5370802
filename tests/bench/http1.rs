//! Just enough HTTP/1.1 over a blocking socket for the mock and the load generator.
//!
//! Both are written by hand because they share a core: what they cost is taken from the requests per
//! second that a proxy can show. They accept what proxies send (either framing, any header case).

use std::io::{self, Read};

/// One read takes at most this much; large enough that a 200 KB body is a few system calls.
const BUFFER_BYTES: usize = 256 * 1024;

/// Longest head accepted; the heads of this bench have about 600 bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

pub struct Reader<S> {
    stream: S,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// The first line and headers of a message.
pub struct Head(String);

/// The way in which the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

impl Head {
    pub fn text(&self) -> &str {
        &self.0
    }

    pub fn first_line(&self) -> &str {
        self.0.lines().next().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub fn framing(&self, without_length: Framing) -> io::Result<Framing> {
        if self.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Ok(Framing::Chunked);
        }
        match self.header("content-length") {
            None => Ok(without_length),
            Some(length) => {
                Ok(Framing::Length(length.parse().map_err(|_| broken("content-length is no number"))?))
            }
        }
    }
}

impl<S: Read> Reader<S> {
    pub fn new(stream: S) -> Reader<S> {
        Reader { stream, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0 }
    }

    /// The next head, or `None` when the peer closed between two messages.
    pub fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            let held = &self.buffer[self.start..self.end];
            if let Some(length) = memchr::memmem::find(held, b"\r\n\r\n") {
                let text = String::from_utf8(held[..length + 2].to_vec())
                    .map_err(|_| broken("a head that is no text"))?;
                self.start += length + 4;
                return Ok(Some(Head(text)));
            }
            if held.len() > HEAD_BYTES_MAX {
                return Err(broken("a head without an end"));
            }
            let fresh = held.is_empty();
            if self.fill()? == 0 {
                return if fresh { Ok(None) } else { Err(broken("closed inside a head")) };
            }
        }
    }

    /// Hands every piece of the body to `sink` and returns its length without framing.
    pub fn body(&mut self, framing: Framing, mut sink: impl FnMut(&[u8])) -> io::Result<u64> {
        match framing {
            Framing::Length(length) => self.exactly(length, &mut sink).map(|()| length),
            Framing::Chunked => {
                let mut total = 0;
                while let Some(piece) = self.chunk(&mut sink)? {
                    total += piece;
                }
                Ok(total)
            }
            Framing::UntilClose => {
                let mut total = 0;
                loop {
                    let held = &self.buffer[self.start..self.end];
                    total += held.len() as u64;
                    if !held.is_empty() {
                        sink(held);
                    }
                    self.start = self.end;
                    if self.fill()? == 0 {
                        return Ok(total);
                    }
                }
            }
        }
    }

    /// Reads one chunk and returns its length, or `None` after the last one and its trailers.
    pub fn chunk(&mut self, sink: &mut impl FnMut(&[u8])) -> io::Result<Option<u64>> {
        let line = self.line()?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let length = u64::from_str_radix(digits, 16).map_err(|_| broken("a chunk size that is no number"))?;
        if length == 0 {
            while !self.line()?.is_empty() {}
            return Ok(None);
        }
        self.exactly(length, sink)?;
        if self.line()?.is_empty() { Ok(Some(length)) } else { Err(broken("a chunk longer than it says")) }
    }

    fn exactly(&mut self, length: u64, sink: &mut impl FnMut(&[u8])) -> io::Result<()> {
        let mut left = usize::try_from(length).map_err(|_| broken("a body beyond memory"))?;
        while left > 0 {
            if self.start == self.end && self.fill()? == 0 {
                return Err(broken("closed inside a body"));
            }
            let take = left.min(self.end - self.start);
            sink(&self.buffer[self.start..self.start + take]);
            self.start += take;
            left -= take;
        }
        Ok(())
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            let held = &self.buffer[self.start..self.end];
            if let Some(length) = memchr::memmem::find(held, b"\r\n") {
                let line = String::from_utf8_lossy(&held[..length]).into_owned();
                self.start += length + 2;
                return Ok(line);
            }
            if held.len() > HEAD_BYTES_MAX {
                return Err(broken("a line without an end"));
            }
            if self.fill()? == 0 {
                return Err(broken("closed inside a line"));
            }
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        loop {
            match self.stream.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => {
                    let read = outcome?;
                    self.end += read;
                    return Ok(read);
                }
            }
        }
    }
}

pub fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
