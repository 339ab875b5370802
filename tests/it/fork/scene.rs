//! A fan-out whose children arrive one by one before an upstream that the test plays itself.

use forkpoint::config::{Config, Mode};
use serde_json::Value;

use crate::harness::peer::Peer;
use crate::harness::{Forkpoint, PATIENCE, Upstream, post, until};

use super::talk::{Call, agent_call, directive, events, newcomer, parent, prompt_tokens, streamed, text};

/// The head of a stream that may end or break off.
pub const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";

pub struct Scene {
    pub upstream: Upstream,
    pub forkpoint: Forkpoint,
}

/// A child's request at the upstream.
pub struct Asked {
    pub child: usize,
    peer: Peer,
}

impl Scene {
    pub async fn with(configure: impl FnOnce(&mut Config)) -> Scene {
        let upstream = Upstream::bind().await;
        let patient = |config: &mut Config| {
            config.server.mode = Mode::Align;
            config.gate.max_hold = PATIENCE;
            configure(config);
        };
        let forkpoint = Forkpoint::with(&upstream.url(), patient).await;
        Scene { upstream, forkpoint }
    }

    /// With a fan-out of so many children behind it.
    pub async fn fanned_out(children: usize, configure: impl FnOnce(&mut Config)) -> Scene {
        let scene = Scene::with(configure).await;
        scene.fan_out("", children).await;
        scene
    }

    /// A parent that fans out; `team` tells the children of one fan-out from those of another.
    pub async fn fan_out(&self, team: &str, children: usize) {
        let call = parent(&format!("Survey it{team}."));
        let mut client = self.forkpoint.client().await;
        client.send(&request(&call)).await;
        let (mut peer, _) = self.upstream.asked().await;
        let calls: Vec<Value> =
            (0..children).map(|n| agent_call(&format!("toolu{team}_{n}"), &task(team, n))).collect();
        let id = format!("msg_parent{team}");
        let answer = streamed(&events(&id, prompt_tokens(&call.body), &calls));
        peer.send(&closing(&answer)).await;
        assert_eq!(client.reply().await.status(), 200);
        let sealed = || super::fan_out::forks(&self.forkpoint, "sealed") > 0;
        until("the fan-out to be sealed", sealed).await;
    }

    /// A child arrives at the gate as the `count`th that is in it.
    pub async fn arrives(&self, child: usize, count: usize) -> Peer {
        self.calls(&sibling("", child), count).await
    }

    /// The same of any request.
    pub async fn calls(&self, call: &Call, count: usize) -> Peer {
        let mut client = self.forkpoint.client().await;
        client.send(&request(call)).await;
        self.at_gate(count).await;
        client
    }

    pub async fn at_gate(&self, count: usize) {
        until(&format!("{count} at the gate"), || self.forkpoint.proxy.at_gate() == count).await;
    }

    /// The next request at the upstream.
    pub async fn next(&self) -> Asked {
        let (peer, request) = self.upstream.asked().await;
        let body = String::from_utf8(request.body).unwrap();
        let number = body.split("part number ").nth(1).unwrap().split_once(',').unwrap().0;
        Asked { child: number.parse().unwrap(), peer }
    }

    /// Answers so many requests, whoever they are.
    pub async fn answer(&self, count: usize) -> Vec<usize> {
        let mut answered = Vec::new();
        for _ in 0..count {
            let mut asked = self.next().await;
            answered.push(asked.child);
            asked.answer().await;
        }
        answered
    }

    pub fn holds(&self, outcome: &str) -> u64 {
        super::fan_out::holds(&self.forkpoint, outcome)
    }
}

impl Asked {
    /// Sends the first content and no more.
    pub async fn begin(&mut self) {
        self.peer.send(HEAD).await;
        for event in &answer_events()[..2] {
            self.peer.send_chunk(event.as_bytes()).await;
        }
    }

    /// Sends the head and the bill, and nothing that anybody could read.
    pub async fn start(&mut self) {
        self.peer.send(HEAD).await;
        self.send_event(&answer_events()[0]).await;
    }

    pub async fn send_event(&mut self, event: &str) {
        self.peer.send_chunk(event.as_bytes()).await;
    }

    /// Sends what is left after [`Asked::start`].
    pub async fn finish_after_start(&mut self) {
        self.send_event(&answer_events()[1]).await;
        self.finish().await;
    }

    /// Sends what is left after [`Asked::begin`].
    pub async fn finish(&mut self) {
        for event in &answer_events()[2..] {
            self.peer.send_chunk(event.as_bytes()).await;
        }
        self.end().await;
    }

    pub async fn end(&mut self) {
        self.peer.send(b"0\r\n\r\n").await;
    }

    pub async fn answer(&mut self) {
        self.begin().await;
        self.finish().await;
    }

    /// Sends these bytes as the whole answer.
    pub async fn send(&mut self, answer: &[u8]) {
        self.peer.send(&closing(answer)).await;
    }

    /// Waits until forkpoint hangs up.
    pub async fn gone(&mut self) {
        self.peer.gone().await;
    }
}

/// The directive of the child of this number.
pub fn task(team: &str, child: usize) -> String {
    directive(&format!("part number {child}, of team{team}"))
}

/// The child's request.
pub fn sibling(team: &str, child: usize) -> Call {
    newcomer(task(team, child))
}

pub fn request(call: &Call) -> Vec<u8> {
    post("/v1/messages", &call.headers, &serde_json::to_vec(&call.body).unwrap())
}

fn answer_events() -> Vec<String> {
    events("msg_child", prompt_tokens(&sibling("", 0).body), &[text("Here is what I found.")])
}

/// The same answer on a connection that is not used again.
pub fn closing(answer: &[u8]) -> Vec<u8> {
    let line_end = answer.windows(2).position(|pair| pair == b"\r\n").unwrap();
    [&answer[..line_end], b"\r\nconnection: close", &answer[line_end..]].concat()
}
