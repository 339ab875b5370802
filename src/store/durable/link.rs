//! A tenant's part in what outlives the process: what this process has of the store's records, and its place in the queue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Durable;
use super::load::News;
use crate::engine::durable::Pace;
use crate::engine::records::Writer;
use crate::engine::tenant::Urgency;
use crate::engine::words::TenantId;

/// The time in which changes are gathered that little depends on: they come with every request.
const LATER: Duration = Duration::from_secs(1);
/// The time after a request when others' changes are asked for, and the longest time between two such questions.
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(64);
/// The first pause after records could not be written or read, and the longest.
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
    /// The version of the first record that this process has written of it.
    first: AtomicU64,
    place: Mutex<Place>,
    /// Held while something of it is written, and while it is forgotten.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) news: News,
    looks: Mutex<Looks>,
    load_pause: Mutex<LoadPause>,
}

/// When to look again for what other processes have written: soon after a request has come, then less and less often.
struct Looks {
    due: Instant,
    pause: Duration,
}

/// Loads that failed in a row, and until when the next one is put off.
#[derive(Default)]
struct LoadPause {
    failures: u32,
    until: Option<Instant>,
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
            first: AtomicU64::new(0),
            place: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            news: News::default(),
            looks: Mutex::new(Looks { due: Instant::now() + LOOK_MIN, pause: LOOK_MIN }),
            load_pause: Mutex::default(),
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
        let own = pause_after(place.failures);
        place.failures = place.failures.saturating_add(1);
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
        *lock(&self.load_pause) = LoadPause::default();
    }

    /// The version up to which its records are known.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// A version that what is known of it is not older than: what was forgotten after that is void. None is 0.
    pub(super) fn known(&self) -> u64 {
        self.version().max(self.first.load(Relaxed))
    }

    /// Returns true if this process has written a record of it.
    pub(super) fn has_written(&self) -> bool {
        self.has_written.load(Relaxed)
    }

    /// This process wrote up to a version, and so many records that took one each, if that is known. If nobody else has
    /// written, there is no news.
    pub(super) fn wrote(&self, records: Option<usize>, version: u64) {
        self.has_written.store(true, Relaxed);
        let _ = self.first.compare_exchange(0, version, Relaxed, Relaxed);
        let Some(records) = records else { return };
        let before = version.saturating_sub(records as u64);
        let _ = self.version.compare_exchange(before, version, Relaxed, Relaxed);
    }

    /// A request of it has come.
    pub(super) fn used(&self, now: Instant) {
        let mut looks = lock(&self.looks);
        looks.pause = LOOK_MIN;
        looks.due = looks.due.min(now + LOOK_MIN);
    }

    /// Returns true if it is time to ask what other processes have written of it.
    pub(super) fn take_due(&self, now: Instant) -> bool {
        let mut looks = lock(&self.looks);
        if now < looks.due {
            return false;
        }
        looks.pause = (2 * looks.pause).min(LOOK_MAX);
        looks.due = now + looks.pause;
        true
    }

    /// Its records could not be read. That is not tried again at once.
    pub(super) fn not_loaded(&self, now: Instant) {
        let mut load = lock(&self.load_pause);
        load.until = Some(now + pause_after(load.failures));
        load.failures = load.failures.saturating_add(1);
    }

    /// Returns true if its records may be read now, as far as that depends on this tenant.
    pub(super) fn may_load(&self, now: Instant) -> bool {
        lock(&self.load_pause).until.is_none_or(|until| until <= now)
    }

    fn lock(&self) -> MutexGuard<'_, Place> {
        lock(&self.place)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pause after a failure that follows this number of others.
fn pause_after(failures: u32) -> Duration {
    (PAUSE_MIN * 2_u32.pow(failures.min(10))).min(PAUSE_MAX)
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("is_loaded", &self.is_loaded())
            .field("version", &self.version())
            .finish()
    }
}
