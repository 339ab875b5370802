//! The spellings of a tenant, or of one conversation whose thinking is bound.
//!
//! Each spelling is kept once. An element (a tool, a system block) has bytes of its own, copied out of the
//! request so that they do not hold the whole body in memory; a list knows its elements by meaning, and keeps
//! only their order and the white space between them; choices and forwarded bodies share the same bytes.
//!
//! Meanings are costly, so a table also remembers which bytes meant what, by digest.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Order;
use super::aged::{Aged, AgedSlot, ENTRY_BYTES, UseClock, oldest_to_keep};
use super::respeller::meaning_of;
use crate::engine::request::json;
use crate::engine::request::meaning::{Meaning, Tree, is_reordered};

/// The limits of a table; beyond them the least recently used entries go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub bytes: usize,
    pub entries: usize,
}

impl Limits {
    /// A tenant: tool sets and prompts of dozens of agents (some 100 KB each, most of it common), and the
    /// inputs of a few dozen conversations at once.
    pub const TENANT: Limits = Limits { bytes: 8 << 20, entries: 16_384 };
    /// Limits that keep nothing.
    pub const NOTHING: Limits = Limits { bytes: 0, entries: 0 };
    /// One conversation: its tools, its prompt, and all its calls up to the window's end.
    pub const CONVERSATION: Limits = Limits { bytes: 4 << 20, entries: 8_192 };
}

/// One value may take this part of a table; a larger one would push out everything else.
const SHARE_OF_ONE: usize = 4;

/// Different inputs under one call id: a real one has one, and a made-up one must not grow without end.
const INPUTS_PER_CALL: usize = 4;

/// Everything that was learned from a tenant's requests.
#[derive(Debug)]
pub struct Table {
    pub(super) memo: MeaningMemo,
    pub(super) spellings: Spellings,
}

impl Table {
    pub fn new(limits: Limits) -> Table {
        let memo = Limits { bytes: limits.bytes / 4, entries: limits.entries };
        Table { memo: MeaningMemo::new(memo), spellings: Spellings::new(limits) }
    }

    /// Adds what a request brought, and renews what it used. Where another request was faster, its spelling stays.
    pub fn remember(&mut self, news: News) {
        self.memo.remember(news.readings);
        self.spellings.remember(news.spellings);
    }

    /// Returns the memory that the table takes, its own structures included.
    pub fn bytes(&self) -> usize {
        self.memo.readings.cost + self.spellings.bytes()
    }

    pub fn entries(&self) -> usize {
        self.memo.readings.slots.len() + self.spellings.entries()
    }
}

/// The spelling of one conversation, fixed at its first request and added to as it grows.
#[derive(Clone, Debug)]
pub struct Choice {
    order: Order,
    pub(super) spellings: Spellings,
}

impl Choice {
    /// `order` is the one in force at the conversation's start; it holds whatever the configuration becomes.
    pub fn new(order: Order, limits: Limits) -> Choice {
        Choice { order, spellings: Spellings::new(limits) }
    }

    pub fn pin(&mut self, pins: Pins) {
        self.spellings.remember(pins.0);
    }

    pub fn order(&self) -> Order {
        self.order
    }

    /// Most of it shared with the tenant's table.
    pub fn bytes(&self) -> usize {
        self.spellings.bytes()
    }

    /// Returns the address and the size of each part, so that parts shared by several choices can be counted once.
    pub fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        let Spellings { elements, lists, inputs, .. } = &self.spellings;
        let elements = elements.slots.values().map(|slot| (slot.value.bytes.as_ptr().addr(), slot.cost));
        let lists = lists.slots.values().map(|slot| (Arc::as_ptr(&slot.value).addr(), slot.cost));
        let inputs = inputs.slots.values().flat_map(|slot| &slot.value);
        let inputs = inputs.map(|input| (input.as_ptr().addr(), input.len() + ENTRY_BYTES));
        elements.chain(lists).chain(inputs)
    }
}

