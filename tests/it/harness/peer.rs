//! One end of a TCP connection, in exact bytes.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::within;

/// How the other side ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Closed,
    Reset,
}

pub struct Peer {
    stream: TcpStream,
    /// Read from the socket, not yet asked for.
    unread: Vec<u8>,
}

/// The head of a request or of an answer, as it came.
#[derive(Clone, Debug)]
pub struct Head {
    pub raw: Vec<u8>,
}

/// An answer with its body, chunks joined.
#[derive(Clone, Debug)]
pub struct Reply {
    pub head: Head,
    pub body: Vec<u8>,
    /// The lines after the last chunk.
    pub trailers: Vec<String>,
}

impl Peer {
    pub fn new(stream: TcpStream) -> Peer {
        stream.set_nodelay(true).unwrap();
        Peer { stream, unread: Vec::new() }
    }

    pub async fn connect(address: SocketAddr) -> Peer {
        Peer::new(within("a connection", TcpStream::connect(address)).await.unwrap())
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        within("room to send", self.stream.write_all(bytes)).await.unwrap();
    }

    /// Sends what the other side will take; it may have hung up already.
    pub async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        within("room to send", self.stream.write_all(bytes)).await
    }

    /// Sends one chunk of a chunked body.
    pub async fn send_chunk(&mut self, bytes: &[u8]) {
        let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        self.send(&chunk).await;
    }

    /// Says that nothing more will be sent, and goes on reading.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Breaks the connection the hard way.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    async fn fill(&mut self) -> Result<(), End> {
        match within("bytes from the other side", self.stream.read_buf(&mut self.unread)).await {
            Ok(0) => Err(End::Closed),
            Ok(_) => Ok(()),
            Err(_) => Err(End::Reset),
        }
    }

    /// The next head, or `None` if the other side hung up instead.
    pub async fn try_head(&mut self) -> Option<Head> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                return Some(Head { raw: self.unread.drain(..end + 4).collect() });
            }
            self.fill().await.ok()?;
        }
    }

    pub async fn head(&mut self) -> Head {
        self.try_head().await.expect("a head, but the connection ended")
    }

    /// The next `count` bytes.
    pub async fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.unread.len() < count {
            self.fill().await.expect("more bytes, but the connection ended");
        }
        self.unread.drain(..count).collect()
    }

    /// Everything through the next occurrence of `needle`.
    pub async fn through(&mut self, needle: &[u8]) -> Vec<u8> {
        loop {
            if let Some(start) = find(&self.unread, needle) {
                return self.unread.drain(..start + needle.len()).collect();
            }
            self.fill().await.expect("more bytes, but the connection ended");
        }
    }

    /// Everything that still comes, and how it ended.
    pub async fn rest(&mut self) -> (Vec<u8>, End) {
        loop {
            if let Err(end) = self.fill().await {
                return (std::mem::take(&mut self.unread), end);
            }
        }
    }

    /// Waits until the other side hangs up.
    pub async fn gone(&mut self) -> End {
        self.rest().await.1
    }

    /// The body that belongs to this head, by its own framing.
    pub async fn body(&mut self, head: &Head) -> (Vec<u8>, Vec<String>) {
        if head.get("transfer-encoding").as_deref() == Some("chunked") {
            return self.chunks().await;
        }
        match head.get("content-length") {
            Some(length) => (self.exactly(length.parse().unwrap()).await, Vec::new()),
            None if head.line().starts_with("HTTP/") => (self.rest().await.0, Vec::new()),
            None => (Vec::new(), Vec::new()),
        }
    }

    async fn chunks(&mut self) -> (Vec<u8>, Vec<String>) {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await {
            body.extend(chunk);
        }
        let mut trailers = Vec::new();
        loop {
            match self.text_line().await {
                line if line.is_empty() => return (body, trailers),
                line => trailers.push(line),
            }
        }
    }

    /// The next chunk of a chunked body, or `None` after the last one.
    pub async fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.text_line().await;
        let size = usize::from_str_radix(line.split(';').next().unwrap().trim(), 16).unwrap();
        if size == 0 {
            return None;
        }
        let chunk = self.exactly(size).await;
        assert_eq!(self.exactly(2).await, b"\r\n");
        Some(chunk)
    }

    async fn text_line(&mut self) -> String {
        let line = self.through(b"\r\n").await;
        String::from_utf8(line[..line.len() - 2].to_vec()).unwrap()
    }

    /// A whole request, as an upstream sees it.
    pub async fn request(&mut self) -> Reply {
        self.reply().await
    }

    /// A whole answer with a body.
    pub async fn reply(&mut self) -> Reply {
        let head = self.head().await;
        let (body, trailers) = self.body(&head).await;
        Reply { head, body, trailers }
    }

    /// Sends a request and reads its answer.
    pub async fn ask(&mut self, request: &[u8]) -> Reply {
        self.send(request).await;
        self.reply().await
    }

    /// How many bytes the other side takes until it takes no more; `Err` if it hangs up instead.
    pub async fn fill_up(&mut self, limit: usize) -> usize {
        let chunk = vec![b'x'; 64 * 1024];
        let mut taken = 0;
        while taken < limit {
            // Real time, because the answer is that nothing happens.
            let patience = std::time::Duration::from_millis(500);
            match tokio::time::timeout(patience, self.stream.write(&chunk)).await {
                Ok(Ok(count)) => taken += count,
                _ => return taken,
            }
        }
        taken
    }
}

impl Head {
    pub fn line(&self) -> String {
        let end = find(&self.raw, b"\r\n").unwrap();
        String::from_utf8_lossy(&self.raw[..end]).into_owned()
    }

    /// Names in lower case and values, in order.
    pub fn headers(&self) -> Vec<(String, String)> {
        let text = String::from_utf8_lossy(&self.raw);
        text.split("\r\n")
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect()
    }

    pub fn all(&self, name: &str) -> Vec<String> {
        self.headers().into_iter().filter(|(n, _)| n == name).map(|(_, value)| value).collect()
    }

    pub fn get(&self, name: &str) -> Option<String> {
        self.all(name).into_iter().next()
    }

    /// The names of all headers, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.headers().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }

    pub fn status(&self) -> u16 {
        self.line().split(' ').nth(1).unwrap().parse().unwrap()
    }
}

impl Reply {
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    pub fn reason(&self) -> Option<String> {
        self.head.get("x-forkpoint-reason")
    }

    /// The `error.type` and `error.message` of an answer in the API's error shape.
    pub fn error(&self) -> (String, String) {
        let json: serde_json::Value = serde_json::from_slice(&self.body).expect("an error in JSON");
        assert_eq!(json["type"], "error", "{json}");
        let text = |member: &str| json["error"][member].as_str().expect("a string").to_owned();
        (text("type"), text("message"))
    }

    /// That this is an answer of forkpoint itself, for this reason.
    #[track_caller]
    pub fn is_refusal(&self, status: u16, reason: &str) {
        assert_eq!((self.status(), self.reason().as_deref()), (status, Some(reason)), "{self:?}");
        assert_eq!(self.head.get("content-type").as_deref(), Some("application/json"));
        let (_, message) = self.error();
        assert!(message.starts_with("forkpoint: "), "{message}");
    }
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}
