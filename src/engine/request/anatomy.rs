//! The anatomy of a Messages request: where each layer, tool, system block, message and content block is.
//!
//! One walk over the received bytes, nothing copied, nothing checked beyond structure: a body the upstream
//! would refuse is still forwarded for the upstream to refuse. A *piece* is one position that the prompt
//! cache can end at: a tool, a system block, a content block, or a string in place of one.
//!
//! ```
//! use forkpoint::engine::request::anatomy::Anatomy;
//! let body = br#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}"#;
//! let anatomy = Anatomy::read(body).unwrap();
//! assert_eq!(&body[anatomy.pieces[0].span.clone()], br#"{"type":"text","text":"hi"}"#);
//! ```

use std::borrow::Cow;
use std::num::NonZeroU32;

use super::images::PAYLOAD_BYTES_MIN;
use super::json::{self, Malformed, Span, is_key};
use super::recall::Reader;
use crate::engine::words::Layer;

/// A request as spans over its own bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anatomy {
    /// Top-level members in the order they came.
    pub members: Vec<Member>,
    /// Every piece: tools, then system, then messages, whatever their order in the body.
    pub pieces: Vec<Piece>,
    /// The number of pieces that are tools, and that are system.
    pub tools: usize,
    pub system: usize,
    pub messages: Vec<Message>,
    /// A layer or a member occurs twice or has its name written with escapes, so that readers could disagree about
    /// it.
    pub ambiguous: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub key: Span,
    pub value: Span,
}

/// One position that a cache entry can end at.
///
/// A long conversation has hundreds, and each turn takes them over from the last one: so they are small, and what is
/// inside is counted from where the piece starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub span: Span,
    pub form: Form,
    /// A tool whose loading is deferred: the upstream leaves it out of the prompt.
    pub deferred: bool,
    /// The name of a marker occurs in blocks inside this one, which is not a call.
    pub nests_markers: bool,
    /// It is an image or holds one.
    pub shows_image: bool,
    /// It holds an image or a document of some size in its own bytes.
    pub has_payload: bool,
    /// A member that decides whether it can carry a marker occurs twice or has its name written with escapes.
    pub(in crate::engine) is_unusual: bool,
    pub(in crate::engine) kind: Option<Inside>,
    pub(in crate::engine) name: Option<Inside>,
    pub(in crate::engine) id: Option<Inside>,
    pub(in crate::engine) input: Option<Inside>,
    pub(in crate::engine) text: Option<Inside>,
    /// The stretch to cut, and the value.
    pub(in crate::engine) marker: Option<[Inside; 2]>,
}

/// A span counted from the start of the piece that holds it. No span ends at 0, so that an `Option` of one takes no
/// more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Inside {
    start: u32,
    end: NonZeroU32,
}

impl Inside {
    pub fn of(base: usize, span: &Span) -> Result<Inside, Malformed> {
        let offset = |at: usize| u32::try_from(at - base).map_err(|_| Malformed::TooMany);
        let end = NonZeroU32::new(offset(span.end)?).ok_or(Malformed::At(base))?;
        Ok(Inside { start: offset(span.start)?, end })
    }

    fn span(self, base: usize) -> Span {
        base + self.start as usize..base + self.end.get() as usize
    }

    fn len(self) -> u32 {
        self.end.get() - self.start
    }

    /// Returns the span as it is once `cut`, which lies before or after it, is gone.
    fn without(self, cut: Inside) -> Inside {
        let place = |at: u32| if at >= cut.end.get() { at - cut.len() } else { at };
        Inside { start: place(self.start), end: NonZeroU32::new(place(self.end.get())).unwrap_or(self.end) }
    }
}

/// The form in which a piece is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An object, which can carry a marker.
    Block,
    /// A string in place of one text block.
    Text,
    /// Anything else: kept as it is.
    Other,
}

/// A `cache_control` member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The stretch to leave out so that the object loses the member and one comma.
    pub cut: Span,
    pub value: Span,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub span: Span,
    pub role: Option<Span>,
    /// Its pieces, as a range of [`Anatomy::pieces`].
    pub pieces: std::ops::Range<usize>,
    /// Its members besides role and content.
    pub extra: Vec<Member>,
}

