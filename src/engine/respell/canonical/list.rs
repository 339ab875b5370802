//! Lists: the tools, the system blocks.
//!
//! A list is glue and elements in turn: `[` tool `,` tool `]`. Its first spelling fixes the glue and, for
//! tools, the order; each element has a first spelling of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::Replacement;
use super::respeller::{Respeller, Spelt};
use super::table::{Grain, List, Meanings, SpellingKey};
use crate::engine::request::anatomy::{Anatomy, Form, Marker, Piece};
use crate::engine::request::json::{self, Span};
use crate::engine::request::marker;
use crate::engine::request::meaning::Meaning;
use crate::engine::request::prefix::Leaf;

/// More elements than any list has; a hostile one would cost a digest each.
const ELEMENTS_MAX: usize = 2048;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    Tools,
    System,
}

/// The tie of a conversation to the order of its tools.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bond {
    /// Another order costs a cache miss at most.
    Free,
    /// An order was chosen when it began, and voids its thinking if it changes.
    Bound,
}

impl Respeller<'_> {
    /// Spells the list at `value`, whose elements are `pieces`; anything but a list stays as it is.
    pub fn list(&mut self, kind: ListKind, value: &Span, pieces: &[Piece], leaves: &[Leaf]) {
        let body = self.body;
        if body[value.start] != b'[' || pieces.len() > ELEMENTS_MAX {
            return;
        }
        let attributed =
            kind == ListKind::System && pieces.first().is_some_and(|piece| piece.is_attribution(body));
        let fixed = usize::from(attributed);
        let (list, element) = match (kind, attributed) {
            (ListKind::Tools, _) => (Grain::Tools, Grain::Tool),
            (ListKind::System, false) => (Grain::System, Grain::Block),
            (ListKind::System, true) => (Grain::AttributedSystem, Grain::Block),
        };
        let reading = self.list_reading(element, &pieces[fixed..], leaves.get(fixed..).unwrap_or_default());
        let mut spelt: Vec<Spelt> = (0..fixed).map(|_| Spelt::Own).collect();
        for (piece, meaning) in pieces[fixed..].iter().zip(reading.iter()) {
            spelt.push(self.element(element, piece, *meaning));
        }
        let slots = Slots { body, value, pieces };
        match self.first_list(list, &slots, &reading) {
            Some((key, list)) => {
                let places = places(&list.order, &reading).into_iter().map(|place| place + fixed);
                let places: Vec<usize> = (0..fixed).chain(places).collect();
                let order = slots.kept_by_markers(places.clone(), self.bond());
                self.replacements.extend(slots.fill(&order, &spelt, &list.glue));
                let own = || Arc::new(List { order: meanings(&reading), glue: list.glue.clone() });
                self.choose_list(key, if order == places { Arc::clone(&list) } else { own() });
            }
            None => self.replacements.extend(slots.fill(&slots.own_order(), &spelt, &[])),
        }
    }

    /// Returns the list as it was first written; `None` if one of its elements has no meaning.
    fn first_list(
        &mut self,
        grain: Grain,
        slots: &Slots<'_>,
        reading: &Meanings,
    ) -> Option<(SpellingKey, Arc<List>)> {
        let members: Vec<&Meaning> = reading.iter().map(Option::as_ref).collect::<Option<_>>()?;
        let key = SpellingKey { grain, digest: digest(grain, members.into_iter()) };
        let known = self.known.list(&key, &mut self.new.used);
        let list = match known.or_else(|| self.new.lists.get(&key)) {
            Some(list) => list.clone(),
            None => {
                let list = Arc::new(List { order: meanings(reading), glue: slots.glue() });
                self.new.lists.insert(key, list.clone());
                list
            }
        };
        Some((key, list))
    }
}

/// Returns the digest that a list of these elements is known by.
pub(super) fn digest<'m>(grain: Grain, members: impl Iterator<Item = &'m Meaning>) -> [u8; 32] {
    let mut members: Vec<&[u8; 32]> = members.map(Meaning::as_bytes).collect();
    // Tools are one list in any order. The order of system blocks is part of what they say.
    if grain == Grain::Tools {
        members.sort_unstable();
    }
    let mut hasher = blake3::Hasher::new();
    for member in members {
        hasher.update(member);
    }
    *hasher.finalize().as_bytes()
}

fn meanings(reading: &Meanings) -> Vec<Meaning> {
    reading.iter().flatten().copied().collect()
}

/// For each element of the first spelling, its place in this one; of equal ones the first comes first.
fn places(first: &[Meaning], reading: &Meanings) -> Vec<usize> {
    if first.iter().map(Some).eq(reading.iter().map(Option::as_ref)) {
        return (0..first.len()).collect();
    }
    let mut found: BTreeMap<&[u8; 32], VecDeque<usize>> = BTreeMap::new();
    for (place, meaning) in reading.iter().enumerate() {
        if let Some(meaning) = meaning {
            found.entry(meaning.as_bytes()).or_default().push_back(place);
        }
    }
    let taken = first.iter().map(|meaning| found.get_mut(meaning.as_bytes())?.pop_front());
    // Lists of one key have the same elements; if they ever had not, the order would stay.
    taken.collect::<Option<_>>().unwrap_or_else(|| (0..reading.len()).collect())
}

