//! A tenant that misbehaves, beside the one that is measured.
//!
//! Its connections send large bodies from before the first request of the other tenant to after its last. They differ
//! in what they send: conversations never seen before, and conversations whose huge system prompt changes on every
//! turn. Its answers are compared like any others; how long they take does not matter.
//!
//! Every arm gets the same flood: a body at a fixed interval, the connections one after the other, unless the arm
//! cannot keep up. As fast as they are answered, a fast proxy would get several times as many, and its bystander would
//! wait for the mock and the generator. The threads have the lowest priority for the same reason: they share a core
//! with the client that is measured.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use serde::{Deserialize, Serialize};

use crate::answers::Answer;
use crate::bodies::{Bodies, Conversation, Script};
use crate::job::Job;
use crate::load::{ANSWER_MAX, Client, Outcome, Request, nanoseconds};

const KEY: &str = "bench-flood";

/// The kinds of bodies, by connection.
const BODIES: [Bodies; 2] = [Bodies::Fresh, Bodies::Shifting];

/// Conversations of a flood are numbered from here, far from those that are measured. Each connection of each job has
/// a range of its own.
const FIRST_NONCE: u64 = 1 << 55;
const NONCES_OF_A_CONNECTION: u64 = 1 << 16;

const LOWEST_PRIORITY: i32 = 19;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Flood {
    pub connections: usize,
    pub body_bytes: usize,
    /// From one request to the next, over all connections.
    pub interval_us: u64,
}

/// Starts the threads of a flood, which end once `done` is set.
pub fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    flood: Flood,
    job: &'scope Job,
    done: &'scope AtomicBool,
) -> Vec<ScopedJoinHandle<'scope, Outcome>> {
    let connections = 0..flood.connections;
    connections.map(|connection| scope.spawn(move || one_connection(flood, job, connection, done))).collect()
}

fn one_connection(flood: Flood, job: &Job, connection: usize, done: &AtomicBool) -> Outcome {
    let mut outcome = Outcome::default();
    // On Linux, "this process" is this thread.
    if let Err(error) = setpriority_process(None, LOWEST_PRIORITY) {
        outcome.fail(&format!("flood: no lower priority: {error}"));
    }
    let bodies = BODIES[connection % BODIES.len()];
    let script = Script::new(flood.body_bytes, bodies, bodies.turns(flood.body_bytes), false);
    let first_of_connection = (job.first_nonce + connection as u64) * NONCES_OF_A_CONNECTION;
    let mut nonce = FIRST_NONCE + first_of_connection;
    let mut conversation = Conversation::new(&script, nonce);
    let mut request = Request::new(job);
    let mut client = match Client::connect(job.target, ANSWER_MAX) {
        Ok(client) => client,
        Err(error) => {
            outcome.fail(&format!("flood: connect: {error}"));
            return outcome;
        }
    };
    let interval = Duration::from_micros(flood.interval_us);
    let started = Instant::now();
    let mut next = started + interval * connection as u32;
    while !done.load(Relaxed) {
        nonce += 1;
        outcome.body_bytes += request.write(&mut conversation, nonce, KEY, Answer::Json) as u64;
        outcome.flood_sent += 1;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next += interval * flood.connections as u32;
        if let Err(error) = client.exchange(&request.message, Answer::Json) {
            outcome.fail(&format!("flood: {error}"));
            break;
        }
    }
    outcome.flood_ns = nanoseconds(started);
    outcome
}
