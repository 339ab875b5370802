//! Recognises how a request relates to the fork points of its tenant.

use std::collections::HashMap;
use std::sync::Arc;

use super::forks::{Forks, Slot};
use super::leaves::{DirectiveOwner, Match, Search};
use super::point::{ForkId, ForkPoint};
use super::rules::{Rules, Who};
use super::shape;
use super::sought::{Part, SearchedTexts, Sought, UnreadPart};
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{BodyDigest, Moment, Rank, Spawning, WhyPlain};

/// A request that may be a child.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    /// In its one spelling, like the parents' that it is compared with.
    pub request: &'a Remembered,
    pub who: Who,
    pub explicit: Option<Explicit<'a>>,
}

/// The parent that a request names itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explicit<'a> {
    /// `x-forkpoint-parent`
    pub message_id: &'a str,
    /// `x-forkpoint-tool-use`
    pub tool_use: Option<&'a str>,
}

#[derive(Clone, Debug)]
pub enum Recognised {
    Plain(WhyPlain),
    /// It brings results back to a fork point.
    Parent(Arc<ForkPoint>),
    Child(Child),
    /// The client has forked by itself: the history is the parent's.
    ClientFork(Child),
    /// Several directives fit equally well: left alone.
    Ambiguous,
}

#[derive(Clone, Debug)]
pub struct Child {
    pub fork: Arc<ForkPoint>,
    /// The call that started it; none if it only names its parent.
    pub call: Option<usize>,
    pub rank: Rank,
}

impl Child {
    /// Tells if the call that started it is known to start agents; a parent that is named needs none.
    pub fn spawning(&self) -> Spawning {
        let call = self.call.and_then(|call| self.fork.calls.get(call));
        call.map_or(Spawning::Unknown, |call| call.spawning)
    }

    /// The last piece of this fork that its siblings have too, where its client has made the fork: the end of the
    /// parent's history at least. For [`Situation::shared`](crate::engine::cache::breakpoints::Situation).
    pub fn last_shared(&self, request: &Remembered) -> Option<usize> {
        shape::last_shared(request, &self.fork, self.call)
    }
}

/// Why a request is not recognised.
enum Stop {
    Plain(WhyPlain),
    Unread(Part),
}

impl From<WhyPlain> for Stop {
    fn from(why: WhyPlain) -> Stop {
        Stop::Plain(why)
    }
}

impl Forks {
    /// Says what a request is. `Err`: more of it is to be read first.
    pub(super) fn recognise(&mut self, sought: &Sought<'_>, now: Moment) -> Result<Recognised, UnreadPart> {
        let newcomer = &sought.newcomer;
        let found = match newcomer.explicit {
            _ if newcomer.request.anatomy().ambiguous => Err(WhyPlain::Unreadable.into()),
            Some(explicit) => self.named(sought, explicit, now),
            None if self.is_empty() => Err(WhyPlain::NoForkPoint.into()),
            None if sought.is_first_turn => self.first_turn(sought, now),
            None => self.later_turn(sought),
        };
        match found {
            Ok(recognised) => Ok(recognised),
            Err(Stop::Plain(why)) => Ok(Recognised::Plain(why)),
            Err(Stop::Unread(part)) => Err(UnreadPart(part)),
        }
    }

    /// A request that names its parent.
    fn named(
        &mut self,
        sought: &Sought<'_>,
        explicit: Explicit<'_>,
        now: Moment,
    ) -> Result<Recognised, Stop> {
        let fork = Arc::clone(self.by_message(explicit.message_id).ok_or(WhyPlain::UnknownParent)?);
        if !sought.is_first_turn {
            return Err(WhyPlain::LaterTurn.into());
        }
        let SearchedTexts { body, search } = self.searched(sought)?;
        let call = match explicit.tool_use {
            Some(id) => Some(fork.call(id).ok_or(WhyPlain::UnknownCall)?),
            None => {
                let own = self.candidates(search, |slot, _| slot.point.id == fork.id);
                match choose(own, search, &self.rules) {
                    Choice::One(candidate) => Some(candidate.call),
                    Choice::Several | Choice::None => None,
                }
            }
        };
        let slot = self.slots.get(&fork.id).ok_or(WhyPlain::UnknownParent)?;
        if let Some(why) = veto(&self.rules, slot, call, &sought.newcomer, *body, now) {
            return Err(why.into());
        }
        self.claim(&sought.newcomer, fork.id, call, *body)?;
        Ok(Recognised::Child(Child { fork, call, rank: Rank::Explicit }))
    }