/// Tools by name. Those without a readable one come last; equal names go by their bytes, so that every
/// shuffle of one list ends up the same.
pub(super) fn sorted(body: &Bytes, anatomy: &Anatomy, bond: Bond) -> Vec<Replacement> {
    let pieces = &anatomy.pieces[..anatomy.tools];
    let Some(value) = anatomy.member(body, "tools") else { return Vec::new() };
    if body[value.start] != b'[' || pieces.len() > ELEMENTS_MAX {
        return Vec::new();
    }
    if pieces.iter().any(|piece| piece.form != Form::Block) {
        return Vec::new();
    }
    let name = |piece: &Piece| json::text(body, &json::member(body, piece.span.start, "name")?);
    let rank = |piece: &Piece| {
        let name = name(piece);
        let (head, tail) = piece.unmarked(body);
        (name.is_none(), name, [head, tail].concat())
    };
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_cached_key(|place| rank(&pieces[*place]));
    let spelt: Vec<Spelt> = pieces.iter().map(|_| Spelt::Own).collect();
    let slots = Slots { body, value, pieces };
    slots.fill(&slots.kept_by_markers(order, bond), &spelt, &[])
}

/// The places of a list as received.
struct Slots<'a> {
    body: &'a Bytes,
    value: &'a Span,
    pieces: &'a [Piece],
}

impl Slots<'_> {
    /// The bytes before the element at `place`, or after the last one.
    fn glue_span(&self, place: usize) -> Span {
        let start = match place.checked_sub(1) {
            Some(before) => self.pieces[before].span.end,
            None => self.value.start,
        };
        start..self.pieces.get(place).map_or(self.value.end, |piece| piece.span.start)
    }

    fn glue(&self) -> Vec<Bytes> {
        let glue = (0..=self.pieces.len()).map(|place| match &self.body[self.glue_span(place)] {
            b"[" => Bytes::from_static(b"["),
            b"," => Bytes::from_static(b","),
            b"]" => Bytes::from_static(b"]"),
            other => Bytes::copy_from_slice(other),
        });
        glue.collect()
    }

    fn own_order(&self) -> Vec<usize> {
        (0..self.pieces.len()).collect()
    }

    /// Returns this order if every marker can stay in its place with the same elements before it, and otherwise the
    /// client's own. Of a conversation that is bound to its order only markers give way.
    fn kept_by_markers(&self, order: Vec<usize>, bond: Bond) -> Vec<usize> {
        let mut marked = (0..self.pieces.len()).filter(|place| self.pieces[*place].is_marked());
        let is_kept = marked.all(|place| {
            let from = order[place];
            let has_same_before = || order[..=place].iter().all(|from| *from <= place);
            (bond == Bond::Bound || has_same_before())
                && (from == place || (self.takes_marker(from) && self.takes_marker(place)))
        });
        if is_kept { order } else { self.own_order() }
    }

    /// Returns true if an element has no marker that stays with it: one whose key is written with escapes does.
    fn takes_marker(&self, element: usize) -> bool {
        json::member(&self.unmarked(element), 0, marker::NAME).is_none()
    }

    /// Returns the replacements that put the elements of `order` into these places. Markers stay in theirs. Without
    /// `glue` the list keeps its own.
    fn fill(&self, order: &[usize], spelt: &[Spelt], glue: &[Bytes]) -> Vec<Replacement> {
        let mut replacements = Vec::new();
        for (place, glue) in glue.iter().enumerate() {
            let span = self.glue_span(place);
            if self.body[span.clone()] != *glue {
                replacements.push(Replacement { span, with: vec![glue.clone()] });
            }
        }
        for (place, from) in order.iter().enumerate() {
            let element = match &spelt[*from] {
                Spelt::Own if *from == place => continue,
                Spelt::Own => self.unmarked(*from),
                Spelt::As(first) => first.clone(),
            };
            let with = match self.pieces[place].marker() {
                None => vec![element],
                Some(marker) => marked(&element, self.body, &marker),
            };
            let span = self.pieces[place].span.clone();
            if with.len() > 1 || with.first().is_some_and(|with| *with != self.body[span.clone()]) {
                replacements.push(Replacement { span, with });
            }
        }
        replacements
    }

    /// An element as it came, its marker aside.
    fn unmarked(&self, element: usize) -> Bytes {
        let piece = &self.pieces[element];
        match piece.unmarked(self.body) {
            (head, []) => self.body.slice_ref(head),
            (head, tail) => [head, tail].concat().into(),
        }
    }
}

/// An element with the client's marker as its last member; cut out again, the element is left as it was.
fn marked(element: &Bytes, body: &Bytes, own: &Marker) -> Vec<Bytes> {
    let inner = element.len().saturating_sub(1);
    let space = element[..inner].iter().rev().take_while(|byte| byte.is_ascii_whitespace()).count();
    // An object without members keeps its white space behind the marker too, which is where a cut leaves it.
    let end = inner - space;
    let key = match element[..end].last() {
        Some(b'{') => Bytes::from_static(&marker::AFTER_MEMBER[1..]),
        _ => Bytes::from_static(marker::AFTER_MEMBER),
    };
    vec![element.slice(..end), key, body.slice(own.value.clone()), element.slice(end..)]
}
