//! Where two requests part: the first piece whose prefix hash differs, and what differs in it.

use crate::engine::request::anatomy::{Anatomy, Form, Piece};
use crate::engine::request::json::Span;
use crate::engine::request::meaning::Meaning;
use crate::engine::request::prefix::Subject;
use crate::engine::words::{DivergenceKind, Layer};

/// Meanings are compared up to this much work ([`Meaning::work`]). A piece that is larger or nested deeper counts as
/// changed in meaning.
const MEANING_WORK_MAX: usize = 16 * 1024 * 1024;

/// Equal bytes are passed in blocks of this size, which a processor compares at once.
const BLOCK_BYTES: usize = 256;
const ESCAPE_BYTES_MAX: usize = 12;

/// The first place where the second request no longer extends the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    pub layer: Layer,
    /// The piece, by its number in the first request and as a path; `model` for the model itself.
    pub piece: usize,
    pub path: String,
    pub kind: DivergenceKind,
    /// The first byte that differs, as an offset into each body, if both have the piece.
    pub at: Option<[usize; 2]>,
    /// The whole piece in each body, where it exists.
    pub spans: [Option<Span>; 2],
}

impl Divergence {
    /// Returns true if these two pieces are those that differ.
    pub fn is_of(&self, one: &Piece, two: &Piece) -> bool {
        self.spans.iter().flatten().eq([&one.span, &two.span])
    }
}

/// `None` if the second request extends the first, or is equal to it.
pub fn divergence(first: &Subject<'_>, second: &Subject<'_>) -> Option<Divergence> {
    if first.chain.model != second.chain.model {
        return Some(of_model(first, second));
    }
    let places = first.chain.shared(second.chain);
    let (one, two) = (first.anatomy.pieces.get(places[0]), second.anatomy.pieces.get(places[1]));
    // Nothing left of the first, and what is left of the second are further messages: it was extended.
    let extended = one.is_none() && (two.is_none() || second.anatomy.layer(places[1]) == Layer::Messages);
    if extended && statics(first) == statics(second) {
        return None;
    }
    let layers = [one.map(|_| first.anatomy.layer(places[0])), two.map(|_| second.anatomy.layer(places[1]))];
    let is_firsts = layers[0].is_some_and(|layer| layers[1].is_none_or(|other| layer <= other));
    let path = if is_firsts { first.anatomy.path(places[0]) } else { second.anatomy.path(places[1]) };
    let layer = layers.into_iter().flatten().min().unwrap_or(Layer::Messages);
    let kind = match (one, two) {
        (Some(one), Some(two)) if layers[0] == layers[1] => compare(first, one, second, two),
        (Some(_), _) if layers[0] == Some(layer) => DivergenceKind::Missing,
        _ => DivergenceKind::Added,
    };
    let at = match (one, two) {
        (Some(one), Some(two)) if !first.is_outline() => {
            Some(first_difference(first.body, &one.span, second.body, &two.span))
        }
        _ => None,
    };
    let spans = [one, two].map(|piece| piece.map(|piece| piece.span.clone()));
    Some(Divergence { layer, piece: places[0], path, kind, at, spans })
}

/// Returns the number of tools and system blocks that are part of the prompt.
fn statics(subject: &Subject<'_>) -> [usize; 2] {
    let Anatomy { tools, system, .. } = *subject.anatomy;
    [tools, tools + system].map(|pieces| subject.chain.positions(pieces))
}

fn of_model(first: &Subject<'_>, second: &Subject<'_>) -> Divergence {
    let model = |subject: &Subject<'_>| subject.anatomy.member(subject.body, "model").cloned();
    let spans = [first, second].map(|subject| if subject.is_outline() { None } else { model(subject) });
    let at = match &spans {
        [Some(one), Some(two)] => Some(first_difference(first.body, one, second.body, two)),
        _ => None,
    };
    Divergence {
        layer: Layer::Model,
        piece: 0,
        path: "model".into(),
        kind: DivergenceKind::Meaning,
        at,
        spans,
    }
}

/// Compares two pieces that are not equal: they differ in meaning, or only in spelling. Where the bytes of the first are
/// not known any more, they count as different in meaning.
pub(in crate::engine) fn compare(
    first: &Subject<'_>,
    one: &Piece,
    second: &Subject<'_>,
    two: &Piece,
) -> DivergenceKind {
    if first.is_outline() || differ_in_words(first.body, one, second.body, two) {
        return DivergenceKind::Meaning;
    }
    let meaning = |subject: &Subject<'_>, piece: &Piece| {
        let value = &subject.body[piece.span.clone()];
        if Meaning::work(value) > MEANING_WORK_MAX {
            return None;
        }
        match piece.form {
            Form::Block => Meaning::of_block(value),
            Form::Text => Meaning::of_text(value),
            Form::Other => Meaning::of(value),
        }
    };
    match (meaning(first, one), meaning(second, two)) {
        (Some(one), Some(two)) if one == two => DivergenceKind::Spelling,
        _ => DivergenceKind::Meaning,
    }
}

