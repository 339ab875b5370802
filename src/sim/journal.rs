//! The journal of requests and their outcomes, read at `/sim/requests`.
//!
//! A record opens when a request's headers arrive and is filled as the exchange goes on. The journal is a ring,
//! bounded by records and by the bytes that clients put into them; the oldest go first, and an exchange that outlives
//! its record writes nowhere. Credentials are never written down, only a short digest that tells them apart.

use std::collections::VecDeque;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::HeaderMap;
use serde::Serialize;
use serde_json::{Value, json};

use super::cache::BreakpointRecord;
use super::models::BilledUsage;

/// Headers whose values are credentials.
const SECRET_HEADERS: [&str; 4] = ["x-api-key", "authorization", "proxy-authorization", "cookie"];

/// Arrival number; the first request is 1.
pub type Number = u64;

#[derive(Debug, Clone)]
pub struct RequestRecord {
    pub number: Number,
    pub method: String,
    /// Path and query as they came.
    pub target: String,
    /// In the order they came, credentials masked.
    pub headers: Vec<(String, String)>,
    /// Exactly the bytes that arrived.
    pub body: Bytes,
    pub request_id: String,
    pub workspace: Option<String>,
    pub model: Option<String>,
    pub message_id: Option<String>,
    pub status: Option<u16>,
    pub error: Option<String>,
    /// The refusal's `error.details.error_code`.
    pub error_code: Option<String>,
    pub usage: Option<BilledUsage>,
    pub cost_usd: Option<f64>,
    pub hit: Option<Hit>,
    pub breakpoints: Vec<BreakpointRecord>,
    /// Names of the faults it met.
    pub faults: Vec<&'static str>,
    pub arrived_us: u64,
    pub first_byte_us: Option<u64>,
    pub ended_us: Option<u64>,
    pub ending: ExchangeEnding,
}

/// The cache entry a request read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// Index of its last block.
    pub position: usize,
    pub tokens: u64,
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeEnding {
    Running,
    /// The last byte was handed to the connection.
    Complete,
    /// The client went away first.
    ClientLeft,
    /// A fault broke the connection.
    Cut,
}

impl RequestRecord {
    /// The bytes a client decides about; all others are few.
    fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let error = self.error.as_ref().map_or(0, String::len);
        let workspace = self.workspace.as_ref().map_or(0, String::len);
        self.body.len() + self.method.len() + self.target.len() + headers + error + workspace
    }

    pub fn json(&self) -> Value {
        let mut record = json!({
            "number": self.number,
            "method": self.method,
            "target": self.target,
            "headers": self.headers,
            "request_id": self.request_id,
            "workspace": self.workspace,
            "model": self.model,
            "message_id": self.message_id,
            "status": self.status,
            "error": self.error,
            "error_code": self.error_code,
            "usage": self.usage,
            "cost_usd": self.cost_usd,
            "hit": self.hit,
            "breakpoints": self.breakpoints,
            "faults": self.faults,
            "arrived_us": self.arrived_us,
            "first_byte_us": self.first_byte_us,
            "ended_us": self.ended_us,
            "ending": self.ending,
        });
        match std::str::from_utf8(&self.body) {
            Ok(text) => record["body"] = json!(text),
            Err(_) => record["body_base64"] = json!(BASE64_STANDARD.encode(&self.body)),
        }
        record
    }
}

/// The ring of records.
#[derive(Debug)]
pub struct Journal {
    records: VecDeque<RequestRecord>,
    next: Number,
    bytes: usize,
    most_records: usize,
    most_bytes: usize,
}

impl Journal {
    pub fn new(most_records: usize, most_bytes: usize) -> Self {
        Journal { records: VecDeque::new(), next: 1, bytes: 0, most_records, most_bytes }
    }

    /// Opens a record; `request_id` makes the id from the number.
    pub fn open(
        &mut self,
        method: &str,
        target: &str,
        headers: &HeaderMap,
        arrived_us: u64,
        request_id: impl FnOnce(Number) -> String,
    ) -> (Number, String) {
        let number = self.next;
        self.next += 1;
        let request_id = request_id(number);
        let record = RequestRecord {
            number,
            method: method.to_owned(),
            target: target.to_owned(),
            headers: headers.iter().map(|(name, value)| masked(name.as_str(), value.as_bytes())).collect(),
            body: Bytes::new(),
            request_id: request_id.clone(),
            workspace: None,
            model: None,
            message_id: None,
            status: None,
            error: None,
            error_code: None,
            usage: None,
            cost_usd: None,
            hit: None,
            breakpoints: Vec::new(),
            faults: Vec::new(),
            arrived_us,
            first_byte_us: None,
            ended_us: None,
            ending: ExchangeEnding::Running,
        };
        self.bytes += record.weight();
        self.records.push_back(record);
        self.make_room();
        (number, request_id)
    }

