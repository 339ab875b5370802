use proptest::prelude::*;

use super::*;
use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::prefix::Attribution;
use crate::engine::words::{Carrier, Origin, Parameter, Ttl};

struct Read {
    body: Vec<u8>,
    anatomy: Anatomy,
    chain: Chain,
}

impl Read {
    fn of(body: &str) -> Read {
        let body = body.as_bytes().to_vec();
        let anatomy = Anatomy::read(&body).unwrap();
        let chain = Chain::of(&body, &anatomy, Attribution::Stripped);
        Read { body, anatomy, chain }
    }

    fn parameters(&self, betas: &[&str]) -> Parameters {
        self.parameters_of(0, betas)
    }

    fn parameters_of(&self, tenant: u8, betas: &[&str]) -> Parameters {
        Parameters::read(TenantId([tenant; 32]), &self.body, &self.anatomy, betas.iter().copied())
    }

    fn parameters_after(&self, before: &Parameters, betas: &[&str]) -> Parameters {
        Parameters::read_after(before, &self.body, &self.anatomy, betas.iter().copied())
    }
}

/// The keys of a tool, a system block and a message under the given members and betas.
fn keys(tenant: u8, members: &str, betas: &[&str]) -> [EntryKey; 3] {
    let read = Read::of(&format!(
        r#"{{"model":"m",{members}"tools":[{{"name":"t"}}],"system":"s","messages":[{{"role":"user","content":"u"}}]}}"#
    ));
    let parameters = read.parameters_of(tenant, betas);
    [0, 1, 2]
        .map(|piece| EntryKey::of(parameters.scope(), &read.chain, piece, read.anatomy.layer(piece)).unwrap())
}

#[test]
fn betas_without_effect_are_no_part_of_the_key() {
    let plain = keys(0, "", &["a"]);
    let noise = "prompt-caching-2024-07-31, pdfs-2024-09-25,token-counting-2024-11-01,\
        token-efficient-tools-2025-02-19,extended-cache-ttl-2025-04-11,cache-diagnosis-2026-04-07,\
        ce-user-management-2026-07-13,message-batches-2024-09-24";
    assert_eq!(keys(0, "", &[noise, "a"]), plain);
    for beta in ["files-api-2025-04-14", "skills-2025-10-02", "compact-2026-09-04"] {
        assert_ne!(keys(0, "", &[beta, "a"])[2], plain[2], "{beta}");
    }
    let read = Read::of("{}");
    assert_eq!(read.parameters(&[noise]).beta_change(&read.parameters(&[])), None);
}

