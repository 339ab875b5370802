//! Replay: a recording played again bills what was billed, and says what else would have been.

use std::path::Path;
use std::time::Duration;

use forkpoint::config::{Bodies, Config, Mode};
use forkpoint::sim::models::{find, public_models};
use forkpoint::sim::{BilledUsage, Latency, Sim, SimConfig};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::fork::children::threads::{Client, Repeats};
use crate::fork::children::{FREE, child, directives, parent};
use crate::harness::{Forkpoint, PATIENCE};
use crate::workload::{Exchange, Letter, Line, prose, tool};

const MODEL: &str = "claude-opus-5-5";

/// Siblings that come together find nothing yet, also on a busy machine.
const LATENCY: Latency =
    Latency { base: Duration::from_millis(700), per_uncached_token: Duration::ZERO, pace: Duration::ZERO };

/// A simulator, and a forkpoint before it that records.
struct Stage {
    sim: Sim,
    forkpoint: Forkpoint,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn new(latency: Latency, bodies: Bodies, configure: impl FnOnce(&mut Config)) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let sim = Sim::start(SimConfig { latency, ..SimConfig::default() }).await.unwrap();
        let forkpoint = Forkpoint::with(&sim.url(), |config| {
            config.record.file = Some(folder.path().join("r.jsonl"));
            config.record.bodies = bodies;
            configure(config);
        })
        .await;
        Stage { sim, forkpoint, folder }
    }

    fn line(&self) -> Line<'_> {
        let url = format!("http://{}", self.forkpoint.address);
        Line::through(url, self.forkpoint.proxy.clone(), &self.sim)
    }

    fn pass(&self, time: Duration) {
        self.sim.clock().advance(time);
        self.forkpoint.proxy.clock().skip(time.as_millis() as u64);
    }

    /// The simulator's bill: requests, tokens, and dollars for prompts.
    fn ledger(&self) -> (usize, BilledUsage, f64) {
        let (mut sum, mut cost) = (BilledUsage::default(), 0.0);
        let records = self.sim.requests();
        for record in &records {
            let usage = record.usage.unwrap();
            sum.uncached += usage.uncached;
            sum.cache_read += usage.cache_read;
            sum.cache_write_5m += usage.cache_write_5m;
            sum.cache_write_1h += usage.cache_write_1h;
            sum.output += usage.output;
            let output = BilledUsage { output: usage.output, ..BilledUsage::default() };
            let price =
                |usage| find(&public_models(), record.model.as_ref().unwrap()).unwrap().price.cost_usd(usage);
            cost += price(&usage) - price(&output);
        }
        (records.len(), sum, cost)
    }

    async fn replayed(&self, args: &[&str]) -> Value {
        self.forkpoint.recorded(self.sim.requests().len() as u32).await;
        self.forkpoint.proxy.recording().unwrap().flush();
        let file = self.folder.path().join("r.jsonl");
        let args: Vec<&str> =
            ["--json", file.to_str().unwrap()].into_iter().chain(args.iter().copied()).collect();
        let shown = replay(&args).await;
        serde_json::from_slice(&shown.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&shown.stderr)))
    }
}

async fn replay(args: &[&str]) -> std::process::Output {
    let mut command = crate::harness::binary::command();
    // As the recordings were made.
    command.env("FORKPOINT_FORK__CONTEXT_PREMIUM", "100").env("FORKPOINT_FORK__MAX_COST_RATIO", "100");
    tokio::time::timeout(4 * PATIENCE, command.arg("replay").args(args).output())
        .await
        .expect("an end")
        .unwrap()
}

fn run<'r>(report: &'r Value, title: &str) -> &'r Value {
    report["runs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|run| run["run"] == title)
        .unwrap_or_else(|| panic!("{report}"))
}

fn tokens(sum: &Value) -> BilledUsage {
    let kind = |kind: &str| sum["tokens"][kind].as_u64().unwrap();
    BilledUsage {
        uncached: kind("uncached"),
        cache_read: kind("cache_read"),
        cache_write_5m: kind("cache_write_5m"),
        cache_write_1h: kind("cache_write_1h"),
        output: kind("output"),
    }
}

