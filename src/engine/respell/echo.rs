//! Puts what a conversation repeats in another spelling back into the one that it went out in.
//!
//! Some clients spell their history anew each turn: shuffled tools, another order of keys in schemas and in the inputs
//! of calls. Reading that as if it were new, looking up what each part means and reading once more what goes out
//! instead costs several times what a stable client costs. But nearly everything is known to the byte from what went
//! out last, and for the rest it is enough to see that it says the same:
//!
//! ```text
//! went out   [ tool a, tool b ]  [ user ] [ assistant: text, call ─ input ] [ user ]
//! comes      [ tool b, tool a ]  [  =   ] [             =     =  ─  ≈    ] [  =   ] [ new ] …
//! echoed     [ tool a, tool b ]  [  =   ] [             =     =  ─  =    ] [  =   ] [ new ] …
//! ```
//!
//! The echoed request is then read like that of a stable client. What differs in any other way is left as it came, for
//! [`super::canonical`] to look at.

use std::collections::BTreeMap;

use bytes::Bytes;
use memchr::memmem::Finder;

use super::canonical::is_call;
use crate::engine::request::anatomy::{Anatomy, Message, Piece};
use crate::engine::request::json::{self, Malformed, Span, skip_space, value_end, walk_array, walk_object};
use crate::engine::request::meaning::{Meaning, Tree};
use crate::engine::request::recall::{Remembered, SharedParts};
use crate::engine::words::Layer;

/// More tools than anybody has; of a longer list none is compared.
const TOOLS_MAX: usize = 512;
/// The key of a tool's name.
const NAME: &[u8] = b"\"name\"";
/// So many members may be called `name` inside a tool before its own is looked for in earnest.
const NAMES_MAX: usize = 4;
/// Clients move a marker from the last messages to new ones. Other messages that differ say that this is not the
/// conversation, or that it was edited.
const MARKED_MAX: usize = 2;
/// So much is kept of a conversation's inputs; those beyond it are prepared anew whenever they are compared.
const INPUTS_BYTES_MAX: usize = 256 * 1024;

/// The spelling of a conversation whose client spells it anew each turn.
#[derive(Debug)]
pub struct Spelling {
    /// The value of `tools` as it goes out.
    tools: Bytes,
    each: Vec<Tool>,
    inputs: Inputs,
}

/// One of them, within that value.
#[derive(Debug)]
struct Tool {
    span: Span,
    name: Span,
    tree: Tree,
}

/// Inputs of calls that were compared before, each by the number of its block among those of all messages.
#[derive(Debug, Default)]
struct Inputs {
    known: BTreeMap<usize, Input>,
    bytes: usize,
}

#[derive(Debug)]
struct Input {
    value: Box<[u8]>,
    tree: Tree,
}

/// A request in the spelling of its conversation.
#[derive(Debug)]
pub struct Echoed {
    pub body: Bytes,
    /// The first piece that came in another one, in the order of the cache.
    pub from: usize,
    /// The parts that it has of the conversation's last request; of its messages, with what is between them.
    pub same: SharedParts,
}

impl Spelling {
    /// The spelling of a request as it goes out. Tools that cannot be compared are left out, all together.
    pub fn of(request: &Remembered) -> Spelling {
        let (body, anatomy) = (request.body(), request.anatomy());
        let value = tools_of(request);
        let tools = value.map_or_else(Bytes::new, |value| Bytes::copy_from_slice(&body[value.clone()]));
        let pieces = &anatomy.pieces[..anatomy.tools];
        let start = value.map_or(0, |value| value.start);
        let each = pieces.iter().take(TOOLS_MAX + 1).map(|piece| Tool::of(&tools, start, piece));
        let each = each.collect::<Option<Vec<_>>>().filter(|each| each.len() <= TOOLS_MAX);
        Spelling { tools, each: each.unwrap_or_default(), inputs: Inputs::default() }
    }

    /// Returns true if this request goes out in this spelling.
    pub fn is_of(&self, request: &Remembered) -> bool {
        tools_of(request).map_or(self.tools.is_empty(), |tools| request.body()[tools.clone()] == self.tools)
    }

    /// About how much memory this takes.
    pub fn memory_bytes(&self) -> usize {
        let tool = |tool: &Tool| size_of::<Tool>() + tool.tree.memory_bytes();
        let tools = self.tools.len() + self.each.iter().map(tool).sum::<usize>();
        size_of::<Spelling>() + tools + self.inputs.bytes
    }

