//! The bill of an answer, run by run.

use std::borrow::Cow;

use serde::Deserialize;

use super::{Usage, WireUsage, WireWrites};

/// Models that one answer is billed by are named in full; anything longer is no name.
const MODEL_BYTES_MAX: usize = 256;
/// Runs that are distinguished; an answer has a few. Those after them are added to the last.
const RUNS_MAX: usize = 64;

/// The bill of an answer: the tokens of every run of a model that it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    /// The counts beside `iterations`.
    summary: Usage,
    /// Empty if the upstream does not list them: then the summary is the one run.
    runs: Vec<Run>,
}

/// One run of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The model, where the entry names one; else it is the one that was asked for.
    pub model: Option<String>,
    pub usage: Usage,
    /// True if it wrote the answer; a summary of the prompt, or another model's advice, did not.
    is_message: bool,
    /// False if the entry says nothing of the cache, and the summary is not of this run.
    tells_reads: bool,
}

impl From<Usage> for Bill {
    fn from(summary: Usage) -> Bill {
        Bill { summary, runs: Vec::new() }
    }
}

impl Bill {
    /// Takes over what a `usage` object reports. What is broken or absent changes nothing.
    pub fn update(&mut self, json: &str) {
        let Ok(wire) = serde_json::from_str::<WireUsage<'_>>(json) else { return };
        self.summary.update(&wire);
        let entries = wire.iterations.map(|raw| serde_json::from_str::<Vec<WireRun<'_>>>(raw.get()));
        if let Some(Ok(entries)) = entries
            && !entries.is_empty()
        {
            self.runs = runs(&entries, self.summary);
        }
    }

    /// The tokens of all runs.
    pub fn total(&self) -> Usage {
        self.runs().fold(Usage::default(), |sum, (_, usage)| sum.plus(&usage))
    }

    /// The tokens of the first run: the one that reads the prompt as it was sent, so that they tell what the cache
    /// held of it.
    pub fn prompt(&self) -> Usage {
        self.runs.first().map_or(self.summary, |run| run.usage)
    }

    /// Returns true if that run says what it read from the cache. A run that only compacts may leave it out.
    pub fn tells_reads(&self) -> bool {
        self.runs.first().is_none_or(|run| run.tells_reads)
    }

    /// The model of that run, where it is named.
    pub fn model(&self) -> Option<&str> {
        self.runs.first().and_then(|run| run.model.as_deref())
    }

    /// The tokens of the last run that wrote the answer: the size of the conversation from now on.
    pub fn context(&self) -> Usage {
        let last = self.runs.iter().rfind(|run| run.is_message).or(self.runs.last());
        last.map_or(self.summary, |run| run.usage)
    }

    /// Each run, and its model where that is named.
    pub fn runs(&self) -> impl Iterator<Item = (Option<&str>, Usage)> {
        let only = self.runs.is_empty().then_some((None, self.summary));
        self.runs.iter().map(|run| (run.model.as_deref(), run.usage)).chain(only)
    }
}

/// Entries may lack counts. The summary has those of the runs that wrote the answer, so that the first of them that lacks
/// one has what the others leave of it.
fn runs(entries: &[WireRun<'_>], summary: Usage) -> Vec<Run> {
    let is_message = |entry: &WireRun<'_>| entry.kind.as_deref().is_none_or(|kind| kind == "message");
    let messages = || entries.iter().filter(|entry| is_message(entry));
    let left = |count: fn(&WireRun<'_>) -> Option<u64>, all: u64| {
        let told = messages().filter_map(count).fold(0, u64::saturating_add);
        let lacks = |entry: &WireRun<'_>| is_message(entry) && count(entry).is_none();
        (entries.iter().position(lacks), all.saturating_sub(told))
    };
    let written = summary.cache_write_5m.saturating_add(summary.cache_write_1h);
    let made_up = [
        left(|entry| entry.input_tokens, summary.uncached),
        left(|entry| entry.cache_read_input_tokens, summary.cache_read),
        left(|entry| entry.written(), written),
        left(|entry| entry.output_tokens, summary.output),
    ];
    let hours = messages().filter_map(WireRun::hour).fold(0, u64::saturating_add);
    let mut hours_left = summary.cache_write_1h.saturating_sub(hours);
    let mut runs: Vec<Run> = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let count = |own: Option<u64>, (place, left): (Option<usize>, u64)| {
            own.unwrap_or(if place == Some(number) { left } else { 0 })
        };
        let [uncached, cache_read, writes, output] = made_up;
        let written = count(entry.written(), writes);
        let hour = entry.hour().unwrap_or_else(|| {
            let hour = if is_message(entry) { hours_left.min(written) } else { 0 };
            hours_left -= hour;
            hour
        });
        let usage = Usage {
            uncached: count(entry.input_tokens, uncached),
            cache_read: count(entry.cache_read_input_tokens, cache_read),
            cache_write_5m: written.saturating_sub(hour),
            cache_write_1h: hour.min(written),
            output: count(entry.output_tokens, output),
        };
        if runs.len() >= RUNS_MAX
            && let Some(last) = runs.last_mut()
        {
            last.usage = last.usage.plus(&usage);
            continue;
        }
        let model = entry.model.as_deref().filter(|model| model.len() <= MODEL_BYTES_MAX);
        let is_message = is_message(entry);
        let tells_reads = is_message || entry.cache_read_input_tokens.is_some();
        runs.push(Run { model: model.map(str::to_owned), usage, is_message, tells_reads });
    }
    runs
}

#[derive(Deserialize)]
struct WireRun<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_creation: Option<WireWrites>,
    output_tokens: Option<u64>,
}

