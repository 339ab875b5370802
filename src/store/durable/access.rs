//! What the rest of the process asks of the store behind the memory.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Condition, Durable, Link, Opened, Surroundings};
use crate::engine::durable::Pace;
use crate::engine::words::{StoreError, TenantId};
use crate::store::{Store, Tenant};

/// The longest time for what is left to be written when the folder is handed over.
const HAND_OVER_MAX: Duration = Duration::from_secs(5);

/// A tenant whose request has come.
pub struct Met {
    pub tenant: Arc<Tenant>,
    /// True if all that the store knew of it was here before this request came.
    pub was_known: bool,
}

/// What became of a tenant that is to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// True if something was known of it.
    pub was_known: bool,
    /// Why the store behind the memory has not forgotten it yet.
    pub error: Option<StoreError>,
}

impl Store {
    /// Puts a store behind this memory. The first one counts, and is to be put there before any request comes.
    pub fn put_behind(self: &Arc<Self>, opened: Opened, surroundings: Surroundings) {
        let load_bytes = self.limits.share(self.limits.max_bytes);
        let durable = Arc::new(Durable::new(opened, surroundings, load_bytes));
        if self.durable.set(Arc::clone(&durable)).is_ok() {
            durable.start(self);
        }
    }

    /// Returns the condition of the store behind this memory, if there is one.
    pub fn condition(&self) -> Option<Condition> {
        Some(self.durable.get()?.condition())
    }

    /// Returns true if there is a store behind this memory.
    pub fn is_durable(&self) -> bool {
        self.durable.get().is_some()
    }

    /// Returns a tenant whose request has come, with what outlived the process: known to the store behind this memory,
    /// which is asked at first sight, and not waited for long.
    pub async fn meet(self: &Arc<Self>, id: &TenantId) -> Met {
        let known = self.known_tenant(id);
        let Some(durable) = self.durable.get() else {
            let tenant = known.unwrap_or_else(|| self.tenant(id));
            return Met { tenant, was_known: true };
        };
        if let Some(link) = known.as_ref().and_then(|tenant| tenant.link()) {
            link.used(Instant::now());
        }
        match known {
            Some(tenant) if tenant.link().is_none_or(Link::is_loaded) => Met { tenant, was_known: true },
            known => Met { tenant: durable.meet(self, id, known).await, was_known: false },
        }
    }

    /// Asks what other processes have written of a tenant, and returns true if there was something. A request waits for it
    /// as long as for the store at all.
    pub async fn news(&self, tenant: &Arc<Tenant>) -> bool {
        match self.durable.get() {
            Some(durable) if durable.is_shared() => durable.news_in_time(tenant).await,
            _ => false,
        }
    }

    /// As [`Store::news`], for a caller that bounds the wait itself.
    pub async fn news_at_last(&self, tenant: &Arc<Tenant>) -> bool {
        match self.durable.get() {
            Some(durable) if durable.is_shared() => durable.news(tenant).await,
            _ => false,
        }
    }

    /// Returns true if other processes write what is known of tenants at the same time.
    pub fn is_shared(&self) -> bool {
        self.durable.get().is_some_and(|durable| durable.is_shared())
    }

    /// Waits until no other process writes what is known of tenants, and all that they wrote is known.
    pub fn sharing_ends(&self) -> impl Future<Output = ()> + use<> {
        let is_shared = self.durable.get().map(|durable| durable.is_shared.subscribe());
        async move {
            if let Some(mut is_shared) = is_shared {
                let _ = is_shared.wait_for(|is_shared| !is_shared).await;
            }
        }
    }

    /// Forgets all that is known of a tenant, here and in the store behind this memory, for good.
    pub async fn forget_for_good(&self, id: &TenantId) -> Forgotten {
        let tenant = self.peek(id);
        let Some(durable) = self.durable.get() else {
            return Forgotten { was_known: self.forget(id), error: None };
        };
        // Before it is forgotten here: nobody may load it again in between.
        durable.begin_to_forget(*id);
        let was_known = self.forget(id);
        match durable.forget(*id, tenant.as_ref().and_then(|tenant| tenant.link())).await {
            Ok(stored) => Forgotten { was_known: was_known || stored, error: None },
            Err(error) => Forgotten { was_known, error: Some(error) },
        }
    }

    /// Nothing more is accepted: what is left is written, and the next process gets what it waits for.
    pub async fn hand_over(self: &Arc<Self>) {
        if let Some(durable) = self.durable.get() {
            durable.flush(self, Pace::All, HAND_OVER_MAX).await;
            durable.hand_over(HAND_OVER_MAX).await;
        }
    }

    /// The process ends: what is left is written within this time, and nothing after it.
    pub async fn close(self: &Arc<Self>, within: Duration) {
        if let Some(durable) = self.durable.get() {
            durable.close(self, within).await;
        }
    }
}