    /// Returns where the list of tools that starts at `start` ends, if these are its tools in any order and spelling.
    fn respelt_end(&self, body: &[u8], start: usize) -> Option<usize> {
        let mut left: Vec<&Tool> = self.each.iter().collect();
        let longest = left.iter().map(|tool| tool.span.len()).max()?;
        let key = Finder::new(NAME);
        let end = walk_array(body, start, |at| {
            let near = &body[at..body.len().min(at + 2 * longest)];
            let keys = key.find_iter(near).map(|key| at + key);
            let place = self.place(&left, body, at, keys).ok_or(Malformed::At(at))?;
            let tool = left.swap_remove(place);
            let sound = &self.tools[tool.span.clone()];
            tool.tree.respelt_end(sound, body, at).ok_or(Malformed::At(at))
        });
        if left.is_empty() { end.ok() } else { None }
    }

    /// Which of these is called like the tool that starts at `at`. A wrong answer is found out when they are compared.
    fn place(
        &self,
        left: &[&Tool],
        body: &[u8],
        at: usize,
        keys: impl Iterator<Item = usize>,
    ) -> Option<usize> {
        let named = |start: usize| {
            left.iter().position(|tool| body[start..].starts_with(&self.tools[tool.name.clone()]))
        };
        // Its own name is nearly always the first that is a text, and may be behind everything else.
        let found = keys.take(NAMES_MAX).find_map(|key| {
            let colon = skip_space(body, key + NAME.len());
            (body.get(colon) == Some(&b':')).then(|| named(skip_space(body, colon + 1)))?
        });
        found.or_else(|| named(json::member(body, at, "name")?.start))
    }
}

impl Tool {
    fn of(tools: &[u8], start: usize, piece: &Piece) -> Option<Tool> {
        let within = |span: &Span| span.start - start..span.end - start;
        let (span, name) = (within(&piece.span), within(&piece.name()?));
        let value = &tools[span.clone()];
        Meaning::of_sound(value)?;
        Some(Tool { name, tree: Tree::of(value)?, span })
    }
}

impl Inputs {
    /// Returns where an input ends that says what is known in another spelling.
    fn respelt_end(&mut self, number: usize, known: &[u8], body: &[u8], at: usize) -> Option<usize> {
        if let Some(input) = self.known.get(&number).filter(|input| *input.value == *known) {
            return input.tree.respelt_end(known, body, at);
        }
        let input = Input::of(known)?;
        let end = input.tree.respelt_end(known, body, at);
        self.keep(number, input);
        end
    }

    fn keep(&mut self, number: usize, input: Input) {
        self.bytes -= self.known.remove(&number).map_or(0, |old| old.memory_bytes());
        let bytes = input.memory_bytes();
        if self.bytes + bytes <= INPUTS_BYTES_MAX {
            self.bytes += bytes;
            self.known.insert(number, input);
        }
    }
}

impl Input {
    /// `None` for one that has no meaning, or is too large to be compared.
    fn of(value: &[u8]) -> Option<Input> {
        Meaning::of_sound(value)?;
        Some(Input { tree: Tree::of(value)?, value: value.into() })
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Input>() + self.value.len() + self.tree.memory_bytes()
    }
}

/// The request as its conversation would spell it, whose last request went out as `last`. `None` if it is spelt so
/// already, or is not known to be of that conversation.
pub fn echo(body: &Bytes, last: &Remembered, spelling: &mut Spelling) -> Option<Echoed> {
    let (respelt, seen) = Default::default();
    let mut echo =
        Echo { body, last, spelling, from: usize::MAX, same: SharedParts::default(), respelt, seen };
    let end = walk_object(body, 0, |key, start| echo.member(&key, start)).ok()?;
    let Echo { from, same, mut respelt, .. } = echo;
    if skip_space(body, end) != body.len() || respelt.is_empty() {
        return None;
    }
    // The body may bring its layers in any order.
    respelt.sort_unstable_by_key(|respelt| respelt.came.start);
    Some(Echoed { body: put_back(body, last.body(), &respelt), from, same })
}

/// Returns true if a request brings its tools as the last one of its conversation did, which went out in another
/// spelling: its client has one of its own, and keeps to it.
pub fn keeps_its_own(body: &[u8], came: &Remembered, went: &Remembered) -> bool {
    let tools = |request: &Remembered| tools_of(request).map(|tools| request.body().slice(tools.clone()));
    tools(came).is_some_and(|came| {
        tools(went).is_some_and(|went| went != came) && Finder::new(&came).find(body).is_some()
    })
}

