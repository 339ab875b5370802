//! Reads `/events` of an admin port, and goes on after the last event when the connection or the proxy comes back.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::{Client, Response, StatusCode};
use tokio::sync::mpsc;

use super::session::read_token;
use crate::cli::{Failure, cause};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest silence. The proxy says something every 15 seconds.
const SILENCE: Duration = Duration::from_secs(40);
/// The pauses between attempts: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The most bytes of one event. A snapshot has at most about four million.
const EVENT_BYTES_MAX: usize = 32 << 20;

/// What the stream says.
#[derive(Debug)]
pub enum News {
    /// The connection is there.
    Live,
    /// The connection is lost, for this reason; it is tried again.
    Lost(String),
    Event {
        event: String,
        data: String,
    },
}

pub struct Stream {
    client: Client,
    url: String,
    token_file: Option<PathBuf>,
}

/// Why the stream cannot be read.
#[derive(Debug)]
pub enum Refused {
    /// Nobody answers, with the cause.
    Unreachable(String),
    /// A token is needed; true if one was sent.
    Token(bool),
    /// As many read already as may.
    Full,
    /// The port does not answer to the name in the URL.
    Name,
    Status(StatusCode),
    TokenFile(Failure),
}

impl Refused {
    /// The reason in one line.
    pub fn in_words(&self) -> String {
        match self {
            Refused::Unreachable(cause) => cause.clone(),
            Refused::Token(false) => "the admin port asks for a token".to_owned(),
            Refused::Token(true) => "the admin port does not take this token".to_owned(),
            Refused::Full => "as many read already as admin.subscribers allows".to_owned(),
            Refused::Name => "the admin port answers to localhost and to IP addresses only".to_owned(),
            Refused::Status(status) => format!("it answered {status}"),
            Refused::TokenFile(failure) => failure.message.clone(),
        }
    }

    /// The reason, with what to do next.
    pub fn failure(self, url: &str) -> Failure {
        let hint = match &self {
            Refused::Unreachable(_) => {
                "is forkpoint running? start it with `forkpoint serve`, or name its admin port with --admin URL"
            }
            Refused::Token(_) => "name the file of admin.token_file with --token-file",
            Refused::Full => "close a page or another top, or raise admin.subscribers",
            Refused::Name => "give the address instead of the name, such as --admin http://127.0.0.1:8788",
            Refused::Status(_) => "is this the admin port of a forkpoint? see server.admin_listen",
            Refused::TokenFile(_) => "name a file that this user may read",
        };
        let message = match &self {
            Refused::Unreachable(cause) => format!("nothing answers at {url}: {cause}"),
            Refused::TokenFile(failure) => failure.message.clone(),
            other => format!("cannot watch {url}: {}", other.in_words()),
        };
        Failure::new(message).hint(hint)
    }
}

impl Stream {
    pub fn new(url: String, token_file: Option<PathBuf>) -> Result<Stream, Failure> {
        // Environment proxies are for the outside world, not for the admin port.
        let client = Client::builder().no_proxy().connect_timeout(CONNECT).read_timeout(SILENCE).build();
        let client = client.map_err(|error| Failure::new(format!("cannot connect: {}", cause(&error))))?;
        Ok(Stream { client, url, token_file })
    }

    /// Asks for the stream, after the event with this id.
    pub async fn connect(&self, last_id: Option<&str>) -> Result<Response, Refused> {
        let mut request = self.client.get(format!("{}/events", self.url)).header(ACCEPT, "text/event-stream");
        // The file is read each time, since tokens are exchanged.
        if let Some(path) = &self.token_file {
            let token = read_token(path).map_err(Refused::TokenFile)?;
            let mut value =
                HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| Refused::Token(true))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let answer = request.send().await.map_err(|error| Refused::Unreachable(cause(&error)))?;
        match answer.status() {
            StatusCode::OK => Ok(answer),
            StatusCode::UNAUTHORIZED => Err(Refused::Token(self.token_file.is_some())),
            StatusCode::SERVICE_UNAVAILABLE => Err(Refused::Full),
            StatusCode::MISDIRECTED_REQUEST => Err(Refused::Name),
            status => Err(Refused::Status(status)),
        }
    }

