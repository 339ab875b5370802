//! One request's stay: its record, its unpublished cache entries, and how it ends.
//!
//! A visit ends exactly once: when the last byte is handed over, when a fault cuts it, or when it is dropped before
//! either, which means that the client has left. Entries of a client that left before the answer began are never
//! published: nobody generated anything.

use std::sync::Arc;

use super::cache::PendingWrite;
use super::journal::{ExchangeEnding, Number, RequestRecord};
use super::threads::ThreadTurn;
use super::world::World;

#[derive(Debug)]
pub struct Visit {
    world: Arc<World>,
    number: Number,
    pub request_id: String,
    writes: Vec<PendingWrite>,
    /// Of a request with `thread`.
    pub thread: Option<ThreadTurn>,
    /// The answer ends without `message_stop`.
    is_broken: bool,
    has_begun: bool,
    has_ended: bool,
}

impl Visit {
    pub fn new(world: Arc<World>, number: Number, request_id: String) -> Self {
        Visit {
            world,
            number,
            request_id,
            writes: Vec::new(),
            thread: None,
            is_broken: false,
            has_begun: false,
            has_ended: false,
        }
    }

    pub fn number(&self) -> Number {
        self.number
    }

    /// Entries to publish when the response begins.
    pub fn owe(&mut self, writes: Vec<PendingWrite>) {
        self.writes = writes;
    }

    pub fn publish(&mut self) {
        let writes = std::mem::take(&mut self.writes);
        if !writes.is_empty() {
            self.world.cache().publish(writes, self.world.clock.now_ms());
        }
    }

    pub fn note(&self, change: impl FnOnce(&mut RequestRecord)) {
        self.world.journal().update(self.number, change);
    }

    pub fn first_byte(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            let now_us = self.world.elapsed_us();
            self.note(|record| record.first_byte_us = Some(now_us));
        }
    }

    /// The stream will end with an error, so that its last byte is not the end of a message.
    pub fn break_off(&mut self) {
        self.is_broken = true;
    }

    pub fn complete(&mut self) {
        self.end(ExchangeEnding::Complete);
    }

    pub fn cut(&mut self) {
        self.end(ExchangeEnding::Cut);
    }

    fn end(&mut self, ending: ExchangeEnding) {
        if self.has_ended {
            return;
        }
        self.has_ended = true;
        if let Some(turn) = self.thread.take() {
            let is_whole = ending == ExchangeEnding::Complete && !self.is_broken;
            let (now_ms, rules) = (self.world.clock.now_ms(), &self.world.config.rules.threads);
            self.world.threads().settle(turn, is_whole, now_ms, rules);
        }
        let now_us = self.world.elapsed_us();
        self.note(|record| {
            record.ended_us = Some(now_us);
            record.ending = ending;
        });
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.end(ExchangeEnding::ClientLeft);
    }
}