impl Message {
    /// Returns true if the message has this role, in any spelling.
    pub fn has_role(&self, body: &[u8], role: &str) -> bool {
        self.role.as_ref().is_some_and(|span| body[span.start] == b'"' && is_key(body, span, role))
    }
}

impl Anatomy {
    pub fn read(body: &[u8]) -> Result<Anatomy, Malformed> {
        Reader::of_spans(body).read().map(|read| read.anatomy)
    }

    /// The value of a top-level member, the last one if there are several, as in most parsers.
    pub fn member(&self, body: &[u8], name: &str) -> Option<&Span> {
        // A name that is spelt with escapes makes a request ambiguous, so in others equal bytes decide.
        let is_named = |key: &Span| {
            if self.ambiguous {
                is_key(body, key, name)
            } else {
                body[key.start + 1..key.end - 1] == *name.as_bytes()
            }
        };
        self.members.iter().rev().find(|member| is_named(&member.key)).map(|member| &member.value)
    }

    pub fn model<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        json::text(body, self.member(body, "model")?)
    }

    pub fn stream(&self, body: &[u8]) -> bool {
        self.member(body, "stream").is_some_and(|span| &body[span.clone()] == b"true")
    }

    /// Returns true if the server holds the conversation: it compares the fields of a later turn with those of the
    /// first.
    pub fn is_threaded(&self, body: &[u8]) -> bool {
        self.thread(body).is_some()
    }

    /// The value of `thread`, if it has one.
    pub fn thread(&self, body: &[u8]) -> Option<&Span> {
        self.member(body, "thread").filter(|value| &body[(*value).clone()] != b"null")
    }

    /// `metadata.user_id`, which Claude Code fills with its session. If there are several, all of them: whoever adds one
    /// to that of somebody else is another user.
    pub fn user_id<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        let mut found = Vec::new();
        for member in self.members.iter().filter(|member| is_key(body, &member.key, "metadata")) {
            let walked = json::walk_object(body, member.value.start, |key, start| {
                let end = json::value_end(body, start)?;
                if is_key(body, &key, "user_id") {
                    found.push(start..end);
                }
                Ok(end)
            });
            if walked.is_err() {
                return None;
            }
        }
        match &found[..] {
            [] => None,
            [only] => json::text(body, only),
            several => {
                let all: Vec<_> =
                    several.iter().map(|id| String::from_utf8_lossy(&body[id.clone()])).collect();
                Some(Cow::Owned(all.join(",")))
            }
        }
    }

    /// Returns the path of a piece as a person would write it: `tools[3]`, `messages[2].content[0]`.
    pub fn path(&self, piece: usize) -> String {
        match self.layer(piece) {
            Layer::Tools => format!("tools[{piece}]"),
            Layer::System if self.pieces[piece].form == Form::Text => "system".to_owned(),
            Layer::System => format!("system[{}]", piece - self.tools),
            _ => {
                let owner = self.messages.iter().position(|message| message.pieces.contains(&piece));
                let index = owner.unwrap_or_default();
                let first = self.messages.get(index).map_or(piece, |message| message.pieces.start);
                match self.pieces[piece].form {
                    Form::Block => format!("messages[{index}].content[{}]", piece - first),
                    _ => format!("messages[{index}].content"),
                }
            }
        }
    }

    /// Returns true if the body holds files, whose tokens have nothing to do with their length.
    pub fn has_payload(&self) -> bool {
        self.pieces.iter().any(|piece| piece.has_payload)
    }

    /// The layer of a piece.
    pub fn layer(&self, piece: usize) -> Layer {
        match piece {
            piece if piece < self.tools => Layer::Tools,
            piece if piece < self.tools + self.system => Layer::System,
            _ => Layer::Messages,
        }
    }
}

impl Piece {
    pub(in crate::engine) fn plain(span: Span, form: Form) -> Piece {
        Piece {
            span,
            form,
            deferred: false,
            nests_markers: false,
            shows_image: false,
            has_payload: false,
            is_unusual: false,
            kind: None,
            name: None,
            id: None,
            input: None,
            text: None,
            marker: None,
        }
    }

    /// The value of `type`, or of a tool's `name`.
    pub fn kind(&self) -> Option<Span> {
        self.inside(self.kind)
    }

