//! The stream of what happens, for the live page: a snapshot, then numbered events.
//!
//! ```text
//! a request of a fan-out goes on ─ Underway ──────┐   ring of numbered events ─ subscribers, each with its place
//! an exchange ends ─ a view of its record ────────┼─┤
//! a configuration is put in force ────────────────┘   sums, latest exchanges, those underway ─ snapshot
//! ```
//!
//! Nothing is queued for anybody. A subscriber takes from the ring what came after its place; one whose place has
//! left the ring, or that comes from another process, gets a snapshot and goes on from there.

mod retained;
mod sums;
mod view;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::watch;

use self::retained::{Frames, Retained};
use super::record::ExchangeRecord;
pub use sums::{History, Minute, Sums};
pub use view::Underway;

/// The most bytes of events that a subscriber may be behind.
const RING_BYTES_MAX: usize = 1 << 20;
/// The most bytes of exchanges of fan-outs in a snapshot, and of all others.
const FAMILY_BYTES_MAX: usize = 3 << 20;
const OTHER_BYTES_MAX: usize = 256 << 10;
/// The most bytes of events that are handed out at once.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// The pause between two batches: what comes meanwhile goes out together.
const BATCH_PAUSE: Duration = Duration::from_millis(50);

/// The settings that subscribers are shown.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Configured {
    pub mode: &'static str,
    /// The number of the configuration; the one that the process was started with is 1.
    pub config: u64,
    /// Names of tenants by the digits that exchanges show.
    pub tenants: BTreeMap<String, String>,
}

/// The events of a process, and what a snapshot is made of.
pub struct Events {
    /// Names the process in the ids of its events: a number of another one says nothing here.
    epoch: String,
    started_ms: u64,
    state: Mutex<State>,
    /// The number of exchanges that were shown while they went on.
    underway_numbers: AtomicU64,
    /// The number of the newest event.
    newest: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The number of the newest event.
    number: u64,
    ring: Frames,
    family: Retained,
    others: Retained,
    underway: BTreeMap<u64, Bytes>,
    history: History,
    configured: Configured,
}

/// The place of one exchange in the stream.
pub struct Feed {
    events: Arc<Events>,
    /// Its number among those underway, once it was shown.
    number: Option<u64>,
}

/// Somebody who reads the stream.
pub struct Subscriber {
    events: Arc<Events>,
    /// The number of the last event that it has; none if it needs a snapshot.
    place: Option<u64>,
    newest: watch::Receiver<u64>,
    has_begun: bool,
}

/// The head of a snapshot; what it holds of exchanges follows.
#[derive(Serialize)]
struct SnapshotHead<'a> {
    version: &'static str,
    started_ms: u64,
    now_ms: u64,
    #[serde(flatten)]
    configured: &'a Configured,
    #[serde(flatten)]
    history: &'a History,
}

impl Default for Events {
    fn default() -> Events {
        let started_ms = now_ms();
        Events {
            epoch: format!("{:x}", started_ms ^ u64::from(std::process::id()) << 44),
            started_ms,
            state: Mutex::default(),
            underway_numbers: AtomicU64::new(0),
            newest: watch::Sender::new(0),
        }
    }
}

impl Events {
    /// Returns the place of an exchange that begins.
    pub fn feed(self: &Arc<Events>) -> Feed {
        Feed { events: Arc::clone(self), number: None }
    }

    /// Shows the settings that are in force from now on.
    pub fn configured(&self, configured: Configured) {
        let data = json(&configured);
        let mut state = self.state();
        state.configured = configured;
        self.publish(&mut state, "configured", &data);
    }

    /// Returns a reader of the stream, who goes on after the event with this id if that is still known.
    pub fn subscribe(self: &Arc<Events>, last_id: Option<&str>) -> Subscriber {
        let place = last_id.and_then(|id| self.place(id));
        Subscriber { events: Arc::clone(self), place, newest: self.newest.subscribe(), has_begun: false }
    }