/// The body with the spelling of the last request instead of the one that it came in.
fn put_back(body: &[u8], sent: &[u8], respelt: &[Respelt]) -> Bytes {
    let came: usize = respelt.iter().map(|one| one.came.len()).sum();
    let went: usize = respelt.iter().map(|one| one.went.len()).sum();
    let mut out = Vec::with_capacity(body.len() - came + went);
    let mut at = 0;
    for Respelt { came, went } in respelt {
        out.extend_from_slice(&body[at..came.start]);
        out.extend_from_slice(&sent[went.clone()]);
        at = came.end;
    }
    out.extend_from_slice(&body[at..]);
    out.into()
}

/// The value of `tools` in a request.
fn tools_of(request: &Remembered) -> Option<&Span> {
    request.anatomy().member(request.body(), Layer::Tools.as_str())
}

/// A request beside the last one of its conversation.
struct Echo<'a> {
    body: &'a Bytes,
    last: &'a Remembered,
    spelling: &'a mut Spelling,
    from: usize,
    same: SharedParts,
    respelt: Vec<Respelt>,
    /// The layers that came.
    seen: Vec<Layer>,
}

/// A stretch of a request, and the one of the last request that says the same.
struct Respelt {
    came: Span,
    went: Span,
}

impl Echo<'_> {
    /// Returns where a top-level member ends. What readers could see differently ends the comparison.
    fn member(&mut self, key: &Span, start: usize) -> Result<usize, Malformed> {
        let layer = match &self.body[key.start + 1..key.end - 1] {
            b"tools" => Layer::Tools,
            b"system" => Layer::System,
            b"messages" => Layer::Messages,
            name if name.contains(&b'\\') => return Err(Malformed::At(key.start)),
            _ => return value_end(self.body, start),
        };
        if self.seen.contains(&layer) {
            return Err(Malformed::At(key.start));
        }
        self.seen.push(layer);
        match layer {
            Layer::Messages => self.messages(start),
            _ => self.statics(layer, start),
        }
    }

    fn statics(&mut self, layer: Layer, start: usize) -> Result<usize, Malformed> {
        let (body, sent) = (self.body, self.last.body());
        let Some(known) = self.last.anatomy().member(sent, layer.as_str()) else {
            return value_end(body, start);
        };
        let value = &sent[known.clone()];
        let same = if layer == Layer::Tools { &mut self.same.tools } else { &mut self.same.system };
        if is_whole(value) && body[start..].starts_with(value) {
            *same = true;
            return Ok(start + value.len());
        }
        let is_known = layer == Layer::Tools && self.spelling.tools == value;
        let end = if is_known { self.spelling.respelt_end(body, start) } else { None };
        let Some(end) = end else {
            return value_end(body, start);
        };
        (*same, self.from) = (true, 0);
        self.respelt.push(Respelt { came: start..end, went: known.clone() });
        Ok(end)
    }

    /// A conversation opens as it did, and goes on as it did but for the spelling of inputs.
    fn messages(&mut self, start: usize) -> Result<usize, Malformed> {
        let (body, sent) = (self.body, self.last.body());
        let known = &self.last.anatomy().messages;
        // Where the last message ended, here and there.
        let (mut number, mut ends) = (0, None);
        walk_array(body, start, |start| {
            let message = known.get(number);
            number += 1;
            let Some(message) = message else { return value_end(body, start) };
            let length = same(&sent[message.span.clone()], body, start);
            match length.map(|length| start + length).or_else(|| self.respelt_message(message, start)) {
                Some(end) => {
                    let follows = |(here, there)| body[here..start] == sent[there..message.span.start];
                    let messages = &mut self.same.messages;
                    *messages += usize::from(*messages + 1 == number && ends.is_none_or(follows));
                    ends = Some((end, message.span.end));
                    Ok(end)
                }
                None if number > 1 && number + MARKED_MAX > known.len() => value_end(body, start),
                None => Err(Malformed::At(start)),
            }
        })
    }

    /// Returns where a message ends that differs from a known one in the spelling of inputs alone.
    fn respelt_message(&mut self, message: &Message, start: usize) -> Option<usize> {
        let (body, sent) = (self.body, self.last.body());
        let Anatomy { pieces, tools, system, .. } = self.last.anatomy();
        let (mut from, mut at) = (message.span.start, start);
        let before = (self.from, self.respelt.len());
        let mut compare = || {
            for (number, input) in inputs(sent, pieces, message) {
                at += same(&sent[from..input.start], body, at)?;
                let value = &sent[input.clone()];
                let end = match same(value, body, at) {
                    Some(length) if is_whole(value) => at + length,
                    _ => {
                        let place = number - tools - system;
                        let end = self.spelling.inputs.respelt_end(place, value, body, at)?;
                        self.respelt.push(Respelt { came: at..end, went: input.clone() });
                        self.from = self.from.min(number);
                        end
                    }
                };
                (from, at) = (input.end, end);
            }
            Some(at + same(&sent[from..message.span.end], body, at)?)
        };
        let end = compare();
        if end.is_none() {
            self.from = before.0;
            self.respelt.truncate(before.1);
        }
        end
    }
}

