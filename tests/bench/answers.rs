//! The answers of the mock upstream, fixed to the byte.
//!
//! Mock and load generator are two processes that build the same bytes from this file, so the
//! generator can compare every answer with what was sent and call a run with one altered byte invalid.

use std::fmt::Write as _;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::bodies::{CHILDREN, directive};

/// Events of one streamed answer: about a paragraph of text, one event per few words.
pub const EVENTS: usize = 200;

/// Agents that an answer with a sign starts.
pub const SIGNED_CHILDREN: usize = 2;

/// Events that frame the text: message_start, content_block_start, ping, content_block_stop, message_delta,
/// message_stop.
const FRAMING_EVENTS: usize = 6;

/// The answer that the client asks the mock for; travels in the header `x-bench-answer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// One small message with usage.
    Json,
    /// `EVENTS` events, each its own write.
    Sse,
    /// The first event, then silence until the mock gets the word to go on.
    Idle,
    /// A message that starts `CHILDREN` agents, with ids of its own.
    FanOut,
    /// The small message, for a child that must arrive on its parent's prefix and is billed for reading it: one that
    /// costs more than predicted would put an end to forking.
    Forked,
    /// The small message with the sign of its request in it.
    Signed,
    /// A message with that sign that starts `SIGNED_CHILDREN` agents.
    SignedFanOut,
    /// Not the mock's: whatever message an API answers, as long as it is whole.
    AnyJson,
    /// A stream of events that is not the mock's, as long as it is whole.
    AnyStream,
}

/// The bytes that must arrive at the client.
#[derive(Clone, Copy)]
pub enum Expected {
    Exactly(&'static [u8]),
    EndingWith(&'static [u8]),
}

impl Answer {
    pub fn as_str(self) -> &'static str {
        match self {
            Answer::Json => "json",
            Answer::Sse => "sse",
            Answer::Idle => "idle",
            Answer::FanOut => "fan-out",
            Answer::Forked => "forked",
            Answer::Signed => "signed",
            Answer::SignedFanOut => "signed-fan-out",
            Answer::AnyJson | Answer::AnyStream => "any",
        }
    }

    pub fn is_streamed(self) -> bool {
        matches!(self, Answer::Sse | Answer::Idle | Answer::AnyStream)
    }

    pub fn named(name: &str) -> Option<Answer> {
        let own = [Answer::Json, Answer::Sse, Answer::Idle, Answer::FanOut, Answer::Forked];
        own.into_iter().chain([Answer::Signed, Answer::SignedFanOut]).find(|answer| answer.as_str() == name)
    }

    pub fn expected(self) -> Expected {
        match self {
            Answer::Json => Expected::Exactly(JSON.as_bytes()),
            Answer::Forked => Expected::Exactly(FORKED.as_bytes()),
            Answer::Sse | Answer::Idle => Expected::Exactly(&STREAM),
            Answer::AnyJson | Answer::FanOut | Answer::Signed | Answer::SignedFanOut => {
                Expected::EndingWith(b"}}")
            }
            Answer::AnyStream => Expected::EndingWith(b"data: {\"type\":\"message_stop\"}\n\n"),
        }
    }
}

pub fn json() -> &'static str {
    &JSON
}

pub fn forked() -> &'static str {
    &FORKED
}

/// The answer that starts agents, which differs from others by a number.
pub fn fan_out(nonce: u64) -> String {
    let call = |number: usize| {
        let input = serde_json::json!({"description": format!("part {number}"), "prompt": directive(number)});
        format!(
            r#"{{"type":"tool_use","id":"toolu_01{nonce:016x}{number:04}","name":"Agent","input":{input}}}"#
        )
    };
    let calls: Vec<String> = (1..=CHILDREN).map(call).collect();
    format!(
        r#"{{"id":"msg_01{nonce:016x}","type":"message","role":"assistant","model":"claude-sonnet-4-6","content":[{}],"stop_reason":"tool_use","stop_sequence":null,"usage":{USAGE_AT_START}}}"#,
        calls.join(",")
    )
}

