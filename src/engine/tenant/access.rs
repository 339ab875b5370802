//! How a request reaches the state of its tenant.

use super::TenantState;
use crate::engine::cache::worlds::{Segment, Weights};
use crate::engine::respell::canonical::{News, Table};

/// Access to one tenant. Each look is short, and none happens during another.
pub trait TenantAccess {
    /// Looks into the tenant's state, or changes it.
    fn look<T>(&self, look: impl FnOnce(&mut TenantState) -> T) -> T;

    /// Reads the spellings that were seen first. They are kept apart, since whole requests are compared with them.
    fn spellings<T>(&self, read: impl FnOnce(&Table) -> T) -> T;

    /// Adds what a request that was accepted has shown of spellings.
    fn learn(&self, news: News);

    /// The tokens to a byte of a model's prompts, as the bills of all tenants have shown.
    fn weights(&self, model: &str) -> Weights;

    /// Adds stretches of prompts whose tokens are known from a bill.
    fn weigh(&self, model: &str, segments: &[Segment]);
}
