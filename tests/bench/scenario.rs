//! What is asked of every arm, and how often.
//!
//! Latency and CPU are measured on one connection, where nothing queues and each request pays for its own
//! wake-ups; requests per second on eight. Counts are chosen so that a round of all arms takes about 40 s
//! on two cores, and CPU time per cell is some hundred milliseconds.

use crate::answers::Answer;
use crate::bodies::Bodies;
use crate::load::Job;

pub const KB: usize = 1_000;

/// Pause of the mock between two events. Without one a busy proxy finds several events in one read, and
/// the figure would reward falling behind; with this one each event is delivered by itself.
pub const PACE_US: u64 = 100;

/// Open streams in the memory stage.
pub const IDLE_STREAMS: usize = 500;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub id: &'static str,
    pub body_bytes: usize,
    pub bodies: Bodies,
    pub answer: Answer,
    pub connections: usize,
    /// Per connection.
    pub requests: usize,
}

pub fn list(quick: bool) -> Vec<Scenario> {
    use Answer::{Json, Sse};
    use Bodies::{Fresh, Known};
    let scenario = |id, kb: usize, bodies, answer, connections, requests: usize| Scenario {
        id,
        body_bytes: kb * KB,
        bodies,
        answer,
        connections,
        requests: if quick { requests / 2 } else { requests },
    };
    let all = vec![
        scenario("json-24k", 24, Known, Json, 1, 2_000),
        scenario("json-200k", 200, Known, Json, 1, 1_000),
        scenario("json-1m", 1_000, Known, Json, 1, 300),
        scenario("sse-24k", 24, Known, Sse, 1, 50),
        scenario("sse-200k", 200, Known, Sse, 1, 30),
        scenario("sse-1m", 1_000, Known, Sse, 1, 30),
        scenario("fresh-200k", 200, Fresh, Json, 1, 500),
        scenario("load-200k", 200, Known, Json, 8, 500),
    ];
    let left_out = |id| quick && ["json-1m", "sse-200k", "sse-1m", "fresh-200k"].contains(&id);
    all.into_iter().filter(|scenario| !left_out(scenario.id)).collect()
}

impl Scenario {
    pub fn job(&self, target: std::net::SocketAddr, first_nonce: u64, pace_us: u64) -> Job {
        Job {
            target,
            connections: self.connections,
            requests: self.requests,
            warmup: (self.requests / 20).max(2),
            body_bytes: self.body_bytes,
            bodies: self.bodies,
            answer: self.answer,
            pace_us,
            first_nonce,
        }
    }
}

/// Streams that are open and silent.
pub fn idle(target: std::net::SocketAddr, first_nonce: u64, streams: usize) -> Job {
    Job {
        target,
        connections: streams,
        requests: 1,
        warmup: 0,
        body_bytes: 24 * KB,
        bodies: Bodies::Known,
        answer: Answer::Idle,
        pace_us: 0,
        first_nonce,
    }
}