/// The answer to a request of this sign, which is in every part of it.
pub fn signed(sign: &str) -> String {
    let text = format!(r#"{{"type":"text","text":"{sign} {sign}"}}"#);
    signed_message(sign, &text, "end_turn")
}

/// The answer that starts agents for a request of this sign.
pub fn signed_fan_out(sign: &str) -> String {
    let call = |number: usize| {
        let input = serde_json::json!({"description": sign, "prompt": signed_directive(sign, number)});
        format!(r#"{{"type":"tool_use","id":"toolu_{sign}-{number}","name":"Agent","input":{input}}}"#)
    };
    let calls: Vec<String> = (1..=SIGNED_CHILDREN).map(call).collect();
    signed_message(sign, &calls.join(","), "tool_use")
}

/// What the agent of this number is told.
pub fn signed_directive(sign: &str, number: usize) -> String {
    format!(
        "{sign}: read part {number} of the project with care, and report in a few words what you found there."
    )
}

fn signed_message(sign: &str, content: &str, stop_reason: &str) -> String {
    format!(
        r#"{{"id":"msg_{sign}","type":"message","role":"assistant","model":"claude-sonnet-4-6","content":[{content}],"stop_reason":"{stop_reason}","stop_sequence":null,"usage":{USAGE_OF_A_READER}}}"#
    )
}

pub fn events() -> &'static [String] {
    &EVENT_LIST
}

static JSON: LazyLock<String> = LazyLock::new(|| {
    let text = "The retry loop gives up too early: `deadline` is compared with \\\"now\\\" in seconds.\\n\\n\
                - read the clock once\\n- keep the unit in the name\\n- add a test for the boundary\\n"
        .repeat(4);
    format!(
        r#"{{"id":"msg_01BenchAnswer00000000000","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{{"type":"text","text":"{text}"}}],"stop_reason":"end_turn","stop_sequence":null,"usage":{USAGE_AT_START}}}"#
    )
});

static FORKED: LazyLock<String> = LazyLock::new(|| JSON.replace(USAGE_AT_START, USAGE_OF_A_READER));

static EVENT_LIST: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut events = vec![
        event(
            "message_start",
            &format!(
                r#"{{"type":"message_start","message":{{"id":"msg_01BenchAnswer00000000000","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[],"stop_reason":null,"stop_sequence":null,"usage":{USAGE_AT_START}}}}}"#
            ),
        ),
        event(
            "content_block_start",
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        ),
        event("ping", r#"{"type": "ping"}"#),
    ];
    for number in 0..EVENTS - FRAMING_EVENTS {
        events.push(event(
            "content_block_delta",
            &format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"step {number}: read \"config\",\n"}}}}"#
            ),
        ));
    }
    events.push(event("content_block_stop", r#"{"type":"content_block_stop","index":0}"#));
    events.push(event(
        "message_delta",
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":1552}}"#,
    ));
    events.push(event("message_stop", r#"{"type":"message_stop"}"#));
    assert_eq!(events.len(), EVENTS);
    events
});

static STREAM: LazyLock<Vec<u8>> = LazyLock::new(|| EVENT_LIST.concat().into_bytes());

const USAGE_AT_START: &str = r#"{"input_tokens":12,"cache_creation_input_tokens":842,"cache_read_input_tokens":48211,"cache_creation":{"ephemeral_5m_input_tokens":842,"ephemeral_1h_input_tokens":0},"output_tokens":188,"service_tier":"standard"}"#;

const USAGE_OF_A_READER: &str = r#"{"input_tokens":0,"cache_creation_input_tokens":20,"cache_read_input_tokens":40000,"cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":0},"output_tokens":20,"service_tier":"standard"}"#;

fn event(name: &str, data: &str) -> String {
    let mut text = String::new();
    let _ = write!(text, "event: {name}\ndata: {data}\n\n");
    text
}
