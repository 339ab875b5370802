//! The upstream's own verdict beside ours.

use forkpoint::config::Config;
use serde_json::{Value, json};

use super::{ALIGN, OBSERVE, Stage, turn};
use crate::workload::{Exchange, prose};

const DIAGNOSE: fn(&mut Config) = |config| {
    ALIGN(config);
    config.canonical.diagnose = true;
};

/// The `diagnostics` member of the forwarded request.
fn question(exchange: &Exchange) -> Value {
    let body: Value = serde_json::from_slice(&exchange.forwarded).unwrap();
    body.get("diagnostics").cloned().unwrap_or_default()
}

/// The id of the answer.
fn id(exchange: &Exchange) -> String {
    let answer = std::str::from_utf8(&exchange.answer).unwrap();
    let from = answer.find("\"id\":\"msg_").unwrap() + "\"id\":\"".len();
    answer[from..].split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn each_turn_asks_about_the_one_before() {
    for stream in [false, true] {
        let stage = Stage::with(DIAGNOSE).await;
        let mut before = Value::Null;
        for number in 1..=4 {
            let mut body = turn(number);
            body["stream"] = json!(stream);
            let (exchange, record) = stage.ask(&body).await;
            assert_eq!(question(&exchange), json!({"previous_message_id": before}));
            assert_eq!((&record["diagnosis"], record.get("break_cause")), (&json!("none"), None), "{record}");
            before = json!(id(&exchange));
        }
    }
}

#[tokio::test]
async fn both_verdicts_name_the_same_change() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 4] = [
        ("tools", |body| body["tools"][0]["description"] = json!("Another.")),
        ("system", |body| body["system"][0]["text"] = json!(prose("Another.", 1_200))),
        ("model", |body| body["model"] = json!("claude-sonnet-4-6")),
        ("messages", |body| body["messages"][2]["content"][0]["text"] = json!("Another.")),
    ];
    for (cause, change) in changes {
        let stage = Stage::with(DIAGNOSE).await;
        for number in 1..=2 {
            stage.ask(&turn(number)).await;
        }
        let mut body = turn(3);
        change(&mut body);
        let (_, record) = stage.ask(&body).await;
        assert_eq!(record["break_cause"], cause, "{record}");
        assert_eq!(record["diagnosis"], format!("{cause}_changed"), "{record}");
        assert!(record["diagnosis_tokens"].as_u64().unwrap() > 0, "{record}");
    }
}

#[tokio::test]
async fn a_client_that_asks_by_itself_is_left_alone() {
    let stage = Stage::with(DIAGNOSE).await;
    for number in 1..=2 {
        let mut body = turn(number);
        body["diagnostics"] = json!({"previous_message_id": (number > 1).then_some("msg_of_its_own")});
        let (exchange, record) = stage.ask(&body).await;
        assert_eq!(question(&exchange), body["diagnostics"]);
        let verdict = if number > 1 { "previous_message_not_found" } else { "none" };
        assert_eq!(record["diagnosis"], verdict, "{record}");
    }
}

#[tokio::test]
async fn nothing_is_asked_unless_it_is_wanted() {
    let observe: fn(&mut Config) = |config| {
        DIAGNOSE(config);
        OBSERVE(config);
    };
    let automatic: fn(&mut Config) = |config| {
        DIAGNOSE(config);
        config.upstream.profile = forkpoint::config::Profile::Vertex;
    };
    for configure in [ALIGN, observe, automatic] {
        let stage = Stage::with(configure).await;
        let (exchange, record) = stage.ask(&turn(1)).await;
        assert_eq!((question(&exchange), record.get("diagnosis")), (Value::Null, None));
    }
}
