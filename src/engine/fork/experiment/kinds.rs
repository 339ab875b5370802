//! What the children of a tool teach, apart for each set of tools that they have themselves: one tool starts agents of
//! several kinds, and two clients may call theirs by the same name. The mean of short and long lives is neither.

use serde::{Deserialize, Serialize};

use super::fan_out::{Siblings, Starts};
use super::life::Lives;
use crate::engine::fork::economics::Bills;
use crate::engine::request::prefix::PrefixHash;

/// Kinds of one tool that are kept apart; the one that was heard of longest ago is forgotten.
const KINDS_MAX: usize = 16;

/// Children that are learned of together.
#[derive(Clone, Copy, Debug)]
pub struct ChildKind<'a> {
    /// The tool that starts them; empty for those that name their parent themselves.
    pub tool: &'a str,
    /// The tools that they have, in their own words.
    pub tools: PrefixHash,
}

/// The kinds of one tool, the one heard of last at the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Kinds(Vec<(PrefixHash, Learned)>);

/// What the children of one kind have taught.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Learned {
    pub lives: Lives,
    pub siblings: Siblings,
    pub starts: Option<Starts>,
    /// In the order of [`CostUnit`](crate::engine::words::CostUnit).
    pub bills: [Bills; 2],
}

impl Kinds {
    pub fn get(&self, tools: &PrefixHash) -> Option<&Learned> {
        self.0.iter().find(|(known, _)| known == tools).map(|(_, learned)| learned)
    }

    /// The children with these tools, with room made for them.
    pub fn of(&mut self, tools: PrefixHash) -> &mut Learned {
        let known = self.0.iter().position(|(known, _)| *known == tools);
        let kind = match known {
            Some(at) => self.0.remove(at),
            None => (tools, Learned::default()),
        };
        if self.0.len() >= KINDS_MAX {
            self.0.remove(0);
        }
        let last = self.0.len();
        self.0.push(kind);
        &mut self.0[last].1
    }
}
