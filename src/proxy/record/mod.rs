//! The record of an exchange, put together from what its phases have found out.

mod build;
mod facts;
mod money;
mod sinks;

pub use build::add_verdict;
pub use facts::{Facts, FamilyFacts};
pub use money::Money;
pub use sinks::{configured, show_at_scrape, start_sinks, store_listener};
