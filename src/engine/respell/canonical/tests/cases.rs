//! Single cases, one promise each.

use super::*;

/// Forwards each body in turn and answers the last.
fn last(bodies: &[&str]) -> String {
    let mut tenant = Tenant::new();
    bodies.iter().map(|body| tenant.forward(body)).last().unwrap()
}

#[test]
fn first_seen_order_white_space_and_key_order_come_back() {
    let first =
        r#"{"tools":[ {"name":"b","x":{"p":1,"q":2}} ,{"name":"a"} ],"system":[{"type":"text","text":"é"}]}"#;
    let second = r#"{"system":[ {"text":"\u00e9","type":"text"}],"tools":[{"name":"a"},{"x":{"q":2,"p":1},"name":"b"}]}"#;
    let want =
        r#"{"system":[{"type":"text","text":"é"}],"tools":[ {"name":"b","x":{"p":1,"q":2}} ,{"name":"a"} ]}"#;
    assert_eq!(last(&[first, second]), want);
}

#[test]
fn markers_stay_in_their_places() {
    let first = r#"{"tools":[{"name":"a","x":1,"cache_control":{"type":"ephemeral"}},{"name":"b"}]}"#;
    // The same bytes beside the marker: untouched, wherever the marker stands.
    let moved = r#"{"tools":[{"name":"a","cache_control":1,"x":1},{"cache_control":2,"name":"b"}]}"#;
    assert_eq!(last(&[first, moved]), moved);
    let respelt = r#"{"tools":[{"name":"b"},{"cache_control":{"ttl":"1h" },"x":1,"name":"a"}]}"#;
    let want = r#"{"tools":[{"name":"a","x":1},{"name":"b","cache_control":{"ttl":"1h" }}]}"#;
    assert_eq!(last(&[first, respelt]), want);
    assert_eq!(last(&[first, want]), want);
}

#[test]
fn a_marker_among_the_tools_keeps_their_order() {
    let first = r#"{"tools":[{"name":"a"},{"name":"b"},{"name":"c","x":1}]}"#;
    let leaning = r#"{"tools":[{"x":1,"name":"c","cache_control":1},{"name":"a"},{"name":"b"}]}"#;
    let want = r#"{"tools":[{"name":"c","x":1,"cache_control":1},{"name":"a"},{"name":"b"}]}"#;
    assert_eq!(last(&[first, leaning]), want);
    // The same tools stand before it.
    let behind = r#"{"tools":[{"name":"b"},{"name":"a","cache_control":1},{"name":"c","x":1}]}"#;
    let want = r#"{"tools":[{"name":"a"},{"name":"b","cache_control":1},{"name":"c","x":1}]}"#;
    assert_eq!(last(&[first, behind]), want);
    // One that is written with escapes cannot be moved, and two are refused.
    let escaped =
        r#"{"tools":[{"name":"b"},{"name":"a","cache\u005fcontrol":1},{"name":"c","cache_control":1}]}"#;
    let first = r#"{"tools":[{"name":"b"},{"name":"c"},{"name":"a","cache\u005fcontrol":1}]}"#;
    assert_eq!(last(&[first, escaped]), escaped);
}