/// Returns true if the texts of two pieces say different things, as far as that is seen without reading them: outside of
/// escapes, the first bytes that differ are different letters.
fn differ_in_words(one: &[u8], first: &Piece, two: &[u8], second: &Piece) -> bool {
    let text = |piece: &Piece| if piece.form == Form::Text { Some(piece.span.clone()) } else { piece.text() };
    let (Some(first), Some(second)) = (text(first), text(second)) else { return false };
    let (one, two) = (&one[first], &two[second]);
    let same = same_start(one, two);
    let (Some(a), Some(b)) = (one.get(same), two.get(same)) else { return false };
    // The longest escape is `\u` and four digits, and the last one may be half of a pair.
    let may_be_escape = one[same.saturating_sub(ESCAPE_BYTES_MAX)..same].contains(&b'\\');
    !may_be_escape && *a != b'\\' && *b != b'\\'
}

/// Returns the number of leading bytes that are equal.
pub(in crate::engine) fn same_start(one: &[u8], two: &[u8]) -> usize {
    let blocks = one.chunks_exact(BLOCK_BYTES).zip(two.chunks_exact(BLOCK_BYTES));
    let same = BLOCK_BYTES * blocks.take_while(|(one, two)| one == two).count();
    same + one[same..].iter().zip(&two[same..]).take_while(|(one, two)| one == two).count()
}