    /// A new conversation: a child if it opens with a directive.
    fn first_turn(&mut self, sought: &Sought<'_>, now: Moment) -> Result<Recognised, Stop> {
        let newcomer = &sought.newcomer;
        let SearchedTexts { body, search } = self.searched(sought)?;
        if search.matches.is_empty() {
            return Err(WhyPlain::NoDirective.into());
        }
        let mut vetoed = None;
        let candidates = self.candidates(search, |slot, call| {
            let why = veto(&self.rules, slot, Some(call), newcomer, *body, now);
            vetoed = why.or(vetoed);
            why.is_none()
        });
        let candidate = match choose(candidates, search, &self.rules) {
            Choice::One(candidate) => candidate,
            Choice::Several => return Ok(Recognised::Ambiguous),
            Choice::None => return Err(vetoed.unwrap_or(WhyPlain::Coverage).into()),
        };
        let fork = Arc::clone(self.get(candidate.fork).ok_or(WhyPlain::NoForkPoint)?);
        let call = Some(candidate.call);
        let rank = if search.matches[candidate.found].is_whole() { Rank::Whole } else { Rank::Contained };
        match sought.continues(&fork) {
            None => return Err(Stop::Unread(Part::History(vec![fork]))),
            Some(true) => return Ok(Recognised::ClientFork(Child { fork, call, rank })),
            Some(false) => {}
        }
        self.claim(newcomer, fork.id, call, *body)?;
        Ok(Recognised::Child(Child { fork, call, rank }))
    }

    /// A conversation that goes on: a parent with its results, or a client's own fork of one.
    fn later_turn(&mut self, sought: &Sought<'_>) -> Result<Recognised, Stop> {
        let newcomer = &sought.newcomer;
        let parent = self.parent_of(&sought.results).cloned();
        if parent.as_ref().is_some_and(|fork| !fork.parent.who.agrees(&newcomer.who)) {
            return Err(WhyPlain::Hints.into());
        }
        let opening = newcomer.request.opening();
        let opens_like = |slot: &Slot| slot.point.parent.request.opening() == opening;
        if parent.is_none() && !self.slots.values().any(opens_like) {
            return Err(WhyPlain::LaterTurn.into());
        }
        let chosen = self.directed(sought, parent.as_ref())?;
        let Some(parent) = parent else {
            let (fork, call) = chosen.ok_or(WhyPlain::LaterTurn)?;
            return Ok(Recognised::ClientFork(Child { fork, call: Some(call), rank: Rank::Contained }));
        };
        let calls: Vec<_> = sought.results.iter().filter_map(|id| parent.call(id)).collect();
        // A fork brings a result too, its own or all of them; but another agent sends it, or it says what to do.
        let another = newcomer.who.agent != parent.parent.who.agent;
        if another || chosen.is_some() {
            let own = if let [own] = calls[..] { Some(own) } else { None };
            let call = own.or(chosen.map(|(_, call)| call));
            return Ok(Recognised::ClientFork(Child { fork: parent, call, rank: Rank::Contained }));
        }
        if let Some(slot) = self.slots.get_mut(&parent.id) {
            slot.returned.extend(calls);
        }
        Ok(Recognised::Parent(parent))
    }

    /// The call whose directive a later turn carries: of this parent or, without one, of a history that it continues.
    fn directed(
        &self,
        sought: &Sought<'_>,
        parent: Option<&Arc<ForkPoint>>,
    ) -> Result<Option<(Arc<ForkPoint>, usize)>, Stop> {
        let search = &self.searched(sought)?.search;
        let mut unread: HashMap<ForkId, Arc<ForkPoint>> = HashMap::new();
        let candidates = self.candidates(search, |slot, _| {
            if !slot.point.parent.who.agrees(&sought.newcomer.who) {
                return false;
            }
            if let Some(parent) = parent {
                return parent.id == slot.point.id;
            }
            sought.continues(&slot.point).unwrap_or_else(|| {
                unread.insert(slot.point.id, Arc::clone(&slot.point));
                false
            })
        });
        if !unread.is_empty() {
            return Err(Stop::Unread(Part::History(unread.into_values().collect())));
        }
        match choose(candidates, search, &self.rules) {
            Choice::One(candidate) => Ok(self.get(candidate.fork).cloned().zip(Some(candidate.call))),
            Choice::Several | Choice::None => Ok(None),
        }
    }

    /// The texts of a request, searched for the directives that are known.
    fn searched<'s>(&self, sought: &'s Sought<'_>) -> Result<&'s SearchedTexts, Stop> {
        let Some(texts) = sought.texts() else {
            return Err(Stop::Unread(Part::Texts(Arc::clone(&self.leaves), self.rules.scan_bytes)));
        };
        if texts.search.exhausted() {
            return Err(WhyPlain::SearchLimit.into());
        }
        Ok(texts)
    }

