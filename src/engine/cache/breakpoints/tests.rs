use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::engine::request::edit::apply;
use crate::engine::words::{Carrier, Layer, Origin};

const TOOLS: &str = r#"[{"name":"a","input_schema":{"type":"object"}}]"#;
const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;
const HOUR: &str = r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#;

fn anthropic() -> Situation {
    Situation::new(Profile::Anthropic)
}

/// Plans and applies; checks what holds for every plan.
fn planned(body: &str, situation: &Situation) -> (String, Plan) {
    let bytes = Bytes::from(body.to_owned());
    let result = plan(&bytes, &Anatomy::read(&bytes).unwrap(), situation);
    let forwarded = apply(&bytes, &result.edits);
    let out = forwarded.pieces.concat();
    assert_eq!(out.len(), forwarded.length);
    let mut rest = &out[..];
    let mut back = Vec::new();
    for edit in &result.edits {
        let take = edit.at() - back.len();
        back.extend_from_slice(&rest[..take]);
        rest = rest[take..].strip_prefix(edit.insert()).unwrap();
    }
    back.extend_from_slice(rest);
    assert_eq!(back, bytes, "the client's bytes survive");
    let again = plan(&out, &Anatomy::read(&out).unwrap(), situation);
    assert_eq!(again.edits, [], "planning twice adds nothing: {}", String::from_utf8_lossy(&out));
    (String::from_utf8(out).unwrap(), result)
}

