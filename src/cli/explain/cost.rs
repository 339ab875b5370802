//! Estimates the cost of a divergence, as far as two bodies and a price table can tell.

use crate::engine::answer::usage::Usage;
use crate::engine::cache::prices::{Model, Usd};
use crate::engine::words::Ttl;

/// For a rough size only; real tokens are known from billed usage.
pub const BYTES_PER_TOKEN: usize = 4;

pub fn tokens(bytes: usize) -> u64 {
    (bytes / BYTES_PER_TOKEN) as u64
}

/// The lost part of a prompt at two prices.
#[derive(Debug)]
pub struct Estimate {
    pub model: String,
    pub as_of: String,
    /// How long the new entry lives.
    pub ttl: Ttl,
    /// The cost of reading it from the cache.
    pub read: Usd,
    /// The cost of writing it anew.
    pub write: Usd,
}

impl Estimate {
    /// None if a price is not known.
    pub fn of_loss(model: &Model, kept_bytes: usize, lost_bytes: usize, ttl: Ttl) -> Option<Estimate> {
        let price = model.price.as_ref()?;
        let lost = tokens(lost_bytes);
        // What is kept stands in the bill as well, because the length of the whole prompt decides the tier.
        let kept = Usage { cache_read: tokens(kept_bytes), ..Usage::default() };
        let hit = Usage { cache_read: kept.cache_read + lost, ..kept };
        let miss = match ttl {
            Ttl::FiveMinutes => Usage { cache_write_5m: lost, ..kept },
            Ttl::OneHour => Usage { cache_write_1h: lost, ..kept },
        };
        let (hit, miss) = (price.cost(&hit), price.cost(&miss));
        Some(Estimate {
            model: model.id.clone(),
            as_of: model.as_of.clone(),
            ttl,
            read: hit.cache_read?.above(miss.cache_read?),
            write: miss.cache_write_5m? + miss.cache_write_1h?,
        })
    }

    /// How much more the second request costs.
    pub fn extra(&self) -> Usd {
        self.write.above(self.read)
    }
}
