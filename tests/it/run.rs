//! `forkpoint run`: a proxy for one command, which keeps its terminal, its signals and its exit code.

use std::process::{Output, Stdio};

use forkpoint::sim::{Sim, SimConfig};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::samples::{OK, PROMPT, message};
use crate::harness::upstream::Answering;
use crate::harness::{Peer, Upstream, binary, post, within};
use crate::traces::receiver::Receiver;

/// `forkpoint run` with what a script needs and nothing else.
fn run(args: &[&str]) -> Command {
    let mut command = binary::command();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").arg("run").args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn output(command: &mut Command) -> Output {
    within("the command to end", command.output()).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Asks its base URL for one message.
fn asks() -> String {
    let prompt = text(PROMPT);
    format!(
        "exec 3<>/dev/tcp/127.0.0.1/${{ANTHROPIC_BASE_URL##*:}}; printf 'POST /v1/messages HTTP/1.1\\r\\nhost: h\\r\\nx-api-key: key\\r\\n\
         anthropic-version: 2023-06-01\\r\\ncontent-type: application/json\\r\\nconnection: close\\r\\ncontent-length: {}\\r\\n\\r\\n%s' '{prompt}' >&3; cat <&3",
        prompt.len()
    )
}

async fn messages() -> Answering {
    Upstream::answering(&message()).await
}

#[tokio::test]
async fn the_command_has_its_own_streams_and_its_exit_code_is_ours() {
    let script = "printf 'at %s: ' \"$ANTHROPIC_BASE_URL\"; cat; echo oops >&2; exit 7";
    let mut child = run(&["--", "sh", "-c", script]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"what I was told").await.unwrap();
    let output = within("the command to end", child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(7));
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(said.starts_with("at http://127.0.0.1:") && said.ends_with(": what I was told"), "{said}");
    assert!(
        complained.starts_with("oops\nsaved nothing: no requests were seen\nforkpoint: "),
        "{complained}"
    );
    assert!(complained.contains("requests      none"), "{complained}");
}

#[tokio::test]
async fn a_command_that_cannot_run_is_told_from_one_that_fails() {
    for (args, code, said) in [
        (&["no-such-command"][..], 127, "cannot start 'no-such-command'"),
        (&["/"], 126, "cannot start '/'"),
        (&["--", "sh", "-c", "kill -TERM $$"], 143, "forkpoint: "),
        (&["--", "sh", "-c", "kill -KILL $$"], 137, "forkpoint: "),
        (&["--quiet", "--", "sh", "-c", "exit 255"], 255, ""),
        (&["--mode", "obzerve", "--", "true"], 64, "--mode"),
        (&["--log", "/no/such/folder/log", "--", "true"], 64, "/no/such/folder/log"),
        (&[], 64, "<CMD>"),
    ] {
        let output = output(&mut run(args)).await;
        let complained = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?} {complained}");
        assert!(complained.contains(said), "{args:?} {complained}");
        assert!(!said.is_empty() || complained.is_empty(), "{complained}");
    }
}

#[tokio::test]
async fn the_receipt_says_what_was_billed_and_no_log_line_is_in_the_way() {
    let mut upstream = messages().await;
    let output = output(&mut run(&["--upstream", &upstream.url(), "--", "bash", "-c", &asks()])).await;
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{complained}");
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
    assert_eq!(upstream.next().await.body, PROMPT);
    assert!(complained.starts_with("saved unknown: ") && complained.lines().count() == 8, "{complained}");
    for line in [
        "  requests      1 (200: 1)\n",
        "  fan-outs      0\n",
        "  children      0\n",
        "  tokens        uncached 1 · cache read 2 · cache write 5m 3 · cache write 1h 4 · output 5\n",
        "  cache breaks  0\n",
    ] {
        assert!(complained.contains(line), "{line} is missing in {complained}");
    }
}

