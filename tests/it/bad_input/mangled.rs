//! Messages with a few bytes changed, cut or doubled: whatever comes of them, everybody gets an end.

use std::time::Duration;

use futures_util::future::join_all;

use crate::harness::samples::{EVENT_STREAM, EVENTS, OK, PROMPT, message};
use crate::harness::{Forkpoint, Upstream, call};

/// So that connections on which nothing more comes end soon.
const SHORT: Duration = Duration::from_millis(500);

/// Numbers that look random and are the same in every run (an xorshift generator).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Copies of `bytes`, each spoilt in another way, the same ones in every run.
fn mangled(bytes: &[u8], count: usize) -> Vec<Vec<u8>> {
    let mut dice = Dice(bytes.len() as u64);
    let mut spoil = || {
        let mut copy = bytes.to_vec();
        for _ in 0..1 + dice.below(3) {
            let at = dice.below(copy.len());
            match dice.below(5) {
                0 => copy[at] = dice.below(256) as u8,
                1 => copy.truncate(at.max(1)),
                2 => copy.insert(at, b"\r\n\0 :,;0"[dice.below(8)]),
                3 => drop(copy.remove(at)),
                _ => copy.splice(at..at, bytes[at.min(bytes.len() - 1)..].to_vec()).for_each(drop),
            }
            if copy.is_empty() {
                copy.push(b'x');
            }
        }
        copy
    };
    (0..count).map(|_| spoil()).collect()
}

#[tokio::test]
async fn mangled_requests_get_an_end_and_nothing_else_is_disturbed() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| {
        (config.limits.header, config.limits.stall, config.upstream.idle) = (SHORT, SHORT, SHORT);
    })
    .await;
    let chunked =
        b"POST /v1/messages HTTP/1.1\r\nhost: here\r\nx-api-key: k\r\ntransfer-encoding: chunked\r\n\r\n\
        5\r\n{\"a\":\r\n2\r\n1}\r\n0\r\n\r\n";
    let requests = [mangled(&call(PROMPT), 150), mangled(chunked, 150)].concat();
    join_all(requests.iter().map(async |request| {
        let mut client = forkpoint.client().await;
        let _ = client.try_send(request).await;
        client.gone().await;
    }))
    .await;
    assert_eq!(forkpoint.client().await.ask(&call(PROMPT)).await.status(), 200);
    // Whatever went through was well formed and came to the right door.
    let host = upstream.url().strip_prefix("http://").unwrap().to_owned();
    let asked = upstream.so_far();
    assert!(asked.len() > 10, "only {} of them were still requests", asked.len());
    for asked in asked {
        assert!(asked.head.line().ends_with(" HTTP/1.1"), "{asked:?}");
        assert_eq!(asked.head.all("host"), [host.as_str()]);
    }
}

#[tokio::test]
async fn mangled_answers_get_an_end_and_one_record() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.upstream.idle = SHORT).await;
    let mut stream = EVENT_STREAM.to_vec();
    for event in EVENTS {
        stream.extend(format!("{:x}\r\n{event}\r\n", event.len()).bytes());
    }
    stream.extend(b"0\r\n\r\n");
    let answers = [mangled(&stream, 150), mangled(&message(), 150)].concat();
    let serving = async {
        for answer in answers.iter().cycle() {
            let (mut server, _) = upstream.asked().await;
            let _ = server.try_send(answer).await;
        }
    };
    let asking = async {
        for count in 1..=answers.len() as u32 {
            let mut client = forkpoint.client().await;
            client.send(&call(PROMPT)).await;
            let head = client.head().await;
            assert!((200..600).contains(&head.status()), "{}", head.line());
            forkpoint.recorded(count).await;
        }
    };
    // A call may meet a connection that is just being closed, and end there: the upstream's count may differ.
    tokio::select! {
        () = serving => unreachable!("it goes round for ever"),
        () = asking => {}
    }
    forkpoint.still_works(&upstream).await;
}