fn first_difference(one: &[u8], span: &Span, two: &[u8], other: &Span) -> [usize; 2] {
    let same = same_start(&one[span.clone()], &two[other.clone()]);
    [span.start + same, other.start + same]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::prefix::{Attribution, Chain};

    const BODY: &str = r#"{"model":"m","tools":[{"name":"a","input_schema":{"p":1,"q":2}},{"name":"b"}],"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"one"},{"role":"assistant","content":[{"type":"text","text":"two"}]}]}"#;

    fn compare_bodies(first: &str, second: &str) -> Option<Divergence> {
        let (first, second) = (first.as_bytes(), second.as_bytes());
        let (one, two) = (Anatomy::read(first).unwrap(), Anatomy::read(second).unwrap());
        let chain = |body: &[u8], anatomy: &Anatomy| Chain::of(body, anatomy, Attribution::Counted);
        let chains = (chain(first, &one), chain(second, &two));
        let first = Subject { body: first, anatomy: &one, chain: &chains.0 };
        divergence(&first, &Subject { body: second, anatomy: &two, chain: &chains.1 })
    }

    fn against(second: &str) -> Option<(String, Layer, DivergenceKind)> {
        let found = compare_bodies(BODY, second);
        found.map(|found| (found.path, found.layer, found.kind))
    }

    #[test]
    fn an_extended_or_equal_request_does_not_diverge() {
        assert_eq!(against(BODY), None);
        assert_eq!(against(&BODY.replace("]}]}", r#"]},{"role":"user","content":"three"}]}"#)), None);
        assert_eq!(against(&BODY.replace(r#"{"name":"b"}"#, r#"{"name":"b","cache_control":{}}"#)), None);
    }

    #[test]
    fn a_deferred_tool_that_comes_or_goes_is_no_divergence() {
        let deferred = r#"{"name":"d","defer_loading":true}"#;
        for with in [
            BODY.replace(r#"{"name":"b"}"#, &format!(r#"{{"name":"b"}},{deferred}"#)),
            BODY.replace(r#"{"name":"b"}"#, &format!(r#"{deferred},{{"name":"b"}}"#)),
        ] {
            assert_eq!((against(&with), compare_bodies(&with, BODY)), (None, None), "{with}");
            let reworded = compare_bodies(BODY, &with.replace("two", "2")).unwrap();
            assert_eq!((&*reworded.path, reworded.piece), ("messages[1].content[0]", 4));
            let [one, two] = reworded.at.unwrap();
            assert_eq!((&BODY[one..one + 3], &with.replace("two", "2")[two..two + 1]), ("two", "2"));
        }
    }

    #[test]
    fn the_first_difference_is_named_with_its_layer_path_and_kind() {
        let found = |second: &str| against(second).unwrap();
        assert_eq!(
            found(&BODY.replace(r#""m""#, r#""n""#)),
            ("model".into(), Layer::Model, DivergenceKind::Meaning)
        );
        let respelt = BODY.replace(r#"{"p":1,"q":2}"#, r#"{"q":2,"p":1}"#);
        assert_eq!(found(&respelt), ("tools[0]".into(), Layer::Tools, DivergenceKind::Spelling));
        assert_eq!(
            found(&BODY.replace("\"s\"", "\"S\"")),
            ("system[0]".into(), Layer::System, DivergenceKind::Meaning)
        );
        let string = BODY.replace(r#"[{"type":"text","text":"s"}]"#, r#""s""#);
        assert_eq!(found(&string), ("system[0]".into(), Layer::System, DivergenceKind::Spelling));
        let reworded = BODY.replace("two", "2");
        assert_eq!(
            found(&reworded),
            ("messages[1].content[0]".into(), Layer::Messages, DivergenceKind::Meaning)
        );
    }

    #[test]
    fn without_the_bytes_of_the_first_the_place_is_known_all_the_same() {
        for (from, to) in [("two", "2"), (r#""m""#, r#""n""#), (r#"{"p":1,"q":2}"#, r#"{"q":2,"p":1}"#)] {
            let second = BODY.replace(from, to);
            let (one, two) = [BODY, &second].map(|body| Anatomy::read(body.as_bytes()).unwrap()).into();
            let chains = [(BODY, &one), (&*second, &two)]
                .map(|(body, anatomy)| Chain::of(body.as_bytes(), anatomy, Attribution::Counted));
            let first = Subject { body: &[], anatomy: &one, chain: &chains[0] };
            let second = Subject { body: second.as_bytes(), anatomy: &two, chain: &chains[1] };
            let found = divergence(&first, &second).unwrap();
            let known = compare_bodies(BODY, std::str::from_utf8(second.body).unwrap()).unwrap();
            assert_eq!((&found.path, found.layer, found.piece), (&known.path, known.layer, known.piece));
            assert_eq!((found.kind, found.at), (DivergenceKind::Meaning, None));
        }
    }

    #[test]
    fn different_words_are_told_from_another_spelling_of_the_same() {
        let kind = |one: &str, two: &str| {
            let body = |text: &str| BODY.replace(r#""s""#, &format!("\"{}{text}\"", "long ".repeat(100)));
            compare_bodies(&body(one), &body(two)).unwrap().kind
        };
        for (one, two) in
            [("a", "b"), ("a", ""), (r"\n a", r"\n b"), (r"\u0061", "b"), ("a", r"\u0062"), ("é", "è")]
        {
            assert_eq!(kind(one, two), DivergenceKind::Meaning, "{one} {two}");
        }
        for (one, two) in [
            ("a", r"\u0061"),
            (r"\u00E9", r"\u00e9"),
            ("é", r"\u00e9"),
            ("/", r"\/"),
            (r"\ud83d\ude00", "\u{1f600}"),
        ] {
            assert_eq!(kind(one, two), DivergenceKind::Spelling, "{one} {two}");
        }
    }

    #[test]
    fn a_missing_or_added_piece_is_told_from_a_changed_one() {
        let found = |second: &str| against(second).unwrap();
        assert_eq!(
            found(&BODY.replace(r#",{"name":"b"}"#, "")),
            ("tools[1]".into(), Layer::Tools, DivergenceKind::Missing)
        );
        let added = BODY.replace(r#"{"name":"b"}"#, r#"{"name":"b"},{"name":"c"}"#);
        assert_eq!(found(&added), ("tools[2]".into(), Layer::Tools, DivergenceKind::Added));
        let shorter = BODY.replace(r#",{"role":"assistant","content":[{"type":"text","text":"two"}]}"#, "");
        assert_eq!(
            found(&shorter),
            ("messages[1].content[0]".into(), Layer::Messages, DivergenceKind::Missing)
        );
    }

    #[test]
    fn a_piece_too_deep_and_large_to_read_counts_as_changed_in_meaning() {
        let piece = |depth: usize, spelling: &str| {
            let list = format!("{}{}{spelling}", "[".repeat(depth), "]".repeat(depth));
            BODY.replace(r#"{"p":1,"q":2}"#, &format!(r#"{{"x":"{}","y":{list}}}"#, "x".repeat(60_000)))
        };
        let kind =
            |depth| compare_bodies(&piece(depth, ",\"z\":1,\"w\":2"), &piece(depth, ",\"w\":2,\"z\":1"));
        assert_eq!(kind(200).unwrap().kind, DivergenceKind::Spelling);
        assert_eq!(kind(400).unwrap().kind, DivergenceKind::Meaning);
    }

    #[test]
    fn the_first_differing_byte_is_given_for_both_bodies() {
        let second =
            BODY.replace("\"model\":\"m\"", "\"max_tokens\":9,\"model\":\"m\"").replace("two", "twig");
        let found = compare_bodies(BODY, &second).unwrap();
        let [one, two] = found.at.unwrap();
        assert_eq!((&BODY[one..one + 1], &second[two..two + 2]), ("o", "ig"));
    }
}
