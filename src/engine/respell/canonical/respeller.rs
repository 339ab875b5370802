//! The respelling of one request: the spellings that are known, those that are new, and those that were chosen.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::list::Bond;
use super::table::{
    Choice, Grain, List, MeaningMemo, Meanings, NewReadings, NewSpellings, News, Pins, SpellingKey,
    Spellings, Table,
};
use super::{Canonical, Replacement};
use crate::engine::request::anatomy::{Form, Piece};
use crate::engine::request::json;
use crate::engine::request::marker;
use crate::engine::request::meaning::Meaning;
use crate::engine::request::prefix::Leaf;

/// A larger value than any tool, prompt or input; a meaning costs several times a digest.
const VALUE_BYTES_MAX: usize = 4 << 20;

pub(super) struct Respeller<'a> {
    pub body: &'a Bytes,
    pub replacements: Vec<Replacement>,
    memo: &'a MeaningMemo,
    pub known: &'a Spellings,
    source: SpellingSource,
    readings: NewReadings,
    /// Spellings that are not known yet. The first one in this request counts for the rest of it.
    pub new: NewSpellings,
    /// Everything this request was spelt with, if its conversation is to keep it.
    pub chosen: Option<NewSpellings>,
}

/// Whose spellings the known ones are.
enum SpellingSource {
    Tenant,
    Conversation,
}

/// The form in which an element is forwarded.
pub(super) enum Spelt {
    /// As it came.
    Own,
    As(Bytes),
}

