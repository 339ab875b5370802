//! The scanner reads from a request body what a parser reads from it, duplicate members included.

#![no_main]

use forkpoint::engine::request::anatomy::Anatomy;
use forkpoint::engine::request::json::Malformed;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|body: &[u8]| {
    let spans = Anatomy::read(body);
    if let Ok(spans) = &spans {
        // Strings may be broken inside; asking for them must not be.
        let _ = (spans.model(body), spans.stream(body), spans.user_id(body));
    }
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
    match spans {
        Ok(spans) => {
            assert!(value.is_object());
            assert_eq!(spans.model(body).as_deref(), value["model"].as_str());
            assert_eq!(spans.stream(body), value["stream"] == true);
            assert_eq!(spans.user_id(body).as_deref(), value["metadata"]["user_id"].as_str());
        }
        Err(Malformed::TooDeep) => {}
        Err(error) => assert!(!value.is_object(), "{error:?}"),
    }
});
