//! A tenant's part in what outlives the process: what this process has of the store's records, and its place in the queue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Durable;
use crate::engine::durable::Pace;
use crate::engine::records::Writer;
use crate::engine::tenant::Urgency;
use crate::engine::words::TenantId;

/// The time in which changes are gathered that little depends on: they come with every request.
const LATER: Duration = Duration::from_secs(1);
/// The first pause after changes could not be written, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The link of a tenant in memory to its records in the store.
pub struct Link {
    durable: Arc<Durable>,
    id: TenantId,
    /// True once the upstream has accepted a request of it, now or before a restart: nothing is written before.
    is_admitted: AtomicBool,
    /// True once its records were read.
    is_loaded: AtomicBool,
    /// True once this process has written a record of it.
    has_written: AtomicBool,
    /// The version up to which its records are known.
    version: AtomicU64,
    place: Mutex<Place>,
    /// Held while something of it is written, and while it is forgotten.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) news: News,
    /// True if it was used since the last look of those who share what other processes write.
    was_used: AtomicBool,
}

/// The rounds in which news are asked for: whoever comes during one takes part in the next.
#[derive(Default)]
pub(super) struct News {
    pub turn: tokio::sync::Mutex<()>,
    pub begun: AtomicU64,
}

#[derive(Default)]
struct Place {
    is_soon: bool,
    is_later: bool,
    is_writing: bool,
    /// True if it was due while it was written: everything is written next time.
    all_next: bool,
    /// True while it waits for the end of a pause.
    is_paused: bool,
    failures: u32,
}

impl Link {
    pub fn new(durable: Arc<Durable>, id: TenantId) -> Link {
        Link {
            durable,
            id,
            is_admitted: AtomicBool::new(false),
            is_loaded: AtomicBool::new(false),
            has_written: AtomicBool::new(false),
            version: AtomicU64::new(0),
            place: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            news: News::default(),
            was_used: AtomicBool::new(false),
        }
    }

    pub fn writer(&self) -> Writer {
        self.durable.writer()
    }

    /// From now on what changes is written.
    pub fn admit(&self, urgency: Option<Urgency>) {
        self.is_admitted.store(true, Relaxed);
        self.changed(urgency);
    }

    /// Something of the tenant is to be written.
    pub fn changed(&self, urgency: Option<Urgency>) {
        self.was_used.store(true, Relaxed);
        let Some(urgency) = urgency else { return };
        if !self.is_admitted.load(Relaxed) {
            return;
        }
        let mut place = self.lock();
        match urgency {
            _ if place.is_paused => {}
            // Whoever writes looks again at the end.
            Urgency::Soon if place.is_writing || place.is_soon => {}
            Urgency::Soon => {
                place.is_soon = true;
                self.durable.queue.push(self.id);
            }
            Urgency::Later if !place.is_later => {
                place.is_later = true;
                self.durable.queue.push_later(self.id, Instant::now() + LATER);
            }
            Urgency::Later => {}
        }
    }

    /// Its turn has come. Returns what to write; none if somebody writes already, who then looks again.
    pub(super) fn begin(&self, pace: Pace) -> Option<Pace> {
        let mut place = self.lock();
        match pace {
            Pace::Soon => place.is_soon = false,
            Pace::All | Pace::Last => (place.is_later, place.is_paused) = (false, false),
        }
        if place.is_writing {
            place.all_next |= pace != Pace::Soon;
            return None;
        }
        place.is_writing = true;
        Some(if std::mem::take(&mut place.all_next) { Pace::All } else { pace })
    }

    /// Its turn is over. Whoever calls this looks again: it may have changed since.
    pub(super) fn written(&self) {
        let mut place = self.lock();
        (place.is_writing, place.failures) = (false, 0);
    }

    /// Its turn came to nothing: it comes again after a pause, and after the store's own if that is longer.
    pub(super) fn not_written(&self, pause: Option<Duration>) {
        let mut place = self.lock();
        place.is_writing = false;
        let own = (PAUSE_MIN * 2_u32.pow(place.failures.min(10))).min(PAUSE_MAX);
        place.failures += u32::from(pause.is_none());
        place.is_paused = true;
        if !std::mem::replace(&mut place.is_later, true) {
            self.durable.queue.push_later(self.id, Instant::now() + pause.unwrap_or(own));
        }
    }

    pub fn is_loaded(&self) -> bool {
        self.is_loaded.load(Relaxed)
    }

    /// Its records are known up to this version.
    pub(super) fn loaded(&self, version: u64) {
        self.version.store(version, Relaxed);
        self.is_loaded.store(true, Relaxed);
    }

    /// The version up to which its records are known.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Returns true if this process has written a record of it.
    pub(super) fn has_written(&self) -> bool {
        self.has_written.load(Relaxed)
    }

    /// This process wrote up to a version, and so many records that took one each, if that is known. If nobody else has
    /// written, there is no news.
    pub(super) fn wrote(&self, records: Option<usize>, version: u64) {
        self.has_written.store(true, Relaxed);
        let Some(records) = records else { return };
        let before = version.saturating_sub(records as u64);
        let _ = self.version.compare_exchange(before, version, Relaxed, Relaxed);
    }

    /// Returns true if it was used since the last call.
    pub(super) fn take_used(&self) -> bool {
        self.was_used.swap(false, Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("is_loaded", &self.is_loaded())
            .field("version", &self.version())
            .finish()
    }
}
