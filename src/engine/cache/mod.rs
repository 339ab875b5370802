//! The provider's cache, as far as it can be known from outside.

pub mod ledger;

use ledger::CacheLedger;

/// The provider's cache of one tenant in three worlds, which differ in how the tenant's requests go out.
#[derive(Debug, Default)]
pub struct Worlds {
    /// Every request goes out as it did, and is billed what it was.
    pub billed: CacheLedger,
    /// Every request goes out as its client sent it, when it came.
    pub sent: CacheLedger,
    /// Requests that went out as they came are aligned.
    pub aligned: CacheLedger,
}
