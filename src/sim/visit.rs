//! One request's stay: its record, its unpublished cache entries, and how it ends.
//!
//! A visit ends exactly once: when the last byte is handed over, when a fault cuts it, or when it is dropped before
//! either, which means that the client has left. Entries of a client that left before the answer began are never
//! published: nobody generated anything.

use std::sync::Arc;

use super::cache::PendingWrite;
use super::journal::{ExchangeEnding, Number, RequestRecord};
use super::world::World;

#[derive(Debug)]
pub struct Visit {
    world: Arc<World>,
    number: Number,
    pub request_id: String,
    writes: Vec<PendingWrite>,
    has_begun: bool,
    has_ended: bool,
}

impl Visit {
    pub fn new(world: Arc<World>, number: Number, request_id: String) -> Self {
        Visit { world, number, request_id, writes: Vec::new(), has_begun: false, has_ended: false }
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
