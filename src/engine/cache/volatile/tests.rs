use proptest::prelude::*;

use super::*;
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::prefix::{Attribution, Chain};

struct Request {
    body: String,
    anatomy: Anatomy,
    chain: Chain,
}

impl Request {
    fn of(body: String) -> Request {
        let anatomy = Anatomy::read(body.as_bytes()).unwrap();
        let chain = Chain::of(body.as_bytes(), &anatomy, Attribution::Stripped);
        Request { body, anatomy, chain }
    }

    fn subject(&self) -> Subject<'_> {
        Subject { body: self.body.as_bytes(), anatomy: &self.anatomy, chain: &self.chain }
    }
}

fn with_system(text: &str) -> Request {
    let text = serde_json::to_string(text).unwrap();
    Request::of(format!(
        r#"{{"system":[{{"type":"text","text":{text}}}],"messages":[{{"role":"user","content":"hi"}}]}}"#
    ))
}

/// Each change as its kind and the texts, which the caller may look at.
fn told(first: &Request, second: &Request) -> Vec<(&'static str, String, String)> {
    let found = volatile(&first.subject(), &second.subject(), None, usize::MAX, 1.0);
    let told = found.iter().map(|it| {
        let [one, two] = &it.spans;
        (it.kind.as_str(), first.body[one.clone()].to_owned(), second.body[two.clone()].to_owned())
    });
    told.collect()
}

fn changes_of(one: &str, two: &str) -> Vec<(&'static str, String, String)> {
    told(&with_system(one), &with_system(two))
}

/// The kinds, without the texts.
fn kinds_of(one: &str, two: &str) -> Vec<&'static str> {
    changes_of(one, two).into_iter().map(|(kind, ..)| kind).collect()
}

fn change(kind: &'static str, one: &str, two: &str) -> (&'static str, String, String) {
    (kind, one.to_owned(), two.to_owned())
}

#[test]
fn dates_are_named_however_they_are_written() {
    let said = changes_of("Today is 2026-11-16.\nGo.", "Today is 2026-11-17.\nGo.");
    assert_eq!(said, [change("date", "2026-11-16.", "2026-11-17.")]);
    for (one, two) in [
        ("Date: Monday, November 16, 2026", "Date: Tuesday, November 17, 2026"),
        ("Mon Nov 30 2026", "Tue Dec 1 2026"),
        ("the 1st of May", "the 2nd of May"),
        ("on 16.11.2026", "on 17.11.2026"),
        ("on 2026/11/16", "on 2026/11/17"),
        ("<date>11/9/2026</date>", "<date>11/10/2026</date>"),
        ("since November 2025 or so", "since November 2026 or so"),
    ] {
        assert_eq!(kinds_of(one, two), ["date"], "{two}");
    }
    let phrase = changes_of("Monday, November 16, 2026", "Tuesday, November 17, 2026");
    assert_eq!(phrase, [change("date", "Monday, November 16", "Tuesday, November 17")]);
}

#[test]
fn clocks_and_timestamps_are_named() {
    for (one, two) in [
        ("It is 9:59 now", "It is 10:00 now"),
        ("at 10:00:01", "at 10:00:02"),
        ("at 10:00 AM.", "at 10:00 PM."),
        ("at 11:59am", "at 12:01pm"),
        ("now=2026-11-16T10:00:00Z", "now=2026-11-16T10:00:01Z"),
        ("2026-11-16T10:00:00.123+01:00", "2026-11-16T10:00:00.124+01:00"),
        ("epoch 1794826800", "epoch 1794826801"),
        ("epoch 1794826800123", "epoch 1794826800124"),
        ("epoch 1794826800.5", "epoch 1794826801.25"),
        ("at 2026-11-16 23:59:59", "at 2026-11-16 00:00:00"),
    ] {
        assert_eq!(kinds_of(one, two), ["clock"], "{two}");
    }
    assert_eq!(kinds_of("2026-11-16 23:59", "2026-11-17 00:00"), ["date", "clock"]);
}

#[test]
fn absolute_paths_are_directories() {
    for (one, two) in [
        ("Working directory: /home/a/one", "Working directory: /home/a/two"),
        ("<cwd>/tmp/x</cwd>", "<cwd>/var/y</cwd>"),
        (r"cwd: C:\Users\ann\new", r"cwd: D:\Users\bob\new"),
        (r"share \\host\a", r"share \\host\b"),
        ("in ~/one", "in ~/two"),
        ("see file:///a/b.md", "see file:///a/c.md"),
        ("dir=\"/a/b\"", "dir=\"/a/c\""),
        (
            "/private/tmp/3f2a9b1c-aaaa-bbbb-cccc-0123456789ab/x",
            "/private/tmp/4f2a9b1c-aaaa-bbbb-cccc-0123456789ab/x",
        ),
    ] {
        assert_eq!(kinds_of(one, two), ["directory"], "{two}");
    }
    assert_eq!(kinds_of("use src/a.rs", "use src/b.rs"), ["other"], "a relative path names no place");
}

