//! The requests that every arm gets, and how many of them.
//!
//! Latency and CPU are measured on one connection, where nothing queues and each request pays for its own
//! wake-ups; requests per second on eight. Counts are chosen so that a round of all arms takes less than two
//! minutes on two cores, and CPU time per cell is some hundred milliseconds.

use crate::Fallible;
use crate::answers::Answer;
use crate::bodies::Bodies;
use crate::flood::Flood;
use crate::job::{Job, Keys, Order};
use crate::{arms, itself};

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
    /// Per connection, about, and without the first one of each conversation.
    pub requests: usize,
    /// Per conversation.
    pub turns: usize,
    /// The number of those that come before anything is measured.
    pub turns_before: usize,
    pub order: Order,
    /// Pause of a connection before each request.
    pub pause_us: u64,
    pub keys: Keys,
    pub flood: Option<Flood>,
    /// True if it runs on a process of its own, which is started for it.
    pub is_apart: bool,
}

/// The scenario of forked children, which only arms that fork take part in.
pub const FORKED: &str = "forked-200k";

/// The named scenarios, or all that belong to the run.
pub fn chosen(names: &[String], quick: bool) -> Fallible<Vec<Scenario>> {
    let all = list(quick);
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|scenario| scenario.id != **name)) {
        let known = all.iter().map(|scenario| scenario.id).collect::<Vec<_>>().join(", ");
        return Err(format!("no scenario {unknown:?}\n\nhint: the scenarios are {known}").into());
    }
    let is_chosen = |scenario: &Scenario| names.is_empty() || names.iter().any(|name| *name == scenario.id);
    Ok(all.into_iter().filter(is_chosen).collect())
}

fn list(quick: bool) -> Vec<Scenario> {
    use Answer::{Json, Sse};
    use Bodies::{Drifting, Forked, Fresh, Growing, Plain};
    let scenario = |id, kb: usize, bodies: Bodies, answer, connections, requests: usize| {
        let requests = if quick { requests / 2 } else { requests };
        Scenario {
            id,
            body_bytes: kb * KB,
            bodies,
            answer,
            connections,
            requests,
            turns: bodies.turns(kb * KB).min(requests),
            turns_before: 0,
            order: Order::OneByOne,
            pause_us: 0,
            keys: Keys::One,
            flood: None,
            is_apart: false,
        }
    };
    // Sixteen conversations, four on each connection.
    let sixteen = scenario("interleaved-200k", 200, Growing, Json, 4, 160);
    let all = vec![
        scenario("json-24k", 24, Plain, Json, 1, 2_000),
        scenario("json-200k", 200, Plain, Json, 1, 800),
        scenario("json-1m", 1_000, Plain, Json, 1, 300),
        scenario("sse-24k", 24, Plain, Sse, 1, 50),
        scenario("sse-200k", 200, Plain, Sse, 1, 30),
        scenario("sse-1m", 1_000, Plain, Sse, 1, 30),
        scenario("growing-200k", 200, Growing, Json, 1, 480),
        scenario("drifting-200k", 200, Drifting, Json, 1, 400),
        Scenario { requests: 160, order: Order::Interleaved, ..sixteen },
        scenario("fresh-200k", 200, Fresh, Json, 1, 400),
        // Children of a parent that has this size.
        scenario(FORKED, 200, Forked, Json, 1, 400),
        // No more conversations than the store keeps of one tenant, or they would not be known.
        scenario("load-200k", 200, Plain, Json, 8, 200),
    ];
    let left_out = |id| quick && ["json-1m", "sse-200k", "sse-1m"].contains(&id);
    all.into_iter().filter(|scenario| !left_out(scenario.id)).chain(itself::scenarios(quick)).collect()
}

impl Scenario {
    /// Returns true if this arm takes part. The earlier binary gets everything but streams, which take long, so that
    /// its store holds as much as that of the new one.
    pub fn includes(&self, arm: &str) -> bool {
        if self.is_apart {
            return itself::includes(arm);
        }
        if arms::is_before(arm) && self.answer.is_streamed() {
            return false;
        }
        self.id != FORKED || arms::forks(arm)
    }

    pub fn job(&self, target: std::net::SocketAddr, first_nonce: u64, pace_us: u64) -> Job {
        Job {
            target,
            connections: self.connections,
            conversations: self.requests.div_ceil(self.turns.max(1)),
            turns: self.turns,
            turns_before: self.turns_before,
            order: self.order,
            pause_us: self.pause_us,
            keys: self.keys,
            body_bytes: self.body_bytes,
            bodies: self.bodies,
            answer: self.answer,
            pace_us,
            first_nonce,
            headers: String::new(),
            flood: self.flood,
        }
    }
}

/// Streams that are open and silent.
pub fn idle(target: std::net::SocketAddr, first_nonce: u64, streams: usize) -> Job {
    Job {
        target,
        connections: streams,
        conversations: 1,
        turns: 0,
        turns_before: 0,
        order: Order::OneByOne,
        pause_us: 0,
        keys: Keys::One,
        body_bytes: 24 * KB,
        bodies: Bodies::Plain,
        answer: Answer::Idle,
        pace_us: 0,
        first_nonce,
        headers: String::new(),
        flood: None,
    }
}