    /// Reads until nobody listens any more.
    pub async fn follow(self, first: Response, news: mpsc::Sender<News>) {
        let (mut answer, mut last_id, mut pause) = (Some(first), None, PAUSE_MIN);
        loop {
            let lost = match answer.take() {
                Some(answer) => {
                    pause = PAUSE_MIN;
                    read(answer, &mut last_id, &news).await
                }
                None => match self.connect(last_id.as_deref()).await {
                    Ok(connected) => {
                        answer = Some(connected);
                        continue;
                    }
                    Err(refused) => refused.in_words(),
                },
            };
            if news.send(News::Lost(lost)).await.is_err() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
}

/// Hands on the events of one answer, and returns why it ended.
async fn read(mut answer: Response, last_id: &mut Option<String>, news: &mpsc::Sender<News>) -> String {
    const GONE: &str = "nobody listens";
    if news.send(News::Live).await.is_err() {
        return GONE.to_owned();
    }
    let mut parser = Parser::default();
    loop {
        match answer.chunk().await {
            Ok(Some(bytes)) => parser.push(&bytes),
            Ok(None) => return "the connection was closed".to_owned(),
            Err(error) => return cause(&error),
        }
        while let Some(ServerEvent { id, event, data }) = parser.take() {
            *last_id = id.or(last_id.take());
            if news.send(News::Event { event, data }).await.is_err() {
                return GONE.to_owned();
            }
        }
        if parser.bytes.len() > EVENT_BYTES_MAX {
            return "it sent more than an event can have".to_owned();
        }
    }
}

#[derive(Debug, Default, PartialEq)]
pub struct ServerEvent {
    pub id: Option<String>,
    pub event: String,
    pub data: String,
}

/// Splits bytes into server-sent events, however they are cut.
#[derive(Default)]
pub struct Parser {
    bytes: Vec<u8>,
    /// The number of bytes that hold no end of an event.
    searched: usize,
}

impl Parser {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next whole event; comments are left out.
    pub fn take(&mut self) -> Option<ServerEvent> {
        loop {
            let from = self.searched;
            let Some(end) = self.bytes[from..].windows(2).position(|pair| pair == b"\n\n") else {
                self.searched = self.bytes.len().saturating_sub(1);
                return None;
            };
            let block: Vec<u8> = self.bytes.drain(..from + end + 2).collect();
            self.searched = 0;
            let mut found = ServerEvent::default();
            for line in String::from_utf8_lossy(&block).lines() {
                match line.split_once(": ") {
                    Some(("id", id)) => found.id = Some(id.to_owned()),
                    Some(("event", event)) => event.clone_into(&mut found.event),
                    Some(("data", data)) => data.clone_into(&mut found.data),
                    _ => {}
                }
            }
            if !found.data.is_empty() {
                return Some(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text = b":\n\nid: e-1\nevent: snapshot\ndata: {\"a\":\"b: c\"}\n\n:\n\nid: e-2\nevent: exchange\ndata: {}\n\n";
        let all = |size: usize| {
            let (mut parser, mut found) = (Parser::default(), Vec::new());
            for part in text.chunks(size) {
                parser.push(part);
                found.extend(std::iter::from_fn(|| parser.take()));
            }
            found
        };
        let whole = all(text.len());
        assert_eq!(whole.len(), 2);
        assert_eq!((whole[0].id.as_deref(), &*whole[0].data), (Some("e-1"), "{\"a\":\"b: c\"}"));
        for size in 1..text.len() {
            assert_eq!(all(size), whole, "{size}");
        }
    }
}
