//! The line of one exchange in a recording.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::engine::fanout::ForkPoint;
use crate::engine::turn::Turn;
use crate::engine::words::{Endpoint, Role};
use crate::proxy::clock::millis;
use crate::proxy::family::Family;
use crate::proxy::record::{Line, Recorder, Told};

use super::{Entry, Tape};

/// The version of the format; a reader refuses a later one.
pub const VERSION: u32 = 1;

impl Recorder {
    /// Writes down a Messages exchange that has ended.
    pub fn tape(&self, tape: Tape, told: &Told<'_>, turn: Option<&Turn>) {
        let facts = &self.facts;
        if facts.endpoint != Endpoint::Messages {
            return;
        }
        let since = |at: Instant| millis(at.saturating_duration_since(facts.started));
        let arrived = SystemTime::now().checked_sub(facts.started.elapsed()).unwrap_or(UNIX_EPOCH);
        let line = Line {
            v: VERSION,
            time_ms: arrived.duration_since(UNIX_EPOCH).map_or(0, millis) + self.clock().skipped_ms(),
            betas: list(&facts.betas),
            forwarded_betas: tape.betas,
            sent_ms: facts.sent_at.map(since),
            begun_ms: tape.begun.map(since),
            ..Line::of(told)
        };
        let request = self.memo.as_ref().map(|memo| memo.arrival.body().clone());
        let changed = facts.sent != facts.received;
        tape.recording.take(Entry {
            line,
            tool: self.family.as_ref().filter(|_| facts.role == Role::Child).and_then(tool),
            parent: facts.claims.parent().cloned(),
            marks_agents: facts.claims.marks_agents(),
            request,
            forwarded: Some(tape.forwarded).filter(|_| changed),
            refused: Some(tape.refused).filter(|refused| !refused.is_empty()),
            message_id: turn.and_then(|turn| turn.id.clone()),
            answer: turn.and_then(Turn::message),
        });
    }
}

/// `a,b`
pub(super) fn list(betas: &str) -> Vec<String> {
    betas.split(',').filter(|beta| !beta.is_empty()).map(String::from).collect()
}

/// The tool that started a child; of one that named its parent and not the call, those that its fan-out called.
fn tool(family: &Family) -> Option<String> {
    let own = family.bound().map(|bound| &*bound.tool).filter(|tool| !tool.is_empty());
    own.map(str::to_owned).or_else(|| family.fork.as_ref().map(|fork| tools(fork)))
}

/// Each once: most fan-outs call one.
fn tools(fork: &ForkPoint) -> String {
    let mut names: Vec<&str> =
        fork.calls.iter().filter(|call| !call.directives.is_empty()).map(|call| &*call.name).collect();
    names.sort_unstable();
    names.dedup();
    names.join("+")
}
