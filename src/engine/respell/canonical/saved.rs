//! Spellings that were seen first, as they are kept beyond this process.
//!
//! Each is checked when it is read: what does not mean what it is kept under would change what the model reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::list;
use super::respeller::meaning_of;
use super::table::{Grain, List, NewReadings, NewSpellings, News, SpellingKey, Spellings, Table};
use crate::engine::request::meaning::Meaning;
use crate::engine::words::digits;

/// About how many bytes of a table go into one record.
const SLICE_BYTES: usize = 1 << 18;

/// Spellings that a request has brought first.
#[derive(Clone, Debug, Default)]
pub struct FirstSpellings {
    pub(super) elements: BTreeMap<SpellingKey, Bytes>,
    pub(super) lists: BTreeMap<SpellingKey, Arc<List>>,
    pub(super) inputs: BTreeMap<Box<str>, Vec<Bytes>>,
}

/// The knowledge about spellings beside their bytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedSpellings {
    elements: Vec<SavedElement>,
    lists: Vec<SavedList>,
    /// By the id of a call the lengths of its inputs.
    inputs: Vec<(String, Vec<usize>)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedElement {
    grain: Grain,
    #[serde(with = "digits")]
    digest: [u8; 32],
    length: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedList {
    grain: Grain,
    #[serde(with = "digits")]
    digest: [u8; 32],
    order: Vec<Meaning>,
    /// The lengths of the bytes before, between and after the elements.
    glue: Vec<usize>,
}

impl News {
    /// The spellings among these news; none if there are none.
    pub fn first_spellings(&self) -> Option<FirstSpellings> {
        let NewSpellings { elements, lists, inputs, .. } = &self.spellings;
        let first =
            || FirstSpellings { elements: elements.clone(), lists: lists.clone(), inputs: inputs.clone() };
        let is_empty = elements.is_empty() && lists.is_empty() && inputs.is_empty();
        (!is_empty).then(first)
    }
}

impl Table {
    /// Everything that it knows, in slices of a reasonable size.
    pub fn all_spellings(&self) -> Vec<FirstSpellings> {
        let (mut slices, mut slice) = (Vec::new(), FirstSpellings::default());
        let mut bytes = 0;
        let mut more = |slice: &mut FirstSpellings, added: usize| {
            bytes += added;
            if bytes >= SLICE_BYTES {
                bytes = 0;
                slices.push(std::mem::take(slice));
            }
        };
        let Spellings { elements, lists, inputs, .. } = &self.spellings;
        for (key, first) in &elements.slots {
            slice.elements.insert(*key, first.value.bytes.clone());
            more(&mut slice, first.value.bytes.len());
        }
        for (key, list) in &lists.slots {
            slice.lists.insert(*key, Arc::clone(&list.value));
            more(&mut slice, 128 * list.value.order.len());
        }
        for (id, inputs) in &inputs.slots {
            slice.inputs.insert(id.clone(), inputs.value.clone());
            more(&mut slice, id.len() + inputs.value.iter().map(Bytes::len).sum::<usize>());
        }
        slices.push(slice);
        slices
    }
}

impl FirstSpellings {
    /// Those of tools and prompts, which come with every request; then those of inputs, which one conversation has.
    pub fn apart(&self) -> [FirstSpellings; 2] {
        let FirstSpellings { elements, lists, inputs } = self.clone();
        let inputs = FirstSpellings { inputs, ..FirstSpellings::default() };
        [FirstSpellings { elements, lists, inputs: BTreeMap::new() }, inputs]
    }

    pub fn is_empty(&self) -> bool {
        self.elements.is_empty() && self.lists.is_empty() && self.inputs.is_empty()
    }

    /// About how much memory this takes, beside the table.
    pub fn memory_bytes(&self) -> usize {
        let inputs = self.inputs.values().flatten().map(Bytes::len);
        self.elements.values().map(Bytes::len).chain(inputs).sum::<usize>() + 256 * self.lists.len()
    }

    /// Returns the spellings, and their bytes one behind the other.
    pub fn save(&self) -> (SavedSpellings, Bytes) {
        let mut bytes = Vec::new();
        let mut add = |part: &Bytes| {
            bytes.extend_from_slice(part);
            part.len()
        };
        let elements = self.elements.iter().map(|(SpellingKey { grain, digest }, first)| SavedElement {
            grain: *grain,
            digest: *digest,
            length: add(first),
        });
        let elements = elements.collect();
        let lists = self.lists.iter().map(|(SpellingKey { grain, digest }, list)| SavedList {
            grain: *grain,
            digest: *digest,
            order: list.order.clone(),
            glue: list.glue.iter().map(&mut add).collect(),
        });
        let lists = lists.collect();
        let inputs =
            self.inputs.iter().map(|(id, inputs)| (id.to_string(), inputs.iter().map(&mut add).collect()));
        let inputs = inputs.collect();
        (SavedSpellings { elements, lists, inputs }, bytes.into())
    }
}

impl SavedSpellings {
    /// Returns true if these are of tools and prompts.
    pub fn are_common(&self) -> bool {
        !self.elements.is_empty() || !self.lists.is_empty()
    }

    /// Reads spellings; none if anything is wrong with them.
    pub fn news(self, bytes: &[u8]) -> Option<News> {
        let mut rest = bytes;
        let mut take = |length: usize| {
            let (part, behind) = rest.split_at_checked(length)?;
            rest = behind;
            Some(Bytes::copy_from_slice(part))
        };
        let mut spellings = NewSpellings::default();
        for SavedElement { grain, digest, length } in self.elements {
            let first = take(length)?;
            if meaning_of(&first)?.as_bytes() != &digest {
                return None;
            }
            spellings.elements.insert(SpellingKey { grain, digest }, first);
        }
        for SavedList { grain, digest, order, glue } in self.lists {
            let glue: Vec<Bytes> = glue.into_iter().map(&mut take).collect::<Option<_>>()?;
            let is_whole = list::digest(grain, order.iter()) == digest;
            // Behind an attribution line there is one place more.
            let places = order.len() + 1 + usize::from(grain == Grain::AttributedSystem);
            if !is_whole || glue.len() != places || !holds_a_list(&glue) {
                return None;
            }
            spellings.lists.insert(SpellingKey { grain, digest }, Arc::new(List { order, glue }));
        }
        for (id, lengths) in self.inputs {
            let inputs: Vec<Bytes> = lengths.into_iter().map(&mut take).collect::<Option<_>>()?;
            inputs.iter().all(|input| meaning_of(input).is_some()).then_some(())?;
            spellings.inputs.insert(id.into(), inputs);
        }
        Some(News { readings: NewReadings::default(), spellings })
    }
}

/// Returns true if these bytes make a list of whatever is between them.
fn holds_a_list(glue: &[Bytes]) -> bool {
    let last = glue.len().saturating_sub(1);
    glue.iter().enumerate().all(|(place, bytes)| {
        let expected: &[u8] = match (place == 0, place == last) {
            (true, true) => b"[]",
            (true, false) => b"[",
            (false, true) => b"]",
            (false, false) => b",",
        };
        bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).eq(expected.iter().copied())
    })
}
