//! Leaders that do not stream show nothing before their whole answer: how long they are waited for is learned.

use std::time::Duration;

use serde_json::json;

use crate::harness::until;

use crate::fork::scene::{Scene, sibling};
use crate::fork::talk::{Call, text, whole};

fn unstreamed(child: usize) -> Call {
    sibling("", child).and("stream", json!(false))
}

/// An answer that read so much from the cache.
fn answer(read: u64) -> Vec<u8> {
    let bytes = String::from_utf8(whole("msg_child", 9_000, &[text("Found.")])).unwrap();
    let usage = format!("\"usage\":{{\"cache_read_input_tokens\":{read},\"input_tokens\"");
    let body = bytes.split_once("\r\n\r\n").unwrap().1.replace("\"usage\":{\"input_tokens\"", &usage);
    crate::harness::samples::answer("content-type: application/json\r\n", body.as_bytes())
}

#[tokio::test]
async fn a_streaming_sibling_takes_the_lead_over_one_that_does_not_stream() {
    let scene = Scene::fanned_out(3, |_| ()).await;
    let mut first = scene.calls(&unstreamed(0), 1).await;
    let mut leader = scene.next().await;
    let mut second = scene.arrives(1, 2).await;
    let mut streaming = scene.next().await;
    assert_eq!(streaming.child, 1);
    let mut third = scene.arrives(2, 3).await;
    leader.send(&answer(0)).await;
    assert_eq!(first.reply().await.status(), 200);
    streaming.answer().await;
    assert_eq!(scene.answer(1).await, [2]);
    assert_eq!((second.reply().await.status(), third.reply().await.status()), (200, 200));
    scene.forkpoint.recorded(4).await;
    let outcomes = ["led", "overtook", "released"].map(|outcome| scene.holds(outcome));
    assert_eq!(outcomes, [1, 1, 1]);
}

#[tokio::test]
async fn a_wait_that_is_never_long_enough_is_given_up_for_that_tenant_and_model() {
    let scene = Scene::with(|config| config.gate.json_hold = Duration::from_millis(20)).await;
    for round in 0..4 {
        // Another prompt each time: what was written before is warm.
        let sibling = |child| {
            let call = crate::fork::scene::sibling(&format!(" {round}"), child).and("stream", json!(false));
            call.and("system", json!([text(&crate::workload::prose(&format!("Worker {round}."), 3_000))]))
        };
        scene.fan_out(&format!(" {round}"), 2).await;
        let mut first = scene.calls(&sibling(0), 1).await;
        let mut leader = scene.next().await;
        let mut second = scene.forkpoint.client().await;
        second.send(&crate::fork::scene::request(&sibling(1))).await;
        // It goes before the leader is answered, and reads nothing.
        let mut follower = scene.next().await;
        follower.send(&answer(0)).await;
        assert_eq!(second.reply().await.status(), 200);
        leader.send(&answer(0)).await;
        assert_eq!(first.reply().await.status(), 200);
        scene.forkpoint.recorded(3 * (round + 1)).await;
    }
    until("the outcomes", || scene.holds("json_given_up") == 1).await;
    assert_eq!((scene.holds("led"), scene.holds("presumed")), (4, 3));
}