#[test]
fn the_state_of_a_repository_is_git() {
    for (one, two) in [
        ("Current branch: main\nok", "Current branch: fix/cache\nok"),
        ("On branch main", "On branch topic"),
        ("Status:\n(clean)\nx", "Status:\nM src/lib.rs\nx"),
        ("Status:\nM a.rs\nend", "Status:\nM a.rs\n?? new/b.rs\nend"),
        ("Recent commits:\nab12cd3 one\nend", "Recent commits:\nff00aa1 two\nab12cd3 one\nend"),
        ("ab12cd3 one", "ff00aa1 one"),
        ("built from ab12cd3 today", "built from ff00aa1 today"),
        ("Is a git repo: yes", "Is a git repo: no"),
    ] {
        assert_eq!(kinds_of(one, two), ["git"], "{two}");
    }
    assert_eq!(kinds_of("A plan of three", "A plan of four"), ["other"], "no file is named");
}

#[test]
fn numbers_that_differ_are_counters() {
    for (one, two) in [
        ("You have 12 turns left", "You have 11 turns left"),
        ("used 999 tokens", "used 1,000 tokens"),
        ("45% full", "46% full"),
        ("turn-9 begins", "turn-10 begins"),
        ("budget $0.12", "budget $0.5"),
        ("12/200 files", "13/200 files"),
    ] {
        assert_eq!(kinds_of(one, two), ["counter"], "{two}");
    }
    assert_eq!(kinds_of("tools 7 up", "tools up"), ["counter"]);
}

#[test]
fn ids_are_named() {
    for (one, two) in [
        ("session 3f2a9b1c-aaaa-4bbb-8ccc-0123456789ab", "session 4f2a9b1c-aaaa-4bbb-8ccc-0123456789ab"),
        ("key deadbeef01", "key deadbeef02"),
        ("last msg_01XFDUDYJgAACzvnptvVoYEL", "last msg_01QqPUDYJgAACzvnptvVoYEL"),
        ("nonce 12345678", "nonce 1234567a"),
    ] {
        assert_eq!(kinds_of(one, two), ["id"], "{two}");
    }
}

#[test]
fn everything_else_is_other_text() {
    assert_eq!(changes_of("Be kind.", "Be brief."), [change("other", "kind.", "brief.")]);
    assert_eq!(kinds_of("yesterday", "2026-11-16"), ["other"]);
    assert_eq!(kinds_of("a b c", "a c"), ["other"]);
    assert_eq!(kinds_of("a,b", "a;b"), ["other"]);
    let spellings: std::collections::HashSet<_> =
        VolatileKind::ALL.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(spellings.len(), VolatileKind::ALL.len());
}

#[test]
fn all_changes_of_a_text_are_told_in_order() {
    let text = |date: &str, cwd: &str, more: &str, left: u8| {
        format!(
            "You are an agent.\n\nDate: {date}\nWorking directory: {cwd}\n{more}Be kind.\nTurns left: {left}\nEnd."
        )
    };
    let one = text("2026-11-16", "/home/a", "", 9);
    let two = text("2026-11-17", "/home/b", "A new rule.\nAnd another one.\n", 8);
    let expected = [
        change("date", "2026-11-16", "2026-11-17"),
        change("directory", "/home/a", "/home/b"),
        change("other", "", r"A new rule.\nAnd another one."),
        change("counter", "9", "8"),
    ];
    assert_eq!(changes_of(&one, &two), expected);
}

#[test]
fn the_cost_is_everything_from_the_change_to_the_last_breakpoint() {
    let request = |day: u8| {
        Request::of(format!(
            r#"{{"tools":[{{"name":"a","description":"day 2026-11-{day}"}},{{"name":"b"}}],"system":"ssss","messages":[{{"role":"user","content":"uuuu"}}]}}"#
        ))
    };
    let (one, two) = (request(16), request(17));
    let tokens = |cached_to, ratio| {
        let found = volatile(&one.subject(), &two.subject(), None, cached_to, ratio);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].kind), ("tools[0]", VolatileKind::Date));
        found[0].tokens
    };
    let to_end_of_tool = r#"2026-11-17"}"#.len() as u64;
    assert_eq!(tokens(0, 1.0), to_end_of_tool);
    assert_eq!(tokens(2, 1.0), to_end_of_tool + r#"{"name":"b"}"ssss""#.len() as u64);
    assert_eq!(tokens(usize::MAX, 0.5), (to_end_of_tool + 12 + 6 + 6) / 2);
}

