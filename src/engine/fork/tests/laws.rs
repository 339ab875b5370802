//! What holds for every parent and every child.

use proptest::prelude::*;

use super::*;

const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;

/// Any text, spelt one way or another.
fn any_string() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,12}".prop_map(|text| Value::from(text).to_string()),
        Just(r#""caf\u00e9 \ud83d\ude00 \/""#.to_owned()),
        Just(r#""\"cache_control\":{} <forkpoint-child>""#.to_owned()),
    ]
}

/// Any JSON as a client may write it: odd numbers, odd white space.
fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any_string(),
        prop::sample::select(vec!["1.0", "-0", "1.50E+10", "12345678901234567890123", "null", "true"])
            .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            prop::collection::vec(inner, 0..3).prop_map(|items| {
                let members = items.iter().enumerate();
                let members: Vec<_> = members.map(|(n, item)| format!("\"k{n}\" :\t{item}")).collect();
                format!("{{{}}}", members.join(",\n"))
            }),
        ]
    })
}

fn any_mark() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => Just(""), 1 => Just(MARK), 1 => Just(" , \"cache_control\" : null")]
}

fn any_block() -> impl Strategy<Value = String> {
    prop_oneof![
        (any_string(), any_mark())
            .prop_map(|(text, mark)| format!(r#"{{"type":"text","text":{text}{mark}}}"#)),
        (any_string(), any_mark()).prop_map(|(text, mark)| {
            let inner =
                format!(r#"{{"cache_control":{{"type":"ephemeral"}}, "type":"text","text":{text}{}}}"#, "");
            format!(r#"{{"type":"tool_result","tool_use_id":"x","content":[{inner}]{mark}}}"#)
        }),
        any_json().prop_map(|value| format!(
            r#"{{"type":"tool_use","id":"x","name":"n","input":{{"a":{value},"cache_control":1}}}}"#
        )),
        any_string()
            .prop_map(|text| format!(r#"{{"type":"thinking","thinking":{text},"signature":"c2ln"}}"#)),
        any_json().prop_map(|value| format!(r#"{{"type":"unheard_of", "data":{value} }}"#)),
    ]
}

fn any_content() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::collection::vec(any_block(), 1..5).prop_map(|blocks| format!("[{}]", blocks.join(" , "))),
        1 => any_string(),
    ]
}

fn any_message(role: &'static str) -> impl Strategy<Value = String> {
    any_content().prop_map(move |content| format!(r#"{{"role":"{role}", "content":{content}}}"#))
}

fn any_system() -> impl Strategy<Value = String> {
    let block = (any_string(), any_mark())
        .prop_map(|(text, mark)| format!(r#"{{"type":"text","text":{text}{mark}}}"#));
    prop_oneof![
        any_string(),
        prop::collection::vec(block, 0..4).prop_map(|blocks| format!("[{}]", blocks.join(",")))
    ]
}

const TOOLS: &str = r#"[{"name":"Agent","input_schema":{"type":"object"}},{"name":"Read","input_schema":{"properties":{"cache_control":{"type":"string"}},"type":"object"} }]"#;

/// A parent's body: any history that ends with the user, fields in either order.
fn any_parent() -> impl Strategy<Value = String> {
    let exchange = (any_message("user"), any_message("assistant")).prop_map(|(a, b)| format!("{a} , {b} ,"));
    let history = (prop::collection::vec(exchange, 0..3), any_message("user"))
        .prop_map(|(before, last)| format!(r#""messages" : [{}{last} ]"#, before.concat()));
    let top =
        prop::sample::select(vec!["", r#""cache_control":{"type":"ephemeral"},"#, r#""max_tokens":7, "#]);
    (history, any_system(), any_json(), top, any::<bool>()).prop_map(
        |(history, system, unknown, top, first)| {
            let head = format!(r#""model":"m","system":{system} ,"tools": {TOOLS},"unknown":{unknown}"#);
            match first {
                true => format!("{{{top}{history},{head}}}"),
                false => format!("{{ {head} ,{top}{history}\n}}"),
            }
        },
    )
}

/// What a child says besides its directive.
#[derive(Clone, Debug)]
struct Own {
    system: String,
    before: Vec<String>,
    temperature: String,
    /// Fields that shape its answer, each with a value of any spelling.
    settings: Vec<(&'static str, String)>,
    later: Vec<String>,
}

/// All fields that are a child's own, but for those that every body here has.
const SETTINGS: [&str; 7] =
    ["stream", "top_p", "top_k", "stop_sequences", "metadata", "service_tier", "inference_geo"];

fn any_own() -> impl Strategy<Value = Own> {
    let turn = (any_message("assistant"), any_message("user")).prop_map(|(a, b)| format!(",{a},\n{b}"));
    let before = (any_string(), any_mark())
        .prop_map(|(text, mark)| format!(r#"{{"type":"text","text":{text}{mark}}}"#));
    let settings = prop::sample::subsequence(SETTINGS.to_vec(), 0..=SETTINGS.len())
        .prop_flat_map(|names| names.into_iter().map(|name| (Just(name), any_json())).collect::<Vec<_>>());
    let words = (any_system(), prop::collection::vec(before, 0..3), prop::collection::vec(turn, 0..3));
    (words, "0\\.[0-9]{1,20}", settings).prop_map(|((system, before, later), temperature, settings)| Own {
        system,
        before,
        temperature,
        settings,
        later,
    })
}

impl Own {
    /// The body of a child with this directive, after so many of its later turns.
    fn body(&self, topic: &str, turns: usize) -> String {
        let blocks: Vec<_> =
            self.before.iter().cloned().chain([text(&directive(topic)).to_string()]).collect();
        let later: String = self.later.iter().take(turns).map(String::as_str).collect();
        let settings: String =
            self.settings.iter().map(|(name, value)| format!("\"{name}\": {value} ,")).collect();
        format!(
            r#"{{"model":"m","max_tokens":5,{settings}"temperature": {} ,"tools":[{{"name":"Read","input_schema":{{"properties":{{"cache_control":{{"type":"string"}}}},"type":"object"}}}}],"system":{},"messages":[{{"role":"user","content":[{}]}}{later}]}}"#,
            self.temperature,
            self.system,
            blocks.join(","),
        )
    }
}

/// The body less every marker that we or anybody put in, by an independent walk.
fn plain(body: &str) -> String {
    let bytes = Bytes::from(body.to_owned());
    let mut out = Vec::new();
    crate::engine::request::strip::append_unmarked(
        &mut out,
        &bytes,
        0..bytes.len(),
        &crate::engine::request::strip::cuts(&bytes, &Anatomy::read(&bytes).unwrap()),
    );
    String::from_utf8(out.concat()).unwrap()
}

/// The children leave out what only their parents have.
fn family(parent: &str) -> Scene {
    let mut scene = Scene::of(parent, &two_calls());
    scene.policy.inherit = vec!["unknown".into()];
    scene
}

/// Where a body's directive begins.
fn directive_at(body: &str, topic: &str) -> usize {
    body.rfind(&Value::from(directive(topic)).to_string()).unwrap()
}

/// The history of a body: from its first message to its last, less markers.
fn history(body: &str) -> String {
    let plain = plain(body);
    let anatomy = Anatomy::read(plain.as_bytes()).unwrap();
    let (first, last) = (anatomy.messages.first().unwrap(), anatomy.messages.last().unwrap());
    plain[first.span.start..last.span.end].to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn siblings_are_equal_up_to_the_directive_and_hold_the_parents_bytes(parent in any_parent(), own in any_own()) {
        let scene = family(&parent);
        let bodies: Vec<_> = ["a", "b"].iter().enumerate().map(|(call, topic)| {
            let (_, composed) = scene.first(&own.body(topic, 0), call);
            assert!(composed.breakpoints.len() <= 4);
            assert!(composed.breakpoints.is_sorted_by_key(|point| point.piece));
            value(&composed);
            plain(&bytes(&composed))
        }).collect();
        let at = [directive_at(&bodies[0], "a"), directive_at(&bodies[1], "b")];
        prop_assert_eq!(&bodies[0][..at[0]], &bodies[1][..at[1]]);
        // The parent's bytes, untouched but for markers.
        let turn = r#",{"role":"assistant","content":[{"type":"text","text":"I will split this."}"#;
        let opened = format!(r#""messages":[{}{turn}"#, history(&parent));
        prop_assert!(bodies[0].contains(&opened), "{}\n{}", bodies[0], opened);
        let unmarked = plain(&parent);
        let anatomy = Anatomy::read(unmarked.as_bytes()).unwrap();
        for name in ["model", "tools", "system", "unknown"] {
            let member = anatomy.members.iter().find(|member| unmarked[member.key.clone()] == format!("\"{name}\"")).unwrap();
            prop_assert!(bodies[0].contains(&unmarked[member.key.start..member.value.end]), "{}", name);
        }
        prop_assert!(!bodies[0].contains("\"max_tokens\":7"));
    }

    #[test]
    fn the_cache_sees_the_parents_prompt(parent in any_parent(), own in any_own()) {
        let scene = family(&parent);
        let parents = &scene.fork.parent.request;
        let (_, composed) = scene.first(&own.body("a", 0), 0);
        let forked = read(&bytes(&composed));
        // Markers inside of results are content to the chain, so that those pieces look new.
        let plain = !parent.contains(r#""content":[{"cache_control""#);
        let whole = parents.anatomy().pieces.len();
        prop_assert!(!plain || forked.shared_pieces(parents) == whole);
        prop_assert!(forked.shared_pieces(parents) >= parents.anatomy().tools + parents.anatomy().system);
        prop_assert_eq!(forked.anatomy().tools, 2);
    }

    #[test]
    fn nothing_of_the_child_is_lost(parent in any_parent(), own in any_own()) {
        let scene = family(&parent);
        let sent = own.body("a", 0);
        let (_, composed) = scene.first(&sent, 0);
        let body = bytes(&composed);
        let temperature = format!(r#""temperature": {}"#, own.temperature);
        prop_assert!(body.contains(&temperature));
        prop_assert!(body.contains(r#""max_tokens":5"#));
        let fields = Anatomy::read(body.as_bytes()).unwrap();
        for (name, value) in &own.settings {
            let kept = fields.member(body.as_bytes(), name).map(|span| &body[span.clone()]);
            prop_assert_eq!(kept, Some(value.as_str()), "{}", name);
        }
        let made: Value = serde_json::from_str(&body).unwrap();
        let texts: Vec<_> = made["messages"].as_array().unwrap().last().unwrap()["content"].as_array().unwrap()
            .iter().filter_map(|block| block["text"].as_str()).collect();
        let system: Value = serde_json::from_str(&own.system).unwrap();
        let parents: Value = serde_json::from_str(&parent).unwrap();
        let said = |system: &Value| -> Vec<String> {
            match system {
                Value::String(text) => vec![text.clone()],
                blocks => blocks.as_array().unwrap().iter().map(|block| block["text"].as_str().unwrap().to_owned()).collect(),
            }
        };
        let known = said(&parents["system"]);
        for text in said(&system) {
            prop_assert!(text.trim().is_empty() || known.contains(&text) || texts.contains(&text.as_str()), "{}", text);
        }
        for block in &own.before {
            let block: Value = serde_json::from_str(block).unwrap();
            prop_assert!(texts.contains(&block["text"].as_str().unwrap()));
        }
        prop_assert_eq!(*texts.last().unwrap(), directive("a"));
    }

    #[test]
    fn every_turn_extends_the_one_before(parent in any_parent(), own in any_own()) {
        let scene = family(&parent);
        let (prefix, composed) = scene.first(&own.body("a", 0), 0);
        let mut before = plain(&bytes(&composed));
        let mut last = composed.breakpoints.last().map(|point| point.piece);
        for turns in 1..=own.later.len() {
            let sent = own.body("a", turns);
            let composed = scene.later(&prefix, &sent, last);
            value(&composed);
            let body = plain(&bytes(&composed));
            prop_assert!(body.starts_with(&before[..before.len() - 2]), "{}\n{}", before, body);
            // What follows is what the client sent, less markers.
            let sent = plain(&sent);
            let answered = sent.rfind(r#",{"role":"assistant""#).unwrap();
            prop_assert!(body.ends_with(&sent[answered..]));
            last = composed.breakpoints.last().map(|point| point.piece);
            before = body;
        }
    }

    #[test]
    fn whatever_comes_next_is_laid_out_without_loss(parent in any_parent(), own in any_own(), next in any_parent(), last in any::<Option<u8>>()) {
        let scene = family(&parent);
        let (prefix, _) = scene.first(&own.body("a", 0), 0);
        let composed = scene.later(&prefix, &next, last.map(usize::from));
        value(&composed);
        let body = plain(&bytes(&composed));
        prop_assert!(body.ends_with(&format!("{}]}}", history(&next))), "{}", body);
    }

    #[test]
    fn no_request_makes_it_panic(body in "[\\[\\]{}:,\"a-z_ 0-9]{0,60}", content in any_json()) {
        let scene = Scene::new();
        let (prefix, _) = scene.first(&child_body("a").to_string(), 0);
        let odd = format!(r#"{{"model":"m","system":{content},"tools":{content},"messages":[{{"role":"user","content":{content}}},{{"role":"system","content":{content}}}]}}"#);
        for body in [body, odd] {
            let Ok(request) = Remembered::read(body.into(), &Nothing, Attribution::Stripped) else { continue };
            let child = child_of(&scene.fork, 0);
            if let Ok((first, _)) = ChildPrefix::of(&scene.parent_prefix, &request, &child, &scene.policy) {
                value(&first.compose(&request, Turn::First, Profile::Anthropic));
            }
            value(&prefix.compose(&request, Turn::Later(Some(5)), Profile::Anthropic));
        }
    }
}
