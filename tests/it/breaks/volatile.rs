//! Text that changes from turn to turn: named by kind and place, never by its words.

use forkpoint::config::{Config, Volatile};
use serde_json::{Value, json};

use super::{ALIGN, OBSERVE, Stage, cached, marked, read, text, tool, turn};
use crate::harness::Binary;
use crate::workload::{Letter, Line, prose};

const CANARY: &str = "cAnArY";

/// A careless system prompt on one turn.
struct Surroundings {
    date: &'static str,
    clock: &'static str,
    directory: String,
    git: String,
}

impl Surroundings {
    fn at(number: usize) -> Surroundings {
        Surroundings {
            date: ["2026-11-15", "2026-11-16", "2026-11-17"][number - 1],
            clock: ["09:58:01", "09:59:02", "10:00:03"][number - 1],
            directory: format!("/home/{CANARY}/{number}"),
            git: format!("M src/{CANARY}{number}.rs"),
        }
    }
}

fn body(number: usize, said: &Surroundings) -> Value {
    let mut body = turn(number);
    body["tools"] = json!([tool("search"), tool("run")]);
    body["tools"][1]["description"] = json!(format!("Runs a command. The time is {}.", said.clock));
    body["system"] = json!([
        text(prose("You find out why.", 600)),
        text(format!("Today is {}.", said.date)),
        text(format!("Working directory: {}\nKeep to it.", said.directory)),
        marked(text(format!("Status:\n{}\n{}", said.git, prose("You find out why.", 600)))),
    ]);
    body
}

fn counted(stage: &Stage, family: &str, layer: &str, kind: &str) -> f64 {
    let labels = [&*format!("layer=\"{layer}\""), &*format!("kind=\"{kind}\"")];
    stage.forkpoint.metric(&format!("forkpoint_volatile_{family}"), &labels)
}

#[tokio::test]
async fn what_changed_is_named_by_kind_and_place() {
    for configure in [ALIGN, OBSERVE] {
        let stage = Stage::with(configure).await;
        let (_, first) = stage.ask(&body(1, &Surroundings::at(1))).await;
        assert_eq!(first.get("volatile"), None, "{first}");
        let (exchange, second) = stage.ask(&body(2, &Surroundings::at(2))).await;
        let places = "clock@tools[1],date@system[1],directory@system[2],git@system[3]";
        assert_eq!(second["volatile"], places, "{second}");
        assert_eq!(second["break_cause"], "tools", "{second}");
        // From the clock on everything up to the last breakpoint was paid again, by bytes.
        let (paid, said) =
            ((cached(&exchange) - read(&exchange)) as f64, second["volatile_tokens"].as_f64().unwrap());
        assert!((0.6..=1.05).contains(&(said / paid)), "{said} of {paid}");
        for (layer, kind) in
            [("tools", "clock"), ("system", "date"), ("system", "directory"), ("system", "git")]
        {
            assert_eq!(counted(&stage, "total", layer, kind), 1.0, "{kind}");
            assert!(counted(&stage, "tokens_total", layer, kind) > 0.0, "{kind}");
        }
        assert_eq!(counted(&stage, "tokens_total", "tools", "clock"), said);
        assert!(!stage.log.text().contains(CANARY), "{}", stage.log.text());
        assert!(!stage.forkpoint.metrics.render().unwrap().contains(CANARY));
    }
}

#[tokio::test]
async fn what_stays_is_not_named() {
    let stage = Stage::with(ALIGN).await;
    for number in 1..=3 {
        let (_, record) = stage.ask(&body(number, &Surroundings::at(1))).await;
        assert_eq!(record.get("volatile"), None, "{record}");
    }
    // Another spelling is no other text, and neither is a change of the history.
    let mut respelt = body(4, &Surroundings::at(1));
    respelt["messages"][2]["content"][0]["text"] = json!("At 10:00 it was otherwise.");
    let (_, record) = stage.ask(&respelt).await;
    assert_eq!((&record["drift"], record.get("volatile")), (&json!("drifted"), None), "{record}");
    assert_eq!(stage.forkpoint.metric("forkpoint_volatile_total", &[]), 0.0);
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let off: fn(&mut Config) = |config| {
        ALIGN(config);
        config.canonical.volatile = Volatile::Off;
    };
    let stage = Stage::with(off).await;
    for number in 1..=2 {
        let (_, record) = stage.ask(&body(number, &Surroundings::at(number))).await;
        assert_eq!(record.get("volatile"), None, "{record}");
    }
    assert_eq!(stage.forkpoint.metric("forkpoint_volatile_total", &[]), 0.0);
}

#[tokio::test]
async fn the_words_themselves_stay_out_of_every_log() {
    let stage = Stage::with(ALIGN).await;
    for (format, level) in [("json", "trace"), ("human", "info")] {
        stage.forget().await;
        let settings = [("LOG__FORMAT", format), ("LOG__LEVEL", level)];
        let binary = Binary::serve(&stage.sim.url(), &settings).await;
        let proxy = stage.forkpoint.proxy.clone();
        let line = Line::through(format!("http://{}", binary.proxy), proxy, &stage.sim);
        for number in 1..=2 {
            let body = body(number, &Surroundings::at(number));
            assert_eq!(line.send(&Letter::alone(&body)).await.status, 200);
        }
        let lines = binary.lines("forkpoint::request", 2).await;
        let places = "clock@tools[1],date@system[1],directory@system[2],git@system[3]";
        assert!(lines[1].contains(places) && lines[1].contains("break_cause"), "{}", lines[1]);
        let (_, metrics) = binary.admin("/metrics").await;
        assert!(metrics.contains("forkpoint_volatile_total{kind=\"git\",layer=\"system\"} 1"), "{metrics}");
        assert!(!metrics.contains(CANARY), "{metrics}");
        assert!(binary.said().iter().all(|line| !line.contains(CANARY)));
    }
}
