//! Requests that are not to go out without the parent that they name, where nothing would be done with them.

use forkpoint::config::Mode;
use serde_json::json;

use super::{FREE, Stage, parent};
use crate::harness::post;

const FAN_OUT: &str = "[[sim:fan_out n=2 tool=Agent field=prompt | text words=9]]";
const KEY: &str = "x-api-key: sk-test\r\nanthropic-version: 2023-06-01\r\n";

/// The status of a small question to a turn of `parent`, and how many requests the upstream has got by it.
async fn asked(stage: &Stage, parent: &str, headers: &str, body: &[u8]) -> (u16, Option<String>, usize) {
    let before = stage.sim.requests().len();
    let headers = format!("{headers}x-forkpoint-parent: {parent}\r\nx-forkpoint-parent-required: true\r\n");
    let reply = stage.forkpoint.client().await.ask(&post("/v1/messages", &headers, body)).await;
    let reason = if reply.status() == 409 { reply.reason() } else { None };
    (reply.status(), reason, stage.sim.requests().len() - before)
}

fn question() -> Vec<u8> {
    let said = json!([{"role": "user", "content": "What is it about?"}]);
    json!({"model": FREE, "max_tokens": 100, "messages": said}).to_string().into_bytes()
}

/// As the API would say it, so that SDKs raise their error of a conflict, and do not try again.
#[tokio::test]
async fn the_refusal_has_the_shape_of_the_apis() {
    let stage = Stage::new(|_| ()).await;
    let headers = format!("{KEY}x-forkpoint-parent: msg_of_nobody\r\nx-forkpoint-parent-required: true\r\n");
    let reply = stage.forkpoint.client().await.ask(&post("/v1/messages", &headers, &question())).await;
    let said = |name: &str| reply.head.get(name);
    assert_eq!((reply.status(), said("content-type").as_deref()), (409, Some("application/json")));
    assert_eq!(said("x-should-retry").as_deref(), Some("false"));
    assert_eq!(said("content-length"), Some(reply.body.len().to_string()));
    let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("forkpoint: the parent that x-forkpoint-parent names"), "{message}");
    assert_eq!(body, json!({"type": "error", "error": {"type": "conflict_error", "message": message}}));
    for name in ["role", "plan", "reason"] {
        assert!(said(&format!("x-forkpoint-{name}")).is_some(), "{name}: {:?}", reply.head);
    }
}

#[tokio::test]
async fn what_is_only_observed_does_not_go_out_without_its_parent() {
    let refused = (409, Some("unknown_parent".to_owned()), 0);
    for mode in Mode::ALL {
        let stage = Stage::new(|config| config.server.mode = mode).await;
        let lead = stage.send(&parent(FREE, FAN_OUT)).await;
        let id = super::threads::id_of(&lead);
        stage.forkpoint.recorded(1).await;
        assert_eq!(asked(&stage, "msg_of_nobody", KEY, &question()).await, refused, "{mode:?}");
        let (status, _, sent) = asked(&stage, &id, KEY, &question()).await;
        assert_eq!((status, sent), (200, 1), "{mode:?}: it is known");
        // The tokens of logins, and others' signatures.
        for headers in [
            "authorization: Bearer sk-ant-oat01-x\r\n",
            "authorization: Bearer t\r\nanthropic-beta: oauth-2025-04-20\r\n",
            "x-api-key: key\r\ncontent-md5: x\r\n",
        ] {
            assert_eq!(asked(&stage, "msg_of_nobody", headers, &question()).await, refused, "{headers}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_read_does_not_go_out_without_its_parent() {
    let refused = (409, Some("unknown_parent".to_owned()), 0);
    for mode in Mode::ALL {
        let stage = Stage::new(|config| {
            config.server.mode = mode;
            config.limits.body_bytes = 1_000;
        })
        .await;
        let large = vec![b' '; 2_000];
        for (headers, body) in [
            (KEY, &b"no json"[..]),
            ("x-api-key: key\r\ncontent-encoding: odd\r\n", &question()),
            ("", &question()),
            (KEY, &large),
        ] {
            assert_eq!(asked(&stage, "msg_1", headers, body).await, refused, "{mode:?} {headers}");
        }
    }
}