#[test]
fn what_stands_behind_the_last_breakpoint_costs_nothing() {
    let request = |n: u8| Request::of(format!(r#"{{"tools":[{{"name":"a"}}],"system":"turn {n}"}}"#));
    let found = volatile(&request(1).subject(), &request(2).subject(), None, 0, 1.0);
    assert_eq!((found[0].kind, found[0].tokens), (VolatileKind::Counter, 0));
}

#[test]
fn only_changed_meaning_of_the_same_piece_is_told() {
    let told = |one: &str, two: &str| told(&Request::of(one.into()), &Request::of(two.into()));
    let none: [(&str, String, String); 0] = [];
    let tool = r#"{"tools":[{"name":"a","input_schema":{"p":1,"q":2}}]}"#;
    assert_eq!(told(tool, &tool.replace(r#"{"p":1,"q":2}"#, r#"{"q":2,"p":1}"#)), none, "another spelling");
    assert_eq!(told(tool, &tool.replace(r#""a""#, r#""b""#)), none, "another tool");
    assert_eq!(told(r#"{"system":"a"}"#, r#"{"system":[{"type":"text","text":"b"}]}"#), none, "another form");
    let messages = r#"{"messages":[{"role":"user","content":"one"}]}"#;
    assert_eq!(told(messages, &messages.replace("one", "two")), none, "messages are the conversation");
    let line = r#"{"system":[{"type":"text","text":"x-anthropic-billing-header: cch=11111;"}]}"#;
    assert_eq!(told(line, &line.replace("11111", "22222")), none, "the upstream strips it");
    let marked = r#"{"tools":[{"name":"a","n":1,"cache_control":{"ttl":"5m"}}]}"#;
    let moved = marked.replace(r#""n":1"#, r#""n":2"#).replace("5m", "1h");
    assert_eq!(told(marked, &moved), [change("counter", ":1", ":2")], "a marker is no text");
}

#[test]
fn a_tool_is_compared_at_its_place_whatever_was_added_behind_it() {
    let one = Request::of(r#"{"tools":[{"name":"a","d":"at 9:00"}],"system":"day 1"}"#.into());
    let two = Request::of(r#"{"tools":[{"name":"a","d":"at 9:01"},{"name":"b"}],"system":"day 2"}"#.into());
    assert_eq!(told(&one, &two), [change("clock", "9:00", "9:01"), change("counter", "1", "2")]);
}

#[test]
fn many_changes_are_bounded() {
    let text = |n: usize| {
        (0..200).map(|line| format!("line {line} {}\nsame {line}\n", line + n)).collect::<String>()
    };
    let found = changes_of(&text(0), &text(1_000));
    assert_eq!(found.len(), CHANGES_MAX);
    assert!(found.iter().all(|(kind, ..)| *kind == "counter"));
    let all: String = (0..5_000).map(|n| format!("one {n}\n")).collect();
    assert!(kinds_of(&all, &all.replace("one", "two")).len() <= CHANGES_MAX);
    let words = "word ".repeat(50_000);
    assert!(kinds_of(&words, &words.replace("word", "term")).len() <= CHANGES_MAX);
}

#[test]
fn of_a_long_text_the_first_changes_are_told_wherever_they_stand() {
    let text = |before: usize, date: &str, changed: &str| {
        format!("{}\\ today is {date} {}", "word ".repeat(before), changed.repeat(COMPARED_BYTES_MAX / 5))
    };
    for before in [0, COMPARED_BYTES_MAX] {
        let [one, two] = [("2026-11-16", "same one "), ("2026-11-17", "same two ")]
            .map(|(date, word)| text(before, date, word));
        let found = changes_of(&one, &two);
        assert_eq!(found[0], change("date", "2026-11-16", "2026-11-17"));
        assert!((2..=CHANGES_MAX).contains(&found.len()), "{}", found.len());
        assert_eq!(found[1].0, "other");
    }
    let long = |end: &str| format!("{} at {end}", "word ".repeat(COMPARED_BYTES_MAX));
    assert_eq!(changes_of(&long("9:00"), &long("9:01")), [change("clock", "9:00", "9:01")]);
}

proptest! {
    /// Whatever changed lies within what is told, and what is told is no text without a change.
    #[test]
    fn outside_of_the_regions_both_versions_are_equal(
        one in prop::collection::vec("[ab1,/ \\\\\n\"é]{0,8}", 0..12),
        edits in prop::collection::vec((any::<prop::sample::Index>(), "[ab2: \n\"]{0,6}"), 0..4),
        room in 0..64_usize,
    ) {
        let mut two = one.clone();
        for (index, text) in edits {
            if !two.is_empty() {
                let at = index.index(two.len());
                two[at] = text;
            }
        }
        let texts = [one.concat(), two.concat()].map(|text| serde_json::to_string(&text).unwrap());
        let versions = [texts[0].as_bytes(), texts[1].as_bytes()];
        for region in regions(versions, room) {
            let bounded = [0, 1].map(|side| versions[side].get(region.lines[side].clone()).is_some());
            prop_assert!(bounded == [true; 2], "{region:?}");
        }
        let found = regions(versions, usize::MAX);
        prop_assert_eq!(found.is_empty(), versions[0] == versions[1]);
        let outside = |side: usize| {
            let mut rest = Vec::new();
            let mut at = 0;
            for region in &found {
                let span = region.spans[side].clone();
                assert!(at <= span.start && span.start <= span.end, "{found:?}");
                rest.extend_from_slice(&versions[side][at..span.start]);
                at = span.end;
            }
            rest.extend_from_slice(&versions[side][at..]);
            // Separators and line ends around a region may come and go with it.
            rest.retain(|byte| b"ab12".contains(byte));
            rest
        };
        if found.len() < CHANGES_MAX {
            prop_assert_eq!(outside(0), outside(1));
        }
    }
}
