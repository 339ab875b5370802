use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

/// Everything that a test offers as known, right or wrong.
#[derive(Default)]
struct Offered {
    hinted: Option<Arc<Remembered>>,
    following: Option<Arc<Remembered>>,
    opened: Vec<Arc<Remembered>>,
    layers: Vec<Arc<KnownLayer>>,
}

impl Known for Offered {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        self.hinted.clone()
    }

    fn following(&self) -> Option<&Remembered> {
        self.following.as_deref()
    }

    fn opened(&self, _: Opening) -> Vec<Arc<Remembered>> {
        self.opened.clone()
    }

    fn layers(&self, _: Layer) -> Vec<Arc<KnownLayer>> {
        self.layers.clone()
    }
}

impl Offered {
    fn hint(old: &Remembered) -> Offered {
        Offered { hinted: Some(Arc::new(old.clone())), ..Offered::default() }
    }

    /// Each request in each role, several in each, and the layers of all of them.
    fn all_ways(requests: &[Remembered]) -> Vec<Offered> {
        let opened: Vec<_> = requests.iter().cloned().map(Arc::new).collect();
        let layers: Vec<_> = requests
            .iter()
            .flat_map(|old| [Layer::Tools, Layer::System].map(|layer| old.layer(layer).map(Arc::new)))
            .flatten()
            .collect();
        let mut ways: Vec<_> = requests.iter().map(Offered::hint).collect();
        let none = || Offered::default();
        ways.push(Offered { opened: opened.clone(), ..none() });
        ways.push(Offered { layers: layers.clone(), ..none() });
        for next in &opened {
            ways.push(Offered { following: Some(Arc::clone(next)), ..none() });
            let hinted = opened.first().cloned();
            ways.push(Offered { hinted, following: Some(Arc::clone(next)), ..none() });
        }
        ways.push(Offered { hinted: opened.last().cloned(), opened, layers, following: None });
        ways
    }
}

fn full(body: &[u8]) -> Result<Remembered, Malformed> {
    Remembered::read(Bytes::copy_from_slice(body), &Nothing, Attribution::Stripped)
}

/// What is said to be the same is the same, and the messages end where they do.
fn check_same(read: &Remembered, like: &Like) -> Result<(), TestCaseError> {
    let Like { request: old, same } = like;
    let value = |of: &Remembered, layer| of.seen(layer).map(|(value, _)| value.to_vec());
    for (layer, same) in [(Layer::Tools, same.tools), (Layer::System, same.system)] {
        prop_assert!(!same || value(read, layer).is_some());
        prop_assert!(!same || value(read, layer) == value(old, layer));
    }
    for index in 0..same.messages {
        prop_assert!(read.message_bytes(index).is_some());
        prop_assert_eq!(read.message_bytes(index), old.message_bytes(index));
    }
    if read.is_usable() && same.messages < read.anatomy.messages.len().min(old.anatomy.messages.len()) {
        prop_assert_ne!(read.message_bytes(same.messages), old.message_bytes(same.messages));
    }
    Ok(())
}

/// Reads the body with each offer and compares with the definition.
fn check(body: &[u8], offers: &[Offered]) -> Result<(), TestCaseError> {
    for attribution in [Attribution::Stripped, Attribution::Counted] {
        let definition = Anatomy::read(body).map(|anatomy| (Chain::of(body, &anatomy, attribution), anatomy));
        let alone = Remembered::read(Bytes::copy_from_slice(body), &Nothing, attribution);
        for offer in offers.iter().chain([&Offered::default()]) {
            let recalled = Remembered::recall(Bytes::copy_from_slice(body), offer, attribution);
            if let Ok((read, Some(like))) = &recalled {
                check_same(read, like)?;
            }
            let read = recalled.map(|(read, _)| read);
            prop_assert_eq!(&read, &alone);
            match (&definition, &read) {
                (Ok((chain, anatomy)), Ok(read)) => {
                    prop_assert_eq!(anatomy, &read.anatomy);
                    prop_assert_eq!(chain, &read.chain);
                }
                (Err(expected), Err(found)) => prop_assert_eq!(expected, found),
                _ => prop_assert!(false, "one is malformed: {:?} {:?}", definition, read),
            }
        }
    }
    Ok(())
}

