//! Threads in the other forms in which they come: compressed, and begun by a summary.

use serde_json::{Value, json};

use super::super::compressed::compressed;
use super::{
    BETA, Client, FORKED, FREE, Repeats, Stage, child, fan_out, forwarded, markers, plan, usage,
    without_markers, worker,
};
use crate::workload::Line;

const SUMMARIES: &str = "compact-2026-09-04";

#[tokio::test]
async fn a_compressed_continue_is_read_and_marked_like_any_other() {
    for coding in ["gzip", "deflate", "br", "zstd"] {
        let stage = Stage::new(|_| ()).await;
        let mut client = Client::new(worker(FREE), Repeats::Nothing);
        client.turn(&stage).await;
        for turn in 2..=3 {
            let sent = client.next();
            let packed = compressed(&sent, coding).with("anthropic-beta", BETA);
            let exchange = stage.line().send(&packed).await;
            let exchange = client.answered(&stage.line(), exchange).await;
            let at = format!("{coding} turn {turn}");
            assert_eq!((plan(&exchange)[1], client.replays), ("aligned", 0), "{at}");
            let body = forwarded(&exchange);
            assert_eq!((markers(&body), without_markers(body.clone())), (1, sent), "{at}");
            assert!(usage(&exchange).cache_read > 10_000, "{at}");
        }
    }
}

/// As the SDKs do: the whole conversation is sent with the request for a summary, and the next thread is begun by the
/// summary alone.
#[tokio::test]
async fn a_forked_child_that_is_summed_up_begins_its_next_thread_with_the_summary_alone() {
    for repeats in [Repeats::Nothing, Repeats::All] {
        let stage = Stage::new(|_| ()).await;
        let (_, told) = fan_out(&stage, FREE, repeats).await;
        let mut client = Client::new(child(FREE, &told[0]), repeats).with_betas(SUMMARIES);
        assert_eq!(plan(&client.turn(&stage).await), FORKED);
        let mut asking = client.create();
        asking["compaction"] = json!({"type": "summarize"});
        let asked = stage.line().send(&client.letter(&asking)).await;
        assert_eq!((asked.status, plan(&asked)), (200, FORKED), "{:?}", asked.answer);
        let summary = asked.blocks().unwrap().remove(0);
        assert_eq!(summary["type"], "compaction");
        client.body["messages"] = json!([{"role": "assistant", "content": [summary.clone()]}]);
        client.previous = None;
        let begun = client.turn(&stage).await;
        assert_eq!((&plan(&begun)[..1], client.replays), (&["child"][..], 0), "{:?}", plan(&begun));
        let first = &forwarded(&begun)["messages"][0];
        assert_eq!((&first["role"], unmarked(&first["content"][0])), (&json!("assistant"), summary));
        for _ in 0..2 {
            client.says("Go on. [[sim:text words=5]]");
            let next = client.turn(&stage).await;
            assert_eq!((next.said("role"), client.replays), (Some("child"), 0), "{:?}", plan(&next));
        }
        assert!(stage.sim.requests().iter().all(|request| request.status == Some(200)));
    }
}

fn unmarked(block: &Value) -> Value {
    without_markers(block.clone())
}

#[tokio::test]
async fn a_summary_that_nobody_has_asked_for_here_begins_a_thread_as_it_came() {
    let stage = Stage::new(|_| ()).await;
    let mut client = Client::new(worker(FREE), Repeats::Nothing).with_betas(SUMMARIES);
    let mut asking = client.create();
    asking["messages"] = json!([{"role": "user", "content": "Here is the project."}]);
    asking["compaction"] = json!({"type": "summarize"});
    let asked = Line::direct(&stage.sim).send(&client.letter(&asking)).await;
    let summary = asked.blocks().unwrap().remove(0);
    client.body["messages"] = json!([{"role": "assistant", "content": [summary.clone()]}]);
    let begun = client.turn(&stage).await;
    assert_eq!(unmarked(&forwarded(&begun)["messages"][0]["content"][0]), summary);
    client.says("Go on. [[sim:text words=5]]");
    client.turn(&stage).await;
    assert_eq!(client.replays, 0);
}