/// That a run bills what the recorded one did, to the token and the dollar.
#[track_caller]
fn bills(run: &Value, ledger: (usize, BilledUsage, f64)) {
    assert_eq!(run["all"]["requests"], ledger.0, "{run:#}");
    assert_eq!(tokens(&run["all"]), ledger.1, "{run:#}");
    let cost = run["all"]["prompt_usd"].as_f64().unwrap();
    assert!((cost - ledger.2).abs() < 1e-6, "{cost} and {}", ledger.2);
    for parts in ["clients", "tools"] {
        let sum: f64 =
            run[parts].as_object().unwrap().values().map(|part| part["prompt_usd"].as_f64().unwrap()).sum();
        assert!((sum - cost).abs() < 1e-6, "{parts} of {run:#}");
    }
}

/// That the sums of each mode's own forkpoint say what the runs as sent and aligned cost, within this part of the bill
/// as sent.
#[track_caller]
fn own_sums_agree(report: &Value, within: f64) {
    let prompts = |title: &str| run(report, title)["all"]["prompt_usd"].as_f64().unwrap();
    for title in ["as sent", "aligned", "forked"] {
        let own = |name: &str| run(report, title)["own_sums"][name].as_f64().unwrap();
        assert_eq!(own("unknown"), 0.0, "{title}: {report:#}");
        for (world, other) in [("as_sent_usd", "as sent"), ("aligned_usd", "aligned")] {
            // Answers cost the same in every world and are in both sums.
            let (said, is) = (own(world) - own("billed_usd"), prompts(other) - prompts(title));
            assert!((said - is).abs() <= within * prompts("as sent"), "{title}, {world}: {said} for {is}");
        }
    }
}

fn body(system: &str, tools: Value, messages: Value) -> Value {
    json!({
        "model": MODEL, "max_tokens": 4_000, "stream": true, "tools": tools,
        "system": [{"type": "text", "text": prose(system, 4_000), "cache_control": {"type": "ephemeral"}}],
        "messages": messages,
    })
}

/// The peculiarities of a client.
#[derive(Clone, Copy)]
struct Habits {
    /// A header on every request, none if it is empty.
    header: [&'static str; 2],
    /// How it says again what was answered.
    echo: fn(&Value) -> Value,
}

const NONE: Habits = Habits { header: [""; 2], echo: Value::clone };

impl Habits {
    fn letter(self, body: &Value) -> Letter {
        let letter = Letter::alone(body);
        match self.header {
            ["", _] => letter,
            [name, value] => letter.with(name, value),
        }
    }
}

/// A parent that fans out, children that call a tool and report, and the parent's report.
async fn fan_out(stage: &Stage, habits: Habits) {
    let line = stage.line();
    let agent = json!({"name": "Agent", "description": "Starts a sub-agent.", "input_schema": {"type": "object",
        "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}});
    let tools = json!([agent, tool("read_file")]);
    let ask = json!({"role": "user", "content": "Survey it. [[sim:fan_out n=4 tool=Agent field=prompt words=60 | tools turns=1]]"});
    let parent = line.send(&habits.letter(&body("You lead.", tools.clone(), json!([ask])))).await;
    let calls = parent.blocks().unwrap();
    let uses: Vec<&Value> = calls.iter().filter(|block| block["type"] == "tool_use").collect();
    assert_eq!(uses.len(), 4);
    let child = async |call: &Value| {
        let mut messages =
            vec![json!({"role": "user", "content": [{"type": "text", "text": call["input"]["prompt"]}]})];
        for _ in 0..2 {
            let letter = habits.letter(&body("You report.", json!([tool("read_file")]), json!(messages)));
            let exchange: Exchange = line.send(&letter.with("user-agent", "litellm/1.2.3")).await;
            let blocks = exchange.blocks().unwrap();
            let results: Vec<Value> = blocks
                .iter()
                .filter(|block| block["type"] == "tool_use")
                .map(
                    |call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "All there."}),
                )
                .collect();
            let said: Vec<Value> = blocks.iter().map(habits.echo).collect();
            messages.push(json!({"role": "assistant", "content": said}));
            messages.push(json!({"role": "user", "content": results}));
        }
    };
    join_all(uses.iter().map(|call| child(call))).await;
    let results: Vec<Value> = uses
        .iter()
        .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "Done."}))
        .collect();
    let said: Vec<Value> = calls.iter().map(habits.echo).collect();
    let messages = json!([ask, {"role": "assistant", "content": said}, {"role": "user", "content": results}]);
    line.send(&habits.letter(&body("You lead.", tools, messages))).await;
}

