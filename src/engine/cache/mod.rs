//! The provider's cache, as far as it can be known from outside: what an entry depends on, which entries there are in
//! each world, where breakpoints pay, what was lost and why, and what all of it costs.

pub mod entry;
pub mod ledger;
pub mod breakpoints;
pub mod divergence;
pub mod volatile;
pub mod breaks;
pub mod prices;
pub mod counterfactual;
pub mod learned;

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
