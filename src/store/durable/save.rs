//! Writing: what has changed of a tenant is taken from its state and written, in its turn.
//!
//! Nothing that was taken is kept for long. What cannot be written after a few attempts is dropped and counted, and all
//! that is known of the tenant is written anew once the store works again: memory is the queue.

use std::sync::Arc;
use std::time::Duration;

use super::calls::{CALL_MAX, SMALL_BYTES, StoreEvent, size};
use super::{Durable, Link};
use crate::engine::durable::{Pace, Taken, take_changes};
use crate::engine::records::Change;
use crate::engine::tenant::TenantAccess;
use crate::engine::words::StoreError;
use crate::store::{Store, Tenant};

/// Records that are written together.
const BATCH_RECORDS_MAX: usize = 64;
/// Bytes that are written together, unless one record alone has more.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Attempts to write a batch, and the pause before the second; each further one is twice as long.
const ATTEMPTS_MAX: u32 = 3;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(50);

/// Changes were not written.
struct NotWritten {
    /// How long the store is not asked; none if it is this tenant that has to wait.
    pause: Option<Duration>,
}

impl Durable {
    /// Writes what has changed of a tenant, unless somebody is about it already.
    pub(super) async fn take_turn(self: &Arc<Self>, store: &Arc<Store>, tenant: &Arc<Tenant>, pace: Pace) {
        let Some(link) = tenant.link() else { return };
        let Some(pace) = link.begin(pace) else { return };
        match self.save(store, tenant, link, pace).await {
            Ok(()) => {
                link.written();
                link.changed(tenant.look(|state| state.has_unsaved()));
            }
            Err(NotWritten { pause }) => link.not_written(pause),
        }
    }

    /// Writes what is left of all tenants, as far as it can be done in this time.
    pub(in crate::store) async fn flush(
        self: &Arc<Self>,
        store: &Arc<Store>,
        pace: Pace,
        within: Duration,
    ) -> bool {
        let all = async {
            for (_, tenant) in store.known() {
                let Some(link) = tenant.link() else { continue };
                // Every tenant with written records gets a final write.
                let is_last = pace == Pace::Last && link.has_written();
                if is_last || tenant.look(|state| state.has_unsaved()).is_some() {
                    // Not by its turn, which somebody may have now.
                    let _ = self.save(store, &tenant, link, pace).await;
                }
            }
            self.save_weights(store).await;
        };
        tokio::time::timeout(within, all).await.is_ok()
    }

    /// Lets go of what the next process waits for.
    pub(in crate::store) async fn hand_over(&self, within: Duration) {
        let _ = tokio::time::timeout(within, self.calls.store().hand_over()).await;
    }

    /// Writes all that is left, and lets go of the store.
    pub(in crate::store) async fn close(self: &Arc<Self>, store: &Arc<Store>, within: Duration) {
        if !self.flush(store, Pace::Last, within).await {
            tracing::warn!("the store was too slow for what had changed last; that is forgotten");
        }
        let _ = tokio::time::timeout(CALL_MAX.min(within), self.calls.store().close()).await;
    }

    async fn save(
        self: &Arc<Self>,
        store: &Arc<Store>,
        tenant: &Arc<Tenant>,
        link: &Link,
        pace: Pace,
    ) -> Result<(), NotWritten> {
        let id = tenant.id();
        if let Some(pause) = self.calls.writes_pause() {
            return Err(NotWritten { pause: Some(pause) });
        }
        if !link.is_loaded() {
            // What is stored is read first: it is merged, and not written over.
            self.load_whole(store, &id, tenant).await;
        }
        // Whoever takes something writes it before somebody takes what came later.
        let _turn = link.turn.lock().await;
        if !link.is_loaded() || self.is_forgetting(&id) {
            return Err(NotWritten { pause: self.calls.reads_pause() });
        }
        let (durable, taken) = (Arc::clone(self), Arc::clone(tenant));
        // Whatever is taken from now on depends on no later version.
        let known = link.known();
        let taken = tokio::task::spawn_blocking(move || take_changes(&*taken, pace, (durable.times)())).await;
        let Ok(Taken { mut changes, too_large }) = taken else {
            tracing::error!("what is known of a tenant cannot be written: a bug of forkpoint");
            // How much was taken is not known.
            self.calls.tell(StoreEvent::Dropped(1));
            tenant.look(|state| state.save_all_anew());
            return Err(NotWritten { pause: None });
        };
        if too_large > 0 {
            self.calls.tell(StoreEvent::Dropped(too_large));
        }
        while !changes.is_empty() {
            let batch = take_batch(&mut changes);
            if tenant.is_forgotten() {
                return Ok(());
            }
            let records = batch.len();
            let Ok(written) = self.write_batch(tenant, link, known, batch).await else {
                self.calls.tell(StoreEvent::Dropped(records + changes.len()));
                tenant.look(|state| state.save_all_anew());
                return Err(NotWritten { pause: self.calls.writes_pause() });
            };
            if !written {
                store.forget_this(tenant);
            }
        }
        Ok(())
    }

    /// Writes some changes together or, where there is not enough room for all of them, half of them at a time. What is
    /// too large alone is dropped.
    /// Returns false if another process has forgotten the tenant: then nothing more is written.
    async fn write_batch(
        &self,
        tenant: &Tenant,
        link: &Link,
        known: u64,
        batch: Vec<Change>,
    ) -> Result<bool, ()> {
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            match self.write_part(tenant, link, known, &part).await {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(StoreError::Full) if self.calls.writes_pause().is_some() => return Err(()),
                Err(StoreError::Full) if part.len() > 1 => {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([rest, part]);
                }
                Err(StoreError::Full) if part.iter().all(|change| size(change) > SMALL_BYTES) => {
                    self.calls.tell(StoreEvent::Dropped(part.len()));
                }
                Err(_) => return Err(()),
            }
        }
        Ok(true)
    }

    async fn write_part(
        &self,
        tenant: &Tenant,
        link: &Link,
        known: u64,
        batch: &[Change],
    ) -> Result<bool, StoreError> {
        // A deletion of what is not there may take no version.
        let versions = batch.iter().all(|change| matches!(change, Change::Put(..))).then_some(batch.len());
        let mut failed = StoreError::Down;
        for attempt in 0..ATTEMPTS_MAX {
            if tenant.is_forgotten() {
                return Ok(false);
            }
            match self.calls.write(tenant.id(), known, batch.to_vec()).await {
                Ok(Some(version)) => {
                    link.wrote(versions, version);
                    return Ok(true);
                }
                Ok(None) => return Ok(false),
                Err(error) if self.calls.writes_pause().is_some() => return Err(error),
                Err(StoreError::Full) if batch.len() > 1 => return Err(StoreError::Full),
                Err(error) => failed = error,
            }
            tokio::time::sleep(ATTEMPT_PAUSE * 2_u32.pow(attempt)).await;
        }
        Err(failed)
    }
}

/// Takes the first changes, as many as are written together.
fn take_batch(changes: &mut Vec<Change>) -> Vec<Change> {
    let mut bytes = 0_usize;
    let belongs = |change: &&Change| {
        bytes = bytes.saturating_add(size(change));
        bytes <= BATCH_BYTES_MAX
    };
    let fitting = changes.iter().take(BATCH_RECORDS_MAX).take_while(belongs).count();
    changes.drain(..fitting.max(1)).collect()
}