#[tokio::test]
async fn a_fan_out_bills_again_what_it_billed_as_sent() {
    let stage = Stage::new(LATENCY, Bodies::Redacted, |config| config.server.mode = Mode::Observe).await;
    fan_out(&stage, NONE).await;
    let report = stage.replayed(&[]).await;
    let sent = run(&report, "as sent");
    bills(sent, stage.ledger());
    assert_eq!(sent["tools"]["Agent"]["requests"], 8, "{sent:#}");
    assert_eq!(sent["clients"]["litellm/1.2"]["requests"], 8, "{sent:#}");
    let aligned = run(&report, "aligned");
    assert!(aligned["all"]["prompt_usd"].as_f64() < sent["all"]["prompt_usd"].as_f64(), "{report:#}");
    assert!(aligned["held_ms"].as_u64() >= Some(600), "siblings wait for the first: {aligned:#}");
    own_sums_agree(&report, 0.05);
    assert!(report["runs"].as_array().unwrap().len() >= 9, "three modes, six settings: {report:#}");
    assert!(report["best"]["all"]["prompt_usd"].as_f64() <= aligned["all"]["prompt_usd"].as_f64());
}

#[tokio::test]
async fn a_fan_out_bills_again_what_it_billed_aligned() {
    let stage = Stage::new(LATENCY, Bodies::Full, |config| config.server.mode = Mode::Align).await;
    fan_out(&stage, NONE).await;
    let report = stage.replayed(&["--modes-only"]).await;
    bills(run(&report, "aligned"), stage.ledger());
}

/// Children come with what their parent was told, so that they can stand on it.
#[tokio::test]
async fn a_fan_out_bills_again_what_it_billed_forked() {
    for bodies in [Bodies::Redacted, Bodies::Full] {
        let stage = Stage::new(LATENCY, bodies, |config| config.server.mode = Mode::Fork).await;
        fan_out(&stage, NONE).await;
        let report = stage.replayed(&["--modes-only"]).await;
        let forked = run(&report, "forked");
        assert_eq!(forked["forked"], 4, "each of the four children, once: {report:#}");
        bills(forked, stage.ledger());
    }
}

/// A continue is billed over all that came before it, as it was.
#[tokio::test]
async fn conversations_that_the_server_holds_bill_again_what_they_billed() {
    const FAN_OUT: &str = "[[sim:fan_out n=2 tool=Agent field=prompt | tools turns=2 calls=1 tool=search]]";
    let modes = [(Mode::Observe, "as sent"), (Mode::Align, "aligned"), (Mode::Fork, "forked")];
    for ((mode, title), bodies) in modes.into_iter().zip([Bodies::Redacted, Bodies::Full, Bodies::Redacted]) {
        let stage = Stage::new(Latency::none(), bodies, |config| config.server.mode = mode).await;
        let line = stage.line();
        let mut lead = Client::new(parent(FREE, "[[sim:text words=9]]"), Repeats::Nothing);
        lead.turn_through(&line).await;
        lead.says(&format!("Go on. {FAN_OUT}"));
        let told = directives(&lead.turn_through(&line).await);
        stage.forkpoint.recorded(2).await;
        for told in &told {
            let mut client = Client::new(child(FREE, told), Repeats::All);
            for _ in 0..3 {
                client.turn_through(&line).await;
                stage.pass(Duration::from_secs(5));
            }
        }
        lead.turn_through(&line).await;
        let report = stage.replayed(&["--modes-only"]).await;
        assert_eq!(
            (&report["refused"], &report["compared"]),
            (&json!([]), &json!(9)),
            "{mode:?}: {report:#}"
        );
        let run = run(&report, title);
        bills(run, stage.ledger());
        assert_eq!(run["forked"], if mode == Mode::Fork { 2 } else { 0 }, "{report:#}");
    }
}

