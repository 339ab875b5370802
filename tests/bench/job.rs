//! The orders to the load generator.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::answers::Answer;
use crate::bodies::Bodies;
use crate::flood::Flood;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    pub target: SocketAddr,
    pub connections: usize,
    /// Conversations per connection.
    pub conversations: usize,
    /// Requests of each after its first. Without any the first one counts; else it is sent before the clock
    /// starts, so that pools are filled and conversations known.
    pub turns: usize,
    /// The number of those turns that are sent before the clock starts, too. Only for conversations in rotation, or
    /// the later ones would not have begun by then.
    pub turns_before: usize,
    pub order: Order,
    /// Pause of a connection before each request.
    pub pause_us: u64,
    pub keys: Keys,
    pub body_bytes: usize,
    pub bodies: Bodies,
    pub answer: Answer,
    pub pace_us: u64,
    /// Conversations are numbered from here; the driver never hands out a number twice.
    pub first_nonce: u64,
    /// Further header lines of every request.
    pub headers: String,
    /// Load of another tenant, beside the one that is measured.
    pub flood: Option<Flood>,
}

/// The keys of a job's conversations, each of which is a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keys {
    /// One for all of them.
    One,
    /// A key for each.
    Each,
}

/// The order in which a connection takes up its conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Each is led to its end before the next one goes on.
    OneByOne,
    /// A request of each in rotation.
    Interleaved,
}

/// Conversations of one request that are sent before the clock starts.
const WARMUP: usize = 2;

impl Job {
    pub fn requests_total(&self) -> u64 {
        (self.connections * self.rota().len()) as u64
    }

    /// Requests of children that are to be forked.
    pub fn children_total(&self) -> u64 {
        match self.bodies {
            Bodies::Forked => (self.connections * self.conversations * self.turns) as u64,
            _ => 0,
        }
    }

    /// The conversation of each request of a connection.
    pub fn rota(&self) -> Vec<usize> {
        let all = 0..self.conversations + if self.turns == 0 { self.warmup() } else { 0 };
        let first = all.clone();
        match self.order {
            Order::OneByOne => {
                first.chain(all.flat_map(|number| std::iter::repeat_n(number, self.turns))).collect()
            }
            Order::Interleaved => first.chain((0..self.turns).flat_map(|_| all.clone())).collect(),
        }
    }

    /// The answer to a request of a connection, by its number. A conversation that forks opens with the fan-out, and
    /// the requests that follow come from its children.
    pub fn answer_to(&self, number: usize) -> Answer {
        match self.bodies {
            Bodies::Forked if number < self.warmup() => Answer::FanOut,
            Bodies::Forked => Answer::Forked,
            _ => self.answer,
        }
    }

    /// Requests of a connection that do not count.
    pub fn warmup(&self) -> usize {
        match self.turns {
            0 if self.answer == Answer::Idle => 0,
            0 => WARMUP,
            _ => self.conversations * (1 + self.turns_before),
        }
    }

    /// The key of a conversation, by its number among those of its connection.
    pub fn key(&self, connection: usize, conversation: usize) -> String {
        match self.keys {
            Keys::One => "bench-key".into(),
            Keys::Each => format!("bench-key-{}", connection * self.conversations + conversation),
        }
    }
}
