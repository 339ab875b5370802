//! Leases: who of several replicas writes an entry of the provider's cache.

use std::time::Duration;

use redis::Value;

use super::RedisStore;
use super::link::ScriptCall;
use crate::engine::words::StoreError;
use crate::store::records::Lease;

impl RedisStore {
    pub(super) async fn take_lease(
        &self,
        key: &str,
        owner: &str,
        hold: Duration,
    ) -> Result<Lease, StoreError> {
        let call = ScriptCall::default().key(key).argument(owner).argument(millis(hold).to_string());
        match self.link.script(&self.scripts.lease, call).await? {
            Value::BulkString(word) if word == b"taken" => Ok(Lease::Taken),
            Value::BulkString(word) if word == b"written" => Ok(Lease::Written),
            Value::BulkString(word) if word == b"held" => Ok(Lease::Held),
            _ => Err(StoreError::Garbage),
        }
    }

    pub(super) async fn give_lease_back(
        &self,
        key: String,
        owner: &str,
        written: Option<Duration>,
    ) -> Result<(), StoreError> {
        let told_ms = written.map_or(0, millis);
        let call = ScriptCall::default().key(key).argument(owner).argument(told_ms.to_string());
        self.link.script(&self.scripts.release, call).await.map(drop)
    }
}

/// A time as Redis takes it: at least a millisecond.
fn millis(time: Duration) -> u64 {
    (time.as_millis() as u64).max(1)
}
