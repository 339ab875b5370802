//! The recent requests whose answers the server holds.

use std::sync::Arc;

use bytes::Bytes;

use super::{Recent, RecentId};
use crate::engine::family::arrival::Predecessor;
use crate::engine::family::thread::HeldAnswer;

impl Recent {
    /// The server holds the answer to a request, under this id.
    pub fn hold(&mut self, id: RecentId, message_id: &str, answer: HeldAnswer) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let bytes = message_id.len() + answer.message.as_ref().map_or(0, Bytes::len);
        let name: Arc<str> = Arc::from(message_id);
        (slot.outcome.held, slot.thread) = (Some(answer), Some(Arc::clone(&name)));
        slot.bytes += bytes;
        self.bytes += bytes;
        self.threads.insert(name, id);
    }

    /// Returns the id under which the server holds the answer to this request.
    pub fn held_name(&self, last: &Predecessor) -> Option<Arc<str>> {
        let slot = self.slots.get(&last.id).filter(|slot| Arc::ptr_eq(&slot.trace, &last.trace))?;
        slot.thread.clone()
    }

    /// The server does not hold the answer to this request any more. Returns the id that it had.
    pub fn release(&mut self, last: &Predecessor) -> Option<Arc<str>> {
        let slot = self.slots.get_mut(&last.id).filter(|slot| Arc::ptr_eq(&slot.trace, &last.trace))?;
        let (name, answer) = (slot.thread.take()?, slot.outcome.held.take());
        let bytes = name.len() + answer.and_then(|answer| answer.message).map_or(0, |message| message.len());
        slot.bytes -= bytes;
        self.bytes -= bytes;
        if self.threads.get(&name) == Some(&last.id) {
            self.threads.remove(&name);
        }
        Some(name)
    }

    /// Returns the number of bytes of the request whose answer the server holds under this id, and of that answer.
    pub fn held_bytes(&self, message_id: &str) -> usize {
        let Some(slot) = self.held(message_id).and_then(|id| self.slots.get(&id)) else { return 0 };
        let answer = slot.outcome.held.as_ref().and_then(|answer| answer.message.as_ref());
        slot.trace.received.body().len() + answer.map_or(0, Bytes::len)
    }

    /// True if the server holds an answer of any conversation.
    pub fn holds_any(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Returns the request whose answer the server holds under this id.
    pub fn held(&self, message_id: &str) -> Option<RecentId> {
        self.threads.get(message_id).copied()
    }
}
