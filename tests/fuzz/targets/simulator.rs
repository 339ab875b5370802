//! Any bytes as a Messages request get an answer of the API's shape from the simulator, and an answer that
//! succeeds is a whole turn to the engine, which shares no code with it.
//!
//! The first byte chooses the endpoint; the rest is the body, sent over a real socket.

#![no_main]

use std::cell::RefCell;

use forkpoint::engine::answer::sse::Framer;
use forkpoint::engine::answer::turn::{Turn, TurnBuilder, TurnLimits, Wholeness};
use forkpoint::sim::{Latency, Sim, SimConfig, SimLimits};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

const NO_LIMITS: TurnLimits = TurnLimits { bytes: usize::MAX, tool_uses: usize::MAX };

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::start());
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, body)) = input.split_first() else { return };
    WORLD.with_borrow(|world| match choice & 1 {
        0 => world.ask("/v1/messages", body),
        _ => world.ask("/v1/messages/count_tokens", body),
    });
});

struct World {
    runtime: Runtime,
    sim: Sim,
    client: reqwest::Client,
}

impl World {
    fn start() -> World {
        // Paused: an answer that is to wait does not keep the fuzzer waiting.
        let runtime =
            Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        let limits = SimLimits { cache_entries: 1000, journal_requests: 16, ..SimLimits::default() };
        let config = SimConfig { latency: Latency::none(), limits, ..SimConfig::default() };
        let sim = runtime.block_on(Sim::start(config)).expect("a free port");
        let client = reqwest::Client::builder().no_proxy().pool_idle_timeout(None).build().expect("a client");
        World { runtime, sim, client }
    }

    fn ask(&self, path: &str, body: &[u8]) {
        let request = self
            .client
            .post(format!("{}{path}", self.sim.url()))
            .header("x-api-key", "fuzz")
            .header("anthropic-version", "2023-06-01")
            .header("content-type", "application/json")
            .body(body.to_vec());
        let (status, is_stream, answer) = self.runtime.block_on(async {
            let response = request.send().await.expect("an answer");
            let kind = response.headers().get("content-type").expect("a content type").clone();
            let is_stream = kind.as_bytes().starts_with(b"text/event-stream");
            (response.status().as_u16(), is_stream, response.bytes().await.expect("a whole answer"))
        });
        match (status, is_stream) {
            (200, true) => whole(&from_stream(&answer), &answer),
            (200, false) if path == "/v1/messages" => whole(&Turn::from_json(&answer, NO_LIMITS), &answer),
            (200, false) => assert!(parsed(&answer)["input_tokens"].is_u64()),
            (400 | 404 | 413, false) => {
                let error = parsed(&answer);
                assert_eq!(error["type"], "error");
                assert!(error["error"]["type"].is_string() && error["error"]["message"].is_string());
            }
            _ => panic!("{status}: {}", answer.escape_ascii()),
        }
    }
}

fn from_stream(answer: &[u8]) -> Turn {
    let (mut framer, mut builder) = (Framer::new(usize::MAX), TurnBuilder::new(NO_LIMITS));
    framer.push(answer, |event| builder.push(event.data));
    builder.finish()
}

fn whole(turn: &Turn, answer: &[u8]) {
    assert_eq!(turn.wholeness, Wholeness::Whole, "{}", answer.escape_ascii());
    assert!(turn.id.is_some() && turn.model.is_some() && turn.stop_reason.is_some() && turn.bill.is_some());
}

fn parsed(answer: &[u8]) -> Value {
    serde_json::from_slice(answer).expect("JSON")
}
