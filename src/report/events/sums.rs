//! Sums over exchanges: since the start, and minute by minute.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::super::record::ExchangeRecord;

/// The minutes that are kept.
const MINUTES: usize = 60;
const MINUTE_MS: u64 = 60_000;

/// Sums over exchanges. Every baseline is summed over the same exchanges, as in the metrics, so that they can be
/// compared; an exchange of which one is not known is counted as uncompared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    pub requests: u64,
    /// Requests that somebody should look at: the log has them as warnings.
    pub failed: u64,
    pub uncached: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    pub output: u64,
    /// Dollars of every exchange with a price.
    pub billed_usd: f64,
    /// Exchanges whose bills in all three worlds are known, and those bills.
    pub compared: u64,
    pub compared_usd: f64,
    pub as_sent_usd: f64,
    pub aligned_usd: f64,
    /// Answered exchanges of which one of the bills is not known.
    pub uncompared: u64,
}

/// The sums since the start and of the last minutes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct History {
    pub total: Sums,
    pub minutes: VecDeque<Minute>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Minute {
    /// The start of the minute, in milliseconds since 1970.
    pub time_ms: u64,
    #[serde(flatten)]
    pub sums: Sums,
}

impl Sums {
    pub fn add(&mut self, record: &ExchangeRecord) {
        self.requests += 1;
        let is_success = record.is_success();
        self.failed += u64::from(record.is_failure());
        if let Some(usage) = record.usage() {
            self.uncached += usage.uncached;
            self.cache_read += usage.cache_read;
            self.cache_write += usage.cache_write_5m + usage.cache_write_1h;
            self.output += usage.output;
        }
        self.billed_usd += record.cost_usd.unwrap_or(0.0);
        match (record.cost_usd, record.as_sent_usd, record.aligned_usd) {
            (Some(billed), Some(sent), Some(aligned)) => {
                self.compared += 1;
                self.compared_usd += billed;
                self.as_sent_usd += sent;
                self.aligned_usd += aligned;
            }
            _ => self.uncompared += u64::from(is_success),
        }
    }

    /// Returns the sums over the exchanges of both.
    pub fn plus(self, other: &Sums) -> Sums {
        Sums {
            requests: self.requests + other.requests,
            failed: self.failed + other.failed,
            uncached: self.uncached + other.uncached,
            cache_read: self.cache_read + other.cache_read,
            cache_write: self.cache_write + other.cache_write,
            output: self.output + other.output,
            billed_usd: self.billed_usd + other.billed_usd,
            compared: self.compared + other.compared,
            compared_usd: self.compared_usd + other.compared_usd,
            as_sent_usd: self.as_sent_usd + other.as_sent_usd,
            aligned_usd: self.aligned_usd + other.aligned_usd,
            uncompared: self.uncompared + other.uncompared,
        }
    }
}

impl History {
    /// Adds an exchange to the minute in which it ended.
    pub fn add(&mut self, record: &ExchangeRecord) {
        self.total.add(record);
        let ended = record.time_ms + record.duration_ms;
        let time_ms = ended - ended % MINUTE_MS;
        // Ends come in order but for clocks that are set back: then the last minute takes them.
        if self.minutes.back().is_none_or(|last| last.time_ms < time_ms) {
            self.minutes.push_back(Minute { time_ms, sums: Sums::default() });
        }
        if self.minutes.len() > MINUTES {
            self.minutes.pop_front();
        }
        if let Some(last) = self.minutes.back_mut() {
            last.sums.add(record);
        }
    }
}