#[test]
fn a_hint_at_another_conversation_does_not_hide_the_one_that_opens_alike() {
    let said = |words: &str| format!(r#"{{"role":"user","content":"{words}"}}"#);
    let body = |messages: &[String]| format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","));
    let first = full(body(&[said("one")]).as_bytes()).unwrap();
    let child = full(body(&[said("two")]).as_bytes()).unwrap();
    let answer = r#"{"role":"assistant","content":"yes"}"#.to_owned();
    let next = body(&[said("one"), answer, said("go on")]);
    // A client that names a session and no agent: the newest of the session is a child.
    let known = Offered { opened: vec![Arc::new(first.clone())], ..Offered::hint(&child) };
    let (_, like) = Remembered::recall(next.into(), &known, Attribution::Stripped).unwrap();
    assert_eq!(*like.unwrap().request, first);
}

/// A conversation as a client holds it, before it is spelled.
#[derive(Clone, Debug)]
struct Talk {
    tools: Vec<u8>,
    system: Vec<u8>,
    messages: Vec<(u8, Vec<u8>)>,
}

/// How a request is spelled.
#[derive(Clone, Copy, Debug)]
struct Spelling {
    space: &'static str,
    /// Which order the top-level members have.
    order: usize,
    /// Which piece carries a marker, counted from the end.
    marker: usize,
    marker_first: bool,
    /// A lone text block is written as a string.
    strings: bool,
    model: &'static str,
}

