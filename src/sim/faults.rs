//! Faults on demand: the weather a proxy must survive, ordered in advance or with the request itself.
//!
//! Over HTTP, `POST /sim/faults` takes one rule or a list; each waits for requests that match and is used `count` times:
//!
//! ```json
//! {"fault": "status", "status": 529, "count": 2, "match": {"body_contains": "worker 2"}}
//! {"fault": "cut", "at_byte": 700}
//! ```
//!
//! Or per request, by header: `x-sim-latency-ms`, `x-sim-status` (+ `x-sim-retry-after`), `x-sim-refusal`,
//! `x-sim-stall-at` (+ `x-sim-stall-ms`), `x-sim-cut-at`, `x-sim-error-after`, `x-sim-compress`. Several faults of
//! different kinds can meet one request; of one kind the first that matches counts, and headers come before rules.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use serde::{Deserialize, Serialize};

use super::config::Encoding;
use super::refusal::RefusalCode;

/// A stall without a length ends after this, so that nothing waits forever.
pub const LONGEST_STALL_MS: u64 = 600_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum InjectedFault {
    /// Wait before anything is done.
    Latency { ms: u64 },
    /// Refuse with this status: 429, 500, 529 or any other error.
    Status {
        status: u16,
        #[serde(default)]
        retry_after_s: Option<u64>,
    },
    /// Refuse as a thread or a compaction is refused, with the code in `error.details`.
    Refusal { code: RefusalCode },
    /// Send this many bytes of the body, then nothing for `ms` (by default until the client gives up).
    Stall {
        at_byte: u64,
        #[serde(default)]
        ms: Option<u64>,
    },
    /// Send this many bytes of the body, then break the connection.
    Cut { at_byte: u64 },
    /// After this many events of a stream, an `error` event instead of the rest.
    ErrorEvent {
        #[serde(default)]
        after_events: u64,
        #[serde(default)]
        status: Option<u16>,
    },
    /// Compress the answer, if the client accepts it.
    Compress { encoding: Encoding },
}

/// A fault waiting for its requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    #[serde(flatten)]
    pub fault: InjectedFault,
    /// How many requests it meets; it is gone after the last.
    #[serde(default = "once")]
    pub count: u64,
    #[serde(default, rename = "match")]
    pub matching: FaultCondition,
}

fn once() -> u64 {
    1
}

/// Which requests a rule waits for; without conditions every one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultCondition {
    /// The path, without the query.
    pub path: Option<String>,
    pub body_contains: Option<String>,
    /// Header names in lower case, and their whole values.
    pub headers: BTreeMap<String, String>,
    /// Let this many matching requests pass first.
    pub skip: u64,
}

impl From<InjectedFault> for Rule {
    fn from(fault: InjectedFault) -> Rule {
        Rule { fault, count: 1, matching: FaultCondition::default() }
    }
}

/// The faults of one request: at most one of each kind.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Weather {
    pub latency_ms: u64,
    pub status: Option<(u16, Option<u64>)>,
    pub refusal: Option<RefusalCode>,
    pub stall: Option<(u64, u64)>,
    pub cut_at: Option<u64>,
    pub error_event: Option<(u64, u16)>,
    pub compress: Option<Encoding>,
    /// The kinds that apply, for the record.
    pub names: Vec<&'static str>,
}

impl Weather {
    fn add(&mut self, fault: &InjectedFault) {
        let name = fault.name();
        if self.names.contains(&name) {
            return;
        }
        self.names.push(name);
        match *fault {
            InjectedFault::Latency { ms } => self.latency_ms = ms.min(LONGEST_STALL_MS),
            InjectedFault::Status { status, retry_after_s } => self.status = Some((status, retry_after_s)),
            InjectedFault::Refusal { code } => self.refusal = Some(code),
            InjectedFault::Stall { at_byte, ms } => {
                self.stall = Some((at_byte, ms.unwrap_or(LONGEST_STALL_MS).min(LONGEST_STALL_MS)));
            }
            InjectedFault::Cut { at_byte } => self.cut_at = Some(at_byte),
            InjectedFault::ErrorEvent { after_events, status } => {
                self.error_event = Some((after_events, status.unwrap_or(529)));
            }
            InjectedFault::Compress { encoding } => self.compress = Some(encoding),
        }
    }
}

