//! What depends on the store behind the memory.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::*;
use crate::config::{ValueOrigin, load_prices};
use crate::engine::records::Change;
use crate::engine::words::{StoreError, TenantId};
use crate::store::records::{Changes, RecordStore};

/// A store that others write to for a while.
struct Shared(AtomicBool);

impl RecordStore for Shared {
    fn name(&self) -> &'static str {
        "test"
    }

    fn is_shared(&self) -> bool {
        self.0.load(Relaxed)
    }

    fn changes(&self, _tenant: TenantId, _after: u64) -> BoxFuture<'_, Result<Changes, StoreError>> {
        Box::pin(async { Ok(Changes::default()) })
    }

    fn write(&self, _tenant: TenantId, _changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async { Ok(1) })
    }

    fn forget(&self, _tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async { Ok(false) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_may_have_a_prefix_until_its_life_is_over_after_the_last_of_others() {
    let metrics = Arc::new(Metrics::new().unwrap());
    let prices = load_prices(None, &ValueOrigin::Default).unwrap();
    let proxy = Proxy::new(Config::default(), prices, metrics).unwrap();
    assert!(!proxy.may_have_prefix(proxy.clock.now()), "nothing is behind the memory");
    let others = Arc::new(Shared(true.into()));
    proxy.put_behind(Opened::from(Arc::clone(&others) as Arc<dyn RecordStore>));
    let child_ttl = clock::millis(proxy.config.store.child_ttl);
    for _ in 0..3 {
        assert!(proxy.may_have_prefix(proxy.clock.now()));
        proxy.clock.skip(child_ttl);
    }
    others.0.store(false, Relaxed);
    // Some rounds of those who hear what others write.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!proxy.store.is_shared());
    assert!(proxy.may_have_prefix(proxy.clock.now()), "one that was put on it last");
    proxy.clock.skip(child_ttl);
    assert!(!proxy.may_have_prefix(proxy.clock.now()));
}
