//! Requests as values, and the many ways to write them.

use proptest::prelude::*;

/// A JSON value that keeps what parsers lose: number lexemes, doubled keys, broken strings.
#[derive(Clone, Debug)]
pub enum Json {
    Raw(&'static str),
    Text(String),
    List(Vec<Json>),
    Map(Vec<(String, Json)>),
}

/// One conversation: what stays, and what each turn adds.
#[derive(Clone, Debug)]
pub struct Request {
    pub tools: Vec<Json>,
    pub system: Json,
    pub attribution: Option<u16>,
    pub inputs: Vec<Json>,
}

impl Request {
    pub fn turns(&self) -> usize {
        self.inputs.len()
    }

    pub fn write(&self, style: &mut Style) -> String {
        let tools = style.shuffled(self.tools.clone());
        let mut out = String::from("{\"model\":\"m\",\"max_tokens\":1e3,\"tools\":");
        style.blocks(&tools, None, &mut out);
        out.push_str(",\"system\":");
        match &self.system {
            Json::List(blocks) => style.blocks(blocks, self.attribution, &mut out),
            text => style.value(text, &mut out),
        }
        out.push_str(" ,\"messages\":[{\"role\":\"user\",\"content\":\"go\"}");
        for (turn, input) in self.inputs.iter().enumerate().take(style.until) {
            out.push_str(&format!(",{{\"role\":\"assistant\",\"content\":[{{\"type\":\"tool_use\",\"id\":\"toolu_{turn}\",\"name\":\"t\",\"input\":"));
            style.value(input, &mut out);
            out.push_str(&format!("}}]}},{{\"role\":\"user\",\"content\":[{{\"type\":\"tool_result\",\"tool_use_id\":\"toolu_{turn}\",\"content\":\"ok\"}}]}}"));
        }
        out.push_str("], \"x_unknown\": {\"b\":1.0,\"a\":[ ]}}");
        out
    }

    /// Anything at all where tools, system and an input belong.
    pub fn odd(tools: &Json, system: &Json, input: &Json, style: &mut Style) -> String {
        let mut out =
            String::from("{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"id\":\"i\",\"input\":");
        style.value(input, &mut out);
        out.push_str(",\"type\":\"tool_use\"},");
        style.value(input, &mut out);
        out.push_str("]}],\"system\":");
        style.value(system, &mut out);
        out.push_str(",\"tools\" : ");
        style.value(tools, &mut out);
        out + "}"
    }
}

/// How values are written. Markers are a matter of style too: clients move them between requests.
#[derive(Clone)]
pub struct Style {
    random: u64,
    keys: bool,
    escapes: bool,
    tools: bool,
    space: Space,
    markers: Option<u64>,
    until: usize,
}

#[derive(Clone, Copy)]
enum Space {
    None,
    Fixed,
    Random,
}

impl Style {
    pub fn plain() -> Style {
        let space = Space::None;
        Style {
            random: 1,
            keys: false,
            escapes: false,
            tools: false,
            space,
            markers: None,
            until: usize::MAX,
        }
    }

    pub fn spaced() -> Style {
        Style { space: Space::Fixed, ..Style::plain() }
    }

    pub fn respelling(seed: u64) -> Style {
        let style =
            Style { random: seed | 1, keys: true, escapes: true, space: Space::Random, ..Style::plain() };
        Style { tools: true, ..style.with_markers(seed) }
    }

    pub fn shuffling_tools(self, seed: u64) -> Style {
        Style { random: seed | 1, tools: true, ..self }
    }

    pub fn with_markers(self, seed: u64) -> Style {
        Style { markers: Some(seed | 1), ..self }
    }

    pub fn until(self, until: usize) -> Style {
        Style { until, ..self }
    }