    fn place(&self, id: &str) -> Option<u64> {
        let (epoch, number) = id.rsplit_once('-')?;
        let number = number.parse().ok()?;
        (epoch == self.epoch && number <= self.state().number).then_some(number)
    }

    /// Adds an event to the ring, and returns its data.
    fn publish(&self, state: &mut State, event: &str, data: &str) -> Bytes {
        state.number += 1;
        let head = format!("id: {}-{}\nevent: {event}\ndata: ", self.epoch, state.number);
        let frame = Bytes::from([&head, data, "\n\n"].concat());
        let data = frame.slice(head.len()..head.len() + data.len());
        state.ring.push(state.number, frame, RING_BYTES_MAX);
        self.newest.send_replace(state.number);
        data
    }

    /// Returns a snapshot as one event, and the number of the last event that it contains.
    fn snapshot(&self) -> (u64, Bytes) {
        let (number, head, underway, exchanges) = {
            let state = self.state();
            let head = SnapshotHead {
                version: env!("CARGO_PKG_VERSION"),
                started_ms: self.started_ms,
                now_ms: now_ms(),
                configured: &state.configured,
                history: &state.history,
            };
            let underway: Vec<Bytes> = state.underway.values().cloned().collect();
            let exchanges: Vec<Bytes> = state.family.iter().chain(state.others.iter()).cloned().collect();
            (state.number, json(&head), underway, exchanges)
        };
        let mut text = format!("id: {}-{number}\nevent: snapshot\ndata: ", self.epoch).into_bytes();
        text.extend_from_slice(head.strip_suffix('}').unwrap_or(&head).as_bytes());
        for (name, list) in [("underway", underway), ("exchanges", exchanges)] {
            text.extend_from_slice(format!(",\"{name}\":[").as_bytes());
            text.extend_from_slice(&list.join(&b","[..]));
            text.push(b']');
        }
        text.extend_from_slice(b"}\n\n");
        (number, text.into())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed {
    /// Shows a request of a fan-out that goes on; `shown` gets the number by which its end names it.
    pub fn show(&mut self, shown: &Underway<'_>) {
        let next = || self.events.underway_numbers.fetch_add(1, Relaxed) + 1;
        let number = *self.number.get_or_insert_with(next);
        let data = json(&view::Numbered { n: number, shown });
        let mut state = self.events.state();
        let data = self.events.publish(&mut state, "underway", &data);
        state.underway.insert(number, data);
    }

    /// Shows an exchange that has ended.
    pub fn end(self, record: &ExchangeRecord) {
        if !record.details.is_messages {
            return;
        }
        let data = json(&view::Shown::of(record, self.number));
        let mut state = self.events.state();
        if let Some(number) = self.number {
            state.underway.remove(&number);
        }
        state.history.add(record);
        let data = self.events.publish(&mut state, "exchange", &data);
        if record.fork.is_some() || record.fanned_out.is_some() {
            state.family.push(data, FAMILY_BYTES_MAX);
        } else {
            state.others.push(data, OTHER_BYTES_MAX);
        }
    }
}

impl Subscriber {
    /// Waits until there is something new, and returns it as the text of events.
    pub async fn next(&mut self) -> Bytes {
        if std::mem::replace(&mut self.has_begun, true) {
            tokio::time::sleep(BATCH_PAUSE).await;
        }
        loop {
            self.newest.mark_unchanged();
            let batch = self.place.and_then(|place| self.events.state().ring.after(place, BATCH_BYTES_MAX));
            match batch {
                None => {
                    let (number, snapshot) = self.events.snapshot();
                    self.place = Some(number);
                    return snapshot;
                }
                Some((number, frames)) if !frames.is_empty() => {
                    self.place = Some(number);
                    return frames.concat().into();
                }
                // The sender lives as long as this one keeps the events.
                Some(_) => drop(self.newest.changed().await),
            }
        }
    }
}

/// What is shown holds texts and numbers only, and every one of them is JSON.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