/// Asks its base URL for one message of this model.
pub fn asks_for(model: &str) -> String {
    let prompt = text(PROMPT);
    let with_model = prompt.replacen("claude-x", model, 1);
    assert_ne!(prompt, with_model);
    asks().replace(&prompt, &with_model).replace(
        &format!("content-length: {}", prompt.len()),
        &format!("content-length: {}", with_model.len()),
    )
}

#[tokio::test]
async fn the_receipt_compares_the_bill_with_what_it_would_have_been() {
    let upstream = messages().await;
    let script = asks_for("claude-opus-5-5");
    let output = output(&mut run(&["--upstream", &upstream.url(), "--", "bash", "-c", &script])).await;
    // 1 × $4 · 2 × $0.20 · 3 × $5 · 4 × $8 · 5 × $20, each per million.
    let cost = "  cost          billed $0.0002 · as sent $0.0002 · aligned $0.0002 (an estimate, by list prices; \
                billed is 100 % of as sent, aligned 100 %)\n";
    let complained = text(&output.stderr);
    assert!(complained.starts_with("saved $0.0000 (0 %)\nforkpoint: "), "{complained}");
    assert!(complained.contains(cost), "{complained}");
}

#[tokio::test]
async fn the_receipt_warns_of_a_consumer_login_that_was_left_alone() {
    let upstream = messages().await;
    let script = asks().replace("x-api-key: key", "authorization: bearer sk-ant-oat01-x");
    let output = output(&mut run(&["--upstream", &upstream.url(), "--", "bash", "-c", &script])).await;
    let complained = text(&output.stderr);
    let why = "  left alone    1, because it comes from a consumer login (oauth)\n";
    assert!(
        complained.contains("  warning       nothing could be saved: every request was left alone\n"),
        "{complained}"
    );
    assert!(complained.contains(why), "{complained}");
}

/// Says its base URL, and lives until its standard input ends: the test asks in its place.
const STANDS_IN: &str = "echo \"$ANTHROPIC_BASE_URL\"; cat >/dev/null";