    /// Returns the bytes of [`Piece::kind`], quotes included; empty if there is no kind.
    pub fn kind_in<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        self.kind().map_or(&[], |kind| &body[kind])
    }

    /// Returns false for a kind that holds no other blocks: text, thinking, and calls, whose input is data.
    pub fn may_hold_blocks(&self, body: &[u8]) -> bool {
        let kind = self.kind_in(body);
        !matches!(kind, b"\"text\"" | b"\"thinking\"" | b"\"redacted_thinking\"")
            && !kind.ends_with(b"_use\"")
    }

    /// The value of `type`, and of nothing else.
    pub fn type_name(&self) -> Option<Span> {
        if self.kind == self.name { None } else { self.kind() }
    }

    /// `name` of a tool or a call.
    pub fn name(&self) -> Option<Span> {
        self.inside(self.name)
    }

    /// `id` of a call, `tool_use_id` of a result.
    pub fn id(&self) -> Option<Span> {
        self.inside(self.id)
    }

    /// `input` of a call.
    pub fn input(&self) -> Option<Span> {
        self.inside(self.input)
    }

    /// `text` of a text block.
    pub fn text(&self) -> Option<Span> {
        self.inside(self.text)
    }

    pub fn marker(&self) -> Option<Marker> {
        let [cut, value] = self.marker?.map(|part| part.span(self.span.start));
        Some(Marker { cut, value })
    }

    pub fn is_marked(&self) -> bool {
        self.marker.is_some()
    }

    fn inside(&self, part: Option<Inside>) -> Option<Span> {
        part.map(|part| part.span(self.span.start))
    }

    /// Returns the piece as it is in a body that has it elsewhere: moved from offset `from` to `to`.
    pub(in crate::engine) fn moved(&self, from: usize, to: usize) -> Piece {
        Piece { span: self.span.start - from + to..self.span.end - from + to, ..self.clone() }
    }

    /// Returns the piece as it is in a body that has it at `start` and without its marker.
    pub(in crate::engine) fn unmarked_at(&self, start: usize) -> Piece {
        let piece = self.moved(self.span.start, start);
        let Some([cut, _]) = self.marker else { return piece };
        let left = |part: Option<Inside>| part.map(|part| part.without(cut));
        let span = start..piece.span.end - cut.len() as usize;
        Piece {
            has_payload: self.has_payload && span.len() >= PAYLOAD_BYTES_MIN,
            span,
            kind: left(self.kind),
            name: left(self.name),
            id: left(self.id),
            input: left(self.input),
            text: left(self.text),
            marker: None,
            ..piece
        }
    }

    /// Returns true for the line that some clients put before their system prompt, and some upstreams strip.
    pub fn is_attribution(&self, body: &[u8]) -> bool {
        let text = self.text().map_or(&b""[..], |text| &body[text]);
        self.form == Form::Block && text.starts_with(b"\"x-anthropic-billing-header")
    }

    /// Returns the piece as the cache sees it: the bytes before its marker and those behind. The second part is empty
    /// if it has no marker.
    pub fn unmarked<'a>(&self, body: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        match self.marker() {
            None => (&body[self.span.clone()], &[]),
            Some(marker) => (&body[self.span.start..marker.cut.start], &body[marker.cut.end..self.span.end]),
        }
    }

    /// Returns the number of its bytes that are part of the prompt.
    pub fn prompt_bytes(&self) -> u64 {
        if self.deferred {
            return 0;
        }
        (self.span.len() - self.marker.map_or(0, |[cut, _]| cut.len() as usize)) as u64
    }
}

impl Message {
    /// Returns the message moved from offset `from` to `to`, with its pieces counted from `first`.
    pub(in crate::engine) fn moved(&self, from: usize, to: usize, first: usize) -> Message {
        self.placed(|at| at - from + to, first)
    }

