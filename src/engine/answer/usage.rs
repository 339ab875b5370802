//! Tokens that the upstream billed.
//!
//! In a stream the counts come in `message_start` and again, cumulative, in each `message_delta`: a later
//! value replaces an earlier one when it is there. Only `message_start` splits cache writes by lifetime, so
//! a write total that grows later grew by five-minute writes (server tools add those on their own).
//!
//! A model may run more than once for one answer; `usage.iterations` then has an entry for each run. The counts beside
//! it are not the whole bill: they leave out runs that only compact the prompt. So a [`Bill`] is the sum of its runs.

mod runs;

pub use runs::{Bill, Run};

use serde::Deserialize;
use serde_json::value::RawValue;

/// Billed tokens by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    pub uncached: u64,
    pub cache_read: u64,
    pub cache_write_5m: u64,
    pub cache_write_1h: u64,
    pub output: u64,
}

impl Usage {
    /// Each kind with the spelling it has in metrics and logs.
    pub fn kinds(&self) -> [(&'static str, u64); 5] {
        [
            ("uncached", self.uncached),
            ("cache_read", self.cache_read),
            ("cache_write_5m", self.cache_write_5m),
            ("cache_write_1h", self.cache_write_1h),
            ("output", self.output),
        ]
    }

    /// Tokens of the prompt that came from the cache or went into it: all up to the last breakpoint.
    pub fn cached(&self) -> u64 {
        self.cache_read.saturating_add(self.cache_write_5m).saturating_add(self.cache_write_1h)
    }

    /// All tokens of the prompt.
    pub fn prompt(&self) -> u64 {
        self.uncached.saturating_add(self.cached())
    }

    /// Returns the usage as it would have been without a cache.
    pub fn without_cache(&self) -> Usage {
        Usage { uncached: self.prompt(), output: self.output, ..Usage::default() }
    }

    /// Returns the usage of this prompt, had `more` tokens been read: those right behind what was read. In the order of
    /// the cache these are the tokens written for an hour, then those for five minutes, then those that are not cached.
    pub fn had_read(&self, more: u64) -> Usage {
        let (mut usage, mut left) = (*self, more);
        for kind in [&mut usage.cache_write_1h, &mut usage.cache_write_5m, &mut usage.uncached] {
            let taken = left.min(*kind);
            *kind -= taken;
            left -= taken;
        }
        usage.cache_read = usage.cache_read.saturating_add(more - left);
        usage
    }

    /// Returns the usage of two runs together.
    pub fn plus(&self, other: &Usage) -> Usage {
        Usage {
            uncached: self.uncached.saturating_add(other.uncached),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write_5m: self.cache_write_5m.saturating_add(other.cache_write_5m),
            cache_write_1h: self.cache_write_1h.saturating_add(other.cache_write_1h),
            output: self.output.saturating_add(other.output),
        }
    }

    /// Returns the usage without that of one run.
    pub fn minus(&self, other: &Usage) -> Usage {
        Usage {
            uncached: self.uncached.saturating_sub(other.uncached),
            cache_read: self.cache_read.saturating_sub(other.cache_read),
            cache_write_5m: self.cache_write_5m.saturating_sub(other.cache_write_5m),
            cache_write_1h: self.cache_write_1h.saturating_sub(other.cache_write_1h),
            output: self.output.saturating_sub(other.output),
        }
    }

    /// Takes over what a `usage` object reports. Absent counts change nothing.
    fn update(&mut self, wire: &WireUsage<'_>) {
        set(&mut self.uncached, wire.input_tokens);
        set(&mut self.cache_read, wire.cache_read_input_tokens);
        set(&mut self.output, wire.output_tokens);
        if let Some(split) = &wire.cache_creation {
            set(&mut self.cache_write_5m, split.ephemeral_5m_input_tokens);
            set(&mut self.cache_write_1h, split.ephemeral_1h_input_tokens);
        }
        if let Some(total) = wire.cache_creation_input_tokens {
            self.cache_write_1h = self.cache_write_1h.min(total);
            self.cache_write_5m = total - self.cache_write_1h;
        }
    }
}

fn set(count: &mut u64, reported: Option<u64>) {
    *count = reported.unwrap_or(*count);
}

#[derive(Deserialize)]
struct WireUsage<'a> {
    input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_creation: Option<WireWrites>,
    output_tokens: Option<u64>,
    // Raw, so that one of another shape does not cost us the counts.
    #[serde(borrow)]
    iterations: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireWrites {
    ephemeral_5m_input_tokens: Option<u64>,
    ephemeral_1h_input_tokens: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reports: &[&str]) -> [u64; 5] {
        let mut bill = Bill::default();
        reports.iter().for_each(|report| bill.update(report));
        bill.total().kinds().map(|(_, count)| count)
    }

    #[test]
    fn deltas_are_cumulative_and_override() {
        let start = r#"{"input_tokens":10,"cache_read_input_tokens":20,"cache_creation_input_tokens":30,
            "cache_creation":{"ephemeral_5m_input_tokens":5,"ephemeral_1h_input_tokens":25},"output_tokens":1}"#;
        assert_eq!(after(&[start]), [10, 20, 5, 25, 1]);
        assert_eq!(after(&[start, r#"{"output_tokens":7}"#]), [10, 20, 5, 25, 7]);
        let grown = r#"{"input_tokens":null,"cache_creation_input_tokens":40,"output_tokens":9}"#;
        assert_eq!(after(&[start, r#"{"output_tokens":7}"#, grown]), [10, 20, 15, 25, 9]);
    }

    #[test]
    fn what_could_have_been_read_stood_right_behind_what_was() {
        let billed =
            Usage { uncached: 10, cache_read: 20, cache_write_5m: 30, cache_write_1h: 40, output: 5 };
        let read = |more| billed.had_read(more).kinds().map(|(_, count)| count);
        assert_eq!(read(0), [10, 20, 30, 40, 5]);
        assert_eq!(read(15), [10, 35, 30, 25, 5]);
        assert_eq!(read(45), [10, 65, 25, 0, 5]);
        assert_eq!(read(1_000), [0, 100, 0, 0, 5]);
    }

    #[test]
    fn a_total_without_split_is_five_minute_writes() {
        assert_eq!(after(&[r#"{"cache_creation_input_tokens":12}"#]), [0, 0, 12, 0, 0]);
    }

    #[test]
    fn broken_usage_changes_nothing() {
        assert_eq!(
            after(&[r#"{"output_tokens":3}"#, "null", r#"{"output_tokens":"x"}"#, "{"]),
            [0, 0, 0, 0, 3]
        );
    }
}