    pub fn set_body(&mut self, number: Number, body: Bytes) {
        self.update(number, |record| record.body = body);
    }

    /// Fills a record that is still here.
    pub fn update(&mut self, number: Number, change: impl FnOnce(&mut RequestRecord)) {
        let Some(record) = self.record(number) else { return };
        let before = record.weight();
        change(record);
        let after = record.weight();
        self.bytes = self.bytes - before + after;
        self.make_room();
    }

    pub fn records(&self) -> Vec<RequestRecord> {
        self.records.iter().cloned().collect()
    }

    pub fn clear(&mut self) {
        self.records.clear();
        self.bytes = 0;
    }

    fn record(&mut self, number: Number) -> Option<&mut RequestRecord> {
        // Numbers are consecutive, so the place follows from the oldest one.
        let oldest = self.records.front()?.number;
        self.records.get_mut(usize::try_from(number.checked_sub(oldest)?).ok()?)
    }

    fn make_room(&mut self) {
        while self.records.len() > self.most_records || self.bytes > self.most_bytes {
            let Some(oldest) = self.records.pop_front() else { return };
            self.bytes -= oldest.weight();
        }
    }
}

fn masked(name: &str, value: &[u8]) -> (String, String) {
    let shown = if SECRET_HEADERS.contains(&name) {
        format!("MASKED:{}", &blake3::hash(value).to_hex()[..8])
    } else {
        String::from_utf8_lossy(value).into_owned()
    };
    (name.to_owned(), shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(journal: &mut Journal, body: &'static [u8]) -> Number {
        let (number, _) = journal.open("POST", "/", &HeaderMap::new(), 0, |number| number.to_string());
        journal.set_body(number, Bytes::from_static(body));
        number
    }

    #[test]
    fn the_oldest_records_go_first_by_count_and_by_bytes() {
        let mut by_count = Journal::new(2, 1_000);
        let numbers: Vec<_> = (0..3).map(|_| open(&mut by_count, b"x")).collect();
        assert_eq!(by_count.records().iter().map(|record| record.number).collect::<Vec<_>>(), numbers[1..]);

        let mut by_bytes = Journal::new(100, 18);
        open(&mut by_bytes, b"12345678");
        let kept = open(&mut by_bytes, b"12345678");
        assert_eq!(by_bytes.records().iter().map(|record| record.number).collect::<Vec<_>>(), [kept]);
    }

    #[test]
    fn long_headers_and_long_refusals_count_as_much_as_bodies() {
        let mut journal = Journal::new(100, 1_000);
        let mut headers = HeaderMap::new();
        headers.insert("x-long", "h".repeat(600).parse().unwrap());
        for _ in 0..2 {
            journal.open("POST", "/", &headers, 0, |number| number.to_string());
        }
        assert_eq!(journal.records().len(), 1);
        let refused = open(&mut journal, b"");
        journal.update(refused, |record| record.error = Some("e".repeat(900)));
        assert_eq!(journal.records().iter().map(|record| record.number).collect::<Vec<_>>(), [refused]);
        journal.update(refused, |record| record.error = None);
        assert_eq!(journal.bytes, journal.records()[0].weight());
    }

    #[test]
    fn an_exchange_that_outlives_its_record_writes_nowhere() {
        let mut journal = Journal::new(1, 1_000);
        let gone = open(&mut journal, b"a");
        let kept = open(&mut journal, b"b");
        journal.update(gone, |record| record.status = Some(500));
        journal.update(kept, |record| record.status = Some(200));
        let statuses: Vec<_> = journal.records().iter().map(|record| record.status).collect();
        assert_eq!(statuses, [Some(200)]);
        journal.clear();
        journal.update(kept, |record| record.status = Some(500));
        assert!(journal.records().is_empty());
    }

    #[test]
    fn credentials_are_masked_but_can_be_told_apart() {
        let (_, first) = masked("x-api-key", b"sk-one");
        let (_, second) = masked("authorization", b"Bearer two");
        assert!(first.starts_with("MASKED:") && !first.contains("sk-one"));
        assert_ne!(first, second);
        assert_eq!(masked("user-agent", b"x").1, "x");
    }

    #[test]
    fn a_body_that_is_not_text_is_shown_as_base64() {
        let mut journal = Journal::new(1, 1_000);
        open(&mut journal, b"\xff\xfe");
        let record = journal.records()[0].json();
        assert_eq!(record["body_base64"], "//4=");
        assert!(record.get("body").is_none());
    }
}
