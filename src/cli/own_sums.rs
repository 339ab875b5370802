//! What forkpoint itself says of the exchanges that it recorded: billed, and as they would have been billed as sent and
//! aligned. The figures are those of the log lines; nothing is computed a second time.

use serde_json::{Value, json};

use crate::report::ExchangeRecord;

/// Sums over exchanges of which all three are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnSums {
    pub billed_usd: f64,
    pub as_sent_usd: f64,
    pub aligned_usd: f64,
    /// Exchanges of which one of them is not known; they are in none of the sums.
    pub unknown: usize,
}

impl OwnSums {
    pub fn of<'r>(records: impl IntoIterator<Item = &'r ExchangeRecord>) -> OwnSums {
        let mut sums = OwnSums::default();
        for record in records {
            match (record.cost_usd, record.as_sent_usd, record.aligned_usd) {
                (Some(billed), Some(as_sent), Some(aligned)) => {
                    sums.billed_usd += billed;
                    sums.as_sent_usd += as_sent;
                    sums.aligned_usd += aligned;
                }
                _ => sums.unknown += 1,
            }
        }
        sums
    }

    /// What was saved beside as sent; less than nothing if it cost more.
    pub fn saved_usd(&self) -> f64 {
        self.as_sent_usd - self.billed_usd
    }

    pub fn json(&self) -> Value {
        json!({
            "billed_usd": self.billed_usd,
            "as_sent_usd": self.as_sent_usd,
            "aligned_usd": self.aligned_usd,
            "saved_usd": self.saved_usd(),
            "unknown": self.unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_counts_in_all_three_sums_or_as_unknown() {
        let record = |cost_usd, as_sent_usd, aligned_usd| ExchangeRecord {
            cost_usd,
            as_sent_usd,
            aligned_usd,
            ..ExchangeRecord::default()
        };
        let known = record(Some(2.0), Some(1.5), Some(1.0));
        let sums = OwnSums::of([&known, &record(Some(9.0), None, Some(9.0)), &known]);
        let expected = OwnSums { billed_usd: 4.0, as_sent_usd: 3.0, aligned_usd: 2.0, unknown: 1 };
        assert_eq!(sums, expected);
        assert!(sums.saved_usd() < 0.0, "a loss is shown as one");
    }
}
