//! A request that is sought among the fork points of its tenant, and the parts of it that this takes.
//!
//! Searching its texts and comparing its history takes time in proportion to them. So both are done only if somebody
//! asks for it, and never while the fork points are locked:
//!
//! ```text
//! recognise ─ ask(sought) ─┬─ Ok(Recognised)
//!      ▲                   └─ Err(UnreadPart)
//!      └──── sought.read(it) ──┘
//! ```
//!
//! What was found in the meantime may be gone when it is asked again; what is new is seen by the next request.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::holdings::HoldingNumber;
use super::leaves::{Leaves, Search};
use super::point::ForkPoint;
use super::recognise::{Newcomer, Recognised};
use super::shape;
use crate::engine::words::BodyDigest;

/// Parts of a request that have to be read before it can be recognised.
#[derive(Debug)]
pub struct UnreadPart(pub(super) Part);

#[derive(Debug)]
pub(super) enum Part {
    /// Its texts, to be searched for these directives, and how many bytes of them.
    Texts(Arc<Leaves>, usize),
    /// Its history, to be compared with that of these fork points.
    History(Vec<Arc<ForkPoint>>),
}

/// A request that may be a child, as far as it was read.
#[derive(Debug)]
pub struct Sought<'a> {
    pub(super) newcomer: Newcomer<'a>,
    pub(super) is_first_turn: bool,
    /// The calls whose results it brings.
    pub(super) results: Vec<Cow<'a, str>>,
    texts: Option<SearchedTexts>,
    /// True for the parents that it continues, by their number.
    continues: HashMap<HoldingNumber, bool>,
}

/// The texts of a request that may tell a child what to do.
#[derive(Debug)]
pub(super) struct SearchedTexts {
    /// The request that they are of.
    pub body: BodyDigest,
    pub search: Search,
}

/// Says what a request is. `ask` looks it up, and what that takes is read between its calls.
pub fn recognise<'a>(
    newcomer: &Newcomer<'a>,
    mut ask: impl FnMut(&Sought<'a>) -> Result<Recognised, UnreadPart>,
) -> Recognised {
    let mut sought = Sought::new(*newcomer);
    loop {
        match ask(&sought) {
            Ok(recognised) => return recognised,
            Err(UnreadPart(part)) => sought.read(part),
        }
    }
}

impl<'a> Sought<'a> {
    fn new(newcomer: Newcomer<'a>) -> Sought<'a> {
        let is_first_turn = shape::is_first_turn(newcomer.request);
        let results = if is_first_turn { Vec::new() } else { shape::new_results(newcomer.request).collect() };
        Sought { newcomer, is_first_turn, results, texts: None, continues: HashMap::new() }
    }

    fn read(&mut self, part: Part) {
        let request = self.newcomer.request;
        match part {
            Part::Texts(leaves, bytes) => {
                let search = self.search(&leaves, bytes);
                self.texts = Some(SearchedTexts { body: request.digest(), search });
            }
            Part::History(forks) => {
                let compared = forks
                    .iter()
                    .map(|fork| (fork.parent_number, shape::continues(request, &fork.parent.request)));
                self.continues.extend(compared);
            }
        }
    }

    fn search(&self, leaves: &Leaves, bytes: usize) -> Search {
        let Newcomer { request, explicit, .. } = self.newcomer;
        // A call that is named need not be found.
        let is_named = explicit.is_some_and(|explicit| explicit.tool_use.is_some());
        if is_named || leaves.is_empty() {
            return Search::default();
        }
        if self.is_first_turn {
            leaves.search(shape::first_texts(request, bytes), bytes)
        } else {
            leaves.search(shape::new_texts(request, bytes), bytes)
        }
    }

    /// The texts of the request, if they were searched.
    pub(super) fn texts(&self) -> Option<&SearchedTexts> {
        self.texts.as_ref()
    }

    /// Returns true if the request goes on from the history of this fork point; `None` if they were not compared.
    pub(super) fn continues(&self, fork: &ForkPoint) -> Option<bool> {
        self.continues.get(&fork.parent_number).copied()
    }
}