fn block(kind: u8, spelling: &Spelling, marked: bool) -> String {
    let s = spelling.space;
    let n = kind / 8;
    // A client that marks a result may mark what is in it too.
    let nested = if marked { r#","cache_control":{"type":"ephemeral"}"# } else { "" };
    let inside = match kind % 8 {
        0..4 => format!(r#""type":{s}"text",{s}"text":"say \"{n}\" \\ \n""#),
        4 => format!(
            r#""type":"tool_use","id":"t{n}","name":"Read","input":{{"a":{n},{s}"b":["]}}",{s}1.0]}}"#
        ),
        5 => format!(
            r#""tool_use_id":"t{n}",{s}"type":"tool_result","content":[{{"type":"text",{s}"text":"r{n}"{nested}}}]"#
        ),
        6 => format!(r#""type":"text","text":"x-anthropic-billing-header: v={n};""#),
        _ => format!(r#""odd":{n},"odd":[{s}],"cach\u0065_control":1"#),
    };
    match (marked, spelling.marker_first) {
        (false, _) => format!("{{{s}{inside}{s}}}"),
        (true, true) => format!(r#"{{"cache_control":{{"type":"ephemeral"}},{s}{inside}}}"#),
        (true, false) => format!(r#"{{{inside}{s},"cache_control":{s}{{"type":"ephemeral"}}}}"#),
    }
}

fn list(kinds: &[u8], spelling: &Spelling, from_end: usize) -> String {
    let s = spelling.space;
    if let [kind] = kinds
        && spelling.strings
        && kind % 8 < 4
    {
        return format!(r#""say \"{}\" \\ \n""#, kind / 8);
    }
    let last = kinds.len();
    let blocks: Vec<_> = kinds
        .iter()
        .enumerate()
        .map(|(index, kind)| block(*kind, spelling, from_end + last - index == spelling.marker))
        .collect();
    format!("[{s}{}{s}]", blocks.join(&format!("{s},{s}")))
}

fn spell(talk: &Talk, spelling: &Spelling) -> String {
    let s = spelling.space;
    let mut messages = Vec::new();
    let mut from_end = 0;
    for (role, kinds) in talk.messages.iter().rev() {
        let content = list(kinds, spelling, from_end);
        from_end += kinds.len();
        messages.push(match role % 8 {
            0..3 => format!(r#"{{"role":{s}"user","content":{content}}}"#),
            3..6 => format!(r#"{{"content":{s}{content},"role":"assistant"{s}}}"#),
            6 => format!(r#"{{"role":"system","content":{content},"output_config":{{"e":{s}{role}}}}}"#),
            _ => format!(r#"{{"role":"user","content":{content},"role":{role}}}"#),
        });
    }
    messages.reverse();
    let mut members = [
        format!(r#""model":{s}"{}""#, spelling.model),
        format!(r#""messages":{s}[{}]"#, messages.join(&format!("{s},"))),
        format!(r#""system":{}"#, list(&talk.system, spelling, 100)),
        format!(r#""tools":{}"#, list(&talk.tools, &Spelling { strings: false, ..*spelling }, 200)),
        r#""stream":true"#.to_owned(),
    ];
    members.rotate_left(spelling.order % 5);
    if spelling.order >= 5 {
        members.reverse();
    }
    format!("{{{s}{}{s}}}", members.join(&format!("{s},{s}")))
}

fn talks() -> impl Strategy<Value = Talk> {
    let kinds = |most| prop::collection::vec(any::<u8>(), 0..most);
    // A role of 7 makes the request ambiguous, so most are kept below.
    let role = prop_oneof![30 => (0u8..32).prop_map(|role| role / 5), 1 => any::<u8>()];
    let messages = prop::collection::vec((role, kinds(4)), 0..8);
    (kinds(4), kinds(4), messages).prop_map(|(tools, system, messages)| Talk { tools, system, messages })
}

fn spellings() -> impl Strategy<Value = Spelling> {
    let space = prop::sample::select(vec!["", "", "", " ", "\n\t"]);
    let model = prop::sample::select(vec!["m", "m", "m", "n"]);
    (space, 0usize..10, 0usize..12, any::<bool>(), any::<bool>(), model).prop_map(
        |(space, order, marker, marker_first, strings, model)| Spelling {
            space,
            order,
            marker,
            marker_first,
            strings,
            model,
        },
    )
}

/// What happens to a conversation between two requests.
#[derive(Clone, Debug)]
enum Change {
    Grow(Vec<(u8, Vec<u8>)>),
    Replace(prop::sample::Index, Vec<u8>),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Tool(prop::sample::Index, u8),
    System(prop::sample::Index, u8),
    AppendBlock(u8),
    Merge(prop::sample::Index),
    Split(prop::sample::Index),
    Respell(Spelling),
}

fn changes() -> impl Strategy<Value = Change> {
    let kinds = || prop::collection::vec(any::<u8>(), 0..4);
    let index = any::<prop::sample::Index>;
    prop_oneof![
        prop::collection::vec((0u8..6, kinds()), 1..4).prop_map(Change::Grow),
        (index(), kinds()).prop_map(|(at, kinds)| Change::Replace(at, kinds)),
        (index(), kinds()).prop_map(|(at, kinds)| Change::Insert(at, kinds)),
        (index(), 1usize..4).prop_map(|(at, count)| Change::Remove(at, count)),
        (index(), any::<u8>()).prop_map(|(at, kind)| Change::Tool(at, kind)),
        (index(), any::<u8>()).prop_map(|(at, kind)| Change::System(at, kind)),
        any::<u8>().prop_map(Change::AppendBlock),
        index().prop_map(Change::Merge),
        index().prop_map(Change::Split),
        spellings().prop_map(Change::Respell),
    ]
}

fn apply(talk: &mut Talk, spelling: &mut Spelling, change: Change) {
    let set = |list: &mut Vec<u8>, at: prop::sample::Index, kind: u8| match list.len() {
        0 => list.push(kind),
        len => list[at.index(len)] = kind,
    };
    let count = talk.messages.len();
    match change {
        Change::Grow(more) => talk.messages.extend(more),
        Change::Replace(at, kinds) if count > 0 => talk.messages[at.index(count)].1 = kinds,
        Change::Remove(at, some) if count > 0 => {
            let at = at.index(count);
            talk.messages.drain(at..count.min(at + some));
        }
        Change::Insert(at, kinds) => talk.messages.insert(at.index(count + 1), (0, kinds)),
        Change::Tool(at, kind) => set(&mut talk.tools, at, kind),
        Change::System(at, kind) => set(&mut talk.system, at, kind),
        Change::AppendBlock(kind) => talk.messages.last_mut().into_iter().for_each(|it| it.1.push(kind)),
        Change::Merge(at) if count > 1 => {
            let at = at.index(count - 1);
            let (_, kinds) = talk.messages.remove(at + 1);
            talk.messages[at].1.extend(kinds);
        }
        Change::Split(at) if count > 0 => {
            let at = at.index(count);
            let (role, kinds) = &mut talk.messages[at];
            let second = (*role, kinds.split_off(kinds.len() / 2));
            talk.messages.insert(at + 1, second);
        }
        Change::Respell(other) => *spelling = other,
        Change::Replace(..) | Change::Remove(..) | Change::Merge(..) | Change::Split(..) => {}
    }
}

proptest! {
    #[test]
    fn however_a_conversation_changes_the_reading_equals_the_definition(
        mut talk in talks(),
        mut spelling in spellings(),
        unrelated in (talks(), spellings()),
        turns in prop::collection::vec(prop::collection::vec(changes(), 1..3), 1..5),
    ) {
        let unrelated = spell(&unrelated.0, &unrelated.1);
        let mut seen = vec![full(unrelated.as_bytes()).unwrap()];
        seen.push(full(spell(&talk, &spelling).as_bytes()).unwrap());
        for turn in turns {
            for change in turn {
                apply(&mut talk, &mut spelling, change);
            }
            let body = spell(&talk, &spelling);
            prop_assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok());
            check(body.as_bytes(), &Offered::all_ways(&seen))?;
            seen.push(full(body.as_bytes()).unwrap());
            // What was itself read incrementally must serve as well as what was read alone.
            let chained = Remembered::read(
                Bytes::from(body),
                &Offered::hint(&seen[seen.len() - 2]),
                Attribution::Stripped,
            );
            prop_assert_eq!(chained.as_ref(), Ok(&seen[seen.len() - 1]));
        }
    }

    #[test]
    fn any_edit_of_the_bytes_is_read_alike(
        talk in talks(),
        spelling in spellings(),
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), 0usize..6, prop::sample::select(vec![
                "", "", "\"", "\\", "]", "[", "{", "}", ",", " ", "1", "x", "{}", "\"a\":1,", "\u{e9}",
            ])),
            1..4,
        ),
    ) {
        let before = spell(&talk, &spelling).into_bytes();
        let mut body = before.clone();
        for (at, removed, added) in edits {
            let at = at.index(body.len() + 1);
            let end = body.len().min(at + removed);
            body.splice(at..end, added.bytes());
        }
        let mut seen = vec![full(&before).unwrap()];
        seen.extend(full(&body));
        check(&body, &Offered::all_ways(&seen))?;
        check(&before, &Offered::all_ways(&seen))?;
    }

    #[test]
    fn any_bytes_are_read_alike(
        bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\ 1atn".to_vec()), 0..60),
        talk in talks(),
        spelling in spellings(),
    ) {
        let offers = Offered::all_ways(&[full(spell(&talk, &spelling).as_bytes()).unwrap()]);
        check(&bytes, &offers)?;
        let inside = [br#"{"system":"#, &bytes[..], br#","messages":["#, &bytes[..], b"]}"].concat();
        check(&inside, &offers)?;
    }
}

fn assert_alike(old: &str, new: &str) {
    let seen = [full(old.as_bytes()).unwrap()];
    check(new.as_bytes(), &Offered::all_ways(&seen)).unwrap();
}

#[test]
fn a_value_that_only_starts_like_a_known_one_is_not_cut() {
    assert_alike(r#"{"system":7,"tools":[1]}"#, r#"{"system":77,"tools":[12]}"#);
    assert_alike(r#"{"system":"a"}"#, r#"{"system":"a\"b"}"#);
    assert_alike(r#"{"system":["a"]}"#, r#"{"system":"a"}"#);
    assert_alike(r#"{"tools":[{"a":1}]}"#, r#"{"tools":[{"a":1}x]}"#);
    assert_alike(r#"{"tools":[{"a":1}]}"#, r#"{"tools":[{"a":1}"#);
    assert_alike(
        r#"{"messages":[{"role":"user","content":"a"}]}"#,
        r#"{"messages":[{"role":"user","content":"a"} 1]}"#,
    );
}

#[test]
fn an_empty_message_before_a_known_one_still_counts() {
    let known = r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#;
    let with_empty = known.replace(r#"},{"#, r#"},{"role":"user","content":[]},{"#);
    assert_alike(known, &with_empty);
    assert_alike(&with_empty, known);
    let chain = |body: &str| *full(body.as_bytes()).unwrap().chain().pieces.last().unwrap();
    assert_ne!(chain(known), chain(&with_empty));
}

#[test]
fn the_same_blocks_in_other_messages_are_another_prompt() {
    let block = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let (a, b) = (block("a"), block("b"));
    let one = format!(r#"{{"messages":[{{"role":"user","content":[{a},{b}]}}]}}"#);
    let two =
        format!(r#"{{"messages":[{{"role":"user","content":[{a}]}},{{"role":"user","content":[{b}]}}]}}"#);
    assert_alike(&one, &two);
    assert_alike(&two, &one);
    let chain = |body: &str| full(body.as_bytes()).unwrap().chain().pieces.clone();
    assert_eq!(chain(&one)[0], chain(&two)[0]);
    assert_ne!(chain(&one)[1], chain(&two)[1]);
}

#[test]
fn an_opening_holds_through_what_clients_do_to_it() {
    let opening = |content: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#);
        full(body.as_bytes()).unwrap().opening().unwrap()
    };
    let text = opening(r#""hello""#);
    assert_eq!(text, opening(r#"[{"type":"text","text":"hello"}]"#));
    assert_eq!(text, opening(r#"[{"text":"hello","type":"text","cache_control":{"type":"ephemeral"}}]"#));
    assert_ne!(text, opening(r#""hello!""#));
    assert_ne!(text, opening(r#"[{"type":"text","text":"hello"},{"type":"text","text":"hello"}]"#));
    let long = |last: &str| opening(&format!(r#""{}{last}""#, "x".repeat(100_000)));
    assert_ne!(long("a"), long("b"));
    assert_eq!(full(br#"{"messages":[]}"#).unwrap().opening(), None);
}

#[test]
fn the_conversation_is_found_among_those_that_open_alike() {
    let talk = |turns: &[&str]| {
        let messages: Vec<_> =
            turns.iter().map(|turn| format!(r#"{{"role":"user","content":"{turn}"}}"#)).collect();
        format!(r#"{{"messages":[{}]}}"#, messages.join(","))
    };
    let seen = [&["a", "b"][..], &["a", "c", "d"], &["a"]].map(|turns| full(talk(turns).as_bytes()).unwrap());
    let offer = Offered { opened: seen.iter().cloned().map(Arc::new).collect(), ..Offered::default() };
    let body = talk(&["a", "c", "d", "e"]);
    let read = Reader::with_leaves(body.as_bytes(), &offer).read().unwrap();
    assert_eq!(read.predecessor.map(|like| like.request).as_deref(), Some(&seen[1]));
}

#[test]
fn a_conversation_that_is_answered_otherwise_is_another_one() {
    let talk = |messages: &[&str]| {
        let message = |(index, text): (usize, &&str)| {
            let role = ["user", "assistant"][index % 2];
            let marker = if index + 1 == messages.len() { r#","cache_control":{}"# } else { "" };
            format!(r#"{{"role":"{role}","content":[{{"type":"text","text":"{text}"{marker}}}]}}"#)
        };
        let messages: Vec<_> = messages.iter().enumerate().map(message).collect();
        format!(r#"{{"messages":[{}]}}"#, messages.join(","))
    };
    let known = |talks: &[&[&str]]| {
        let read = |messages: &&[&str]| Arc::new(full(talk(messages).as_bytes()).unwrap());
        Offered { opened: talks.iter().map(read).collect(), ..Offered::default() }
    };
    let found = |talks: &[&[&str]], now: &[&str]| {
        let (_, like) = Remembered::recall(talk(now).into(), &known(talks), Attribution::Stripped).unwrap();
        let like = like.unwrap().request;
        talks.iter().position(|messages| talk(messages).as_bytes() == like.body()).unwrap()
    };
    let other: &[&str] = &["q", "answer one", "go on"];
    assert_eq!(found(&[other, &["q"]], &["q", "answer two", "go on"]), 1, "the same words at first");
    let (branch, other): (&[&str], &[&str]) = (&["q", "a", "r"], &["q", "a", "r", "said one", "s"]);
    assert_eq!(found(&[other, branch], &["q", "a", "r", "said two", "s"]), 1, "a marker is gone");
    assert_eq!(found(&[&["q"], other], &["q", "a", "r", "said one", "s", "t", "u"]), 1, "the longer one");
    assert_eq!(found(&[&["q"], other], &["q", "a", "r", "said anew", "s", "t", "u"]), 1, "an edited one");
}

#[test]
fn a_layer_is_known_apart_from_its_request() {
    let body = r#"{"system":"s","tools":[{"name":"a"},{"name":"b"}],"messages":[]}"#;
    let request = full(body.as_bytes()).unwrap();
    let tools = request.layer(Layer::Tools).unwrap();
    assert_eq!(&tools.value()[..], br#"[{"name":"a"},{"name":"b"}]"#);
    assert_eq!(tools.pieces[1].span, 14..26);
    assert_eq!(request.layer(Layer::Messages), None);
    assert!(request.memory_bytes() > body.len());
    let ambiguous = full(br#"{"tools":[],"tools":[]}"#).unwrap();
    assert_eq!(ambiguous.layer(Layer::Tools), None);
}

#[test]
fn a_long_body_counts_with_the_memory_that_it_takes() {
    let bytes = |length: usize| {
        let body = format!(r#"{{"messages":[],"x":"{}"}}"#, "x".repeat(length - 22));
        assert_eq!(body.len(), length);
        full(body.as_bytes()).unwrap().memory_bytes()
    };
    let rest = bytes(1_000) - 1_000;
    for (length, held) in
        [(100_000, 100_000), (128 << 10, 128 << 10), (200_000, 256 << 10), (1 << 20, 1 << 20)]
    {
        assert_eq!(bytes(length) - rest, held, "{length}");
    }
}

/// Quadratic work on any of these would take minutes instead of a second.
#[test]
fn a_hundred_thousand_elements_are_compared_in_linear_time() {
    let many = |count: usize, text: &str| {
        let message = format!(r#"{{"role":"user","content":"{text}"}},"#);
        let mut body = String::from(r#"{"messages":["#);
        body.push_str(&message.repeat(count));
        body.push_str(r#"{"role":"user","content":[]}]}"#);
        body
    };
    let old = many(100_000, "a");
    let new = many(100_001, "b");
    let same = many(100_001, "a");
    let blocks = format!(r#"{{"messages":[{{"content":[{}{{}}]}}]}}"#, r#"{"a":1},"#.repeat(100_000));
    let remembered = [&old, &new, &same, &blocks].map(|body| full(body.as_bytes()).unwrap());
    for body in [&old, &new, &same, &blocks] {
        let alone = full(body.as_bytes()).unwrap();
        for old in &remembered {
            let read = Remembered::read(body.clone().into(), &Offered::hint(old), Attribution::Stripped);
            assert!(read.as_ref() == Ok(&alone));
        }
    }
    let deep = format!(r#"{{"messages":{}"#, "[".repeat(100_000));
    assert!(Remembered::read(deep.into(), &Offered::hint(&remembered[0]), Attribution::Stripped).is_err());
}

#[test]
fn a_request_of_too_many_parts_is_not_read() {
    let body = |count: usize| format!(r#"{{"system":[{}1]}}"#, "1,".repeat(count));
    assert!(Anatomy::read(body(1000).as_bytes()).is_ok());
    assert_eq!(Anatomy::read(body(1 << 18).as_bytes()), Err(Malformed::TooMany));
    let messages = format!(r#"{{"messages":[{}{{}}]}}"#, r#"{"content":"x"},"#.repeat(1 << 17));
    assert_eq!(Anatomy::read(messages.as_bytes()), Err(Malformed::TooMany));
}