/// A Messages call to a proxy, and the message that it is answered with.
async fn message_of(base: &str, system: &str, messages: &Value) -> Value {
    let properties = json!({"prompt": {"type": "string"}});
    let tool = json!({"name": "Agent", "description": "Starts an agent.",
        "input_schema": {"type": "object", "properties": properties, "required": ["prompt"]}});
    let rules = format!("{system} {}", "Read before you write, and say what you have found. ".repeat(600));
    let system = json!([{"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}}]);
    let body = json!({"model": "claude-opus-5-5", "max_tokens": 2000, "system": system, "tools": [tool], "messages": messages});
    let headers = "x-api-key: key\r\nanthropic-version: 2023-06-01\r\n";
    let mut peer = Peer::connect(base.trim_start_matches("http://").parse().unwrap()).await;
    let reply = peer.ask(&post("/v1/messages", headers, body.to_string().as_bytes())).await;
    assert_eq!(reply.status(), 200, "{}", String::from_utf8_lossy(&reply.body));
    serde_json::from_slice(&reply.body).unwrap()
}

#[tokio::test]
async fn what_was_only_observed_is_said_to_have_cost_less_aligned_and_that_it_would_have_been_forked() {
    let sim = Sim::start(SimConfig::default()).await.unwrap();
    let mut command = run(&["--mode", "observe", "--upstream", &sim.url(), "--", "sh", "-c", STANDS_IN]);
    command.env("FORKPOINT_FORK__CONTEXT_PREMIUM", "100").env("FORKPOINT_FORK__MAX_COST_RATIO", "100");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut base = String::new();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    within("the base URL", said.read_line(&mut base)).await.unwrap();
    let base = base.trim();

    let mut messages = json!([{"role": "user", "content": "Survey it. [[sim:fan_out n=3 tool=Agent field=prompt words=60 | text words=20]]"}]);
    let answer = message_of(base, "You lead.", &messages).await;
    let calls: Vec<&Value> =
        answer["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use").collect();
    assert_eq!(calls.len(), 3, "{answer}");
    let children = calls.iter().map(async |call| {
        let report = message_of(
            base,
            "You survey a part.",
            &json!([{"role": "user", "content": call["input"]["prompt"]}]),
        )
        .await;
        json!({"type": "tool_result", "tool_use_id": call["id"], "content": report["content"]})
    });
    let results = join_all(children).await;
    let list = messages.as_array_mut().unwrap();
    list.push(json!({"role": "assistant", "content": answer["content"]}));
    list.push(json!({"role": "user", "content": results}));
    message_of(base, "You lead.", &messages).await;

    drop(child.stdin.take());
    let output = within("the command to end", child.wait_with_output()).await.unwrap();
    let receipt = text(&output.stderr);
    assert!(receipt.starts_with("saved $0.0000 (0 %)\n"), "{receipt}");
    assert!(!receipt.contains("warning"), "{receipt}");
    assert!(receipt.contains("  fan-outs      1\n  children      3 (3 left alone)\n"), "{receipt}");
    let dollars = |name: &str, before: &str, behind: &str| -> f64 {
        let line = receipt
            .lines()
            .find(|line| line.starts_with(&format!("  {name} ")))
            .unwrap_or_else(|| panic!("{name} in {receipt}"));
        let (_, rest) = line.split_once(before).unwrap_or_else(|| panic!("{before} in {line}"));
        rest.split(behind).next().unwrap().parse().unwrap_or_else(|_| panic!("dollars in {line}"))
    };
    assert!(dollars("align", "would have saved $", " ") > 0.0, "{receipt}");
    let would = "would have forked 3 children of `Agent`; forked they were predicted to cost $";
    assert!(dollars("fork", would, ",") > 0.0, "{receipt}");
    let billed: f64 = sim.requests().iter().filter_map(|request| request.cost_usd).sum();
    assert!((dollars("cost", "billed $", " ") - billed).abs() < 0.000_06, "{billed} in {receipt}");
}

#[tokio::test]
async fn an_unknown_flag_is_refused_and_those_of_the_command_are_its_own() {
    for flag in ["--verbos", "-x", "--reccord=f"] {
        let output = output(&mut run(&[flag, "--", "touch", "ran"])).await;
        let complained = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{complained}");
        assert!(
            complained.contains("unexpected argument") && !complained.contains("cannot start"),
            "{complained}"
        );
    }
    let output = output(&mut run(&["-q", "sh", "-c", "echo $0 $1", "--mode", "--log"])).await;
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(0), "--mode --log\n"));
}

#[tokio::test]
async fn the_proxy_may_open_more_files_than_the_command_was_given() {
    // It is raised again once the command has started.
    let script =
        "ulimit -Sn; while grep -q 'open files *300 ' /proc/$PPID/limits; do sleep 0.01; done; echo raised";
    let limited = format!("ulimit -Sn 300; exec {} \"$@\"", env!("CARGO_BIN_EXE_forkpoint"));
    let mut command = Command::new("sh");
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").kill_on_drop(true);
    command.args(["-c", &limited, "sh", "run", "--upstream", "http://127.0.0.1:1", "--", "sh", "-c", script]);
    let output = output(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).await;
    assert_eq!(text(&output.stdout), "300\nraised\n");
}

#[tokio::test]
async fn a_recording_that_is_asked_for_can_be_played_again() {
    let upstream = messages().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.jsonl");
    let words = ["--upstream", &upstream.url(), "--record", file.to_str().unwrap(), "-q", "--", "bash", "-c"];
    let mut command = run(&words);
    assert_eq!(output(command.arg(asks())).await.status.code(), Some(0));
    let recorded = crate::recording::lines(&file);
    assert_eq!((recorded.len(), &*recorded[0].bodies), (1, "redacted"));
    let mut command = run(&words);
    command.env("FORKPOINT_RECORD__BODIES", "off").env("FORKPOINT_RECORD__FILE", "/no/such/folder/file");
    assert_eq!(output(command.arg(asks())).await.status.code(), Some(0));
    let recorded = crate::recording::lines(&file);
    assert_eq!((recorded.len(), &*recorded[1].bodies), (2, "off"), "what is configured holds");
}

#[tokio::test]
async fn recordings_and_traces_are_complete_when_the_command_has_ended() {
    let (upstream, mut collector) = (messages().await, Receiver::start().await);
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("traffic.jsonl");
    let mut command = run(&["--upstream", &upstream.url(), "--quiet", "--", "bash", "-c", &asks()]);
    command.env("FORKPOINT_RECORD__FILE", &recording).env("FORKPOINT_TRACE__ENDPOINT", collector.url());
    assert_eq!(text(&output(&mut command).await.stderr), "");
    assert_eq!(std::fs::read_to_string(&recording).unwrap().lines().count(), 1);
    assert_eq!(collector.so_far().await.len(), 1);
}

#[tokio::test]
async fn log_lines_go_to_the_file_that_is_named() {
    let upstream = messages().await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("forkpoint.log");
    for _ in 0..2 {
        let mut command = run(&["--upstream", &upstream.url(), "--quiet", "--log", log.to_str().unwrap()]);
        command.env("FORKPOINT_LOG__FORMAT", "json").args(["--", "bash", "-c", &asks()]);
        let output = output(&mut command).await;
        assert_eq!(text(&output.stderr), "");
    }
    let lines = std::fs::read_to_string(&log).unwrap();
    let records: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests = records.iter().filter(|record| record["target"] == "forkpoint::request");
    assert_eq!(requests.count(), 2, "{lines}");
}

#[tokio::test]
async fn a_base_url_that_is_set_already_is_the_upstream_unless_one_is_configured() {
    let (mut named, mut configured) = (Upstream::answering(OK).await, Upstream::answering(OK).await);
    // A client that is there wherever the tests are.
    let script = format!(
        "at=${{ANTHROPIC_BASE_URL#http://}}; echo /${{at#*/}}; FORKPOINT_ADMIN_LISTEN=${{at%%/*}} exec {} healthcheck",
        env!("CARGO_BIN_EXE_forkpoint")
    );
    let before = format!("{}/behind/a/path", named.url());
    let with = |args: &[&str]| {
        let mut command = run(args);
        command.env("ANTHROPIC_BASE_URL", &before).env("http_proxy", "http://127.0.0.1:1");
        command.args(["--", "sh", "-c", &script]);
        command
    };
    let output_of = output(&mut with(&[])).await;
    assert_eq!(output_of.status.code(), Some(0), "{}", text(&output_of.stderr));
    assert_eq!(named.next().await.head.line(), "GET /readyz HTTP/1.1");
    assert_eq!(text(&output_of.stdout).lines().next(), Some("/behind/a/path"), "the command keeps its path");
    let output_of = output(&mut with(&["--upstream", &configured.url()])).await;
    assert_eq!(output_of.status.code(), Some(0), "{}", text(&output_of.stderr));
    assert_eq!(configured.next().await.head.line(), "GET /readyz HTTP/1.1");
    assert!(named.so_far().is_empty());
    let broken = output(run(&["--", "true"]).env("ANTHROPIC_BASE_URL", "nonsense")).await;
    assert_eq!(broken.status.code(), Some(64));
    assert!(text(&broken.stderr).contains("hint: ANTHROPIC_BASE_URL is set"), "{}", text(&broken.stderr));
}

#[tokio::test]
async fn environment_proxies_are_told_to_leave_ours_alone() {
    let script = "echo \"$NO_PROXY $no_proxy\"";
    let mut command = run(&["-q", "--", "sh", "-c", script]);
    assert_eq!(text(&output(&mut command).await.stdout), " \n");
    let mut command = run(&["-q", "--", "sh", "-c", script]);
    command.env("HTTPS_PROXY", "http://proxy.example").env("no_proxy", "a.example");
    assert_eq!(text(&output(&mut command).await.stdout), "127.0.0.1 a.example,127.0.0.1\n");
}

/// How a script begins that waits for signals: with somebody to wait for, whom no key of a terminal ever reaches, and who
/// does not outlive it.
const BEGINS: &str = "trap '' INT QUIT; sleep 1000 >/dev/null 2>&1 & trap \"kill -9 $!\" EXIT;";
/// What it does between them: a shell's `wait` misses none, where its `read` can.
const LISTENS: &str = "echo ready; while kill -0 $! 2>/dev/null; do wait $!; done";

/// Tests that run in the background are started to ignore some signals, and so would be whatever they start.
const HEARS_ALL: &str = "--default-signal";

#[tokio::test]
async fn signals_that_are_sent_to_us_are_passed_on_once() {
    let script = format!(
        "{BEGINS} for name in HUP INT QUIT USR1 WINCH TERM; do trap \"echo $name\" $name; done; trap 'exit 9' USR2\n{LISTENS}"
    );
    let mut command = Command::new("env");
    command.args([HEARS_ALL, env!("CARGO_BIN_EXE_forkpoint"), "run", "-q", "--", "sh", "-c", &script]);
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || within("a line", lines.next_line()).await.unwrap().unwrap_or_default();
    assert_eq!(next().await, "ready");
    for name in ["HUP", "INT", "QUIT", "USR1", "WINCH", "TERM", "TERM"] {
        signal(&child, name).await;
        assert_eq!(next().await, name);
    }
    signal(&child, "USR2").await;
    assert_eq!(next().await, "");
    assert_eq!(within("the end", child.wait()).await.unwrap().code(), Some(9));
}

async fn signal(child: &Child, name: &str) {
    let kill = format!("kill -{name} {}", child.id().unwrap());
    assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
}

#[tokio::test]
async fn what_we_were_started_to_ignore_the_command_ignores_too() {
    let script = "kill -HUP $$; echo still here";
    let ignoring =
        format!("trap '' HUP; exec {} run -q -- sh -c '{script}'", env!("CARGO_BIN_EXE_forkpoint"));
    let output = output(Command::new("sh").args(["-c", &ignoring]).kill_on_drop(true)).await;
    assert_eq!(text(&output.stdout), "still here\n");
}

#[tokio::test]
async fn what_the_terminal_sends_reaches_the_command_once() {
    let script = format!(
        "{BEGINS} n=0; trap 'n=$((n+1)); echo got $n' INT; trap 'echo total $n; exit 9' QUIT
test -t 0 && test -t 1 && test -t 2 && echo terminal\n{LISTENS}"
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("script"), script).unwrap();
    // The terminal's own shell must not be in between: it would end at the first key.
    let command = format!("exec env {HEARS_ALL} {} run -q -- sh ./script", env!("CARGO_BIN_EXE_forkpoint"));
    let mut child = Command::new("script")
        .args(["-q", "-e", "-f", "-c", &command, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut shown = String::new();
    let mut until = async |wanted: &str| {
        while !shown.contains(wanted) {
            let mut some = [0; 256];
            let count = within(&format!("{wanted:?}, seen {shown:?}"), screen.read(&mut some)).await.unwrap();
            assert!(count > 0, "ended before {wanted:?}, seen {shown:?}");
            shown += &String::from_utf8_lossy(&some[..count]);
        }
    };
    until("terminal\r\nready").await;
    keys.write_all(b"\x03").await.unwrap();
    until("got 1").await;
    keys.write_all(b"\x1c").await.unwrap();
    until("total 1").await;
    assert_eq!(within("the end", child.wait()).await.unwrap().code(), Some(9));
}
