//! A recording beside the log: a line of it says what the log line says, field by field.

use forkpoint::config::Config;
use forkpoint::report::ExchangeRecord;
use serde_json::Value;

use super::log::OF_EVERY_LINE;
use crate::harness::Forkpoint;

pub struct Recorded(tempfile::TempDir);

impl Recorded {
    pub fn new() -> Recorded {
        Recorded(tempfile::tempdir().unwrap())
    }

    /// A configuration that records here.
    pub fn with(&self, configure: impl FnOnce(&mut Config)) -> impl FnOnce(&mut Config) {
        let file = self.0.path().join("r.jsonl");
        move |config| {
            config.record.file = Some(file);
            configure(config);
        }
    }

    /// That this line of the log was recorded too, with all that it says and nothing else of its kind.
    #[track_caller]
    pub fn says(&self, forkpoint: &Forkpoint, logged: &Value) {
        if logged["endpoint"] != "messages" {
            return;
        }
        forkpoint.proxy.recording().unwrap().flush();
        let text = std::fs::read_to_string(self.0.path().join("r.jsonl")).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut recorded = lines.rfind(|line| line["id"] == logged["id"]).expect("a line");
        let mut logged = logged.clone();
        logged.as_object_mut().unwrap().retain(|name, _| !OF_EVERY_LINE.contains(&name.as_str()));
        recorded.as_object_mut().unwrap().retain(|name, _| ExchangeRecord::LOGGED.contains(&name.as_str()));
        assert_eq!(recorded, logged);
    }
}