impl InjectedFault {
    fn name(&self) -> &'static str {
        match self {
            InjectedFault::Latency { .. } => "latency",
            InjectedFault::Status { .. } => "status",
            InjectedFault::Refusal { .. } => "refusal",
            InjectedFault::Stall { .. } => "stall",
            InjectedFault::Cut { .. } => "cut",
            InjectedFault::ErrorEvent { .. } => "error_event",
            InjectedFault::Compress { .. } => "compress",
        }
    }

    /// The faults a request asks for by header; values that make no sense are ignored.
    fn of_headers(headers: &HeaderMap) -> Vec<InjectedFault> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str| text(name).and_then(|value| value.trim().parse::<u64>().ok());
        let status = number("x-sim-status").and_then(|status| u16::try_from(status).ok());
        let asked = [
            number("x-sim-latency-ms").map(|ms| InjectedFault::Latency { ms }),
            status.map(|status| InjectedFault::Status { status, retry_after_s: number("x-sim-retry-after") }),
            text("x-sim-refusal").and_then(RefusalCode::parse).map(|code| InjectedFault::Refusal { code }),
            number("x-sim-stall-at")
                .map(|at_byte| InjectedFault::Stall { at_byte, ms: number("x-sim-stall-ms") }),
            number("x-sim-cut-at").map(|at_byte| InjectedFault::Cut { at_byte }),
            number("x-sim-error-after")
                .map(|after_events| InjectedFault::ErrorEvent { after_events, status: None }),
            text("x-sim-compress")
                .and_then(Encoding::parse)
                .map(|encoding| InjectedFault::Compress { encoding }),
        ];
        asked.into_iter().flatten().collect()
    }
}

impl FaultCondition {
    fn covers(&self, path: &str, headers: &HeaderMap, body: &[u8]) -> bool {
        let has_header = |(name, wanted): (&String, &String)| {
            headers.get(name).is_some_and(|value| value.as_bytes() == wanted.as_bytes())
        };
        self.path.as_ref().is_none_or(|wanted| wanted == path)
            && self.headers.iter().all(has_header)
            && self
                .body_contains
                .as_ref()
                .is_none_or(|text| memchr::memmem::find(body, text.as_bytes()).is_some())
    }
}

/// The rules in waiting, in the order they were ordered.
#[derive(Debug)]
pub struct Faults {
    rules: Mutex<Vec<Rule>>,
    most_rules: usize,
}

/// The rules are as many as may wait.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many fault rules: at most {most} may wait")]
pub struct TooManyRules {
    most: usize,
}

impl Faults {
    pub fn new(most_rules: usize) -> Self {
        Faults { rules: Mutex::new(Vec::new()), most_rules }
    }

    /// Orders a fault, for the next request that matches.
    pub fn order(&self, rule: impl Into<Rule>) -> Result<(), TooManyRules> {
        let mut rules = self.rules();
        if rules.len() >= self.most_rules {
            return Err(TooManyRules { most: self.most_rules });
        }
        rules.push(rule.into());
        Ok(())
    }

    pub fn waiting(&self) -> Vec<Rule> {
        self.rules().clone()
    }

    pub fn clear(&self) {
        self.rules().clear();
    }

    /// Draws the faults of this request, and uses up the rules that apply.
    pub fn draw(&self, path: &str, headers: &HeaderMap, body: &[u8]) -> Weather {
        let mut weather = Weather::default();
        for fault in InjectedFault::of_headers(headers) {
            weather.add(&fault);
        }
        let mut rules = self.rules();
        for rule in rules.iter_mut() {
            if weather.names.contains(&rule.fault.name()) || !rule.matching.covers(path, headers, body) {
                continue;
            }
            if rule.matching.skip > 0 {
                rule.matching.skip -= 1;
                continue;
            }
            if rule.count > 0 {
                rule.count -= 1;
                weather.add(&rule.fault);
            }
        }
        rules.retain(|rule| rule.count > 0);
        weather
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: &str) -> Rule {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_rule_meets_as_many_matching_requests_as_it_says() {
        let faults = Faults::new(10);
        let text = r#"{"fault":"status","status":529,"count":2,"match":{"body_contains":"b","skip":1}}"#;
        faults.order(rule(text)).unwrap();
        let met: Vec<_> = ["ab", "a", "b", "b", "b"]
            .iter()
            .map(|body| faults.draw("/v1/messages", &HeaderMap::new(), body.as_bytes()).status.is_some())
            .collect();
        assert_eq!(met, [false, false, true, true, false]);
        assert!(faults.waiting().is_empty());
    }

    #[test]
    fn faults_of_different_kinds_meet_one_request_and_headers_come_first() {
        let faults = Faults::new(10);
        faults.order(rule(r#"{"fault":"latency","ms":5}"#)).unwrap();
        faults.order(rule(r#"{"fault":"cut","at_byte":9}"#)).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-sim-cut-at", "3".parse().unwrap());
        let weather = faults.draw("/", &headers, b"");
        assert_eq!((weather.latency_ms, weather.cut_at), (5, Some(3)));
        assert_eq!(faults.draw("/", &HeaderMap::new(), b"").cut_at, Some(9), "the rule was not used up");
    }

    #[test]
    fn rules_are_bounded() {
        let faults = Faults::new(1);
        faults.order(InjectedFault::Cut { at_byte: 1 }).unwrap();
        assert_eq!(faults.order(InjectedFault::Cut { at_byte: 1 }), Err(TooManyRules { most: 1 }));
    }
}