/// The inputs of the calls in a message, each with the number of its piece, by position.
fn inputs<'a>(
    body: &'a [u8],
    pieces: &'a [Piece],
    message: &'a Message,
) -> impl Iterator<Item = (usize, Span)> {
    let calls = message.pieces.clone().filter(|number| is_call(body, &pieces[*number]));
    calls.filter_map(|number| Some((number, pieces[number].input()?)))
}

/// Returns the length of these bytes, if they are here.
fn same(known: &[u8], body: &[u8], at: usize) -> Option<usize> {
    body.get(at..)?.starts_with(known).then_some(known.len())
}

/// Returns true if a value says by itself where it ends.
fn is_whole(value: &[u8]) -> bool {
    matches!(value.first(), Some(b'{' | b'[' | b'"'))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::request::prefix::Attribution;
    use crate::engine::request::recall::Nothing;

    const TOOLS: &str =
        r#"[{"name":"a","input_schema":{"x":1,"y":[2]}},{"description":"\"name\"","name":"b"}]"#;
    const SHUFFLED: &str =
        r#"[{"name":"b", "description":"\"name\""} ,{"input_schema":{"y":[2],"x":1},"name":"a"}]"#;
    const INPUT: &str = r#"{"path":"p","limit":7}"#;
    const RESPELT: &str = r#"{"limit":7, "path":"\u0070"}"#;
    const NEW: &str = r#",{"role":"user","content":"new"}"#;

    /// A request whose model calls a tool with this input.
    fn request(tools: &str, input: &str, new: &str) -> String {
        let call = format!(r#"{{"type":"tool_use","id":"t","name":"a","input":{input}}}"#);
        let said = format!(r#"{{"role":"assistant","content":[{{"type":"text","text":"so"}},{call}]}}"#);
        let result = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"}]}"#;
        format!(
            r#"{{"messages":[{{"role":"user","content":"go"}},{said},{result}{new}],"tools":{tools},"system":"s"}}"#
        )
    }

    fn read(body: &str) -> Arc<Remembered> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        Arc::new(Remembered::read(body, &Nothing, Attribution::Counted).unwrap())
    }

    /// What becomes of a request whose conversation went out so.
    fn echoed(last: &str, body: &str) -> Option<(String, usize)> {
        let last = read(last);
        let echoed = echo(&Bytes::copy_from_slice(body.as_bytes()), &last, &mut Spelling::of(&last))?;
        Some((String::from_utf8(echoed.body.to_vec()).unwrap(), echoed.from))
    }

    #[test]
    fn what_is_repeated_in_another_spelling_goes_out_as_before() {
        let (last, as_before) = (request(TOOLS, INPUT, ""), request(TOOLS, INPUT, NEW));
        for (tools, input, from) in [(SHUFFLED, RESPELT, 0), (SHUFFLED, INPUT, 0), (TOOLS, RESPELT, 5)] {
            let came = request(tools, input, NEW);
            assert_eq!(echoed(&last, &came), Some((as_before.clone(), from)), "{came}");
        }
        assert_eq!(echoed(&last, &as_before), None, "it is spelt so");
    }

    #[test]
    fn what_says_something_else_stays_as_it_came() {
        let last = request(TOOLS, INPUT, "");
        for (came, kept) in [
            (request(SHUFFLED, r#"{"limit":8,"path":"p"}"#, NEW), r#""limit":8"#),
            (request(r#"[{"name":"b","description":"other"}]"#, RESPELT, NEW), "other"),
            (request(&SHUFFLED.replace("[2]", "[3]"), RESPELT, NEW), "[3]"),
        ] {
            let out = echoed(&last, &came);
            assert!(out.as_ref().is_none_or(|(out, _)| out.contains(kept)), "{out:?}");
        }
        let more = SHUFFLED.replace("} ,{", r#"} ,{"name":"c"},{"#);
        let out = echoed(&last, &request(&more, RESPELT, NEW)).unwrap();
        assert_eq!(out, (request(&more, INPUT, NEW), 5), "another list of tools");
    }

    #[test]
    fn another_conversation_is_left_alone_and_so_is_what_readers_could_see_differently() {
        let came = request(SHUFFLED, RESPELT, NEW);
        assert!(echoed(&request(TOOLS, INPUT, ""), &came).is_some());
        for other in [
            came.replace(r#""go""#, r#""stay""#),
            came.replace(r#""system""#, r#""syst\u0065m""#),
            came.replace(r#""system":"s""#, r#""tools":[]"#),
            format!("{came}x"),
            came[..came.len() - 1].to_owned(),
        ] {
            assert_eq!(echoed(&request(TOOLS, INPUT, ""), &other), None, "{other}");
        }
        let twice = r#"{"path":"p","limit":7,"path":"p"}"#;
        let also_twice = r#"{"path":"p","path":"p","limit":7}"#;
        assert_eq!(echoed(&request(TOOLS, twice, ""), &request(TOOLS, also_twice, NEW)), None);
    }

    #[test]
    fn what_was_compared_before_is_compared_anew_once_it_says_something_else() {
        let (last, other) = (request(TOOLS, INPUT, ""), r#"{"path":"q","limit":7}"#);
        let mut spelling = Spelling::of(&read(&last));
        let mut echoed = |last: &str, input: &str| {
            let body = Bytes::from(request(TOOLS, input, NEW));
            Some(echo(&body, &read(last), &mut spelling)?.body)
        };
        for _ in 0..2 {
            assert_eq!(echoed(&last, RESPELT), Some(request(TOOLS, INPUT, NEW).into()));
            assert_eq!(echoed(&last, r#"{"limit":7,"path":"q"}"#), None, "it says something else");
            let edited = request(TOOLS, other, "");
            let put_back = echoed(&edited, r#"{"limit":7,"path":"q"}"#);
            assert_eq!(put_back, Some(request(TOOLS, other, NEW).into()));
        }
        assert!(spelling.inputs.bytes > 0 && spelling.inputs.known.len() == 1);
    }

    #[test]
    fn no_more_of_inputs_is_kept_than_there_is_room_for() {
        let mut inputs = Inputs::default();
        let value = |number: usize| format!(r#"{{"a":{number},"b":"{}"}}"#, "x".repeat(50_000));
        for number in 0..10 {
            let (known, came) = (value(number), value(number).replace(r#""a":"#, r#" "a" :"#));
            let end = inputs.respelt_end(number, known.as_bytes(), came.as_bytes(), 0);
            assert_eq!(end, Some(came.len()), "kept or not");
        }
        assert!(inputs.bytes <= INPUTS_BYTES_MAX && inputs.known.len() == 5);
        inputs.respelt_end(0, b"{}", b"{ }", 0);
        let kept = inputs.known.values().map(Input::memory_bytes).sum::<usize>();
        assert_eq!(inputs.bytes, kept, "what is replaced is given back");
    }

    #[test]
    fn it_is_known_what_stands_there_as_before() {
        let (last, came) = (request(TOOLS, INPUT, ""), request(TOOLS, RESPELT, NEW));
        let same = |came: &str| {
            let last = read(&last);
            echo(&Bytes::copy_from_slice(came.as_bytes()), &last, &mut Spelling::of(&last)).unwrap().same
        };
        let apart = came.replace(
            r#"},{"role":"user","content":[{"type":"tool_result""#,
            r#"}, {"role":"user","content":[{"type":"tool_result""#,
        );
        assert_eq!(same(&came), SharedParts { tools: true, system: true, messages: 3 });
        assert_eq!(same(&apart), SharedParts { messages: 2, ..same(&came) });
        let other = came.replace(r#""system":"s""#, r#""system":"t""#).replace("[2]", "[3]");
        assert_eq!(same(&other), SharedParts { messages: 3, ..SharedParts::default() });
    }

    #[test]
    fn a_marker_may_move_to_what_is_new() {
        let marked = |body: &str| body.replace(r#""content":"r""#, r#""content":"r","cache_control":{}"#);
        let (last, came) = (request(TOOLS, INPUT, ""), request(SHUFFLED, RESPELT, NEW));
        let out = echoed(&marked(&last), &came).unwrap();
        assert_eq!(out, (request(TOOLS, INPUT, NEW), 0));
    }
}
