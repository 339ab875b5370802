//! A system prompt that is a string, and the one block that it becomes where the model reads both alike.

use forkpoint::config::Config;
use forkpoint::engine::respell::system_block::SystemForm;
use serde_json::{Value, json};

use crate::harness::Forkpoint;
use crate::workload::{Exchange, Letter, prose, tool};

use super::{Stage, mode, simulator};

/// A model that reads a string and one text block as the same prompt, and one of which that is not known.
const ALIKE: &str = "claude-opus-4-8";
const UNKNOWN: &str = "claude-sonnet-4-6";

async fn stage(form: SystemForm) -> Stage {
    let sim = simulator(|_| ()).await;
    let configure = |config: &mut Config| {
        config.server.mode = mode("align");
        config.canonical.system = form;
    };
    Stage { forkpoint: Forkpoint::with(&sim.url(), configure).await, sim }
}

fn system() -> String {
    prose("You sort \"things\".", 2_000)
}

fn body(model: &str) -> Value {
    json!({"model": model, "max_tokens": 64, "tools": [tool("read"), tool("write")], "system": system(),
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}]})
}

fn forwarded_system(exchange: &Exchange) -> Value {
    assert_eq!(exchange.status, 200);
    serde_json::from_slice::<Value>(&exchange.forwarded).unwrap()["system"].clone()
}

#[tokio::test]
async fn a_string_becomes_a_block_where_the_model_or_the_operator_says_so() {
    let cases = [
        (SystemForm::Auto, ALIKE, true),
        (SystemForm::Auto, UNKNOWN, false),
        (SystemForm::Keep, ALIKE, false),
        (SystemForm::Block, UNKNOWN, true),
    ];
    for (form, model, is_block) in cases {
        let stage = stage(form).await;
        let sent = stage.line().send(&Letter::alone(&body(model))).await;
        let system_sent = forwarded_system(&sent);
        if is_block {
            let mark = json!({"type": "ephemeral"});
            assert_eq!(system_sent, json!([{"type": "text", "text": system(), "cache_control": mark}]));
        } else {
            assert_eq!(system_sent, json!(system()), "{form:?} {model}");
            let tools = serde_json::from_slice::<Value>(&sent.forwarded).unwrap()["tools"].clone();
            assert!(tools[1]["cache_control"].is_object(), "the end of the tools is marked");
        }
    }
}

#[tokio::test]
async fn a_conversation_keeps_what_it_began_with() {
    let stage = stage(SystemForm::Auto).await;
    let line = stage.line();
    for (first, is_block) in [(ALIKE, true), (UNKNOWN, false)] {
        let mut body = body(first);
        body["messages"][0]["content"] = json!(format!("I begin with {first}."));
        let begun = line.send(&Letter::alone(&body)).await;
        assert_eq!(forwarded_system(&begun).is_array(), is_block);
        let more =
            [json!({"role": "assistant", "content": "So."}), json!({"role": "user", "content": "On."})];
        body["messages"].as_array_mut().unwrap().extend(more);
        body["model"] = json!(if is_block { UNKNOWN } else { ALIKE });
        let later = line.send(&Letter::alone(&body)).await;
        assert_eq!(forwarded_system(&later).is_array(), is_block, "{first}");
    }
}
