//! The provider's cache, as far as it can be known from outside: what an entry depends on, which entries there are in
//! each world, where breakpoints pay, what was lost and why, and what all of it costs.

pub mod entry;
pub mod ledger;
pub mod breakpoints;
pub mod divergence;
pub mod volatile;
pub mod breaks;
pub mod prices;
pub mod worlds;
pub mod prefixes;
pub mod habits;
pub mod learned;