/// A value with every object's keys in reverse.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            members.iter().rev().map(|(key, value)| (key.clone(), reversed(value))).collect()
        }
        Value::Array(items) => items.iter().map(reversed).collect(),
        _ => value.clone(),
    }
}

/// Its turns follow the answers that they carry, however these are spelt.
#[tokio::test]
async fn a_client_that_reorders_keys_bills_again_what_it_billed() {
    let stage = Stage::new(LATENCY, Bodies::Redacted, |config| config.server.mode = Mode::Align).await;
    fan_out(&stage, Habits { echo: reversed, ..NONE }).await;
    let report = stage.replayed(&["--modes-only"]).await;
    bills(run(&report, "aligned"), stage.ledger());
}

#[tokio::test]
async fn who_asked_for_a_lower_mode_gets_it_again() {
    let stage = Stage::new(LATENCY, Bodies::Redacted, |config| config.server.mode = Mode::Fork).await;
    fan_out(&stage, Habits { header: ["x-forkpoint-mode", "align"], ..NONE }).await;
    let report = stage.replayed(&["--modes-only"]).await;
    let forked = run(&report, "forked");
    // Four children of two requests each.
    assert_eq!((&forked["children"], &forked["forked"]), (&json!(4), &json!(0)), "{report:#}");
    bills(forked, stage.ledger());
    assert_eq!(forked["all"], run(&report, "aligned")["all"], "{report:#}");
}

/// A line of a recording.
fn recorded(id: u64, time_ms: u64, request: &Value, times: [u64; 2]) -> Value {
    let answer = json!({"role": "assistant", "content": [{"type": "text", "text": format!("Answer {id}.")}]});
    json!({
        "v": 1, "id": id, "time_ms": time_ms, "status": 200, "tenant": "0123abcd", "model": MODEL,
        "stream": true, "sent_ms": 0, "begun_ms": times[0], "duration_ms": times[1], "bodies": "full",
        "request": request.to_string(), "answer": answer.to_string(), "stop_reason": "end_turn",
        "output": 5,
    })
}

/// Replays these lines with these settings.
async fn replayed(lines: &[Value], settings: &str, args: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let (file, config) = (folder.path().join("r.jsonl"), folder.path().join("forkpoint.toml"));
    std::fs::write(&file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    std::fs::write(&config, settings).unwrap();
    let all = ["--json", "--config", config.to_str().unwrap(), file.to_str().unwrap()];
    let shown = replay(&[&all, args].concat()).await;
    serde_json::from_slice(&shown.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&shown.stderr)))
}

#[tokio::test]
async fn a_hold_ends_when_its_time_has_come() {
    let ask =
        |text: &str| body("You answer.", json!([tool("search")]), json!([{"role": "user", "content": text}]));
    let small = json!({"model": MODEL, "max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": "Hello."}]});
    let lines = [
        recorded(1, 0, &small, [10, 20]),
        recorded(2, 1_000, &ask("Look."), [20_000, 21_000]),
        recorded(3, 1_010, &ask("Look."), [20_000, 21_000]),
    ];
    let report = replayed(&lines, "gate.scope = \"all\"\ngate.max_hold_ms = 4000", &["--modes-only"]).await;
    let aligned = run(&report, "aligned");
    assert_eq!(aligned["held_ms"], 4_000, "{report:#}");
    let wrote = |title: &str| run(&report, title)["all"]["tokens"]["cache_write_5m"].as_u64().unwrap();
    assert!(wrote("aligned") >= wrote("as sent"), "nobody read what was not there yet: {report:#}");
    let report = replayed(&lines, "gate.scope = \"all\"\ngate.max_hold_ms = 25000", &["--modes-only"]).await;
    assert_eq!(run(&report, "aligned")["held_ms"], 19_990, "{report:#}");
    assert!(run(&report, "aligned")["all"]["tokens"]["cache_read"].as_u64() > Some(1_000), "{report:#}");
}