/// New entries of a request for its tenant's table, and the old ones that it used.
#[derive(Debug, Default)]
pub struct News {
    pub(super) readings: NewReadings,
    pub(super) spellings: NewSpellings,
}

impl News {
    pub fn is_empty(&self) -> bool {
        self.readings.is_empty() && self.spellings.is_empty()
    }
}

/// New spellings of a request for its conversation, and the old ones that it used.
#[derive(Debug, Default)]
pub struct Pins(pub(super) NewSpellings);

impl Pins {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The kind of a value. Values of different kinds are never compared: the same words as a tool and as a system block
/// are two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum Grain {
    Tool,
    Block,
    /// A system prompt that is a string.
    Text,
    Tools,
    System,
    /// A system list behind an attribution line: it has one place more.
    AttributedSystem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SpellingKey {
    pub grain: Grain,
    pub digest: [u8; 32],
}

/// A list as it was first written, its elements aside.
#[derive(Clone, Debug)]
pub(super) struct List {
    pub order: Vec<Meaning>,
    /// The bytes before, between and after the elements.
    pub glue: Vec<Bytes>,
}

/// A tool or a system block as first written.
#[derive(Clone, Debug)]
pub(super) struct Element {
    pub bytes: Bytes,
    /// Of a tool that came in another spelling: it will again.
    tree: Option<Arc<Tree>>,
}

/// A tool that was found to be another spelling of the one known under its name.
pub(super) struct RespeltTool {
    pub meaning: Meaning,
    /// The tree of the known tool, if the table does not have it yet.
    pub tree: Option<(SpellingKey, Tree)>,
}

/// Spellings on their way into a table, in a fixed order so that ages are too.
#[derive(Debug, Default)]
pub(super) struct NewSpellings {
    pub elements: BTreeMap<SpellingKey, Bytes>,
    pub lists: BTreeMap<SpellingKey, Arc<List>>,
    /// The inputs of calls, by their ids.
    pub inputs: BTreeMap<Box<str>, Vec<Bytes>>,
    /// Of tools that were met in another spelling.
    pub trees: Vec<(SpellingKey, Tree)>,
    /// Old entries that were used.
    pub used: Vec<UsedSpelling>,
}

/// An entry that is to be renewed.
#[derive(Debug)]
pub(super) enum UsedSpelling {
    Element(SpellingKey),
    Name(Box<[u8]>),
    List(SpellingKey),
    Inputs(Box<str>),
}

impl NewSpellings {
    fn is_empty(&self) -> bool {
        let NewSpellings { elements, lists, inputs, trees, used } = self;
        elements.is_empty() && lists.is_empty() && inputs.is_empty() && trees.is_empty() && used.is_empty()
    }

    pub fn add_input(&mut self, id: &str, input: Bytes) {
        match self.inputs.get_mut(id) {
            Some(inputs) => inputs.push(input),
            None => {
                self.inputs.insert(id.into(), vec![input]);
            }
        }
    }
}

/// The spellings themselves. A request that looks one up notes in `used` if it is old.
#[derive(Clone, Debug)]
pub(super) struct Spellings {
    clock: UseClock,
    pub elements: Aged<SpellingKey, Element>,
    /// Which tool was the last to be learned under a name, as it is spelt.
    names: Aged<Box<[u8]>, SpellingKey>,
    pub lists: Aged<SpellingKey, Arc<List>>,
    /// The inputs of calls as first written, by their ids.
    pub inputs: Aged<Box<str>, Vec<Bytes>>,
}

impl Spellings {
    fn new(limits: Limits) -> Spellings {
        Spellings {
            clock: UseClock::new(limits),
            elements: Aged::default(),
            names: Aged::default(),
            lists: Aged::default(),
            inputs: Aged::default(),
        }
    }

    pub fn element(&self, key: &SpellingKey, used: &mut Vec<UsedSpelling>) -> Option<&Bytes> {
        self.known_element(key, used).map(|element| &element.bytes)
    }

    fn known_element(&self, key: &SpellingKey, used: &mut Vec<UsedSpelling>) -> Option<&Element> {
        self.elements.get(key, &self.clock, || used.push(UsedSpelling::Element(*key)))
    }

