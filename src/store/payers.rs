//! Who pays for tenants that have a credential in common: an accepted key with something invented beside it makes a new
//! tenant each time, and is one payer all the same.

use dashmap::DashMap;

use super::TENANTS_MAX;
use crate::engine::words::TenantId;

/// Credentials whose payer is remembered. Beyond it they are learned anew.
const CREDENTIALS_MAX: usize = 4 * TENANTS_MAX;

/// The payer of each credential of a tenant that was accepted. Credentials are known by the payer that each of them would
/// have alone.
#[derive(Default)]
pub struct Payers(DashMap<TenantId, TenantId>);

impl Payers {
    /// Returns who pays for a tenant with these credentials, or whose own payer this is if it has a single one.
    pub fn of(&self, own: TenantId, credentials: &[TenantId], is_known: bool) -> TenantId {
        let own = [own];
        let all: &[TenantId] = if credentials.is_empty() { &own } else { credentials };
        if let Some(payer) = all.iter().find_map(|credential| self.0.get(credential).map(|payer| *payer)) {
            return payer;
        }
        if is_known {
            if self.0.len() >= CREDENTIALS_MAX {
                self.0.clear();
            }
            for credential in all {
                self.0.insert(*credential, own[0]);
            }
        }
        own[0]
    }
}
