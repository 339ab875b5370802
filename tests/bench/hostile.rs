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
}

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