impl WireRun<'_> {
    fn written(&self) -> Option<u64> {
        let split = self.cache_creation.as_ref();
        let parts = split.map(|split| [split.ephemeral_5m_input_tokens, split.ephemeral_1h_input_tokens]);
        let sum = parts.filter(|parts| parts.iter().any(Option::is_some));
        let sum = sum.map(|parts| parts.into_iter().flatten().fold(0, u64::saturating_add));
        self.cache_creation_input_tokens.or(sum)
    }

    fn hour(&self) -> Option<u64> {
        self.cache_creation.as_ref()?.ephemeral_1h_input_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bill(reports: &[&str]) -> Bill {
        let mut bill = Bill::default();
        reports.iter().for_each(|report| bill.update(report));
        bill
    }

    fn counts(usage: Usage) -> [u64; 5] {
        usage.kinds().map(|(_, count)| count)
    }

    #[test]
    fn a_compaction_is_billed_by_its_run_alone() {
        let bill = bill(&[
            r#"{"input_tokens":0,"output_tokens":0}"#,
            r#"{"input_tokens":0,"output_tokens":0,"iterations":[{"type":"compaction","input_tokens":7,
                "cache_read_input_tokens":900,"cache_creation_input_tokens":30,"output_tokens":60}]}"#,
        ]);
        assert_eq!(counts(bill.total()), [7, 900, 30, 0, 60]);
        assert_eq!((counts(bill.prompt()), bill.tells_reads()), (counts(bill.total()), true));
    }

    #[test]
    fn a_bill_is_the_sum_of_its_runs_and_the_context_is_that_of_the_last_message() {
        let bill = bill(&[r#"{"input_tokens":23,"output_tokens":10,"iterations":[
            {"type":"compaction","input_tokens":180,"output_tokens":35},
            {"type":"message","input_tokens":23,"output_tokens":10,"model":null},
            {"type":"advisor_message","model":"other","input_tokens":5,"output_tokens":1}]}"#]);
        assert_eq!(counts(bill.total()), [208, 0, 0, 0, 46]);
        assert_eq!((counts(bill.prompt()), bill.tells_reads()), ([180, 0, 0, 0, 35], false));
        assert_eq!(counts(bill.context()), [23, 0, 0, 0, 10]);
        let models: Vec<_> = bill.runs().map(|(model, _)| model).collect();
        assert_eq!(models, [None, None, Some("other")]);
    }

    #[test]
    fn counts_that_a_message_lacks_are_those_of_the_summary() {
        let start = r#"{"input_tokens":4,"cache_read_input_tokens":100,"cache_creation_input_tokens":50,
            "cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":30},"output_tokens":1}"#;
        let bare =
            r#"{"output_tokens":9,"iterations":[{"type":"message","input_tokens":4,"output_tokens":9}]}"#;
        assert_eq!(counts(bill(&[start, bare]).total()), [4, 100, 20, 30, 9]);
        let unsplit = r#"{"output_tokens":9,"iterations":[{"input_tokens":4,"cache_read_input_tokens":100,
            "cache_creation_input_tokens":50,"output_tokens":9}]}"#;
        assert_eq!(counts(bill(&[start, unsplit]).total()), [4, 100, 20, 30, 9]);
    }

    #[test]
    fn iterations_of_no_use_leave_the_summary() {
        for odd in ["null", "[]", "7", "{}", r#"[{"input_tokens":"x"}]"#, "[1]"] {
            let report = format!(r#"{{"input_tokens":3,"output_tokens":2,"iterations":{odd}}}"#);
            assert_eq!(counts(bill(&[&report]).total()), [3, 0, 0, 0, 2], "{odd}");
        }
    }

    #[test]
    fn a_flood_of_runs_is_added_up() {
        let entries = vec![r#"{"input_tokens":2}"#; 3 * RUNS_MAX].join(",");
        let bill = bill(&[&format!(r#"{{"iterations":[{entries}]}}"#)]);
        assert_eq!((bill.runs().count(), bill.total().uncached), (RUNS_MAX, 6 * RUNS_MAX as u64));
    }
}