#[test]
fn a_parameter_counts_from_its_layer_on() {
    let plain = keys(0, "", &[]);
    let differing = |members: &str, betas: &[&str]| {
        let keys = keys(0, members, betas);
        [0, 1, 2].map(|piece| keys[piece] != plain[piece])
    };
    assert_eq!(differing(r#""speed":"fast","#, &[]), [false, true, true]);
    for member in [
        r#""thinking":{"type":"adaptive"},"#,
        r#""tool_choice":{"type":"any"},"#,
        r#""output_config":{"effort":"low"},"#,
        r#""output_format":{"type":"json_schema"},"#,
        r#""context_management":{"edits":[]},"#,
    ] {
        assert_eq!(differing(member, &[]), [false, false, true], "{member}");
    }
    assert_eq!(differing("", &["a-2026"]), [false, false, true]);
    assert_eq!(
        differing(r#""max_tokens":9,"metadata":{"user_id":"x"},"thinking":null,"#, &["", " ,"]),
        [false; 3]
    );
    assert!(keys(1, "", &[]).iter().zip(&plain).all(|(other, plain)| other != plain));
}

#[test]
fn the_order_of_betas_and_of_members_does_not_count() {
    let one = keys(0, r#""thinking":{"type":"enabled","budget_tokens":9},"#, &["a", "b,c", "a"]);
    let two = keys(0, r#""thinking": {"budget_tokens": 9, "type": "enabled"},"#, &["c, b", "a"]);
    assert_eq!(one, two);
    assert_ne!(one, keys(0, r#""thinking":{"type":"enabled","budget_tokens":9},"#, &["a", "b"]));
    assert_ne!(keys(0, "", &["ab"]), keys(0, "", &["a", "b"]));
}

#[test]
fn a_value_without_a_shared_meaning_or_too_deep_to_read_counts_by_its_bytes() {
    let twice = r#""thinking":{"type":"a","type":"b"},"#;
    assert_eq!(keys(0, twice, &[]), keys(0, twice, &[]));
    assert_ne!(keys(0, twice, &[]), keys(0, r#""thinking":{"type":"b","type":"a"},"#, &[]));
    let deep = |spelling: &str| {
        let list = format!("{}{}", "[".repeat(400), "]".repeat(400));
        format!(r#""output_config":{{"a":{list},{spelling},"c":"{}"}},"#, "x".repeat(1_000))
    };
    assert_ne!(keys(0, &deep(r#""p":1,"q":2"#), &[]), keys(0, &deep(r#""q":2,"p":1"#), &[]));
}

#[test]
fn the_first_parameter_that_differs_is_named_for_the_layer() {
    let of =
        |members: &str, betas: &[&str]| Read::of(&format!(r#"{{{members}"messages":[]}}"#)).parameters(betas);
    let plain = of("", &[]);
    let cases = [
        (of(r#""speed":"fast","#, &[]), Parameter::Speed),
        (of(r#""thinking":{},"tool_choice":{},"#, &[]), Parameter::Thinking),
        (of(r#""tool_choice":{},"#, &["b"]), Parameter::ToolChoice),
        (of(r#""output_format":{},"#, &[]), Parameter::OutputConfig),
        (of(r#""context_management":{},"#, &[]), Parameter::ContextManagement),
        (of("", &["b"]), Parameter::Betas),
    ];
    for (parameters, parameter) in &cases {
        assert_eq!(plain.differs(parameters, Layer::Messages), Some(*parameter));
        assert_eq!(parameters.differs(&plain, Layer::Messages), Some(*parameter));
        assert_eq!(plain.differs(parameters, Layer::Tools), None);
        let of_system = (*parameter == Parameter::Speed).then_some(Parameter::Speed);
        assert_eq!(plain.differs(parameters, Layer::System), of_system);
    }
    assert_eq!(plain.differs(&plain, Layer::Messages), None);
    let spellings: std::collections::HashSet<_> = Parameter::ALL.iter().map(|it| it.as_str()).collect();
    assert_eq!(spellings.len(), Parameter::ALL.len());
}

fn image_of(blocks: &str) -> Option<usize> {
    let read = Read::of(&format!(r#"{{"messages":[{{"role":"user","content":[{blocks}]}}]}}"#));
    read.parameters(&[]).first_image()
}

const PICTURE: &str = r#"{"type":"image","source":{"type":"url"}}"#;

#[test]
fn an_image_is_found_wherever_a_block_can_stand() {
    let text = r#"{"type":"text","text":"x"}"#;
    assert_eq!(image_of(&format!("{text},{PICTURE}")), Some(1));
    let nested = |inner: &str| format!(r#"{{"type":"tool_result","tool_use_id":"t","content":[{inner}]}}"#);
    assert_eq!(image_of(&format!("{text},{}", nested(PICTURE))), Some(1));
    assert_eq!(image_of(&nested("{\"source\":{},\"type\" :\n \"image\"}")), Some(0));
    assert_eq!(image_of(r#"{"type":"im\u0061ge"}"#), Some(0));
    assert_eq!(image_of(&format!(r#"{{"type":"document","source":{{"content":[{PICTURE}]}}}}"#)), Some(0));
}

#[test]
fn what_only_speaks_of_an_image_is_none() {
    for blocks in [
        r#"{"type":"text","text":"\"type\":\"image\""}"#,
        r#"{"type":"text","text":"x","note":{"type":"image"}}"#,
        r#"{"type":"tool_use","id":"t","name":"n","input":{"type":"image"}}"#,
        r#"{"type":"tool_result","content":"{\"type\":\"image\"}"}"#,
        r#"{"type":"tool_result","content":[{"type":"text","text":"image"}],"title":"image"}"#,
        r#"{"type":"tool_result","content":[{"x\"type":"image"}]}"#,
        r#"{"type":7,"a":{"type":"image"}}"#,
    ] {
        assert_eq!(image_of(blocks), None, "{blocks}");
    }
    let string = Read::of(r#"{"system":"image","messages":[{"role":"user","content":"\"image\""}]}"#);
    assert!(!string.parameters(&[]).has_image());
}

fn point(piece: usize) -> Breakpoint {
    Breakpoint { piece, ttl: Ttl::FiveMinutes, origin: Origin::Client, carrier: Carrier::Block }
}

fn probed(read: &Read, breakpoints: &[usize]) -> Vec<usize> {
    let breakpoints: Vec<_> = breakpoints.iter().copied().map(point).collect();
    Probes::of(&read.anatomy, &read.chain, &breakpoints).map(|probe| probe.piece).collect()
}

fn texts(count: usize) -> String {
    let texts: Vec<_> = (0..count).map(|n| format!(r#"{{"type":"text","text":"{n}"}}"#)).collect();
    format!(r#"[{{"role":"user","content":[{}]}}]"#, texts.join(","))
}

#[test]
fn a_breakpoint_looks_at_itself_and_nineteen_positions_before_it() {
    let read = Read::of(&format!(r#"{{"messages":{}}}"#, texts(50)));
    assert_eq!(probed(&read, &[35]), (16..=35).rev().collect::<Vec<_>>());
    assert_eq!(probed(&read, &[2]), [2, 1, 0]);
    assert_eq!(probed(&read, &[]), [] as [usize; 0]);
    assert_eq!(probed(&read, &[99]), [] as [usize; 0], "no such piece");
    let two: Vec<_> = (11..=40).rev().collect();
    assert_eq!(probed(&read, &[30, 40]), two, "windows that overlap are walked once");
    let apart: Vec<_> = (30..=49).rev().chain((0..=5).rev()).collect();
    assert_eq!(probed(&read, &[5, 49]), apart);
}

#[test]
fn what_the_model_does_not_read_is_no_position() {
    let tools: Vec<_> = (0..30)
        .map(|n| format!(r#"{{"name":"t{n}"{}}}"#, if n % 2 == 1 { r#","defer_loading":true"# } else { "" }))
        .collect();
    let system = r#"[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"s"}]"#;
    let body = format!(r#"{{"tools":[{}],"system":{system},"messages":{}}}"#, tools.join(","), texts(2));
    let read = Read::of(&body);
    let mut expected = vec![33, 32, 31];
    expected.extend((0..30).rev().filter(|n| n % 2 == 0));
    assert_eq!(probed(&read, &[33]), expected);
    let not_deferred =
        Read::of(r#"{"tools":[{"name":"a","defer_loading":false},{"name":"b","x":{"defer_loading":true}}]}"#);
    assert_eq!(probed(&not_deferred, &[1]), [1, 0]);
}

#[test]
fn probes_bring_the_bytes_of_the_prefix_without_markers() {
    let read =
        Read::of(r#"{"messages":[{"role":"user","content":[{"a":1},{"b":2,"cache_control":{}},"cc"]}]}"#);
    let breakpoints = [point(1), point(2)];
    let found: Vec<_> = Probes::of(&read.anatomy, &read.chain, &breakpoints)
        .map(|probe| (probe.bytes, probe.marker.is_some()))
        .collect();
    assert_eq!(found, [(18, true), (14, true), (7, false)]);
    assert_eq!(prefix_bytes(&read.anatomy, 99), 18);
}

/// One of few values for each input, so that equal inputs are likely.
#[derive(Clone, Debug, PartialEq)]
struct Inputs {
    tenant: u8,
    model: u8,
    text: u8,
    members: [u8; 5],
    betas: std::collections::BTreeSet<u8>,
    image: bool,
}

fn any_inputs() -> impl Strategy<Value = Inputs> {
    let few = || 0..2_u8;
    (
        few(),
        few(),
        few(),
        [few(), few(), few(), few(), few()],
        prop::collection::btree_set(few(), 0..2),
        any::<bool>(),
    )
        .prop_map(|(tenant, model, text, members, betas, image)| Inputs {
            tenant,
            model,
            text,
            members,
            betas,
            image,
        })
}

/// The inputs spelt in one of two ways.
fn spell(inputs: &Inputs, respelt: bool) -> (Read, Vec<String>) {
    let names = ["speed", "thinking", "tool_choice", "output_config", "context_management"];
    let mut members: Vec<String> = vec![format!(r#""model":"{}""#, inputs.model)];
    for (name, value) in names.iter().zip(inputs.members) {
        members.push(match (value, respelt) {
            (0, false) => continue,
            (0, true) => format!(r#""{name}": null"#),
            (_, false) => format!(r#""{name}":{{"a":1,"b":2}}"#),
            (_, true) => format!(r#""{name}": {{"b": 2, "a": 1}}"#),
        });
    }
    let image = if inputs.image { format!(",{PICTURE}") } else { String::new() };
    let text = format!(r#"{{"type":"text","text":"{}"}}{image}"#, inputs.text);
    members.push(format!(r#""messages":[{{"role":"user","content":[{text}]}}]"#));
    let mut betas: Vec<String> = inputs.betas.iter().map(|beta| format!("beta-{beta}")).collect();
    if respelt {
        members.reverse();
        betas.reverse();
        betas.extend(betas.first().cloned());
    }
    (Read::of(&format!("{{{}}}", members.join(","))), betas)
}

fn key_of(inputs: &Inputs, respelt: bool) -> EntryKey {
    let (read, betas) = spell(inputs, respelt);
    let betas: Vec<&str> = betas.iter().map(String::as_str).collect();
    let parameters = read.parameters_of(inputs.tenant, &betas);
    EntryKey::of(parameters.scope(), &read.chain, 0, Layer::Messages).unwrap()
}

proptest! {
    #[test]
    fn keys_are_equal_just_if_what_they_depend_on_is(one in any_inputs(), two in any_inputs(), respelt: bool) {
        prop_assert_eq!(key_of(&one, false) == key_of(&two, respelt), one == two);
        prop_assert_eq!(key_of(&one, false), key_of(&one, true));
    }

    /// Each breakpoint's window by itself, without a thought to cost.
    #[test]
    fn probes_are_the_union_of_all_windows(
        count in 1..60_usize,
        deferred in prop::collection::btree_set(0..60_usize, 0..40),
        points in prop::collection::btree_set(0..60_usize, 0..4),
    ) {
        let tool = |n: usize| match deferred.contains(&n) {
            true => format!(r#"{{"name":"t{n}","defer_loading":true}}"#),
            false => format!(r#"{{"name":"t{n}"}}"#),
        };
        let tools: Vec<_> = (0..count).map(tool).collect();
        let read = Read::of(&format!(r#"{{"tools":[{}]}}"#, tools.join(",")));
        let points: Vec<_> = points.into_iter().filter(|n| *n < count && !deferred.contains(n)).collect();
        let mut expected = std::collections::BTreeSet::new();
        for point in &points {
            expected.extend((0..=*point).rev().filter(|n| !deferred.contains(n)).take(LOOKBACK_POSITIONS));
        }
        prop_assert_eq!(probed(&read, &points), expected.into_iter().rev().collect::<Vec<_>>());
    }
}

#[test]
fn betas_that_differ_are_told_by_what_differs() {
    let plain = Read::of(r#"{"model":"m","messages":[{"role":"user","content":"u"}]}"#);
    let other = Read::of(r#"{"model":"m","thinking":{},"messages":[{"role":"user","content":"u"}]}"#);
    let change = |one: &[&str], two: &[&str]| plain.parameters(one).beta_change(&plain.parameters(two));
    let added = change(&["a"], &["a,b"]);
    assert!(added.is_some());
    assert_eq!(added, change(&["b", "c"], &["c"]), "whatever else both have, and whoever has it");
    assert_eq!(added, change(&[], &["b"]));
    assert_ne!(added, change(&["a"], &["b"]));
    assert_eq!(change(&["a, b"], &["b", "a,a"]), None);
    assert_eq!(plain.parameters(&[]).beta_change(&other.parameters(&["b"])), None, "not the betas alone");
    let swapped = plain.parameters(&["a"]).with_betas(["a,b"].into_iter());
    assert_eq!(plain.parameters(&["a"]).beta_change(&swapped), added);
    let many: Vec<String> = (0..100).map(|number| format!("beta-{number}")).collect();
    assert_eq!(change(&["a"], &[&many.join(",")]), None, "too many to be told apart");
}

#[test]
fn what_was_made_of_equal_parameters_is_shared_and_of_others_is_not() {
    let read = Read::of(r#"{"model":"m","messages":[{"role":"user","content":"u"}]}"#);
    let key =
        |parameters: &Parameters| EntryKey::of(parameters.scope(), &read.chain, 0, Layer::Messages).unwrap();
    let made_anew = |tenant: u8, betas: &[&str]| key(&read.parameters_of(tenant, betas));
    for (betas, tenant) in [(["a"], 0), (["a"], 1), (["b"], 0)] {
        let later = read.parameters_after(&read.parameters_of(tenant, &["a"]), &betas);
        assert_eq!(key(&later), made_anew(tenant, &betas), "{betas:?} of {tenant}");
    }
    let swapped = read.parameters(&["a"]).with_betas(["b"].into_iter());
    assert_eq!(key(&swapped), made_anew(0, &["b"]));
}