    /// A tool that is another spelling of the one that is known under its name.
    pub fn respelt_tool(
        &self,
        name: &[u8],
        tool: &[u8],
        used: &mut Vec<UsedSpelling>,
    ) -> Option<RespeltTool> {
        let key = *self.names.get(name, &self.clock, || used.push(UsedSpelling::Name(name.into())))?;
        let known = self.known_element(&key, used)?;
        let found = |tree: &Tree| tree.is_respelt(&known.bytes, tool);
        let tree = match &known.tree {
            Some(tree) => found(tree).then_some(None)?,
            None if !is_reordered(&known.bytes, tool) => return None,
            None => Some((key, Tree::of(&known.bytes).filter(found)?)),
        };
        Some(RespeltTool { meaning: Meaning::from_bytes(key.digest), tree })
    }

    pub fn list(&self, key: &SpellingKey, used: &mut Vec<UsedSpelling>) -> Option<&Arc<List>> {
        self.lists.get(key, &self.clock, || used.push(UsedSpelling::List(*key)))
    }

    pub fn inputs(&self, id: &str, used: &mut Vec<UsedSpelling>) -> &[Bytes] {
        let inputs = self.inputs.get(id, &self.clock, || used.push(UsedSpelling::Inputs(id.into())));
        inputs.map_or(&[], Vec::as_slice)
    }

    /// Returns true if a call with this number of inputs may get another.
    pub fn room_for_input(inputs: usize) -> bool {
        inputs < INPUTS_PER_CALL
    }

    fn bytes(&self) -> usize {
        self.elements.cost + self.names.cost + self.lists.cost + self.inputs.cost
    }

    fn entries(&self) -> usize {
        self.elements.slots.len() + self.names.slots.len() + self.lists.slots.len() + self.inputs.slots.len()
    }

    fn remember(&mut self, new: NewSpellings) {
        let largest = self.clock.limits.bytes / SHARE_OF_ONE;
        for used in new.used {
            self.renew(&used);
        }
        for (key, bytes) in new.elements {
            if bytes.len() <= largest && !self.elements.renew(&key, &mut self.clock) {
                let cost = bytes.len();
                if key.grain == Grain::Tool
                    && let Some(name) = tool_name(&bytes)
                {
                    self.names.insert(name.into(), key, name.len(), &mut self.clock);
                }
                self.elements.insert(key, Element { bytes, tree: None }, cost, &mut self.clock);
            }
        }
        for (key, list) in new.lists {
            let glue: usize = list.glue.iter().map(|glue| glue.len() + size_of::<Bytes>()).sum();
            let cost = glue + list.order.len() * size_of::<Meaning>();
            if cost <= largest && !self.lists.renew(&key, &mut self.clock) {
                self.lists.insert(key, list, cost, &mut self.clock);
            }
        }
        for (id, inputs) in new.inputs {
            self.insert_inputs(id, inputs, largest);
        }
        self.keep_trees(new.trees);
        self.trim();
    }

    fn renew(&mut self, used: &UsedSpelling) {
        let clock = &mut self.clock;
        match used {
            UsedSpelling::Element(key) => self.elements.renew(key, clock),
            UsedSpelling::Name(name) => self.names.renew(name, clock),
            UsedSpelling::List(key) => self.lists.renew(key, clock),
            UsedSpelling::Inputs(id) => self.inputs.renew(id, clock),
        };
    }

    fn insert_inputs(&mut self, id: Box<str>, new: Vec<Bytes>, largest: usize) {
        self.inputs.renew(&id, &mut self.clock);
        let known = self.inputs.slots.get(&id).map_or(&[][..], |slot| slot.value.as_slice());
        let mut inputs = known.to_vec();
        for input in new {
            // Those of one request were compared with each other when it was read.
            let is_known = inputs.contains(&input) || known.iter().any(|known| mean_the_same(known, &input));
            if !is_known && input.len() <= largest && Spellings::room_for_input(inputs.len()) {
                inputs.push(input);
            }
        }
        if inputs.len() > known.len() {
            let cost = id.len() + inputs.iter().map(|input| input.len() + ENTRY_BYTES).sum::<usize>();
            self.inputs.insert(id, inputs, cost, &mut self.clock);
        }
    }