#[test]
fn a_conversation_that_is_bound_keeps_the_order_of_its_start_whatever_is_marked_later() {
    let mut tenant = Tenant::new();
    tenant.forward(r#"{"tools":[{"name":"a"},{"name":"b"}]}"#);
    let mut choice = Choice::new(Order::FirstSeen, Limits::CONVERSATION);
    let marked = r#"{"tools":[{"name":"b","cache_control":1},{"name":"a"}]}"#;
    let mut forward = |body: &str, start: bool| {
        let body = Bytes::from(body.to_owned());
        let anatomy = Anatomy::read(&body).unwrap();
        let conversation = match start {
            true => Conversation::Started,
            false => Conversation::Continued { choice: Some(&choice) },
        };
        let thinking = Thinking::Bound(conversation);
        let canonical = canonicalize(&body, &anatomy, Order::FirstSeen, thinking, &tenant.table);
        let forwarded = spliced(std::str::from_utf8(&body).unwrap(), &canonical.replacements);
        choice.pin(canonical.pins);
        forwarded
    };
    assert_eq!(forward(marked, true), marked);
    let plain = r#"{"tools":[{"name":"b"},{"name":"a"}]}"#;
    assert_eq!(forward(plain, false), plain);
    let other = r#"{"tools":[{"name":"a","cache_control":1},{"name":"b"}]}"#;
    assert_eq!(forward(other, false), marked);
}

#[test]
fn an_empty_element_can_carry_a_marker() {
    let respelt = r#"{"tools":[{"cache_control":1}]}"#;
    assert_eq!(last(&[r#"{"tools":[{ }]}"#, respelt]), r#"{"tools":[{"cache_control":1 }]}"#);
}

#[test]
fn a_string_and_a_list_never_become_each_other() {
    let list = r#"{"system":[{"type":"text","text":"s"}]}"#;
    let text = r#"{"system":"s"}"#;
    assert_eq!(last(&[list, text]), text);
    assert_eq!(last(&[text, list]), list);
    assert_eq!(last(&[text, r#"{"system":"\u0073"}"#]), text);
}

#[test]
fn what_has_no_shared_meaning_stays_while_its_neighbours_are_spelt() {
    let first = r#"{"tools":[{"a":1,"a":2},{"name":"n","x":1}, {"t":"\ud800"}]}"#;
    let second = r#"{"tools":[{"a":1 ,"a":2},{"x":1,"name":"n"},{"t":"\ud800"}]}"#;
    let want = r#"{"tools":[{"a":1 ,"a":2},{"name":"n","x":1},{"t":"\ud800"}]}"#;
    assert_eq!(last(&[first, second]), want);
}

#[test]
fn a_raw_control_character_never_reaches_a_sound_request() {
    let raw = "{\"system\":\"a\u{1}b\"}";
    let sound = r#"{"system":"a\u0001b"}"#;
    assert_eq!(last(&[raw, sound]), sound);
    assert_eq!(last(&[sound, raw]), raw);
}

#[test]
fn the_attribution_line_stays_and_is_not_compared() {
    let body = |line: &str, rest: &str| format!(r#"{{"system":[{line},{rest}]}}"#);
    let line = |n: u32| format!(r#"{{"text":"x-anthropic-billing-header: {n}","type":"text"}}"#);
    let first = body(&line(1), r#"{"type":"text","text":"s"}"#);
    let second = body(&line(2), r#" {"text":"s","type":"text"}"#);
    assert_eq!(last(&[&first, &second]), body(&line(2), r#"{"type":"text","text":"s"}"#));
    let other_spelling =
        body(r#"{"type":"text","text":"x-anthropic-billing-header: 1"}"#, r#"{"type":"text","text":"s"}"#);
    assert_eq!(last(&[&first, &other_spelling]), other_spelling);
    // Elements are shared with prompts that have no such line.
    assert_eq!(
        last(&[&first, r#"{"system":[{"text":"s","type":"text"}]}"#]),
        r#"{"system":[{"type":"text","text":"s"}]}"#
    );
}

fn call(id: &str, input: &str) -> String {
    format!(
        r#"{{"messages":[{{"role":"assistant","content":[{{"type":"tool_use","id":"{id}","name":"n","input":{input}}}]}}]}}"#
    )
}

#[test]
fn an_input_is_known_by_its_id_and_its_meaning() {
    let first = call("t1", r#"{"a":1,"b":2}"#);
    assert_eq!(last(&[&first, &call("t1", r#"{"b":2, "a":1}"#)]), first);
    for other in [
        call("t2", r#"{"b":2, "a":1}"#),
        call("t1", r#"{"b":2,"a":1.0}"#),
        call("t1", r#"{"a":1,"a":1,"b":2}"#),
    ] {
        assert_eq!(last(&[&first, &other]), other);
    }
}

#[test]
fn equal_elements_of_one_request_are_spelt_alike_at_once() {
    let twice = r#"{"tools":[{"name":"n","x":1},{"x":1,"name":"n"}]}"#;
    assert_eq!(last(&[twice]), r#"{"tools":[{"name":"n","x":1},{"name":"n","x":1}]}"#);
}

#[test]
fn a_subset_of_the_tools_has_its_own_order_and_shares_the_elements() {
    let all = r#"{"tools":[{"name":"a","x":1},{"name":"b"},{"name":"c"}]}"#;
    let some = r#"{"tools":[{"name":"c"},{"x":1,"name":"a"}]}"#;
    assert_eq!(last(&[all, some]), r#"{"tools":[{"name":"c"},{"name":"a","x":1}]}"#);
}

#[test]
fn ambiguous_bodies_and_odd_layers_are_left_alone() {
    for (first, second) in [
        (r#"{"tools":[{"a":1,"b":2}]}"#, r#"{"tools":[{"b":2,"a":1}],"tools":[]}"#),
        (r#"{"tools":{"a":1,"b":2}}"#, r#"{"tools":{"b":2,"a":1}}"#),
        (r#"{"tools":"\u0061"}"#, r#"{"tools":"a"}"#),
        (r#"{"system":[["a",{"a":1,"b":2}]]}"#, r#"{"system":[["a",{"b":2,"a":1}]]}"#),
    ] {
        assert_eq!(last(&[first, second]), second);
    }
}

#[test]
fn off_changes_nothing_and_learns_nothing() {
    let tenant = Tenant { order: Order::Off, ..Tenant::new() };
    let canonical = tenant.canonical(r#"{"tools":[{"name":"b"},{"name":"a"}]}"#);
    assert!(canonical.replacements.is_empty() && canonical.interns.is_empty() && canonical.pins.is_empty());
}

#[test]
fn sorting_goes_by_name_and_leaves_the_inside_alone() {
    let mut tenant = Tenant { order: Order::Sorted, ..Tenant::new() };
    let body = r#"{"tools":[{"type":"mcp"}, {"x":1,"name":"b"},{"name":"\u0061","cache_control":1}]}"#;
    let want = r#"{"tools":[{"name":"\u0061"}, {"x":1,"name":"b"},{"type":"mcp","cache_control":1}]}"#;
    assert_eq!(tenant.forward(body), want);
    assert_eq!(tenant.table.entries(), 0);
}

#[test]
fn a_bound_conversation_not_seen_from_its_start_keeps_its_own_spelling() {
    let mut tenant = Tenant::new();
    tenant.forward(r#"{"system":[{"type":"text","text":"s"}]}"#);
    let body = Bytes::from(r#"{"system":[{"text":"s","type":"text"}]}"#);
    let anatomy = Anatomy::read(&body).unwrap();
    let spell = |conversation| {
        canonicalize(&body, &anatomy, Order::FirstSeen, Thinking::Bound(conversation), &tenant.table)
    };
    assert!(spell(Conversation::Continued { choice: None }).replacements.is_empty());
    let started = spell(Conversation::Started);
    assert_eq!(started.replacements.len(), 1);
    // The configuration of the first request holds for the conversation.
    let mut choice = Choice::new(Order::Off, Limits::CONVERSATION);
    choice.pin(started.pins);
    assert!(spell(Conversation::Continued { choice: Some(&choice) }).replacements.is_empty());
}

#[test]
fn a_spelling_is_kept_once_and_shared() {
    let mut tenant = Tenant::new();
    tenant.forward(r#"{"tools":[{"name":"a","x":1}]}"#);
    let with = || tenant.canonical(r#"{"tools":[{"x":1,"name":"a"}]}"#).replacements[0].with[0].clone();
    assert_eq!(with().as_ptr(), with().as_ptr());
}

#[test]
fn the_first_to_be_remembered_wins() {
    let mut tenant = Tenant::new();
    let (one, two) = (call("t", r#"{"a":1,"b":2}"#), call("t", r#"{"b":2,"a":1}"#));
    let late = tenant.canonical(&two).interns;
    tenant.forward(&one);
    tenant.table.remember(late);
    assert_eq!(tenant.forward(&two), one);
    assert_eq!(tenant.forward(&one), one);
}

#[test]
fn a_table_stays_within_its_limits_and_forgets_the_least_recently_used() {
    let limits = Limits { bytes: 16 << 10, entries: 64 };
    let mut tenant = Tenant { table: Table::new(limits), order: Order::FirstSeen };
    let used = r#"{"system":[{"type":"text","text":"used"}]}"#;
    tenant.forward(used);
    for n in 0..500 {
        tenant.forward(&format!(r#"{{"system":[{{"type":"text","text":"{n} {}"}}]}}"#, "x".repeat(n)));
        tenant.forward(used);
        assert!(tenant.table.bytes() <= limits.bytes + limits.bytes / 4, "{}", tenant.table.bytes());
        assert!(tenant.table.entries() <= 2 * limits.entries);
    }
    assert_eq!(tenant.forward(r#"{"system":[{"text":"used","type":"text"}]}"#), used);
    let forgotten = r#"{"system":[{"text":"0 ","type":"text"}]}"#;
    assert_eq!(tenant.forward(forgotten), forgotten);
}

#[test]
fn an_entry_is_renewed_only_once_it_is_old() {
    let limits = Limits { bytes: 16 << 10, entries: 64 };
    let mut tenant = Tenant { table: Table::new(limits), order: Order::FirstSeen };
    let used = r#"{"tools":[{"name":"used"}],"system":[{"type":"text","text":"used"}]}"#;
    let other = |n: usize| format!(r#"{{"system":[{{"type":"text","text":"{n} {}"}}]}}"#, "x".repeat(1_000));
    tenant.forward(used);
    for n in 0..4 {
        tenant.forward(&other(n));
        assert!(tenant.canonical(used).interns.is_empty(), "still new after {n} others");
    }
    (4..7).for_each(|n| drop(tenant.forward(&other(n))));
    let entries = tenant.table.entries();
    let renewed = tenant.canonical(used).interns;
    assert!(!renewed.is_empty(), "old");
    tenant.table.remember(renewed);
    assert_eq!(tenant.table.entries(), entries, "nothing was new");
    assert!(tenant.canonical(used).interns.is_empty(), "new again");
}

#[test]
fn one_value_cannot_push_out_all_others() {
    let limits = Limits { bytes: 16 << 10, entries: 64 };
    let mut tenant = Tenant { table: Table::new(limits), order: Order::FirstSeen };
    let used = r#"{"system":"us\u0065d"}"#;
    tenant.forward(used);
    tenant.forward(&format!(r#"{{"system":"{}"}}"#, "x".repeat(limits.bytes)));
    assert_eq!(tenant.forward(r#"{"system":"used"}"#), used);
}

#[test]
fn hostile_depth_and_counts_are_left_alone() {
    let deep = format!("{}{}", "[".repeat(400), "]".repeat(400));
    let body = format!(r#"{{"tools":[{{"x":{deep},"name":"a"}}]}}"#);
    let respelt = format!(r#"{{"tools":[{{"name":"a","x":{deep}}}]}}"#);
    assert_eq!(last(&[&body, &respelt]), respelt);
    let many = |one: &str| format!(r#"{{"tools":[{}]}}"#, vec![one; 3000].join(","));
    assert_eq!(last(&[&many("{}"), &many("{ }")]), many("{ }"));
}
