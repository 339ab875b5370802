//! The hour played again from its recording: in the mode that was recorded it bills what the simulator billed, by
//! client, by tool and by cause.

use std::collections::BTreeMap;

use forkpoint::sim::BilledUsage;
use forkpoint::sim::models::{find, public_models};
use serde_json::Value;

use super::{CHILDREN, Hour, close, kinds};
use crate::harness::PATIENCE;
use crate::workload::Exchange;

/// What happened to these was the upstream's doing and is in no recording: the cache forgot, and a rewrite was
/// refused. They are left out of the replay, and of what it is compared with.
const NOT_OURS: [&str; 2] = ["sk-unknown", "sk-refused"];

/// The cost of one group of requests.
#[derive(Default)]
pub struct Sum {
    requests: usize,
    pub usage: BilledUsage,
    prompt_usd: f64,
}

impl Sum {
    pub fn of<'e>(exchanges: impl IntoIterator<Item = &'e Exchange>) -> Sum {
        let mut sum = Sum::default();
        for exchange in exchanges {
            let usage = exchange.usage.expect("a bill");
            sum.requests += 1;
            sum.usage.uncached += usage.uncached;
            sum.usage.cache_read += usage.cache_read;
            sum.usage.cache_write_5m += usage.cache_write_5m;
            sum.usage.cache_write_1h += usage.cache_write_1h;
            sum.usage.output += usage.output;
            let price = find(&public_models(), &exchange.model).unwrap().price;
            let output = BilledUsage { output: usage.output, ..BilledUsage::default() };
            sum.prompt_usd += price.cost_usd(&usage) - price.cost_usd(&output);
        }
        sum
    }

    #[track_caller]
    fn is(&self, said: &Value, what: &str) {
        assert_eq!(said["requests"], self.requests, "{what}: {said:#}");
        for (kind, tokens) in kinds(&self.usage) {
            assert_eq!(said["tokens"][kind], tokens, "{what}, {kind}: {said:#}");
        }
        let usd = said["prompt_usd"].as_f64().unwrap();
        assert!(close(usd, self.prompt_usd), "{what}: {usd} and {}", self.prompt_usd);
    }
}

/// The names that a report divides a run by, and what the ledger says of each.
#[track_caller]
fn divided(said: &Value, exchanges: &[&Exchange], name: impl Fn(&Exchange) -> &'static str) {
    let mut groups: BTreeMap<&str, Vec<&Exchange>> = BTreeMap::new();
    for exchange in exchanges {
        groups.entry(name(exchange)).or_default().push(exchange);
    }
    let names: Vec<&String> = said.as_object().unwrap().keys().collect();
    assert_eq!(names, groups.keys().copied().collect::<Vec<_>>(), "{said:#}");
    for (name, group) in groups {
        Sum::of(group).is(&said[name], name);
    }
}

fn header<'e>(exchange: &'e Exchange, name: &str) -> &'e str {
    let found = exchange.sent.headers.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| value.as_str()).expect("a header")
}

fn request_id(exchange: &Exchange) -> &str {
    exchange.headers.get("request-id").unwrap().to_str().unwrap()
}

/// The client of an exchange, as it is shown.
pub fn client(exchange: &Exchange) -> &'static str {
    match header(exchange, "user-agent") {
        "litellm/1.2.3" => "litellm/1.2",
        _ => "claude-cli/2.1",
    }
}

fn tool(exchange: &Exchange) -> &'static str {
    let body: Value = serde_json::from_slice(&exchange.sent.body).unwrap();
    let system = body["system"][0]["text"].as_str().unwrap_or_default();
    if system.starts_with("fan-out: You report.") { "Agent" } else { "(no child)" }
}

/// Causes, counts and tokens of the breaks that were logged, and what they cost.
fn breaks(log: &[&Value]) -> BTreeMap<String, (f64, f64, f64)> {
    let mut breaks: BTreeMap<String, (f64, f64, f64)> = BTreeMap::new();
    for line in log.iter().filter(|line| line["break_cause"].is_string()) {
        let sum = breaks.entry(line["break_cause"].as_str().unwrap().to_owned()).or_default();
        sum.0 += 1.0;
        sum.1 += line["break_tokens"].as_f64().unwrap();
        sum.2 += line["break_cost_usd"].as_f64().unwrap();
    }
    breaks
}

/// Plays the hour again, and compares the run of this title with the ledger.
pub async fn agrees(hour: &Hour, title: &str) {
    let ours: Vec<&Exchange> =
        hour.exchanges.iter().filter(|exchange| !NOT_OURS.contains(&header(exchange, "x-api-key"))).collect();
    assert!(ours.iter().filter(|exchange| tool(exchange) == "Agent").count() == 2 * CHILDREN);
    let is_ours =
        |line: &Value| ours.iter().any(|exchange| line["upstream_request_id"] == request_id(exchange));
    let report = replayed(hour, is_ours).await;
    let billed = Sum::of(ours.iter().copied());
    assert_eq!(report["compared"], ours.len(), "{report:#}");
    for (kind, tokens) in kinds(&billed.usage) {
        assert_eq!(report["recorded"][kind], tokens, "recorded {kind}");
    }
    let runs = report["runs"].as_array().unwrap();
    let run = runs.iter().find(|run| run["run"] == title).unwrap_or_else(|| panic!("{report}"));
    billed.is(&run["all"], title);
    divided(&run["clients"], &ours, client);
    divided(&run["tools"], &ours, tool);
    let log = hour.stage.log.records();
    let log: Vec<&Value> = log.iter().filter(|line| is_ours(line)).collect();
    let expected = breaks(&log);
    let said: Vec<&String> = run["breaks"].as_object().unwrap().keys().collect();
    assert_eq!(said, expected.keys().collect::<Vec<_>>(), "{run:#}");
    for (cause, (count, tokens, usd)) in expected {
        let said = |member: &str| run["breaks"][&cause][member].as_f64().unwrap();
        assert_eq!((said("count"), said("tokens")), (count, tokens), "{cause}: {run:#}");
        assert!(close(said("cost_usd"), usd), "{cause}: {run:#}");
    }
    let first_turns: Vec<_> = log.iter().filter(|line| line["child_turn"] == 1).collect();
    let forked = first_turns.iter().filter(|line| line["plan"] == "forked").count();
    assert_eq!(run["children"], first_turns.len(), "{run:#}");
    assert_eq!(run["forked"], forked, "{run:#}");
}

/// The report of `replay` on these lines of the recording, under the settings of the hour.
async fn replayed(hour: &Hour, is_ours: impl Fn(&Value) -> bool) -> Value {
    let (file, config) = (hour.folder.path().join("ours.jsonl"), hour.folder.path().join("forkpoint.toml"));
    let ours = hour.recorded().into_iter().filter(|line| is_ours(line));
    std::fs::write(&file, ours.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let settings = format!(
        "fork.max_cost_ratio = 10.0\nfork.context_premium = 100\ngate.max_hold_ms = {}\n",
        PATIENCE.as_millis()
    );
    std::fs::write(&config, settings).unwrap();
    let mut command = crate::harness::binary::command();
    command.args(["replay", "--json", "--modes-only", "--config"]).args([&config, &file]);
    let shown = tokio::time::timeout(4 * PATIENCE, command.output()).await.expect("an end").unwrap();
    serde_json::from_slice(&shown.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&shown.stderr)))
}