fn text(words: &str) -> String {
    format!(r#"{{"type":"text","text":"{words}"}}"#)
}

fn marked(words: &str, mark: &str) -> String {
    format!(r#"{{"type":"text","text":"{words}"{mark}}}"#)
}

/// A request with one tool, these system blocks and the content of one user message.
fn request(system: &str, content: &str) -> String {
    format!(r#"{{"tools":{TOOLS},"system":{system},"messages":[{{"role":"user","content":{content}}}]}}"#)
}

/// The same request with this marker on its tool.
fn with_marked_tool(body: &str, mark: &str) -> String {
    body.replacen(r#""type":"object"}}]"#, &format!(r#""type":"object"}}{mark}}}]"#), 1)
}

fn skips(plan: &Plan) -> Vec<(&'static str, &'static str)> {
    plan.skipped.iter().map(|(place, skip)| (place.as_str(), skip.as_str())).collect()
}

#[test]
fn the_tail_and_the_ends_of_system_and_tools_are_marked() {
    let body = request(&format!("[{},{}]", text("s"), text("t")), &format!("[{},{}]", text("u"), text("v")));
    let (out, plan) = planned(&body, &anthropic());
    let expected = request(
        &format!("[{},{}]", text("s"), marked("t", MARK)),
        &format!("[{},{}]", text("u"), marked("v", MARK)),
    );
    assert_eq!(out, with_marked_tool(&expected, MARK));
    let points: Vec<_> = plan.breakpoints.iter().map(|point| (point.piece, point.origin)).collect();
    assert_eq!(points, [0, 2, 4].map(|piece| (piece, Origin::Added)));
    assert_eq!(skips(&plan), []);
}

#[test]
fn white_space_before_a_closing_brace_stays_where_it_was() {
    let body = r#" { "tools":[ {"name":"a" } ], "messages":[{"role":"user","content":"hi"}] } "#;
    let (out, _) = planned(body, &anthropic());
    assert!(
        out.starts_with(r#" {"cache_control":{"type":"ephemeral"}, "tools":[ {"name":"a","cache_control""#)
    );
    assert!(out.contains(r#""ephemeral"} } ], "messages""#), "{out}");
}

#[test]
fn without_edits_the_body_is_itself() {
    let body = Bytes::from_static(b"{}");
    let forwarded = apply(&body, &[]);
    assert_eq!((forwarded.pieces.len(), forwarded.length), (1, 2));
    assert_eq!(forwarded.pieces[0].as_ptr(), body.as_ptr());
}

#[test]
fn pieces_share_the_received_bytes() {
    let body = Bytes::from(request("[]", &format!("[{}]", text("u"))));
    let plan = plan(&body, &Anatomy::read(&body).unwrap(), &anthropic());
    let forwarded = apply(&body, &plan.edits);
    let range = body.as_ptr_range();
    assert_eq!(forwarded.pieces.len(), 5);
    for piece in forwarded.pieces.iter().step_by(2) {
        assert!(range.contains(&piece.as_ptr()));
    }
}

#[test]
fn what_cannot_carry_a_marker_is_walked_over() {
    for barred in [
        r#"{"type":"thinking","thinking":"t","signature":"s"}"#,
        r#"{"type":"redacted_thinking","data":"d"}"#,
        r#"{"type":"fallback"}"#,
        r#"{"type":"brand_new"}"#,
        r#"{"type":"text","text":""}"#,
        r#"{"type":"text"}"#,
        r#"{"type":"text","text":"x","cache_control":null}"#,
        r#"{"type":"text","type":"text","text":"x"}"#,
        "{}",
        "7",
    ] {
        let body = request("[]", &format!("[{},{barred}]", text("u")));
        let (out, _) = planned(&body, &anthropic());
        assert!(out.contains(&format!("[{},{barred}]", marked("u", MARK))), "{out}");
    }
}

#[test]
fn a_result_is_marked_and_never_what_it_holds() {
    let result = |mark: &str| {
        format!(
            r#"{{"type":"tool_result","tool_use_id":"i","content":[{{"type":"text","text":"x"}}]{mark}}}"#
        )
    };
    let (out, _) = planned(&request("[]", &format!("[{}]", result(""))), &anthropic());
    assert!(out.contains(&result(MARK)), "{out}");
}

#[test]
fn deferred_tools_and_the_attribution_line_are_never_marked() {
    let billing = text("x-anthropic-billing-header: v");
    let body = format!(
        r#"{{"tools":[{{"name":"a"}},{{"name":"b","defer_loading":true}}],"system":[{billing}],"messages":[]}}"#
    );
    let (out, plan) = planned(&body, &anthropic());
    assert!(out.contains(&format!(r#"[{{"name":"a"{MARK}}},"#)), "{out}");
    assert_eq!(plan.edits.len(), 1);
    assert_eq!(skips(&plan), [("tail", "no_legal_block"), ("system", "no_legal_block")]);
    let (out, _) = planned(&request(&format!("[{billing},{billing}]"), "[]"), &anthropic());
    assert!(out.contains(&format!("[{billing},{}]", marked("x-anthropic-billing-header: v", MARK))), "{out}");
}

#[test]
fn a_string_stays_a_string() {
    let body = request(r#""sys""#, r#""hi""#);
    let (out, plan) = planned(&body, &anthropic());
    assert!(out.starts_with(r#"{"cache_control":{"type":"ephemeral"},"tools":[{"name":"a""#), "{out}");
    assert!(out.ends_with(r#""system":"sys","messages":[{"role":"user","content":"hi"}]}"#), "{out}");
    assert_eq!(plan.breakpoints.last().unwrap().carrier, Carrier::TopLevel);
    let (out, plan) = planned(&body, &Situation::new(Profile::BlocksOnly));
    assert!(!out.starts_with(r#"{"cache_control"#), "{out}");
    assert_eq!(
        (plan.edits.len(), skips(&plan)),
        (1, vec![("tail", "no_legal_block"), ("system", "no_legal_block")])
    );
}

#[test]
fn a_request_of_a_thread_gets_no_field_that_its_first_one_had_not() {
    let threaded = |thread: &str| {
        let body = request(r#""sys""#, r#""hi""#);
        planned(&body.replacen('{', &format!(r#"{{"thread":{thread},"#), 1), &anthropic())
    };
    for thread in [r#"{"type":"create"}"#, r#"{"type":"continue","previous_message_id":"msg_1"}"#, "{}"] {
        let (out, plan) = threaded(thread);
        assert!(out.starts_with(r#"{"thread""#), "{out}");
        assert!(plan.breakpoints.iter().all(|point| point.carrier == Carrier::Block), "{out}");
        assert_eq!(skips(&plan), [("tail", "no_legal_block")]);
    }
    let (out, _) = threaded("null");
    assert!(out.starts_with(r#"{"cache_control":{"type":"ephemeral"},"thread":null"#), "{out}");
}

#[test]
fn a_request_of_a_thread_gets_breakpoints_in_its_messages_alone() {
    let body = request(&format!("[{}]", text("s")), &long(40));
    let far = Situation { last_written: Some(4), ..anthropic() };
    let pieces = |body: &str, situation: &Situation| {
        let plan = planned(body, situation).1;
        plan.breakpoints.iter().map(|point| point.piece).collect::<Vec<_>>()
    };
    assert_eq!(pieces(&body, &far), [0, 1, 4, 41]);
    let thread = body.replacen('{', r#"{"thread":{"type":"create"},"#, 1);
    assert_eq!(pieces(&thread, &far), [4, 41], "not on tools and system");
    let held = |held_pieces| Situation { held_pieces, ..far };
    assert_eq!(pieces(&thread, &held(10)), [10, 41], "as near to the entry as can be");
    assert_eq!(pieces(&thread, &held(40)), [41], "the entry is out of reach");
    assert!(pieces(&thread, &held(42)).is_empty(), "nothing came that could be marked");
}

#[test]
fn a_request_of_a_thread_has_three_breakpoints_at_most() {
    let marked = |text: &str| marked(text, MARK);
    let body = |system: &str, content: &str| {
        request(system, content).replacen('{', r#"{"thread":{"type":"create"},"#, 1)
    };
    let system = format!("[{},{}]", marked("s"), marked("t"));
    let (out, plan) = planned(&body(&system, &format!("[{},{}]", marked("a"), text("b"))), &anthropic());
    assert_eq!((plan.edits.len(), skips(&plan)), (0, vec![("tail", "no_slot")]), "{out}");
    let (_, plan) = planned(&body(&system, &format!("[{}]", text("b"))), &anthropic());
    assert_eq!(plan.breakpoints.len(), 3);
}

#[test]
fn behind_a_string_tail_the_last_block_is_marked_where_there_is_no_automatic_caching() {
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":[{}]}},{{"role":"assistant","content":"x"}}]}}"#,
        text("u")
    );
    let (out, _) = planned(&body, &Situation::new(Profile::BlocksOnly));
    assert!(out.contains(&marked("u", MARK)), "{out}");
    // A top-level null cannot be replaced, and a second member would make readers disagree.
    let null = body.replacen('{', r#"{"cache_control":null,"#, 1);
    let (out, _) = planned(&null, &anthropic());
    assert!(out.contains(&marked("u", MARK)), "{out}");
}

#[test]
fn automatic_caching_of_the_client_is_the_tail() {
    for mark in
        [r#""cache_control":{"type":"ephemeral"}"#, r#""cache_control":{"type":"ephemeral","ttl":"1h"}"#]
    {
        let body = request("[]", &format!("[{}]", text("u"))).replacen('{', &format!("{{{mark},"), 1);
        let (out, plan) = planned(&body, &anthropic());
        assert_eq!(plan.edits.len(), 1);
        // The tool takes the same lifetime.
        assert!(out.contains(&format!(r#""type":"object"}},{mark}}}"#)), "{out}");
    }
}

#[test]
fn automatic_caching_counts_as_one_of_four_even_where_it_does_nothing() {
    let three = format!("[{},{},{}]", text("u"), marked("v", MARK), marked("w", MARK));
    let body = request(&format!("[{}]", text("s")), &three).replacen(
        '{',
        r#"{"cache_control":{"type":"ephemeral"},"#,
        1,
    );
    let with_bridge = Situation { last_written: Some(0), ..anthropic() };
    let (_, plan) = planned(&body, &with_bridge);
    assert_eq!((plan.edits.len(), plan.breakpoints.len()), (1, 3));
    assert_eq!(skips(&plan), [("tools", "no_slot")]);
    let body = body.replacen(r#"[{"name":"a""#, &format!(r#"[{{"name":"z"{MARK}}},{{"name":"a""#), 1);
    let (_, plan) = planned(&body, &anthropic());
    assert_eq!((plan.edits.len(), skips(&plan)), (0, vec![("system", "no_slot"), ("tools", "no_slot")]));
}

#[test]
fn the_clients_own_markers_are_kept_and_enough() {
    let body = request(
        &format!("[{},{}]", marked("s", MARK), marked("t", MARK)),
        &format!("[{}]", marked("u", MARK)),
    );
    let (out, plan) = planned(&with_marked_tool(&body, MARK), &anthropic());
    assert_eq!((out, plan.breakpoints.len()), (with_marked_tool(&body, MARK), 4));
    let (out, _) = planned(&body, &anthropic());
    assert_eq!(out, with_marked_tool(&body, MARK), "all but the end of the tools");
}

#[test]
fn there_are_never_more_than_four() {
    let four = format!("[{}]", ["p", "q", "r", "s"].map(|words| marked(words, MARK)).join(","));
    let (_, plan) = planned(&request(&four, &format!("[{}]", text("u"))), &anthropic());
    let full = vec![("tail", "no_slot"), ("tools", "no_slot")];
    assert_eq!((plan.edits.len(), skips(&plan)), (0, full.clone()));
    let (_, plan) = planned(&request(&four, r#""u""#), &anthropic());
    assert_eq!((plan.edits.len(), skips(&plan)), (0, full));
    let three = format!("[{},{}]", ["p", "q", "r"].map(|words| marked(words, MARK)).join(","), text("s"));
    let (out, plan) = planned(&request(&three, &format!("[{}]", text("u"))), &anthropic());
    assert!(out.contains(&marked("u", MARK)), "the tail is worth most");
    assert_eq!(skips(&plan), [("system", "no_slot"), ("tools", "no_slot")]);
}

#[test]
fn markers_inside_a_result_use_slots_too() {
    let nested = [MARK; 3].map(|mark| marked("x", mark)).join(",");
    let result = format!(r#"{{"type":"tool_result","tool_use_id":"i","content":[{nested}]}}"#);
    let (_, plan) = planned(&request(&format!("[{}]", text("s")), &format!("[{result}]")), &anthropic());
    assert_eq!((plan.edits.len(), skips(&plan)), (1, vec![("system", "no_slot"), ("tools", "no_slot")]));
    let data = r#"{"type":"tool_use","id":"i","name":"a","input":{"cache_control":{"type":"x"}}}"#;
    let (_, plan) = planned(&request(&format!("[{}]", text("s")), &format!("[{data}]")), &anthropic());
    assert_eq!(plan.edits.len(), 3, "what a call brings is data");
}

#[test]
fn new_markers_last_an_hour_only_before_one_of_the_client() {
    let (out, _) =
        planned(&request(&format!("[{}]", marked("s", HOUR)), &format!("[{}]", text("u"))), &anthropic());
    assert!(out.contains(&marked("u", MARK)), "five minutes behind it: {out}");
    let (out, _) =
        planned(&request(&format!("[{}]", text("s")), &format!("[{}]", marked("u", HOUR))), &anthropic());
    assert!(out.contains(&marked("s", HOUR)), "an hour before it: {out}");
    let both = format!("[{},{}]", marked("u", MARK), text("v"));
    let (out, _) = planned(&request(&format!("[{}]", marked("s", HOUR)), &both), &anthropic());
    assert!(out.contains(&marked("v", MARK)), "behind both: {out}");
    let body = request(&format!("[{}]", text("s")), &format!("[{}]", marked("u", MARK)));
    let body = body.replacen(r#""name":"a""#, &format!(r#""name":"a"{HOUR}"#), 1);
    let (out, _) = planned(&body, &anthropic());
    assert!(out.contains(&marked("s", MARK)), "between both: {out}");
}

#[test]
fn an_hour_that_may_do_nothing_is_none_to_join() {
    let nested = format!(r#"{{"type":"tool_result","tool_use_id":"i","content":[{}]}}"#, marked("x", HOUR));
    let body = request(&format!("[{}]", text("s")), &format!("[{nested},{}]", text("u")));
    let (out, plan) = planned(&body, &anthropic());
    assert!(out.contains(&marked("u", MARK)), "{out}");
    assert_eq!((plan.edits.len(), skips(&plan)), (1, vec![("system", "hour"), ("tools", "hour")]));
}

fn long(blocks: usize) -> String {
    format!("[{}]", (0..blocks).map(|index| text(&index.to_string())).collect::<Vec<_>>().join(","))
}

#[test]
fn an_entry_beyond_the_lookback_is_bridged() {
    // Piece 0 is the tool, 1 the system block, 2 the first of the message.
    let body = request(&format!("[{}]", text("s")), &long(40));
    let tail = 41;
    let plan_for = |entry| planned(&body, &Situation { last_written: Some(entry), ..anthropic() }).1;
    let pieces = |plan: &Plan| plan.breakpoints.iter().map(|point| point.piece).collect::<Vec<_>>();
    assert_eq!(pieces(&plan_for(tail - 19)), [0, 1, tail], "19 before is found");
    assert_eq!(pieces(&plan_for(tail - 20)), [0, 1, tail - 20, tail], "20 before is not");
    assert_eq!(pieces(&plan_for(0)), [0, 1, tail], "the end of the tools finds it");
    assert_eq!(pieces(&plan_for(500)), [0, 1, tail], "no such piece");
    assert_eq!(pieces(&plan_for(usize::MAX)), [0, 1, tail]);
}

#[test]
fn a_bridge_stands_on_the_next_block_that_can_carry_it() {
    let messages = format!(
        r#"{{"role":"user","content":"hi"}},{{"role":"assistant","content":[{{"type":"thinking","thinking":"t"}},{}"#,
        &long(40)[1..]
    );
    let body = format!(r#"{{"messages":[{messages}}}]}}"#);
    let (_, plan) = planned(&body, &Situation { last_written: Some(0), ..anthropic() });
    assert_eq!(plan.breakpoints.iter().map(|point| point.piece).collect::<Vec<_>>(), [2, 41]);
    let thinking = vec![r#"{"type":"thinking","thinking":"t"}"#; 25].join(",");
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"hi"}},{{"role":"assistant","content":[{thinking},{}]}}]}}"#,
        text("u")
    );
    let (_, plan) = planned(&body, &Situation { last_written: Some(0), ..anthropic() });
    assert_eq!(skips(&plan), [("bridge", "no_legal_block")]);
}

#[test]
fn a_bridge_is_read_now_and_comes_before_what_others_may_read() {
    let own = format!("[{},{}]", marked("p", MARK), marked("q", MARK));
    let body = request(&format!("[{},{}]", &own[1..own.len() - 1], text("s")), &long(40));
    // Piece 0 is the tool, 1 to 3 are the system blocks.
    let (_, plan) = planned(&body, &Situation { last_written: Some(6), ..anthropic() });
    assert_eq!(plan.breakpoints.iter().map(|point| point.piece).collect::<Vec<_>>(), [1, 2, 6, 43]);
    assert_eq!(skips(&plan), [("system", "no_slot"), ("tools", "no_slot")]);
}

#[test]
fn a_one_shot_request_is_left_alone_unless_its_prefix_was_seen() {
    let body = format!(r#"{{"system":[{}],"messages":[{{"role":"user","content":"x"}}]}}"#, text("s"));
    let (out, plan) = planned(&body, &anthropic());
    assert_eq!((out, skips(&plan)), (body.clone(), vec![("request", "one_shot")]));
    let seen = Situation { read_by_others: StaticEnds::BOTH, ..anthropic() };
    let (out, plan) = planned(&body, &seen);
    assert!(out.contains(&marked("s", MARK)), "what such requests share: {out}");
    assert_eq!((plan.edits.len(), skips(&plan)), (1, vec![("tail", "one_shot")]));
    let bare = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(planned(bare, &seen).1.edits.len(), 0, "nothing that another one shares");
    let answered = r#"{"tools":null,"messages":[{"role":"user","content":"x"},{"role":"\u0061ssistant","content":"y"}]}"#;
    assert_eq!(planned(answered, &anthropic()).1.edits.len(), 1);
}

#[test]
fn where_conversations_end_only_what_others_read_is_marked() {
    let body = request(&format!("[{}]", text("s")), r#""u""#);
    let ends = |tools, system| {
        let read_by_others = StaticEnds { tools, system };
        planned(&body, &Situation { seldom_continues: true, read_by_others, ..anthropic() })
    };
    let (out, plan) = ends(false, false);
    assert_eq!((out, skips(&plan)), (body.clone(), vec![("request", "seldom_continues")]));
    let (out, plan) = ends(true, false);
    assert_eq!((out, skips(&plan)), (with_marked_tool(&body, MARK), vec![("tail", "seldom_continues")]));
    let (out, _) = ends(false, true);
    let both = with_marked_tool(&body.replace(&text("s"), &marked("s", MARK)), MARK);
    assert_eq!(out, both, "the end of the tools is written with the system prompt");
    assert_eq!(planned(&body, &anthropic()).1.edits.len(), 3);
}

#[test]
fn a_conversation_whose_turns_come_too_late_is_not_marked_either() {
    let late = Situation { is_read_late: true, ..anthropic() };
    let body = request("[]", r#""u""#);
    let later = r#"{"role":"assistant","content":"yes"},{"role":"user","content":"go on"}]}"#;
    let body = body.strip_suffix("]}").map(|first| format!("{first},{later}")).unwrap();
    let (out, plan) = planned(&body, &late);
    assert_eq!((out, skips(&plan)), (body, vec![("request", "seldom_continues")]));
}

#[test]
fn an_end_inside_of_what_the_client_writes_costs_nothing() {
    let body = request(&format!("[{}]", text("s")), &format!("[{}]", marked("u", HOUR)));
    let (out, _) = planned(&body, &Situation { seldom_continues: true, ..anthropic() });
    assert_eq!(out, with_marked_tool(&body.replace(&text("s"), &marked("s", HOUR)), HOUR));
}

#[test]
fn a_marker_whose_name_is_escaped_is_not_added_to() {
    let inner = |name: &str| format!(r#"{{"type":"text","text":"\u005f","{name}":{{"type":"ephemeral"}}}}"#);
    let result = |name: &str| {
        let content = inner(name);
        request("[]", &format!(r#"[{{"type":"tool_result","tool_use_id":"t","content":[{content}]}}]"#))
    };
    let (out, plan) = planned(&result(r"cache\u005fcontrol"), &anthropic());
    assert_eq!((out, skips(&plan)), (result(r"cache\u005fcontrol"), vec![("request", "ambiguous")]));
    assert!(!planned(&result("cache_control"), &anthropic()).1.edits.is_empty());
    assert!(!planned(&result(r"ca\u005fche"), &anthropic()).1.edits.is_empty(), "another name");
    let call = r#"[{"type":"tool_use","id":"t","name":"n","input":{"cache\u005fcontrol":1}}]"#;
    assert!(!planned(&request("[]", call), &anthropic()).1.edits.is_empty(), "what a call brings is data");
    let own = request("[]", &format!("[{}]", inner(r"cache\u005fcontrol")));
    assert_eq!(skips(&planned(&own, &anthropic()).1), [("request", "ambiguous")]);
}

#[test]
fn a_conversation_that_has_continued_is_marked_whatever_others_do() {
    let seldom = Situation { seldom_continues: true, ..anthropic() };
    let body = request("[]", r#""u""#);
    assert_eq!(skips(&planned(&body, &seldom).1), [("request", "seldom_continues")]);
    let later = r#"{"role":"assistant","content":"yes"},{"role":"user","content":"go on"}]}"#;
    let body = body.strip_suffix("]}").map(|first| format!("{first},{later}")).unwrap();
    let plan = planned(&body, &seldom).1;
    assert_eq!((plan.edits.len(), skips(&plan)), (2, vec![]), "{body}");
}

#[test]
fn behind_what_changes_every_turn_nothing_is_marked() {
    let body = request(&format!("[{}]", text("s")), &format!("[{}]", text("u")));
    let plan = |layer| planned(&body, &Situation { unread_from: Some(layer), ..anthropic() });
    let (out, why) = plan(Layer::Messages);
    assert!(out.contains(&marked("s", MARK)), "{out}");
    assert_eq!((why.edits.len(), skips(&why)), (2, vec![("tail", "never_read")]));
    let (out, why) = plan(Layer::System);
    assert!(out.contains(&format!(r#"}}{MARK}}}],"system""#)), "the tools: {out}");
    assert_eq!(why.edits.len(), 1);
    let (_, why) = plan(Layer::Tools);
    assert_eq!((why.edits.len(), skips(&why)), (0, vec![("tail", "never_read")]));
}

#[test]
fn a_prefix_below_the_minimum_is_skipped_only_when_that_is_certain() {
    let body = request(&format!("[{}]", text("s")), &format!("[{}]", text(&"u".repeat(2_000))));
    let situation = Situation { minimum_tokens: Some(1_024), ..anthropic() };
    let (_, plan) = planned(&body, &situation);
    let small = vec![("system", "below_minimum"), ("tools", "below_minimum")];
    assert_eq!((plan.edits.len(), skips(&plan)), (1, small));
    let (_, plan) = planned(&body, &Situation { tokens_per_byte: Some(0.25), ..situation });
    assert_eq!((plan.edits.len(), plan.skipped.len()), (0, 3));
    let (_, plan) = planned(&body, &Situation { tokens_per_byte: Some(f64::NAN), ..situation });
    assert_eq!(plan.edits.len(), 1, "an impossible ratio is none");
    let long = request("[]", &format!("[{}]", text(&"u".repeat(10_000))));
    let (_, plan) = planned(&long, &Situation { tokens_per_byte: Some(0.002), ..situation });
    assert_eq!(plan.edits.len(), 1, "no text has so many bytes to a token");
    let image = r#"[{"type":"image","source":{"type":"url","url":"u"}}]"#;
    let (_, plan) = planned(&request("[]", image), &situation);
    assert_eq!(skips(&plan), [("tools", "below_minimum")], "an image is more than its bytes");
    let toolset = r#"{"tools":[{"type":"mcp_toolset","mcp_server_name":"m"}],"messages":[]}"#;
    assert_eq!(planned(toolset, &situation).1.edits.len(), 1, "a toolset is more than its bytes");
}

#[test]
fn an_upstream_that_caches_by_itself_gets_no_markers() {
    let body = request("[]", &format!("[{}]", marked("u", MARK)));
    let (out, plan) = planned(&body, &Situation::new(Profile::Automatic));
    assert_eq!((out, skips(&plan)), (body, vec![("request", "automatic_cache")]));
    assert_eq!(plan.breakpoints.len(), 1, "as sent");
}

#[test]
fn markers_on_blocks_of_no_known_kind_are_the_upstreams_to_judge() {
    for kind in ["7", "null", "{}", "[]", "\"\"", "\"x\"", "\"\\u0074hinking\""] {
        let body = format!(r#"{{"messages":[{{"role":"user","content":[{{"type":{kind}{MARK}}}]}}]}}"#);
        let anatomy = Anatomy::read(body.as_bytes()).unwrap();
        let refused = kind.contains("hinking");
        assert_eq!(RequestMarks::read(body.as_bytes(), &anatomy).is_err(), refused, "{kind}");
    }
}

#[test]
fn what_is_not_understood_is_left_alone_with_a_reason() {
    let with = |mark: &str| request("[]", &format!("[{},{}]", marked("u", mark), text("v")));
    let top = |mark: &str| request("[]", "[]").replacen('{', &format!("{{{mark},"), 1);
    let thinking = format!(r#"[{{"type":"thinking","thinking":"t"{MARK}}},{}]"#, text("v"));
    let nested = r#"[{"type":"tool_result","content":[{"type":"text","cache_control":7}]}]"#;
    let five = format!("[{}]", [MARK; 5].map(|mark| marked("x", mark)).join(","));
    let top_five = r#""cache_control":{"type":"ephemeral"}"#;
    for (body, reason) in [
        (with(r#","cache_control":{"type":"forever"}"#), "malformed_marker"),
        (with(r#","cache_control":{"type":"ephemeral","ttl":"2h"}"#), "malformed_marker"),
        (with(r#","cache_control":{"type":"ephemeral","ttl":7}"#), "malformed_marker"),
        (with(r#","cache_control":true"#), "malformed_marker"),
        (request("[]", nested), "malformed_marker"),
        (top(r#""cache_control":[]"#), "malformed_marker"),
        (top(&format!("{top_five},{top_five}")), "ambiguous"),
        (with(r#","cache_control":null,"cache_control":null"#), "ambiguous"),
        (request("[]", "[]").replace(r#""tools""#, r#""t\u006fols""#), "ambiguous"),
        (
            request(&format!("[{}]", marked("s", MARK)), &format!("[{}]", marked("u", HOUR))),
            "illegal_markers",
        ),
        (request("[]", &thinking), "illegal_markers"),
        (request("[]", &five), "illegal_markers"),
        (
            request("[]", &format!("[{}]", marked("u", HOUR))).replacen('{', &format!("{{{top_five},"), 1),
            "illegal_markers",
        ),
    ] {
        let (out, plan) = planned(&body, &anthropic());
        assert_eq!(out, body);
        assert_eq!(skips(&plan), [("request", reason)], "{body}");
        assert_eq!(plan.breakpoints, []);
    }
}

#[test]
fn every_skip_has_its_own_spelling() {
    let spellings: std::collections::HashSet<_> = Skip::ALL.iter().map(|skip| skip.as_str()).collect();
    assert_eq!(spellings.len(), Skip::ALL.len());
}

/// A marker, or none.
fn any_mark() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        8 => Just(""),
        2 => Just(MARK),
        1 => Just(HOUR),
        1 => Just(r#","cache_control":{"type":"ephemeral","ttl":"5m"}"#),
        1 => Just(r#" , "cache_control" : null "#),
    ]
}

fn any_block() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![
        r#""type":"text","text":"x""#,
        r#""type":"text","text":"\"cache_control\"""#,
        r#" "type" : "image" "#,
        r#""type":"tool_use","input":{"cache_control":1}"#,
        r#""type":"tool_result","content":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}]"#,
        r#""type":"tool_result","content":"x""#,
        r#""type":"unheard_of""#,
    ]);
    let barred = prop::sample::select(vec![
        r#"{"type":"thinking","thinking":"t"}"#,
        r#"{"type":"fallback"}"#,
        r#"{"type":"text","text":""}"#,
    ]);
    prop_oneof![
        5 => (kind, any_mark()).prop_map(|(kind, mark)| format!("{{{kind}{mark}}}")),
        1 => barred.prop_map(str::to_owned),
    ]
}

fn any_content() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::collection::vec(any_block(), 0..8).prop_map(|blocks| format!("[{}]", blocks.join(", "))),
        1 => Just(r#""hello""#.to_owned()),
        1 => Just(r#""""#.to_owned()),
    ]
}

fn any_request() -> impl Strategy<Value = String> {
    let tool = (any_mark(), any::<bool>()).prop_map(|(mark, deferred)| match deferred {
        true => r#"{"name":"d","defer_loading":true}"#.to_owned(),
        false => format!(r#"{{"name":"n"{mark}}}"#),
    });
    let tools = prop::collection::vec(tool, 0..3).prop_map(|tools| format!("[{}]", tools.join(",")));
    let system_block = any_mark().prop_map(|mark| marked("s", mark));
    let system = prop_oneof![
        prop::collection::vec(system_block, 0..3).prop_map(|blocks| format!("[{}]", blocks.join(","))),
        Just(r#""s""#.to_owned()),
    ];
    let messages =
        prop::collection::vec((prop::sample::select(vec!["user", "assistant"]), any_content()), 0..6);
    let top =
        prop_oneof![6 => Just(""), 1 => Just(MARK), 1 => Just(HOUR), 1 => Just(",\"cache_control\":null")];
    (tools, system, messages, top, any::<bool>()).prop_map(
        |(tools, system, messages, top, messages_first)| {
            let messages: Vec<_> = messages
                .iter()
                .map(|(role, content)| format!(r#"{{"role":"{role}","content":{content}}}"#))
                .collect();
            let messages = format!(r#""messages":[{}]"#, messages.join(","));
            let head = format!(r#""tools":{tools} ,"system":{system}"#);
            match messages_first {
                true => format!("{{{messages},{head}{top}}}"),
                false => format!("{{ {head},{messages}{top}\n}}"),
            }
        },
    )
}

#[test]
fn what_siblings_share_is_marked_unless_their_parent_wrote_it() {
    let body = r#"{"tools":[{"name":"n"}],"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":"b"},{"role":"user","content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]}]}"#;
    let places = |shared, last_written| {
        let (_, plan) = planned(body, &Situation { shared, last_written, ..anthropic() });
        plan.breakpoints.iter().map(|point| point.piece).collect::<Vec<_>>()
    };
    assert_eq!(places(None, None), [0, 4]);
    assert_eq!(places(Some(3), None), [0, 3, 4]);
    assert_eq!(places(Some(3), Some(1)), [0, 3, 4]);
    assert_eq!(places(Some(1), Some(1)), [0, 4]);
    assert_eq!(places(Some(2), None), [0, 4], "a string carries none");
    assert_eq!(places(Some(9), None), [0, 4]);
}

fn any_situation() -> impl Strategy<Value = Situation> {
    let profile = prop::sample::select(vec![Profile::Anthropic, Profile::BlocksOnly, Profile::Automatic]);
    let minimum = prop::option::of(0_u64..400);
    let ratio = prop::option::of(0.1_f64..1.0);
    let written = prop::option::of(0_usize..60);
    let shared = prop::option::of(0_usize..60);
    (profile, minimum, ratio, written, any::<bool>(), any::<bool>(), any::<bool>(), shared).prop_map(
        |(
            profile,
            minimum_tokens,
            tokens_per_byte,
            last_written,
            seldom_continues,
            tools,
            system,
            shared,
        )| {
            Situation {
                profile,
                minimum_tokens,
                tokens_per_byte,
                last_written,
                seldom_continues,
                is_read_late: false,
                read_by_others: StaticEnds { tools, system },
                shared,
                unread_from: None,
                held_pieces: 0,
            }
        },
    )
}

/// The rules once more, written for a parsed tree: lifetimes in the order of the cache, and what is wrong.
fn verdict(body: &str) -> Result<(), String> {
    let body: Value = serde_json::from_str(body).unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut blocks: Vec<Value> = list(&body["tools"]);
    blocks.extend(list(&body["system"]));
    for message in list(&body["messages"]) {
        match &message["content"] {
            Value::String(text) => blocks.push(serde_json::json!({"type": "text", "text": text})),
            content => blocks.extend(list(content)),
        }
    }
    let hour = |control: &Value| control["ttl"] == "1h";
    let (mut count, mut order) = (0, Vec::new());
    let mut target = None;
    for (index, block) in blocks.iter().enumerate() {
        let barred = matches!(block["type"].as_str(), Some("thinking" | "fallback"))
            || block["text"] == ""
            || block["defer_loading"] == true;
        target = if barred { target } else { Some(index) };
        let nested = list(&block["content"]).iter().filter(|inner| !inner["cache_control"].is_null()).count();
        count += nested;
        if !block["cache_control"].is_null() {
            if barred {
                return Err(format!("barred {block}"));
            }
            count += 1;
            order.push((index, hour(&block["cache_control"])));
        }
    }
    if !body["cache_control"].is_null() {
        count += 1;
        let hour = hour(&body["cache_control"]);
        match order.iter().find(|(index, _)| Some(*index) == target) {
            Some((_, own)) if *own != hour => return Err("another lifetime".to_owned()),
            Some(_) => {}
            None => order.extend(target.map(|index| (index, hour))),
        }
    }
    order.sort_unstable_by_key(|(index, _)| *index);
    if order.windows(2).any(|pair| !pair[0].1 && pair[1].1) {
        return Err("1h behind 5m".to_owned());
    }
    if count > 4 { Err(format!("{count} markers")) } else { Ok(()) }
}

proptest! {
    #[test]
    fn what_was_legal_stays_legal(body in any_request(), situation in any_situation()) {
        let (out, plan) = planned(&body, &situation);
        prop_assert!(serde_json::from_str::<Value>(&out).is_ok());
        match verdict(&body) {
            Ok(()) => prop_assert_eq!(verdict(&out), Ok(()), "{}", out),
            Err(_) => prop_assert!(plan.edits.is_empty(), "{}", out),
        }
        prop_assert!(plan.breakpoints.len() <= 4);
        prop_assert!(plan.breakpoints.is_sorted_by_key(|point| point.piece));
    }

    #[test]
    fn any_bytes_are_planned_without_panic(body in "[\\[\\]{}:,\"a-z_ 0-9]{0,80}", entry in any::<usize>()) {
        let situation = Situation { last_written: Some(entry), ..anthropic() };
        if let Ok(anatomy) = Anatomy::read(body.as_bytes()) {
            let plan = plan(body.as_bytes(), &anatomy, &situation);
            let forwarded = apply(&Bytes::from(body.clone()), &plan.edits);
            prop_assert!(forwarded.length >= body.len());
        }
    }
}