    /// Keeps how known tools are built. They are needed again where a client spells its tools anew each turn.
    fn keep_trees(&mut self, trees: Vec<(SpellingKey, Tree)>) {
        for (key, tree) in trees {
            let is_new = |slot: &AgedSlot<Element>| slot.value.tree.is_none();
            if self.elements.slots.get(&key).is_some_and(is_new)
                && let Some(element) = self.elements.grow(&key, tree.memory_bytes(), &mut self.clock)
            {
                element.tree = Some(Arc::new(tree));
            }
        }
    }

    fn trim(&mut self) {
        let limits = self.clock.limits;
        if self.bytes() <= limits.bytes && self.entries() <= limits.entries {
            return;
        }
        let ages =
            self.elements.ages().chain(self.names.ages()).chain(self.lists.ages()).chain(self.inputs.ages());
        let oldest = oldest_to_keep(ages.collect(), limits);
        self.elements.forget_before(oldest);
        self.names.forget_before(oldest);
        self.lists.forget_before(oldest);
        self.inputs.forget_before(oldest);
    }
}

/// Returns true if both inputs have a meaning, and it is the same.
fn mean_the_same(one: &[u8], two: &[u8]) -> bool {
    meaning_of(one).is_some_and(|meaning| meaning_of(two) == Some(meaning))
}

/// A longer name is not one.
const NAME_BYTES_MAX: usize = 256;

/// Returns the name of a tool, quotes included. A tool with a meaning has each member once, so the walk ends at its
/// name.
fn tool_name(tool: &[u8]) -> Option<&[u8]> {
    let mut name = None;
    let _ = json::walk_object(tool, 0, |key, start| {
        let end = json::value_end(tool, start)?;
        if json::is_key(tool, &key, "name") {
            name = Some(start..end);
            // An error is how a walk is ended early.
            return Err(json::Malformed::At(start));
        }
        Ok(end)
    });
    name.map(|name: json::Span| &tool[name]).filter(|name| name.len() <= NAME_BYTES_MAX)
}

/// The meaning of a value, or one per element of a list; `None` for an element that has none.
pub(super) type Meanings = Arc<[Option<Meaning>]>;

/// Meanings on their way into a memo, by the digests of what means them.
#[derive(Debug, Default)]
pub(super) struct NewReadings {
    pub meanings: BTreeMap<[u8; 32], Meanings>,
    /// Old entries that were used.
    pub used: Vec<[u8; 32]>,
}

impl NewReadings {
    fn is_empty(&self) -> bool {
        self.meanings.is_empty() && self.used.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct MeaningMemo {
    clock: UseClock,
    readings: Aged<[u8; 32], Meanings>,
}

impl MeaningMemo {
    fn new(limits: Limits) -> MeaningMemo {
        MeaningMemo { clock: UseClock::new(limits), readings: Aged::default() }
    }

    /// Returns what is remembered, and notes in `used` if it is old.
    pub fn get(&self, digest: &[u8; 32], used: &mut Vec<[u8; 32]>) -> Option<&Meanings> {
        self.readings.get(digest, &self.clock, || used.push(*digest))
    }

    fn remember(&mut self, new: NewReadings) {
        for digest in new.used {
            self.readings.renew(&digest, &mut self.clock);
        }
        for (digest, reading) in new.meanings {
            self.insert(digest, reading);
        }
    }

    fn insert(&mut self, digest: [u8; 32], reading: Meanings) {
        let (cost, limits) = (size_of_val(&*reading), self.clock.limits);
        self.readings.insert(digest, reading, cost, &mut self.clock);
        if self.readings.cost > limits.bytes || self.readings.slots.len() > limits.entries {
            let oldest = oldest_to_keep(self.readings.ages().collect(), limits);
            self.readings.forget_before(oldest);
        }
    }
}