    fn next(state: &mut u64, below: usize) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) as usize % below
    }

    fn shuffled(&mut self, mut tools: Vec<Json>) -> Vec<Json> {
        if self.tools {
            self.shuffle(&mut tools);
        }
        tools
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, Style::next(&mut self.random, last + 1));
        }
    }

    fn space(&mut self, out: &mut String) {
        match self.space {
            Space::None => {}
            Space::Fixed => out.push(' '),
            Space::Random => out.push_str(["", " ", "\n\t", "\r\n "][Style::next(&mut self.random, 4)]),
        }
    }

    /// A list of blocks, some with a marker in some place (at the front only where that leaves no space).
    fn blocks(&mut self, blocks: &[Json], attribution: Option<u16>, out: &mut String) {
        let line = attribution.map(|version| {
            let text = Json::Text(format!("x-anthropic-billing-header: v={version}"));
            Json::Map(vec![("type".into(), Json::Text("text".into())), ("text".into(), text)])
        });
        let first = usize::from(line.is_some());
        let mut elements: Vec<Json> = line.into_iter().chain(blocks.iter().cloned()).collect();
        for element in &mut elements[first..] {
            let (Some(seed), Json::Map(members)) = (&mut self.markers, &mut *element) else { continue };
            if self.keys {
                let mut own = std::mem::take(members);
                self.random ^= *seed;
                self.random |= 1;
                for last in (1..own.len()).rev() {
                    own.swap(last, Style::next(&mut self.random, last + 1));
                }
                *members = own;
            }
            if Style::next(seed, 3) == 0 {
                let marker =
                    Json::Raw(["{\"type\":\"ephemeral\"}", "{ \"ttl\":\"1h\" }"][Style::next(seed, 2)]);
                let front = usize::from(matches!(self.space, Space::Fixed));
                let place = front.min(members.len())
                    + Style::next(seed, members.len() + 1 - front.min(members.len()));
                members.insert(place, ("cache_control".into(), marker));
            }
        }
        // Member order is settled; only what is inside the members may still be shuffled.
        out.push('[');
        for (place, element) in elements.iter().enumerate() {
            if place > 0 {
                out.push(',');
            }
            self.space(out);
            match element {
                Json::Map(members) => self.map(members, out),
                other => self.value(other, out),
            }
        }
        self.space(out);
        out.push(']');
    }

    fn value(&mut self, value: &Json, out: &mut String) {
        match value {
            Json::Raw(raw) => out.push_str(raw),
            Json::Text(text) => self.text(text, out),
            Json::List(items) => {
                out.push('[');
                for (place, item) in items.iter().enumerate() {
                    out.push_str(if place > 0 { "," } else { "" });
                    self.space(out);
                    self.value(item, out);
                }
                out.push(']');
            }
            Json::Map(members) => {
                let mut members = members.clone();
                if self.keys {
                    self.shuffle(&mut members);
                }
                self.map(&members, out);
            }
        }
    }

    fn map(&mut self, members: &[(String, Json)], out: &mut String) {
        out.push('{');
        for (place, (key, value)) in members.iter().enumerate() {
            out.push_str(if place > 0 { "," } else { "" });
            self.space(out);
            match key.as_str() {
                "cache_control" | "type" | "name" | "text" | "input" | "id" => {
                    out.push_str(&format!("\"{key}\""))
                }
                key => self.text(key, out),
            }
            self.space(out);
            out.push(':');
            self.space(out);
            self.value(value, out);
        }
        self.space(out);
        out.push('}');
    }

    fn text(&mut self, text: &str, out: &mut String) {
        // The attribution line is known by its raw text, and clients write it so.
        if !self.escapes || text.starts_with("x-anthropic") {
            return out.push_str(&serde_json::to_string(text).unwrap());
        }
        out.push('"');
        for char in text.chars() {
            match Style::next(&mut self.random, 4) {
                0 => {
                    let units = char.encode_utf16(&mut [0; 2]).to_vec();
                    units.iter().for_each(|unit| out.push_str(&format!("\\u{unit:04X}")));
                }
                _ => {
                    let quoted = serde_json::to_string(&char).unwrap();
                    out.push_str(&quoted[1..quoted.len() - 1]);
                }
            }
        }
        out.push('"');
    }
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec!["", "é/", "line\nnext\t\"q\" \\", "😀", "plain words of a prompt"])
            .prop_map(String::from),
        "[a-c ]{0,6}",
    ]
}

fn any_map(value: impl Strategy<Value = Json>) -> impl Strategy<Value = Json> {
    prop::collection::btree_map("[a-e]{1,2}", value, 0..5)
        .prop_map(|map| Json::Map(map.into_iter().collect()))
}

/// Values every reader agrees on.
fn any_sound() -> impl Strategy<Value = Json> {
    let scalar = prop_oneof![
        prop::sample::select(vec!["1", "1.0", "-0", "1E+9", "true", "null"]).prop_map(Json::Raw),
        any_text().prop_map(Json::Text),
    ];
    scalar.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![prop::collection::vec(inner.clone(), 0..4).prop_map(Json::List), any_map(inner)]
    })
}

/// Values of any sort: doubled keys, half surrogates, markers where none belong.
pub fn any_value() -> impl Strategy<Value = Json> {
    let odd = prop::sample::select(vec![
        r#"{"a":1,"a":2}"#,
        r#""\ud800""#,
        r#"{"x":["\udc00"]}"#,
        r#"{"cache_control":{"type":"ephemeral"}}"#,
        r#"{ "cache_control" : null , "name":"n" }"#,
        r#"{"name":"n"}"#,
        r#"{"cache\u005fcontrol":1,"name":"n","cache_control":2}"#,
        r#"{"cache\u005fcontrol":1, "name":"n"}"#,
        r#"{"cache_control":1,"cache_control":2}"#,
        "{\"raw\":\"a\u{1}b\"}",
        "{\"raw\":\"a\\u0001b\"}",
        r#"{"type":"tool_use","id":"i","input":{"a":1,"b":2}}"#,
        r#"{"type":"tool_use","id":"i","input":{"b":2,"a":1}}"#,
        "{ }",
        "{}",
        "[ ]",
    ]);
    let leaf = prop_oneof![2 => odd.prop_map(Json::Raw), 1 => any_sound()];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![3 => prop::collection::vec(inner.clone(), 0..5).prop_map(Json::List), 1 => any_map(inner)]
    })
}

fn any_tool() -> impl Strategy<Value = Json> {
    ("[a-d]", any_text(), any_map(any_sound()), any::<bool>()).prop_map(
        |(name, description, properties, strict)| {
            let schema = Json::Map(vec![
                ("type".into(), Json::Text("object".into())),
                ("properties".into(), properties),
            ]);
            let mut members = vec![
                ("name".to_owned(), Json::Text(name)),
                ("description".to_owned(), Json::Text(description)),
                ("input_schema".to_owned(), schema),
            ];
            if strict {
                members.push(("strict".into(), Json::Raw("true")));
            }
            Json::Map(members)
        },
    )
}

pub fn any_request() -> impl Strategy<Value = Request> {
    let block = any_text().prop_map(|text| {
        Json::Map(vec![("type".into(), Json::Text("text".into())), ("text".into(), Json::Text(text))])
    });
    let system = prop_oneof![
        3 => prop::collection::vec(block, 0..4).prop_map(Json::List),
        1 => any_text().prop_map(Json::Text),
    ];
    let inputs = prop::collection::vec(any_map(any_sound()), 0..4);
    (prop::collection::vec(any_tool(), 0..6), system, prop::option::of(any::<u16>()), inputs)
        .prop_map(|(tools, system, attribution, inputs)| Request { tools, system, attribution, inputs })
}
