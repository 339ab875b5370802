use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::Nothing;
use crate::engine::words::TenantId;

fn read(body: impl Into<Bytes>) -> Remembered {
    Remembered::read(body.into(), &Nothing, Attribution::Counted).unwrap()
}

fn result(content: &Value) -> Value {
    json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": content})
}

/// A conversation that was given these results, one message each.
fn given(contents: &[Value]) -> Remembered {
    let mut messages = vec![json!({"role": "user", "content": "Go."})];
    for content in contents {
        let call = json!({"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}});
        messages.push(json!({"role": "assistant", "content": [call]}));
        messages.push(json!({"role": "user", "content": [result(content)]}));
    }
    read(json!({"messages": messages}).to_string())
}

fn again(parent: &[Value], child: &[Value]) -> u64 {
    let parent = ParentResults::of(&given(parent));
    NewResults::of(&given(child)).map_or(0, |new| new.read_again(&parent).results)
}

/// Lines that nobody else has, joined.
fn lines(name: &str, numbers: std::ops::Range<usize>) -> String {
    numbers.map(|number| format!("{name}: this is line {number} of the file\n")).collect()
}

fn long(letter: &str, bytes: usize) -> Value {
    json!(letter.repeat(bytes))
}

#[test]
fn an_equal_text_is_a_re_read_and_another_is_not() {
    assert_eq!(again(&[long("a", 300), long("b", 300)], &[long("a", 300)]), 1);
    assert_eq!(again(&[long("a", 300), long("b", 300)], &[long("c", 300)]), 0);
    assert_eq!(again(&[], &[long("a", 300)]), 0);
}

#[test]
fn its_bytes_are_those_of_the_prompt() {
    let parent = ParentResults::of(&given(&[long("a", 300)]));
    let child = given(&[long("a", 300)]);
    let found = NewResults::of(&child).unwrap().read_again(&parent);
    let piece = child.anatomy().pieces.last().unwrap();
    assert_eq!(found, ReadAgain { results: 1, bytes: piece.span.len() as u64 });
}

#[test]
fn a_text_of_255_bytes_does_not_count_and_one_of_256_does() {
    for (bytes, expected) in [(255, 0), (256, 1)] {
        assert_eq!(again(&[long("a", bytes)], &[long("a", bytes)]), expected, "{bytes}");
    }
    // The length is that of the text, not of its escapes.
    let escapes = json!("\n".repeat(255));
    assert_eq!(again(std::slice::from_ref(&escapes), std::slice::from_ref(&escapes)), 0);
}

#[test]
fn escapes_and_blocks_do_not_hide_a_text() {
    let text = format!("é/\"{}", "x".repeat(300));
    let parent = ParentResults::of(&given(&[json!(text)]));
    let spelt = r#"\u00e9\/\u0022"#.to_owned() + &"x".repeat(300);
    let string = format!(r#""{spelt}""#);
    let (one, two) = spelt.split_at(30);
    let blocks = format!(
        r#"[{{"text":"{one}","type":"text"}}, {{"type":"image","source":{{}}}}, {{"type":"text","text":"{two}"}}]"#
    );
    for content in [string, blocks] {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t","content":{content}}}]}}]}}"#
        );
        let found = NewResults::of(&read(body)).unwrap().read_again(&parent);
        assert_eq!(found.results, 1, "{content}");
    }
}

#[test]
fn twenty_lines_in_a_row_are_needed_even_if_all_lines_are_known() {
    let file = lines("a", 0..100);
    for (run, expected) in [(19, 0), (20, 1)] {
        let head = lines("a", 40..40 + run);
        assert_eq!(again(&[json!(file)], &[json!(head)]), expected, "{run}");
    }
    // Every second line: all known, none beside its neighbour.
    let scattered: String = (0..100).step_by(2).map(|number| lines("a", number..number + 1)).collect();
    assert_eq!(again(&[json!(file)], &[json!(scattered)]), 0);
}

#[test]
fn four_fifths_of_the_lines_are_needed() {
    let file = lines("a", 0..200);
    for (known, expected) in [(79, 0), (80, 1)] {
        let mixed = lines("a", 0..known) + &lines("new", known..100);
        assert_eq!(again(&[json!(file)], &[json!(mixed)]), expected, "{known} %");
    }
}

#[test]
fn the_lines_stand_in_one_result_of_the_parent() {
    let halves = [json!(lines("a", 0..50)), json!(lines("b", 0..50))];
    let both = lines("a", 0..50) + &lines("b", 0..50);
    assert_eq!(again(&halves, &[json!(both)]), 0);
    // An older version of the same file does, if the newest does not.
    let versions = [json!(lines("a", 0..50)), json!(lines("a", 0..25) + &lines("b", 0..50))];
    assert_eq!(again(&versions, &[json!(lines("a", 0..50))]), 1);
}

#[test]
fn only_results_since_the_last_answer_are_looked_at() {
    let parent = ParentResults::of(&given(&[long("a", 300), long("b", 300)]));
    let turns = [long("a", 300), long("b", 300), long("c", 300)];
    let found: Vec<u64> = (1..=turns.len())
        .map(|turn| NewResults::of(&given(&turns[..turn])).unwrap().read_again(&parent).results)
        .collect();
    assert_eq!(found, [1, 1, 0], "each is counted on the turn that brings it");
    assert!(NewResults::of(&given(&[])).is_none());
}

#[test]
fn a_parent_is_digested_within_bounds_and_its_newest_results_first() {
    let many: Vec<Value> = (0..RESULTS_MAX + 5).map(|number| json!(format!("{number:0>300}"))).collect();
    let digested = ParentResults::of(&given(&many));
    assert_eq!(digested.texts.len(), RESULTS_MAX);
    assert!(digested.has(many.last().unwrap().as_str().unwrap()) && !digested.has(many[0].as_str().unwrap()));

    let files: Vec<Value> = (0..10).map(|number| json!(lines(&number.to_string(), 0..1_000))).collect();
    let digested = ParentResults::of(&given(&files));
    assert_eq!((digested.texts.len(), digested.line_count), (10, 8_000));
    assert!(digested.line_count <= LINES_MAX);

    let huge: Vec<Value> = ["a", "b", "c"].map(|letter| long(letter, TEXT_BYTES_MAX / 2)).into();
    assert_eq!(ParentResults::of(&given(&huge)).texts.len(), 2);
}

#[test]
fn a_result_is_compared_with_a_few_of_the_parents() {
    let count = CANDIDATES_MAX + 2;
    let line = |number: usize| lines("a", number..number + 1);
    let part = |number: usize| lines("a", number * RUN_LINES..(number + 1) * RUN_LINES) + &"tail ".repeat(60);
    let whole = lines("a", 0..count * RUN_LINES);
    // The last has all lines too, in another order.
    let scattered =
        |remainder: usize| (remainder..count * RUN_LINES).step_by(2).map(line).collect::<String>();
    let last = part(count - 1) + "\n" + &scattered(0) + &scattered(1);
    let mut parts: Vec<Value> = (0..count - 1).map(|number| json!(part(number))).collect();
    parts.push(json!(last));
    assert_eq!(again(&parts, &[json!(whole)]), 0, "it is not reached");
    assert_eq!(again(&parts[count - CANDIDATES_MAX..], &[json!(whole)]), 1);
}

#[test]
fn the_oldest_parents_make_room() {
    let fork = |number: usize| ForkId::of(TenantId([1; 32]), &number.to_string());
    let large = Arc::new(ParentResults::of(&given(&[json!(lines("a", 0..LINES_MAX))])));
    assert_eq!(large.line_count, LINES_MAX);
    let fit = PARENT_LINES_MAX / LINES_MAX;
    let mut parents = DigestedParents::default();
    for number in 0..fit {
        parents.keep(fork(number), Arc::clone(&large));
    }
    assert!(parents.get(fork(0)).is_some(), "and it is the newest now");
    parents.keep(fork(fit), Arc::clone(&large));
    assert!(parents.get(fork(0)).is_some() && parents.get(fork(1)).is_none());

    let mut parents = DigestedParents::default();
    for number in 0..=PARENTS_MAX {
        parents.keep(fork(number), Arc::default());
    }
    assert_eq!((parents.parents.len(), parents.get(fork(0)).is_some()), (PARENTS_MAX, false));
}
