use super::*;

const LIMITS: TurnLimits = TurnLimits { bytes: 1 << 20, tool_uses: 4 };

fn stream(events: &[&str]) -> Turn {
    let mut builder = TurnBuilder::new(LIMITS);
    events.iter().for_each(|event| builder.push(event.as_bytes()));
    builder.finish()
}

fn start(index: u32, block: &str) -> String {
    format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#)
}

fn delta(index: u32, delta: &str) -> String {
    format!(r#"{{"type":"content_block_delta","index":{index},"delta":{delta}}}"#)
}

fn stop(index: u32) -> String {
    format!(r#"{{"type":"content_block_stop","index":{index}}}"#)
}

const STOP: &str = r#"{"type":"message_stop"}"#;

/// One block from its start and deltas.
fn block(begin: &str, deltas: &[&str]) -> Option<String> {
    let mut events = vec![start(0, begin)];
    events.extend(deltas.iter().map(|d| delta(0, d)));
    events.extend([stop(0), STOP.to_owned()]);
    let events: Vec<_> = events.iter().map(String::as_str).collect();
    let turn = stream(&events);
    (turn.wholeness == Wholeness::Whole).then(|| String::from_utf8(turn.blocks[0].json.clone()).unwrap())
}

#[test]
fn text_is_joined_with_its_escapes_as_they_came() {
    let json = block(
        r#"{"type":"text", "text":"","x_new":{"b":1.0,"a":1e2}}"#,
        &[
            r#"{"type":"text_delta","text":"a\n\u00e9"}"#,
            r#"{"type":"text_delta","text":"\ud83d"}"#,
            r#"{"type":"text_delta","text":"\ude00é"}"#,
        ],
    );
    assert_eq!(json.unwrap(), r#"{"type":"text","text":"a\n\u00e9\ud83d\ude00é","x_new":{"b":1.0,"a":1e2}}"#);
}

#[test]
fn tool_input_keeps_the_models_key_order_and_number_spelling() {
    let json = block(
        r#"{"type":"tool_use","id":"t1","name":"Agent","input":{},"caller":{"type":"direct"}}"#,
        &[
            r#"{"type":"input_json_delta","partial_json":""}"#,
            r#"{"type":"input_json_delta","partial_json":"{\"z\": 1.0, \"a\""}"#,
            r#"{"type":"input_json_delta","partial_json":": \"x\\n y\"}"}"#,
        ],
    );
    assert_eq!(
        json.unwrap(),
        r#"{"type":"tool_use","id":"t1","name":"Agent","input":{"z":1.0,"a":"x\n y"},"caller":{"type":"direct"}}"#
    );
}

#[test]
fn a_call_without_input_deltas_keeps_its_empty_input() {
    let begin = r#"{"type":"tool_use","id":"t1","name":"now","input":{}}"#;
    assert_eq!(block(begin, &[]).unwrap(), begin);
}

#[test]
fn thinking_appends_and_its_signature_replaces() {
    let json = block(
        r#"{"type":"thinking","thinking":"","signature":""}"#,
        &[
            r#"{"type":"thinking_delta","thinking":"hm "}"#,
            r#"{"type":"thinking_delta","thinking":"so"}"#,
            r#"{"type":"signature_delta","signature":"one"}"#,
            r#"{"type":"signature_delta","signature":"two=="}"#,
        ],
    );
    assert_eq!(json.unwrap(), r#"{"type":"thinking","thinking":"hm so","signature":"two=="}"#);
}

#[test]
fn omitted_thinking_keeps_its_lone_signature() {
    let json =
        block(r#"{"type":"thinking","thinking":""}"#, &[r#"{"type":"signature_delta","signature":"s"}"#]);
    assert_eq!(json.unwrap(), r#"{"type":"thinking","thinking":"","signature":"s"}"#);
}

#[test]
fn citations_join_the_list_or_start_one() {
    let one = [
        r#"{"type":"citations_delta","citation":{"n":1}}"#,
        r#"{"type":"citations_delta","citation":{"n":2}}"#,
    ];
    assert_eq!(
        block(r#"{"type":"text","text":"t","citations":[{"n":0}]}"#, &one).unwrap(),
        r#"{"type":"text","text":"t","citations":[{"n":0},{"n":1},{"n":2}]}"#
    );
    assert_eq!(
        block(r#"{"type":"text","text":"t"}"#, &one[..1]).unwrap(),
        r#"{"type":"text","text":"t","citations":[{"n":1}]}"#
    );
}

#[test]
fn nobody_replays_an_answer_that_another_model_took_over() {
    let fallback = r#"{"type":"fallback","from":{"model":"a"},"to":{"model":"b"},"trigger":{}}"#;
    let json = format!(r#"{{"id":"m","content":[{{"type":"text","text":"No"}},{fallback}]}}"#);
    let turn = Turn::from_json(json.as_bytes(), LIMITS);
    assert_eq!((turn.wholeness, turn.message()), (Wholeness::Unfaithful, None));
    assert_eq!(turn.blocks.len(), 2, "its calls are known all the same");
}

#[test]
fn compaction_sets_its_members() {
    let json = block(
        r#"{"type":"compaction","content":null}"#,
        &[r#"{"type":"compaction_delta","content":"short","encrypted_content":"e"}"#],
    );
    assert_eq!(json.unwrap(), r#"{"type":"compaction","content":"short","encrypted_content":"e"}"#);
}

#[test]
fn unknown_blocks_survive_and_unknown_deltas_spoil_the_turn() {
    let begin = r#"{"type":"hologram","data":[1, 2]}"#;
    assert_eq!(block(begin, &[]).unwrap(), r#"{"type":"hologram","data":[1, 2]}"#);
    assert_eq!(block(begin, &[r#"{"type":"hologram_delta","beam":1}"#]), None);
}

#[test]
fn invalid_tool_input_is_not_replayed() {
    let begin = r#"{"type":"tool_use","id":"t","name":"n","input":{}}"#;
    assert_eq!(block(begin, &[r#"{"type":"input_json_delta","partial_json":"{\"a\":"}"#]), None);
    assert_eq!(block(begin, &[r#"{"type":"input_json_delta","partial_json":"{} {}"}"#]), None);
}

#[test]
fn tool_input_with_a_broken_string_is_not_replayed() {
    let begin = r#"{"type":"tool_use","id":"t","name":"n","input":{}}"#;
    for input in [r#"{\"a\":\"\\q\"}"#, r#"{\"a\":\"\n\"}"#] {
        let delta = format!(r#"{{"type":"input_json_delta","partial_json":"{input}"}}"#);
        assert_eq!(block(begin, &[&delta]), None, "{input}");
    }
}

#[test]
fn deltas_find_their_member_however_it_is_spelt() {
    let delta = [r#"{"type":"text_delta","text":"b"}"#];
    let json = block(r#"{"type":"text","t\u0065xt":"a"}"#, &delta);
    assert_eq!(json.unwrap(), r#"{"type":"text","t\u0065xt":"ab"}"#);
    assert_eq!(block(r#"{"type":"text","text":"a","text":"b"}"#, &delta), None);
}

#[test]
fn usage_ids_and_the_last_stop_reason_come_from_the_messages_events() {
    let turn = stream(&[
        r#"{"type":"message_start","message":{"id":"msg_1","model":"claude-x","content":[],"stop_reason":null,
            "usage":{"input_tokens":3,"cache_read_input_tokens":40,"output_tokens":1}}}"#,
        r#"{"type":"ping"}"#,
        r#"{"type":"brand_new_event","index":3}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"pause_turn"},"usage":{"output_tokens":5}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#,
        STOP,
    ]);
    assert_eq!(turn.id.as_deref(), Some("msg_1"));
    assert_eq!(turn.stop_reason.as_deref(), Some("end_turn"));
    let usage = turn.usage().unwrap();
    assert_eq!((usage.uncached, usage.cache_read, usage.output), (3, 40, 9));
    assert_eq!(turn.wholeness, Wholeness::Whole);
    assert_eq!(turn.message().unwrap(), br#"{"role":"assistant","content":[]}"#);
}

#[test]
fn a_stream_that_stops_anywhere_is_unfinished_and_still_billed() {
    let events = [
        r#"{"type":"message_start","message":{"id":"m","usage":{"input_tokens":3}}}"#.to_owned(),
        start(0, r#"{"type":"text","text":""}"#),
        delta(0, r#"{"type":"text_delta","text":"x"}"#),
        stop(0),
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}"#
            .to_owned(),
        STOP.to_owned(),
    ];
    let events: Vec<_> = events.iter().map(String::as_str).collect();
    for cut in 1..events.len() {
        let turn = stream(&events[..cut]);
        assert_eq!(turn.wholeness, Wholeness::Unfinished, "{cut}");
        assert_eq!(turn.usage().unwrap().uncached, 3, "{cut}");
        assert_eq!(turn.message(), None);
    }
    assert_eq!(stream(&events).wholeness, Wholeness::Whole);
}

#[test]
fn an_error_event_is_named_and_ends_the_turn() {
    let turn =
        stream(&[r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, STOP]);
    assert_eq!(turn.error.as_deref(), Some("overloaded_error"));
    assert_eq!(turn.wholeness, Wholeness::Unfinished);
}

#[test]
fn an_error_type_that_is_prose_is_not_taken_over() {
    for kind in ["My secret prompt", "secret_prompt", "secret"] {
        let said = format!(r#"{{"type":"error","error":{{"type":"{kind}"}}}}"#);
        assert_eq!(Turn::from_json(said.as_bytes(), LIMITS).error, None, "{kind}");
    }
}

#[test]
fn broken_events_spoil_the_blocks_but_not_the_bill() {
    for broken in [
        "{",
        "[]",
        r#"{"type":"content_block_delta"}"#,
        r#"{"type":"content_block_stop","index":9}"#,
        "\"x\"",
    ] {
        let turn = stream(&[broken, r#"{"type":"message_delta","usage":{"output_tokens":2}}"#, STOP]);
        assert_eq!(turn.wholeness, Wholeness::Unfaithful, "{broken}");
        assert_eq!(turn.usage().unwrap().output, 2, "{broken}");
    }
}

#[test]
fn limits_bound_tool_calls_and_bytes() {
    let mut many: Vec<String> = Vec::new();
    for index in 0..5 {
        many.push(start(index, r#"{"type":"tool_use","id":"t","name":"n","input":{}}"#));
        many.push(stop(index));
    }
    many.push(STOP.to_owned());
    let events: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(stream(&events).wholeness, Wholeness::TooLarge);

    let mut builder = TurnBuilder::new(TurnLimits { bytes: 1000, tool_uses: 4 });
    builder.push(start(0, r#"{"type":"text","text":""}"#).as_bytes());
    for _ in 0..100 {
        builder.push(delta(0, r#"{"type":"text_delta","text":"0123456789"}"#).as_bytes());
    }
    assert!(builder.blocks.is_empty());
    assert_eq!(builder.finish().wholeness, Wholeness::TooLarge);
}

#[test]
fn a_json_answer_keeps_its_blocks_as_they_stand() {
    let body = br#"{"id":"msg_2","type":"message","model":"m","role":"assistant","stop_reason":"tool_use",
        "content":[{"type":"text","text":"a\u00e9"},{"type":"tool_use","id":"t","name":"n","input":{"b":1.0, "a":2}}],
        "usage":{"input_tokens":7,"output_tokens":2}}"#;
    let turn = Turn::from_json(body, LIMITS);
    assert_eq!(turn.wholeness, Wholeness::Whole);
    assert_eq!(turn.blocks[1].json, br#"{"type":"tool_use","id":"t","name":"n","input":{"b":1.0, "a":2}}"#);
    assert_eq!(turn.usage().unwrap().uncached, 7);
    assert_eq!(Turn::from_json(b"<html>", LIMITS).wholeness, Wholeness::Unfaithful);
    assert_eq!(
        Turn::from_json(br#"{"id":7,"usage":{"output_tokens":1}}"#, LIMITS).usage().unwrap().output,
        1
    );
}

#[test]
fn the_verdict_on_the_prompt_is_kept_however_the_answer_comes() {
    use crate::engine::words::DiagnosisVerdict;
    let message = |diagnostics: &str| format!(r#"{{"id":"m"{diagnostics},"content":[]}}"#);
    for (diagnostics, verdict) in [
        ("", None),
        (r#","diagnostics":null"#, Some(DiagnosisVerdict::None)),
        (
            r#","diagnostics":{"cache_miss_reason":{"type":"system_changed"}}"#,
            Some(DiagnosisVerdict::SystemChanged),
        ),
    ] {
        let message = message(diagnostics);
        let whole = Turn::from_json(message.as_bytes(), LIMITS);
        let streamed = stream(&[&format!(r#"{{"type":"message_start","message":{message}}}"#), STOP]);
        for turn in [whole, streamed] {
            assert_eq!(turn.diagnostics.map(|it| it.verdict), verdict, "{message}");
            assert_eq!(turn.wholeness, Wholeness::Whole);
        }
    }
}

#[test]
fn finished_blocks_come_at_their_stop_as_the_turn_will_hold_them() {
    let events = [
        r#"{"type":"message_start","message":{"id":"msg_1"}}"#.to_owned(),
        start(0, r#"{"type":"text","text":"a"}"#),
        delta(0, r#"{"type":"text_delta","text":"b"}"#),
        stop(0),
        start(1, r#"{"type":"tool_use","id":"t","name":"n","input":{}}"#),
        delta(1, r#"{"type":"input_json_delta","partial_json":"{\"x\": 1.0}"}"#),
        stop(1),
        STOP.to_owned(),
    ];
    let mut builder = TurnBuilder::new(LIMITS);
    let mut counts = Vec::new();
    let mut finished = Vec::new();
    for event in &events {
        builder.push(event.as_bytes());
        let before = finished.len();
        finished.extend(builder.finished());
        counts.push(finished.len() - before);
    }
    assert_eq!(builder.id(), Some("msg_1"));
    assert_eq!(counts, [0, 0, 0, 1, 0, 0, 1, 0]);
    assert_eq!(finished, builder.finish().blocks);
}

#[test]
fn a_block_that_cannot_be_rebuilt_is_never_given_out_nor_what_follows() {
    let mut builder = TurnBuilder::new(LIMITS);
    for index in 0..2 {
        builder.push(start(index, r#"{"type":"tool_use","id":"t","name":"n","input":{}}"#).as_bytes());
        if index == 0 {
            builder.push(delta(0, r#"{"type":"input_json_delta","partial_json":"{"}"#).as_bytes());
        }
        builder.push(stop(index).as_bytes());
    }
    assert_eq!(builder.finished().count(), 0);
    assert!(builder.blocks.is_empty());
    assert_eq!(builder.finish().wholeness, Wholeness::Unfaithful);
}