impl<'a> Respeller<'a> {
    pub fn interning(body: &'a Bytes, table: &'a Table) -> Respeller<'a> {
        Respeller {
            body,
            replacements: Vec::new(),
            memo: &table.memo,
            known: &table.spellings,
            source: SpellingSource::Tenant,
            readings: NewReadings::default(),
            new: NewSpellings::default(),
            chosen: None,
        }
    }

    pub fn choosing(body: &'a Bytes, table: &'a Table) -> Respeller<'a> {
        Respeller { chosen: Some(NewSpellings::default()), ..Respeller::interning(body, table) }
    }

    pub fn bound(body: &'a Bytes, table: &'a Table, choice: &'a Choice) -> Respeller<'a> {
        let known = &choice.spellings;
        Respeller { known, source: SpellingSource::Conversation, ..Respeller::interning(body, table) }
    }

    pub fn finish(self) -> Canonical {
        let (readings, new) = (self.readings, self.new);
        let (interns, pins) = match self.source {
            SpellingSource::Tenant => {
                (News { readings, spellings: new }, Pins(self.chosen.unwrap_or_default()))
            }
            SpellingSource::Conversation => (News { readings, ..News::default() }, Pins(new)),
        };
        Canonical { replacements: self.replacements, interns, pins }
    }

    pub fn bond(&self) -> Bond {
        match self.source {
            SpellingSource::Tenant => Bond::Free,
            SpellingSource::Conversation => Bond::Bound,
        }
    }

    /// Notes how a list is spelt, if its conversation is to keep that.
    pub fn choose_list(&mut self, key: SpellingKey, list: Arc<List>) {
        if let Some(chosen) = &mut self.chosen {
            chosen.lists.insert(key, list);
        }
    }

    /// A system prompt that is a string.
    pub fn text(&mut self, piece: &Piece, leaf: &Leaf) {
        let (meaning, _) = self.meaning(piece.unmarked(self.body), leaf, None);
        if let Spelt::As(first) = self.element(Grain::Text, piece, meaning) {
            self.replacements.push(Replacement { span: piece.span.clone(), with: vec![first] });
        }
    }

    /// The spelling of an element, its marker aside.
    pub fn element(&mut self, grain: Grain, piece: &Piece, meaning: Option<Meaning>) -> Spelt {
        let Some(meaning) = meaning else { return Spelt::Own };
        let key = SpellingKey { grain, digest: *meaning.as_bytes() };
        let (head, tail) = piece.unmarked(self.body);
        let known = self.known.element(&key, &mut self.new.used);
        let first = match known.or_else(|| self.new.elements.get(&key)) {
            Some(first) => first.clone(),
            None => {
                let first = Bytes::from([head, tail].concat());
                self.new.elements.insert(key, first.clone());
                first
            }
        };
        if let Some(chosen) = &mut self.chosen {
            chosen.elements.insert(key, first.clone());
        }
        // Compared in two parts, so that an element with a marker need not be put together.
        let (front, back) = first.split_at(head.len().min(first.len()));
        if front == head && back == tail {
            return Spelt::Own;
        }
        // A marker whose key is written with escapes is a member like any other to us, but not to the
        // upstream: a second one beside it had better stay where it was.
        if piece.is_marked() && json::member(&first, 0, marker::NAME).is_some() {
            return Spelt::Own;
        }
        Spelt::As(first)
    }

    /// The meaning of each element of a list.
    pub fn list_reading(&mut self, element: Grain, pieces: &[Piece], leaves: &[Leaf]) -> Meanings {
        let body = self.body;
        let mut hasher = blake3::Hasher::new();
        leaves.iter().for_each(|leaf| {
            hasher.update(leaf.as_bytes());
        });
        let digest = *hasher.finalize().as_bytes();
        match self.memo.get(&digest, &mut self.readings.used) {
            Some(reading) if reading.len() == pieces.len() => return reading.clone(),
            _ => {}
        }
        // A list that its client spells anew each time is not worth remembering.
        let mut is_anew = false;
        let meanings = pieces.iter().zip(leaves).map(|(piece, leaf)| {
            if piece.form != Form::Block {
                return None;
            }
            let name = if element == Grain::Tool { piece.name() } else { None };
            let name = name.map(|name| &body[name]);
            let (meaning, respelt) = self.meaning(piece.unmarked(body), leaf, name);
            is_anew |= respelt;
            meaning
        });
        let reading: Meanings = meanings.collect();
        if !is_anew {
            self.readings.meanings.insert(digest, reading.clone());
        }
        reading
    }

    /// Returns the meaning of one value, and whether it was found by the tool that is known under this name. Equal
    /// leaves mean the same.
    fn meaning(
        &mut self,
        (head, tail): (&[u8], &[u8]),
        leaf: &Leaf,
        name: Option<&[u8]>,
    ) -> (Option<Meaning>, bool) {
        let digest = *leaf.as_bytes();
        if let Some(meaning) = self.known_meaning(&digest) {
            return (meaning, false);
        }
        let value = if tail.is_empty() { Cow::Borrowed(head) } else { Cow::Owned([head, tail].concat()) };
        let used = &mut self.new.used;
        if let Some(respelt) = name.and_then(|name| self.known.respelt_tool(name, &value, used)) {
            self.new.trees.extend(respelt.tree);
            return (Some(respelt.meaning), true);
        }
        (self.learn_meaning(digest, &value), false)
    }

    /// The meaning of a known input. It is asked for only when another spelling turns up, and remembered from then on.
    pub fn input_meaning(&mut self, input: &[u8]) -> Option<Meaning> {
        let digest = *blake3::hash(input).as_bytes();
        self.known_meaning(&digest).unwrap_or_else(|| self.learn_meaning(digest, input))
    }

    /// The meaning of a value with this digest, if it was learned before.
    fn known_meaning(&mut self, digest: &[u8; 32]) -> Option<Option<Meaning>> {
        let known = self.memo.get(digest, &mut self.readings.used);
        known.or_else(|| self.readings.meanings.get(digest)).map(|reading| *reading.first().unwrap_or(&None))
    }

    fn learn_meaning(&mut self, digest: [u8; 32], value: &[u8]) -> Option<Meaning> {
        let meaning = meaning_of(value);
        self.readings.meanings.insert(digest, Arc::new([meaning]));
        meaning
    }
}

/// Returns the meaning of a value that may be sent in place of others; `None` where it must not.
pub(super) fn meaning_of(value: &[u8]) -> Option<Meaning> {
    if value.len() <= VALUE_BYTES_MAX { Meaning::of_sound(value) } else { None }
}