    /// Returns the message with every offset put through `place`, and with its pieces counted from `first`.
    pub(in crate::engine) fn placed(&self, place: impl Fn(usize) -> usize, first: usize) -> Message {
        let moved = |span: &Span| place(span.start)..place(span.end);
        let member = |member: &Member| Member { key: moved(&member.key), value: moved(&member.value) };
        Message {
            span: moved(&self.span),
            role: self.role.as_ref().map(moved),
            pieces: first..first + self.pieces.len(),
            extra: self.extra.iter().map(member).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_known_however_it_is_spelt_and_nothing_else_is_one() {
        let body = br#"{"messages":[{"role":"user"},{"role":"\u0075ser"},{"role":7},{"role":null},{}]}"#;
        let messages = Anatomy::read(body).unwrap().messages;
        let users: Vec<bool> = messages.iter().map(|message| message.has_role(body, "user")).collect();
        assert_eq!(users, [true, true, false, false, false]);
    }

    const BODY: &[u8] = br#"{"model":"m","messages":[
        {"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"t1","name":"n","input":{"b":1}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"x"}],"cache_control":{"type":"ephemeral"}}],"note":1}],
        "system":[{"cache_control":{"type":"ephemeral"},"type":"text","text":"s"}],
        "tools":[{"name":"n","input_schema":{"type":"object"}},{"cache_control":null}],"stream":true,
        "metadata":{"user_id":"u\u0031"}}"#;

    fn pieces(body: &[u8]) -> Vec<String> {
        let anatomy = Anatomy::read(body).unwrap();
        anatomy
            .pieces
            .iter()
            .map(|piece| String::from_utf8(body[piece.span.clone()].to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn pieces_come_in_the_caches_order_whatever_the_bodys() {
        let found = pieces(BODY);
        assert_eq!(found.len(), 7);
        assert!(found[0].starts_with(r#"{"name":"n""#));
        assert!(found[2].contains(r#""text":"s""#));
        assert_eq!(found[3], r#""hi""#);
        let anatomy = Anatomy::read(BODY).unwrap();
        let layers: Vec<_> = (0..7).map(|piece| anatomy.layer(piece).as_str()).collect();
        assert_eq!(layers, ["tools", "tools", "system", "messages", "messages", "messages", "messages"]);
        let ranges: Vec<_> = anatomy.messages.iter().map(|message| message.pieces.clone()).collect();
        assert_eq!(ranges, [3..4, 4..6, 6..7]);
        assert_eq!(anatomy.messages.iter().map(|message| message.extra.len()).collect::<Vec<_>>(), [0, 0, 1]);
        assert!(!anatomy.ambiguous);
        let paths: Vec<_> = (0..7).map(|piece| anatomy.path(piece)).collect();
        assert_eq!(paths[1..5], ["tools[1]", "system[0]", "messages[0].content", "messages[1].content[0]"]);
    }

    #[test]
    fn a_marker_is_cut_out_with_one_comma_wherever_it_stands() {
        let cut = |block: &str| {
            let body = format!(r#"{{"system":[{block}]}}"#);
            let anatomy = Anatomy::read(body.as_bytes()).unwrap();
            let (before, after) = anatomy.pieces[0].unmarked(body.as_bytes());
            String::from_utf8([before, after].concat()).unwrap()
        };
        assert_eq!(cut(r#"{"cache_control":{"a":1},"type":"text"}"#), r#"{"type":"text"}"#);
        assert_eq!(cut(r#"{"type":"text","cache_control":{"a":1}}"#), r#"{"type":"text"}"#);
        assert_eq!(
            cut(r#"{"type":"text" , "cache_control" : null , "text":"s"}"#),
            r#"{"type":"text" , "text":"s"}"#
        );
        assert_eq!(cut(r#"{ "cache_control": 1 }"#), "{ }");
        assert_eq!(cut(r#"{"type":"text"}"#), r#"{"type":"text"}"#);
    }

    #[test]
    fn a_piece_is_small() {
        assert_eq!(size_of::<Option<Inside>>(), size_of::<Inside>());
        assert!(size_of::<Piece>() <= 80, "{}", size_of::<Piece>());
    }

    #[test]
    fn a_piece_that_lost_its_marker_is_read_alike() {
        let image = |bytes: usize| {
            let data = "A".repeat(bytes);
            format!(
                r#"{{"type":"image","source":{{"type":"base64","data":"{data}"}},"cache_control":{{"a":1}}}}"#
            )
        };
        for block in [
            r#"{"cache_control":{"a":1},"type":"text","text":"t"}"#,
            r#"{"type":"text","cache_control":{"a":1},"text":"t"}"#,
            r#"{"type":"tool_use","id":"i","name":"n","input":{},"cache_control":{"a":1}}"#,
            r#"{"type":"text","text":"t"}"#,
            &image(100),
            &image(PAYLOAD_BYTES_MIN - 70),
            &image(PAYLOAD_BYTES_MIN),
        ] {
            let read = |body: &str| Anatomy::read(body.as_bytes()).unwrap().pieces.remove(0);
            let body = |block: &str| format!(r#"{{"messages":[{{"role":"user","content":[{block}]}}]}}"#);
            let marked = read(&body(block));
            let received = body(block);
            let (head, tail) = marked.unmarked(received.as_bytes());
            let unmarked = body(&format!(" {}", String::from_utf8([head, tail].concat()).unwrap()));
            assert_eq!(marked.unmarked_at(marked.span.start + 1), read(&unmarked), "{block}");
        }
    }

    #[test]
    fn calls_and_results_show_their_ids_and_input() {
        let anatomy = Anatomy::read(BODY).unwrap();
        let slice = |span: Option<Span>| std::str::from_utf8(&BODY[span.unwrap()]).unwrap();
        assert_eq!(
            (slice(anatomy.pieces[5].id()), slice(anatomy.pieces[5].input())),
            (r#""t1""#, r#"{"b":1}"#)
        );
        assert_eq!(slice(anatomy.pieces[6].id()), r#""t1""#);
        assert_eq!(slice(anatomy.pieces[6].kind()), r#""tool_result""#);
    }

    #[test]
    fn what_the_request_says_about_itself_is_found_wherever_it_stands() {
        let anatomy = Anatomy::read(BODY).unwrap();
        assert_eq!(anatomy.model(BODY).unwrap(), "m");
        assert!(anatomy.stream(BODY));
        assert_eq!(anatomy.user_id(BODY).unwrap(), "u1");
        for twice in [
            r#"{"metadata":{"user_id":"a","user_id":"b"}}"#,
            r#"{"metadata":{"user_id":"a"},"metadata":{"user_id":"b"}}"#,
            r#"{"metadata":{"user_id":"a"},"metad\u0061ta":{"user\u005fid":"b"}}"#,
        ] {
            let anatomy = Anatomy::read(twice.as_bytes()).unwrap();
            assert_eq!(anatomy.user_id(twice.as_bytes()).unwrap(), r#""a","b""#, "{twice}");
        }
        let odd = br#"{"model":7,"stream":"true","metadata":[1]}"#;
        let anatomy = Anatomy::read(odd).unwrap();
        assert_eq!((anatomy.model(odd), anatomy.stream(odd), anatomy.user_id(odd)), (None, false, None));
        let twice = br#"{"model":"a","model":"b"}"#;
        assert_eq!(Anatomy::read(twice).unwrap().model(twice).unwrap(), "b");
    }

    #[test]
    fn what_readers_could_see_differently_is_called_ambiguous() {
        for body in [
            r#"{"tools":[],"tools":[]}"#,
            r#"{"messages":{}}"#,
            r#"{"messages":[1]}"#,
            r#"{"messages":[{"role":"user","role":"user","content":"x"}]}"#,
            r#"{"messages":[{"role":"user","content":"x","content":"y"}]}"#,
            r#"{"syst\u0065m":"x"}"#,
            r#"{"system":[{"cache_control":1,"cache_control":2}]}"#,
            r#"{"system":[{"type":"text","cache_control":1,"cache_control":2}]}"#,
            r#"{"system":[{"type":"text","text":"s","cache\u005fcontrol":{"type":"ephemeral"}}]}"#,
            r#"{"tools":[{"\u0063ache_control":null,"name":"t"}]}"#,
            r#"{"tools":[{"defer\u005floading":true,"name":"t"}]}"#,
        ] {
            assert!(Anatomy::read(body.as_bytes()).unwrap().ambiguous, "{body}");
        }
    }

    #[test]
    fn odd_layers_are_kept_whole() {
        assert_eq!(pieces(br#"{"system":7,"messages":[{"role":"user","content":null}]}"#), ["7", "null"]);
        assert_eq!(
            pieces(br#"{"tools":[1,"x"],"messages":[{"role":"user","content":[[]]}]}"#),
            ["1", "\"x\"", "[]"]
        );
    }

    #[test]
    fn what_is_no_object_is_malformed() {
        for body in [&b""[..], b"[]", b"{}x", b"{\"a\":", b"\xff\xfe", b"null", b"{\"messages\":[{]}"] {
            assert!(Anatomy::read(body).is_err(), "{body:?}");
        }
        assert!(Anatomy::read(b" {} \n").is_ok());
    }
}