    /// The calls whose directives were found, as far as they are allowed.
    fn candidates(&self, search: &Search, mut allowed: impl FnMut(&Slot, usize) -> bool) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (found, matched) in search.matches.iter().enumerate() {
            for DirectiveOwner { fork, parent_number, call } in matched.directive.owners.iter().copied() {
                // Another turn may have taken its place since the search.
                let slot = self.slots.get(&fork).filter(|slot| slot.point.parent_number == parent_number);
                if let Some(slot) = slot.filter(|slot| allowed(slot, call)) {
                    let (prefix, age) = (slot.point.prefix, slot.age);
                    candidates.push(Candidate { fork, call, found, prefix, age });
                }
            }
        }
        candidates
    }

    /// Without hints each call starts one conversation.
    fn claim(
        &mut self,
        newcomer: &Newcomer<'_>,
        fork: ForkId,
        call: Option<usize>,
        body: BodyDigest,
    ) -> Result<(), WhyPlain> {
        let Some(call) = call else { return Ok(()) };
        if !newcomer.who.hinted()
            && let Some(slot) = self.slots.get_mut(&fork)
            && *slot.claims.entry(call).or_insert(body) != body
        {
            return Err(WhyPlain::Claimed);
        }
        self.note_child(fork, call);
        Ok(())
    }
}

/// Why this request cannot be a child of this call, whatever it says.
fn veto(
    rules: &Rules,
    slot: &Slot,
    call: Option<usize>,
    newcomer: &Newcomer<'_>,
    body: BodyDigest,
    now: Moment,
) -> Option<WhyPlain> {
    let who = &newcomer.who;
    let parent = &slot.point.parent.who;
    let retried = call.is_some_and(|call| slot.claims.get(&call) == Some(&body));
    let late = slot.point.is_sealed() && now.since(slot.since) > rules.match_window_s.saturating_mul(1_000);
    if !who.agrees(parent) {
        return Some(WhyPlain::Hints);
    }
    if !who.hinted() && late && !retried {
        return Some(WhyPlain::Window);
    }
    if newcomer.explicit.is_some() || who.agent.is_some() || retried {
        return None;
    }
    if parent.marks_agents {
        return Some(WhyPlain::NoAgent);
    }
    if !shape::has_tools(newcomer.request) {
        return Some(WhyPlain::NoTools);
    }
    // Tools that start agents may answer at once and go on in the background; others are done.
    let call = call.filter(|call| slot.returned.contains(call)).and_then(|call| slot.point.calls.get(call));
    call.filter(|call| call.spawning == Spawning::Unknown).map(|_| WhyPlain::Returned)
}

/// A call whose directive was found.
#[derive(Clone, Copy)]
struct Candidate {
    fork: ForkId,
    call: usize,
    /// Which match it is.
    found: usize,
    prefix: PrefixHash,
    age: u64,
}

enum Choice {
    None,
    One(Candidate),
    Several,
}

/// The one call that fits best: a whole block before a part of one, the longer before the shorter.
fn choose(mut candidates: Vec<Candidate>, search: &Search, rules: &Rules) -> Choice {
    let of = |candidate: &Candidate| &search.matches[candidate.found];
    // Of a parent that was retried, the newest turn counts.
    let mut newest: HashMap<PrefixHash, u64> = HashMap::new();
    for candidate in &candidates {
        let age = newest.entry(candidate.prefix).or_default();
        *age = candidate.age.max(*age);
    }
    candidates.retain(|candidate| newest.get(&candidate.prefix) == Some(&candidate.age));
    // What is only a part of a longer directive was not said for itself.
    let mut found: Vec<_> = candidates.iter().map(|candidate| candidate.found).collect();
    found.dedup();
    let inside = |m: &Match| found.iter().any(|other| m.is_inside(&search.matches[*other]));
    candidates.retain(|candidate| !inside(of(candidate)));

    let rank = |candidate: &Candidate| (of(candidate).is_whole(), of(candidate).len());
    let covers = |m: &Match| m.len() as f64 >= rules.min_coverage * m.block_len as f64;
    let Some(best) = candidates.iter().filter(|it| covers(of(it))).max_by_key(|it| rank(it)).copied() else {
        return Choice::None;
    };
    let rivals = candidates.iter().any(|other| {
        let (mine, its) = (of(&best), of(other));
        let (same_fork, equal) = (other.fork == best.fork, rank(other) == rank(&best));
        // Blocks that each tell it what a sibling was told are mixed into one request, and it is nobody's.
        let mixed = same_fork && its.block != mine.block && its.is_whole() == mine.is_whole();
        (equal || mixed) && covers(its) && !(same_fork && other.call == best.call)
    });
    if rivals { Choice::Several } else { Choice::One(best) }
}
