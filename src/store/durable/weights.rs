//! The tokens to a byte of each model's prompts, which all tenants share: read at the start, written now and then.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::Durable;
use super::calls::StoreEvent;
use crate::engine::words::TenantId;
use crate::store::Store;

/// How often what bills have shown is written and, with a store that others share, what they have written is read.
const EVERY: Duration = Duration::from_secs(10);

impl Durable {
    pub(super) async fn share_weights(self: Arc<Self>, store: Weak<Store>) {
        loop {
            let Some(memory) = store.upgrade() else { return };
            self.hear_weights(&memory).await;
            self.save_weights(&memory).await;
            drop(memory);
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn hear_weights(&self, store: &Store) {
        let known = self.known_weights();
        if known.is_some() && !self.is_shared() {
            return;
        }
        let after = known.unwrap_or(0);
        let Ok(found) = self.calls.changes(TenantId::NOBODY, after, self.load_bytes).await else { return };
        store.weights.restore(&found.changes, (self.times)());
        *self.weights.lock().unwrap_or_else(PoisonError::into_inner) = Some(found.version);
    }

    /// Writes what bills have shown since. Before what is stored was read nothing is written over it.
    pub(super) async fn save_weights(&self, store: &Store) {
        if self.known_weights().is_none() || self.calls.writes_pause().is_some() {
            return;
        }
        let changes = store.weights.take((self.times)());
        let records = changes.len();
        if records > 0 && self.calls.write(TenantId::NOBODY, 0, changes).await.is_err() {
            // The next bill of a model writes it again.
            self.calls.tell(StoreEvent::Dropped(records));
        }
    }

    fn known_weights(&self) -> Option<u64> {
        *self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