#[tokio::test]
async fn what_one_run_refuses_counts_in_none() {
    let ask = |text: &str| body("You answer.", json!([]), json!([{"role": "user", "content": text}]));
    let mut odd = ask("Take what another took.");
    odd["temperature"] = json!(1.7);
    odd["thinking"] = json!({"type": "by_moonlight"});
    let lines = [
        recorded(1, 0, &ask("Good."), [10, 20]),
        recorded(2, 100, &odd, [10, 20]),
        recorded(3, 200, &ask(""), [10, 20]),
    ];
    let report = replayed(&lines, "", &["--modes-only"]).await;
    assert_eq!((&report["exchanges"], &report["compared"]), (&json!(3), &json!(2)), "{report:#}");
    assert_eq!(report["refused"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(report["refused"][0]["id"], 3, "{report:#}");
    for title in ["as sent", "aligned", "forked"] {
        let run = run(&report, title);
        assert_eq!((&run["refused"], &run["all"]["requests"]), (&json!(1), &json!(2)), "{report:#}");
    }
}

#[tokio::test]
async fn the_best_run_is_the_one_with_the_fewest_dollars() {
    let ask =
        |text: &str| body("You answer.", json!([tool("search")]), json!([{"role": "user", "content": text}]));
    let report = replayed(&[recorded(1, 0, &ask("Look."), [10, 20])], "", &[]).await;
    let usd = |run: &Value| run["all"]["prompt_usd"].as_f64().unwrap();
    let least = report["runs"].as_array().unwrap().iter().map(usd).fold(f64::INFINITY, f64::min);
    assert_eq!(usd(&report["best"]), least, "{report:#}");
    // What is tried is what the configuration does not say already.
    let titles = |report: &Value| report["runs"].to_string();
    assert!(titles(&report).contains("gate.max_hold_ms = 0"));
    let report = replayed(&[recorded(1, 0, &ask("Look."), [10, 20])], "gate.max_hold_ms = 0", &[]).await;
    assert!(!titles(&report).contains("gate.max_hold_ms = 0"), "{report:#}");
}

/// A conversation whose tools change once.
async fn conversation(stage: &Stage) {
    let mut messages: Vec<Value> = Vec::new();
    for turn in 0..4 {
        messages.push(json!({"role": "user", "content": format!("Question {turn}.")}));
        let mut request = body("You answer.", json!([tool("search"), tool("run")]), json!(messages));
        if turn == 2 {
            request["tools"][0]["description"] = json!("Another one.");
        }
        let exchange = stage.line().send(&Letter::alone(&request)).await;
        assert_eq!(exchange.status, 200, "{}", String::from_utf8_lossy(&exchange.answer));
        messages.push(json!({"role": "assistant", "content": exchange.blocks().unwrap()}));
        stage.pass(Duration::from_secs(60));
    }
}

/// The files that a shell finds for `r.jsonl*`, after a process that was killed.
#[tokio::test]
async fn rotated_files_are_one_recording_and_no_exchange_is_played_twice() {
    let ask = |text: &str| body("You answer.", json!([]), json!([{"role": "user", "content": text}]));
    let line = |id: u64| format!("{}\n", recorded(id, 100 * id, &ask("Look."), [10, 20]));
    let folder = tempfile::tempdir().unwrap();
    let file = |suffix: &str| format!("{}/r.jsonl{suffix}", folder.path().display());
    std::fs::write(file(""), format!("{}{}", line(3), &line(4)[..40])).unwrap();
    std::fs::write(file(".1"), line(1) + &line(2)).unwrap();
    std::fs::write(file(".match"), line(2)).unwrap();
    let (named, older, matched) = (file(""), file(".1"), file(".match"));
    let shown = replay(&["--json", "--modes-only", &named, &older, &matched]).await;
    let report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(report["exchanges"], 3, "{report:#}");
    let left_out = json!({"no_body": 0, "failed": 0, "broken_lines": 1, "repeated": 1, "files": []});
    assert_eq!(report["left_out"], left_out, "{report:#}");
    let shown = replay(&["--modes-only", &named]).await;
    let text = String::from_utf8(shown.stdout).unwrap();
    let broken = format!("Left out: 1 line, not readable ({named}:2).\n");
    let unread = format!("Not named, though it has older lines: {older}\n");
    assert!(text.contains(&broken) && text.contains(&unread), "{text}");
}

#[tokio::test]
async fn what_cannot_be_replayed_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    let say = async |text: &str, path: &Path| {
        std::fs::write(&file, text).unwrap();
        let shown = replay(&[path.to_str().unwrap()]).await;
        assert!(!shown.status.success());
        String::from_utf8(shown.stderr).unwrap()
    };
    assert!(say("", Path::new("/nowhere/r.jsonl")).await.contains("cannot read /nowhere/r.jsonl"));
    assert!(say("{\"v\":1,\"status\":200}\nnonsense\n", &file).await.contains("record.bodies"));
    assert!(say("{\"v\":99}\n", &file).await.contains("r.jsonl:1: written by a later version"));
    assert!(say("", &file).await.contains("r.jsonl: nothing is recorded there"));
    assert!(say("a text\nof two lines\n", &file).await.contains("r.jsonl:1: this is no line of a recording"));
    assert!(say("{\"v\":1,\"status\":429}\n", &file).await.contains("no request in there was answered"));
}

#[tokio::test]
async fn the_table_says_what_was_played_and_what_is_best() {
    let stage =
        Stage::new(Latency::none(), Bodies::Redacted, |config| config.server.mode = Mode::Observe).await;
    conversation(&stage).await;
    stage.replayed(&["--modes-only"]).await;
    let shown = replay(&[stage.folder.path().join("r.jsonl").to_str().unwrap()]).await;
    let text = String::from_utf8(shown.stdout).unwrap();
    let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
    assert!(place("\nprompt cost") < place("\nother settings"), "the modes come first: {text}");
    for part in [
        "4 exchanges within",
        "as sent",
        "aligned",
        "cache break tools",
        "other settings",
        "Best of ",
        "server.mode = ",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn the_first_table_is_there_while_other_settings_are_still_tried() {
    let ask = |id: u64| {
        body(
            "You answer.",
            json!([tool("search")]),
            json!([{"role": "user", "content": format!("Look {id}.")}]),
        )
    };
    let lines: Vec<String> =
        (1..=20).map(|id| recorded(id, 100 * id, &ask(id), [10, 20]).to_string()).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    std::fs::write(&file, lines.join("\n")).unwrap();
    let mut command = crate::harness::binary::command();
    command.arg("replay").arg(file).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let signal = |name: &str, id: u32| {
        std::process::Command::new("kill").args([format!("-{name}"), id.to_string()]).status().unwrap()
    };
    let id = child.id().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut shown = String::new();
    while !shown.contains("children, forked") {
        let next = crate::harness::within("the table", said.next_line()).await.unwrap();
        shown += &next.expect("a table");
    }
    // Stopped at its first table, it has said nothing of other settings, and goes on with them after that.
    assert!(signal("STOP", id).success());
    while let Ok(Ok(Some(line))) = tokio::time::timeout(Duration::from_millis(200), said.next_line()).await {
        shown += &line;
    }
    assert!(!shown.contains("other settings") && !shown.contains("Best of"), "{shown}");
    assert!(signal("CONT", id).success());
    let mut rest = String::new();
    while let Some(line) = crate::harness::within("the rest", said.next_line()).await.unwrap() {
        rest += &line;
    }
    assert!(rest.contains("other settings") && rest.contains("Best of"), "{rest}");
    assert!(child.wait().await.unwrap().success());
}
