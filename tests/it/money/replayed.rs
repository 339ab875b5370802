//! A series played again from its recording by `forkpoint replay`.

use serde_json::{Value, json};

use super::player::{Line, Played};
use super::script::Part;
use crate::harness::{PATIENCE, binary};

/// Prompt dollars of the runs of a replay.
pub struct Replayed {
    pub as_sent: f64,
    /// In the mode that was recorded.
    pub own: f64,
}

impl Replayed {
    /// `own`: the name of the run in the mode that was recorded.
    pub async fn of(parts: &[Part], played: &Played, premium: f64, own: &str) -> Replayed {
        let folder = tempfile::tempdir().unwrap();
        let (file, config) = (folder.path().join("r.jsonl"), folder.path().join("forkpoint.toml"));
        let lines: String =
            played.lines.iter().map(|line| format!("{}\n", recorded(line, &parts[line.part]))).collect();
        std::fs::write(&file, lines).unwrap();
        std::fs::write(&config, format!("fork.context_premium = {premium:?}\n")).unwrap();
        let mut command = binary::command();
        command.args(["replay", "--json", "--modes-only", "--config"]).args([&config, &file]);
        let shown = tokio::time::timeout(4 * PATIENCE, command.output()).await.expect("an end").unwrap();
        let report: Value = serde_json::from_slice(&shown.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&shown.stderr)));
        assert_eq!(report["compared"], played.lines.len(), "{report:#}");
        let run = |title: &str| {
            let run = report["runs"].as_array().unwrap().iter().find(|run| run["run"] == title);
            run.unwrap_or_else(|| panic!("{report:#}"))["all"]["prompt_usd"].as_f64().unwrap()
        };
        Replayed { as_sent: run("as sent"), own: run(own) }
    }
}

/// The line of a recording with its bodies, at the times of the clock that was moved: within an exchange a recording
/// counts the time that really passed.
fn recorded(line: &Line, part: &Part) -> Value {
    let Line { record, times, .. } = line;
    let mut record = serde_json::to_value(record).unwrap();
    record["time_ms"] = json!(times.came);
    record["sent_ms"] = json!(times.sent - times.came);
    record["begun_ms"] = json!(times.begun - times.came);
    record["duration_ms"] = json!(times.ended - times.came);
    record["bodies"] = json!("full");
    record["request"] = json!(std::str::from_utf8(&part.body).unwrap());
    record["answer"] = json!(json!({"role": "assistant", "content": part.content}).to_string());
    record
}
