//! Children that are given what their parent has read.

use forkpoint::config::{Config, Mode};
use forkpoint::engine::words::Arm;
use serde_json::{Value, json};

use super::{FREE, Stage, child, extend, parent, plan};
use crate::harness::{Log, until};
use crate::workload::Exchange;

/// A file of so many lines.
fn file(name: &str, lines: usize) -> String {
    (0..lines).map(|line| format!("{name}, line {line}: \"quoted\" and \u{e9}\n")).collect()
}

/// A parent that has read a file and starts two children, each of which calls a tool so many times.
fn parent_that_read(read: &str, turns: usize) -> Value {
    let script = format!("[[sim:fan_out n=2 tool=Agent field=prompt | tools turns={turns} tool=read_file]]");
    let mut body = parent(FREE, &script);
    let call = json!({"type": "tool_use", "id": "toolu_r", "name": "read_file", "input": {"path": "a"}});
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_r", "content": read});
    let messages = body["messages"].as_array_mut().unwrap();
    let last = messages.pop().unwrap();
    messages.push(json!({"role": "user", "content": "Read it."}));
    messages.push(json!({"role": "assistant", "content": [call]}));
    messages.push(json!({"role": "user", "content": [result, last["content"][0]]}));
    body
}

/// Appends the answer, and this as the result of its call.
fn extend_with(body: &mut Value, exchange: &Exchange, content: Value) {
    extend(body, exchange);
    let last = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
    last["content"][0]["content"] = content;
}

impl Stage {
    fn rereads(&self, plan: &str) -> [u64; 2] {
        let label = format!("plan=\"{plan}\"");
        ["reread_turns_total", "reread_tokens_total"].map(|metric| self.count(metric, &[&label]))
    }
}

type Configure = fn(&mut Config);

#[tokio::test]
async fn results_that_the_parent_had_read_are_counted_once_under_every_plan() {
    let cases: [(&str, Configure); 3] = [
        ("passthrough", |config| config.server.mode = Mode::Observe),
        ("aligned", |config| config.server.mode = Mode::Align),
        ("forked", |config| {
            config.fork.policy.max_cost_ratio = 100.0;
            config.fork.policy.context_premium = 100.0;
        }),
    ];
    for (expected, configure) in cases {
        let log = Log::start();
        let stage = Stage::new(configure).await;
        let read = file("a", 300);
        let told = stage.fan_out(&parent_that_read(&read, 3)).await;
        let mut body = child(FREE, &told[0]);
        let first = stage.send(&body).await;
        assert_eq!(plan(&first)[1], expected);
        // In other blocks than the parent was given it.
        let (start, end) = read.split_at(read.len() / 2);
        extend_with(
            &mut body,
            &first,
            json!([{"type": "text", "text": start}, {"type": "text", "text": end}]),
        );
        let second = stage.send(&body).await;
        // The same turn again, as after a lost answer, and then one that brings something else.
        stage.send(&body).await;
        extend_with(&mut body, &second, json!(file("new", 300)));
        stage.send(&body).await;
        until("the lines", || log.count() == 5).await;
        let logged: Vec<Option<u64>> =
            log.records().iter().map(|line| line.get("reread_tokens").and_then(Value::as_u64)).collect();
        let [None, None, Some(tokens), None, None] = logged[..] else { panic!("{expected}: {logged:?}") };
        assert_eq!(stage.rereads(expected), [1, tokens]);
        let by_tool = stage.forkpoint.proxy.store().rereads();
        let [(_, tool, arm, rereads)] = &by_tool[..] else { panic!("{by_tool:?}") };
        let of_arm = if expected == "forked" { Arm::Forked } else { Arm::Unforked };
        assert_eq!((tool.as_str(), *arm), ("Agent", of_arm));
        assert_eq!((rereads.tokens, rereads.turns), (tokens, 1));
        // The simulator bills a token for four bytes.
        let billed = json!(read).to_string().len() as f64 / 4.0;
        assert!((tokens as f64 / billed - 1.0).abs() < 0.1, "{tokens} of {billed}");
        for other in ["passthrough", "aligned", "forked"].into_iter().filter(|plan| *plan != expected) {
            assert_eq!(stage.rereads(other), [0, 0], "{other}");
        }
    }
}

#[tokio::test]
async fn a_part_of_a_file_is_read_again_and_a_short_answer_is_not() {
    let stage = Stage::new(|config| config.server.mode = Mode::Align).await;
    let read = file("a", 300);
    let told = stage.fan_out(&parent_that_read(&read, 1)).await;
    let part: String = read.lines().skip(100).take(40).map(|line| format!("{line}\n")).collect();
    for (told, content, turns) in [(&told[0], "ok".to_owned(), 0), (&told[1], part, 1)] {
        let mut body = child(FREE, told);
        let first = stage.send(&body).await;
        extend_with(&mut body, &first, json!(content));
        let before = stage.count("requests_total", &[]);
        stage.send(&body).await;
        until("the turn", || stage.count("requests_total", &[]) > before).await;
        assert_eq!(stage.rereads("aligned")[0], turns, "{content}");
    }
}
