//! Whatever is put back into the spelling of its conversation says what came, and what is known of it is true.
//!
//! An input is the last request of a conversation and the next one, with a NUL between them; without one the next
//! request is the last in another spelling.

#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use forkpoint::engine::request::prefix::Attribution;
use forkpoint::engine::request::recall::{Known, Last, Nothing, Remembered};
use forkpoint::engine::respell::echo::{Spelling, echo};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use serde_json::value::RawValue;

#[path = "../values.rs"]
mod values;
use values::{respelt, sort_tools, tools};

fuzz_target!(|input: &[u8]| {
    let Some((last, came)) = requests(input) else { return };
    let Some(last) = read(last, &Nothing).filter(|last| !last.anatomy().ambiguous).map(Arc::new) else {
        return;
    };
    let mut spelling = Spelling::of(&last);
    // What was kept of the first comparison serves the second.
    for _ in 0..2 {
        let Some(echoed) = echo(&came, &last, &mut spelling) else { return };
        let is_json = |body: &[u8]| serde_json::from_slice::<&RawValue>(body).is_ok();
        assert_eq!(is_json(&echoed.body), is_json(&came), "{:?}", echoed.body);
        if let Ok(value) = serde_json::from_slice::<Value>(&came) {
            let found = serde_json::from_slice(&echoed.body).expect("what was JSON is JSON");
            assert_eq!(sort_tools(value), sort_tools(found));
        }
        let known = Last { request: &last, repeated: echoed.same };
        assert_eq!(read(echoed.body.clone(), &known), read(echoed.body, &Nothing), "not what it says");
    }
});

fn requests(input: &[u8]) -> Option<(Bytes, Bytes)> {
    if let Some(end) = input.iter().position(|byte| *byte == 0) {
        return Some((Bytes::copy_from_slice(&input[..end]), Bytes::copy_from_slice(&input[end + 1..])));
    }
    let mut next = respelt(&serde_json::from_slice(input).ok()?);
    tools(&mut next).reverse();
    Some((Bytes::copy_from_slice(input), next.to_string().into()))
}

fn read(body: Bytes, known: &dyn Known) -> Option<Remembered> {
    Remembered::read(body, known, Attribution::Stripped).ok()
}
