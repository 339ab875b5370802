//! Any sequence of events ends in a turn, and a whole one can be sent back.
//!
//! The input is text, one event per line, so that a mutation of a line is still an event:
//!
//! ```text
//! s0 {"type":"text","text":""}     content_block_start of block 0
//! t0 …  h0 …  g0 …  c0 …  j0 …     text, thinking, signature (the inside of a string), citation (JSON), input (text)
//! e0                               content_block_stop
//! .                                message_stop
//! anything else                    the data of an event, unchanged
//! ```

#![no_main]

use std::collections::BTreeMap;

use forkpoint::engine::answer::turn::{Turn, TurnBuilder, TurnLimits, Wholeness};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use serde_json::value::RawValue;

const LIMITS: TurnLimits = TurnLimits { bytes: 4096, tool_uses: 4 };
const NO_LIMITS: TurnLimits = TurnLimits { bytes: usize::MAX, tool_uses: usize::MAX };

fuzz_target!(|input: &[u8]| {
    let mut builder = TurnBuilder::new(LIMITS);
    let mut told = Told::default();
    for line in input.split(|byte| *byte == b'\n') {
        match std::str::from_utf8(line).ok().and_then(shorthand) {
            Some((event, piece)) => {
                builder.push(event.as_bytes());
                told.note(piece);
            }
            None => {
                builder.push(line);
                told.is_complete = false;
            }
        }
    }
    let turn = builder.finish();
    check(&turn);
    told.compare(&turn);
    check(&Turn::from_json(input, LIMITS));
});

fn check(turn: &Turn) {
    let Some(message) = turn.message() else {
        assert_ne!(turn.wholeness, Wholeness::Whole);
        return;
    };
    assert!(serde_json::from_slice::<&RawValue>(&message).is_ok(), "{}", message.escape_ascii());
    for block in &turn.blocks {
        let shown = block.json.escape_ascii();
        assert!(serde_json::from_slice::<&RawValue>(&block.json).is_ok(), "{shown}");
        if let Ok(value) = serde_json::from_slice::<Value>(&block.json) {
            assert_eq!(value["type"].as_str(), Some(block.kind.as_str()), "{shown}");
        }
    }
    let again = Turn::from_json(&message, NO_LIMITS);
    assert_eq!(again.wholeness, Wholeness::Whole, "{}", message.escape_ascii());
    assert_eq!(again.blocks, turn.blocks);
}

/// A piece of a block, for the second opinion about what the block says.
enum Piece<'a> {
    Start(u8, &'a str),
    Append(u8, &'static str, &'a str),
    Input(u8, &'a str),
    Other,
}

/// The event of a line.
fn shorthand(line: &str) -> Option<(String, Piece<'_>)> {
    if line == "." {
        return Some((r#"{"type":"message_stop"}"#.to_owned(), Piece::Other));
    }
    let (verb, index) = match line.as_bytes() {
        [verb, index @ b'0'..=b'9', ..] => (*verb, index - b'0'),
        _ => return None,
    };
    let rest = line[2..].strip_prefix(' ').unwrap_or(&line[2..]);
    let delta = |kind: &str, member: &str, value: &str| {
        let delta = format!(r#"{{"type":"{kind}","{member}":{value}}}"#);
        format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
    };
    let inside = format!("\"{rest}\"");
    Some(match verb {
        b's' => {
            let start = format!(r#"{{"type":"content_block_start","index":{index},"content_block":{rest}}}"#);
            (start, Piece::Start(index, rest))
        }
        b't' => (delta("text_delta", "text", &inside), Piece::Append(index, "text", rest)),
        b'h' => (delta("thinking_delta", "thinking", &inside), Piece::Append(index, "thinking", rest)),
        b'g' => (delta("signature_delta", "signature", &inside), Piece::Other),
        b'c' => (delta("citations_delta", "citation", rest), Piece::Other),
        b'j' => {
            let text = Value::from(rest).to_string();
            (delta("input_json_delta", "partial_json", &text), Piece::Input(index, rest))
        }
        b'e' => (format!(r#"{{"type":"content_block_stop","index":{index}}}"#), Piece::Other),
        _ => return None,
    })
}

/// The content of the events, kept apart from the builder.
struct Told {
    starts: BTreeMap<u8, String>,
    appended: BTreeMap<(u8, &'static str), String>,
    inputs: BTreeMap<u8, String>,
    /// True if every line was shorthand.
    is_complete: bool,
}

impl Default for Told {
    fn default() -> Self {
        let (starts, appended, inputs) = Default::default();
        Told { starts, appended, inputs, is_complete: true }
    }
}

impl Told {
    fn note(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Start(index, block) => drop(self.starts.insert(index, block.to_owned())),
            Piece::Append(index, member, text) => {
                self.appended.entry((index, member)).or_default().push_str(text);
            }
            Piece::Input(index, text) => self.inputs.entry(index).or_default().push_str(text),
            Piece::Other => {}
        }
    }

    /// Each block of a whole turn says what its start and its deltas said together.
    fn compare(&self, turn: &Turn) {
        if turn.wholeness != Wholeness::Whole || !self.is_complete {
            return;
        }
        assert_eq!(turn.blocks.len(), self.starts.len());
        for (block, (index, start)) in turn.blocks.iter().zip(&self.starts) {
            let parsed = (serde_json::from_str::<Value>(start), serde_json::from_slice::<Value>(&block.json));
            // Half a surrogate pair is JSON, but no text that could be compared.
            let (Ok(start), Ok(block)) = parsed else { continue };
            for member in ["text", "thinking"] {
                let Some(added) = self.appended.get(&(*index, member)).filter(|added| !added.is_empty())
                else {
                    continue;
                };
                let Ok(added) = serde_json::from_str::<String>(&format!("\"{added}\"")) else { continue };
                let expected = format!("{}{added}", start[member].as_str().unwrap_or_default());
                assert_eq!(block[member].as_str(), Some(expected.as_str()), "{block}");
            }
            if let Some(input) = self.inputs.get(index).filter(|input| !input.is_empty())
                && let Ok(expected) = serde_json::from_str::<Value>(input)
            {
                assert_eq!(block["input"], expected, "{block}");
            }
        }
    }
}
