//! Whatever bytes come over HTTP/1 or HTTP/2: what the upstream gets are whole requests that it can read in one way only,
//! and somebody else's request goes through as before.
//!
//! The first byte chooses the protocol; the rest is written to a real socket, behind the preface if it is HTTP/2.

#![no_main]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forkpoint::config::{Config, ValueOrigin, load_prices};
use forkpoint::metrics::Metrics;
use forkpoint::proxy::live::Live;
use forkpoint::proxy::{Proxy, server};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Of a request that does not go on. Short, so that it does not keep the fuzzer waiting.
const DEADLINE: Duration = Duration::from_millis(50);
const HEALTHY: &str = "GET /healthy HTTP/1.1";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::start());
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    let preface = if choice & 1 == 0 { &b""[..] } else { PREFACE };
    WORLD.with_borrow(|world| world.suffers(&[preface, bytes].concat()));
});

struct World {
    runtime: Runtime,
    forkpoint: SocketAddr,
    /// The first lines of what the upstream was asked, or what was wrong with it.
    asked: Arc<Mutex<Vec<Result<String, String>>>>,
    _stop: watch::Sender<bool>,
}

impl World {
    fn start() -> World {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let asked = Arc::<Mutex<Vec<_>>>::default();
        let heard = Arc::clone(&asked);
        let (stop, stopped) = watch::channel(false);
        let forkpoint = runtime.block_on(async move {
            let upstream = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let mut config = Config::default();
            let url = format!("http://{}", upstream.local_addr().expect("an address"));
            config.upstream.url = url.parse().expect("a URL");
            (config.limits.header, config.limits.stall) = (DEADLINE, DEADLINE);
            tokio::spawn(answer_all(upstream, heard));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("an address");
            let prices = load_prices(None, &ValueOrigin::Default).expect("the own prices");
            let metrics = Arc::new(Metrics::new().expect("metrics"));
            let proxy = Proxy::new(config, prices, metrics).expect("a proxy");
            tokio::spawn(server::serve(listener, Live::from(Arc::new(proxy)), stopped));
            address
        });
        World { runtime, forkpoint, asked, _stop: stop }
    }

    fn suffers(&self, bytes: &[u8]) {
        self.runtime.block_on(async {
            let mut hostile = TcpStream::connect(self.forkpoint).await.expect("a connection");
            // It may be closed before everything is written, and reset rather than ended.
            let _ = hostile.write_all(bytes).await;
            let _ = hostile.shutdown().await;
            let _ = hostile.read_to_end(&mut Vec::new()).await;
            let mut other = TcpStream::connect(self.forkpoint).await.expect("a connection");
            let request = format!("{HEALTHY}\r\nhost: h\r\nconnection: close\r\n\r\n");
            other.write_all(request.as_bytes()).await.expect("it is read");
            let mut answer = Vec::new();
            other.read_to_end(&mut answer).await.expect("an answer");
            assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"\r\n\r\nok"), "{answer:?}");
        });
        let asked = std::mem::take(&mut *self.asked.lock().expect("no panic there"));
        let lines: Vec<String> = asked.into_iter().map(|asked| asked.expect("a whole request")).collect();
        let healthy = lines.iter().filter(|line| *line == HEALTHY).count();
        assert!(healthy >= 1, "{lines:?}");
    }
}

/// Answers every request, and notes each.
async fn answer_all(listener: TcpListener, asked: Arc<Mutex<Vec<Result<String, String>>>>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let asked = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut rest = Vec::new();
            while let Some(head) = read_head(&mut stream, &mut rest).await {
                let told = check_head(&head);
                let body = told.as_ref().map(|(_, body)| *body);
                // A client that leaves in the middle of its body is no mistake.
                let is_whole = match body {
                    Ok(body) => skip_body(&mut stream, &mut rest, body).await,
                    Err(_) => false,
                };
                asked.lock().expect("no panic there").push(told.map(|(line, _)| line));
                if !is_whole || stream.write_all(OK).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[derive(Clone, Copy)]
enum BodyLength {
    Known(usize),
    Chunked,
}

/// The first line of a head, and how long its body is; or why others could read it differently.
fn check_head(head: &[u8]) -> Result<(String, BodyLength), String> {
    let wrong = |why: &str| Err(format!("{why}: {}", String::from_utf8_lossy(head)));
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    if line.split(' ').count() != 3 || !line.ends_with(" HTTP/1.1") {
        return wrong("no request line");
    }
    let (mut lengths, mut codings) = (Vec::new(), Vec::new());
    for header in lines {
        let Some((name, value)) = header.split_once(':') else { return wrong("no header") };
        if name.is_empty() || name.contains(|c: char| c.is_whitespace()) || value.contains(['\r', '\n', '\0'])
        {
            return wrong("a bad header");
        }
        match name.to_ascii_lowercase().as_str() {
            "content-length" => lengths.push(value.trim().to_owned()),
            "transfer-encoding" => codings.push(value.trim().to_ascii_lowercase()),
            _ => {}
        }
    }
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok((line, BodyLength::Known(0))),
        ([length], []) => match length.parse() {
            Ok(length) => Ok((line, BodyLength::Known(length))),
            Err(_) => wrong("no length"),
        },
        ([], [coding]) if coding == "chunked" => Ok((line, BodyLength::Chunked)),
        _ => wrong("two lengths"),
    }
}

async fn read_head(stream: &mut TcpStream, rest: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(end) = rest.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = rest[..end].to_vec();
            rest.drain(..end + 4);
            return Some(head);
        }
        more(stream, rest).await?;
    }
}

/// Returns true if the whole body came.
async fn skip_body(stream: &mut TcpStream, rest: &mut Vec<u8>, body: BodyLength) -> bool {
    match body {
        BodyLength::Known(length) => {
            while rest.len() < length {
                if more(stream, rest).await.is_none() {
                    return false;
                }
            }
            rest.drain(..length);
            true
        }
        BodyLength::Chunked => loop {
            let Some(size) = read_line(stream, rest).await else { return false };
            let Ok(size) = usize::from_str_radix(&size, 16) else { return false };
            while rest.len() < size {
                if more(stream, rest).await.is_none() {
                    return false;
                }
            }
            rest.drain(..size);
            // Behind the last chunk come trailers, each on a line of its own.
            while let Some(line) = read_line(stream, rest).await {
                if line.is_empty() {
                    break;
                }
            }
            if size == 0 {
                return true;
            }
        },
    }
}

async fn read_line(stream: &mut TcpStream, rest: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = rest.windows(2).position(|bytes| bytes == b"\r\n") {
            let line = String::from_utf8_lossy(&rest[..end]).into_owned();
            rest.drain(..end + 2);
            return Some(line);
        }
        more(stream, rest).await?;
    }
}

/// Reads more; none at the end.
async fn more(stream: &mut TcpStream, rest: &mut Vec<u8>) -> Option<()> {
    let count = stream.read_buf(rest).await.ok()?;
    (count > 0).then_some(())
}
