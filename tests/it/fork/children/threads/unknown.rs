//! Conversations that are not known here, and those that are only observed from now on.

use forkpoint::config::Mode;

use super::{
    Client, Exchange, FORKED, FREE, MISMATCH, Repeats, Stage, Value, child, error_of, fan_out, forwarded,
    id_of, json, plan, worker,
};
use crate::workload::Letter;

/// The status of a refused request and, by its code, the reason.
fn refusal(exchange: &Exchange) -> (u16, Value) {
    (exchange.status, error_of(exchange)["details"]["error_code"].clone())
}

fn asked_whole() -> (u16, Value) {
    (404, json!("thread_not_found"))
}

fn mismatch() -> (u16, Value) {
    (400, json!(MISMATCH))
}

impl Client {
    fn refused(&self) -> Letter {
        self.letter(&self.next()).with("x-sim-refusal", MISMATCH)
    }

    /// Takes in an answer that was not asked for by a turn.
    fn answered_by(&mut self, exchange: &Exchange) {
        assert_eq!(exchange.status, 200, "{}", String::from_utf8_lossy(&exchange.answer));
        self.previous = Some(id_of(exchange));
        self.take_in(exchange);
    }
}

#[tokio::test]
async fn a_conversation_that_is_not_known_is_asked_for_once_and_then_goes_out_as_it_came() {
    for mode in Mode::ALL {
        let mut stage = Stage::new(|config| config.server.mode = mode).await;
        let mut client = Client::new(worker(FREE), Repeats::Nothing);
        client.turn(&stage).await;
        stage.restart_as(|config| config.server.mode = mode).await;
        // Nothing else is known of its tenant either.
        assert_eq!(refusal(&stage.line().send(&client.refused()).await), asked_whole(), "{mode:?}");
        assert_eq!(refusal(&stage.line().send(&client.refused()).await), mismatch(), "{mode:?}: once");
        let sent = client.create();
        let replay = client.post(&stage, &sent).await;
        let expected = if mode == Mode::Observe { "observe" } else { "refused" };
        assert_eq!(plan(&replay), ["plain", "passthrough", expected], "{mode:?}");
        assert!(forwarded(&replay) == sent, "{mode:?}: as it came");
        client.answered_by(&replay);
        assert_eq!(
            refusal(&stage.line().send(&client.refused()).await),
            mismatch(),
            "{mode:?}: of its lineage"
        );
        let next = client.turn(&stage).await;
        assert_eq!((plan(&next)[1], client.replays), ("passthrough", 0), "{mode:?}");
        assert_eq!(stage.count("fallbacks_total", &["reason=\"thread\""]), 1, "{mode:?}");
        // One that was asked the same, and answered otherwise, was not asked for.
        let mut body = worker(FREE);
        body["messages"][1]["content"] = json!([{"type": "text", "text": "I have looked."}]);
        let mut other = Client::new(body, Repeats::Nothing);
        let expected = if mode == Mode::Observe { "passthrough" } else { "aligned" };
        for _ in 0..2 {
            assert_eq!(plan(&other.turn(&stage).await)[1], expected, "{mode:?}");
        }
    }
}

#[tokio::test]
async fn a_child_that_is_observed_on_its_prefix_is_asked_for_everything_once() {
    let stage = Stage::new(|_| ()).await;
    let (_, told) = fan_out(&stage, FREE, Repeats::All).await;
    let mut client = Client::new(child(FREE, &told[0]), Repeats::All);
    assert_eq!(plan(&client.turn(&stage).await), FORKED);
    let observed = |letter: Letter| letter.with("x-forkpoint-mode", "observe");
    // The upstream holds it on its parent's prefix, and compares that with what comes.
    let refused = stage.line().send(&observed(client.letter(&client.next()))).await;
    assert_eq!(refusal(&refused), asked_whole());
    let replay = stage.line().send(&observed(client.letter(&client.create()))).await;
    assert_eq!((plan(&replay)[1..].to_vec(), replay.is_untouched()), (vec!["passthrough", "observe"], true));
    client.answered_by(&replay);
    let next = stage.line().send(&observed(client.letter(&client.next()))).await;
    client.answered_by(&next);
    assert_eq!(refusal(&stage.line().send(&observed(client.refused())).await), mismatch(), "once");
    assert_eq!(stage.count("fallbacks_total", &["reason=\"thread\""]), 1);
}

#[tokio::test]
async fn a_mismatch_of_a_conversation_that_was_only_observed_is_passed_on() {
    let stage = Stage::new(|config| config.server.mode = Mode::Observe).await;
    let mut client = Client::new(worker(FREE), Repeats::Nothing);
    client.turn(&stage).await;
    assert_eq!(refusal(&stage.line().send(&client.refused()).await), mismatch());
    assert_eq!(stage.count("fallbacks_total", &[]), 0);
}
