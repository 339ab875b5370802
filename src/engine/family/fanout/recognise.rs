//! Recognises how a request relates to the fork points of its tenant.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::forks::{Claim, Forks, Slot};
use super::leaves::{DirectiveOwner, Match, Search};
use super::point::{ForkId, ForkPoint};
use super::rules::{Rules, Who};
use super::shape;
use super::sought::{Part, SearchedTexts, Sought, UnreadPart};
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{BodyDigest, Moment, Rank, Spawning, WhyPlain};

/// The conversations that an older one is compared with, of those that gave out the same directive. Two are enough for
/// nobody to know which of them is meant.
const COMPARED_MAX: usize = 8;

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
    /// A child on its first turn, and the digest of that to claim its call by.
    Child(Child, BodyDigest),
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

    /// The calls of its fan-out that start a child by the same tool, its own included.
    pub fn siblings(&self) -> u64 {
        let calls = &self.fork.calls;
        let Some(own) = self.call.and_then(|call| calls.get(call)) else { return 1 };
        let same = calls.iter().filter(|call| call.name == own.name && !call.directives.is_empty());
        same.count().max(1) as u64
    }

    /// The last piece of this fork that its siblings have too, where its client has made the fork: the end of the
    /// parent's history at least. For [`Situation::shared`](crate::engine::cache::breakpoints::Situation).
    pub fn last_shared(&self, request: &Remembered) -> Option<usize> {
        shape::last_shared(request, &self.fork, self.call)
    }
}

/// The reason why a request is not recognised.
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
    pub(super) fn recognise(&self, sought: &Sought<'_>, now: Moment) -> Result<Recognised, UnreadPart> {
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
    fn named(&self, sought: &Sought<'_>, explicit: Explicit<'_>, now: Moment) -> Result<Recognised, Stop> {
        let fork = Arc::clone(self.by_message(explicit.message_id).ok_or(WhyPlain::UnknownParent)?);
        if !sought.is_first_turn {
            return Err(WhyPlain::LaterTurn.into());
        }
        let SearchedTexts { body, search } = self.searched(sought)?;
        let call = match explicit.tool_use {
            Some(id) => Some(fork.call(id).ok_or(WhyPlain::UnknownCall)?),
            None => {
                let own = self.candidates(search, |slot, _| slot.point.id == fork.id);
                match choose(own, &sought.newcomer, *body, search, &self.rules) {
                    BestCall::One(candidate) => Some(candidate.call),
                    BestCall::Several | BestCall::None => None,
                }
            }
        };
        let slot = self.slots.get(&fork.id).ok_or(WhyPlain::UnknownParent)?;
        if let Some(why) = self.veto(slot, call, &sought.newcomer, *body, now) {
            return Err(why.into());
        }
        let child = Child { fork, call, rank: Rank::Explicit };
        self.unclaimed(child, &sought.newcomer.who, *body)
    }

    /// A new conversation: a child if it opens with a directive.
    fn first_turn(&self, sought: &Sought<'_>, now: Moment) -> Result<Recognised, Stop> {
        let newcomer = &sought.newcomer;
        let SearchedTexts { body, search } = self.searched(sought)?;
        if search.matches.is_empty() {
            return Err(WhyPlain::NoDirective.into());
        }
        let mut vetoed = None;
        let candidates = self.candidates(search, |slot, call| {
            let why = self.veto(slot, Some(call), newcomer, *body, now);
            vetoed = why.or(vetoed);
            why.is_none()
        });
        let candidate = match choose(candidates, newcomer, *body, search, &self.rules) {
            BestCall::One(candidate) => candidate,
            BestCall::Several => return Ok(Recognised::Ambiguous),
            BestCall::None => return Err(vetoed.unwrap_or(WhyPlain::Coverage).into()),
        };
        let fork = Arc::clone(self.get(candidate.fork).ok_or(WhyPlain::NoForkPoint)?);
        let call = Some(candidate.call);
        let rank = if search.matches[candidate.found].is_whole() { Rank::Whole } else { Rank::Contained };
        match sought.continues(&fork) {
            None => return Err(Stop::Unread(Part::History(vec![fork]))),
            Some(true) => return Ok(Recognised::ClientFork(Child { fork, call, rank })),
            Some(false) => {}
        }
        self.unclaimed(Child { fork, call, rank }, &newcomer.who, *body)
    }

    /// A conversation that goes on: a parent with its results, or a client's own fork of one.
    fn later_turn(&self, sought: &Sought<'_>) -> Result<Recognised, Stop> {
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
        Ok(Recognised::Parent(parent))
    }

    /// The call whose directive a later turn carries: of this parent or, without one, of a history that it continues.
    fn directed(
        &self,
        sought: &Sought<'_>,
        parent: Option<&Arc<ForkPoint>>,
    ) -> Result<Option<(Arc<ForkPoint>, usize)>, Stop> {
        let SearchedTexts { body, search } = self.searched(sought)?;
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
        match choose(candidates, &sought.newcomer, *body, search, &self.rules) {
            BestCall::One(candidate) => Ok(self.get(candidate.fork).cloned().zip(Some(candidate.call))),
            BestCall::Several | BestCall::None => Ok(None),
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
    fn candidates(
        &self,
        search: &Search,
        mut allowed: impl FnMut(&Slot, usize) -> bool,
    ) -> Vec<Candidate<'_>> {
        let mut candidates = Vec::new();
        for (found, matched) in search.matches.iter().enumerate() {
            for DirectiveOwner { fork, parent_number, call } in matched.directive.owners.iter().copied() {
                // Another turn may have taken its place since the search.
                let slot = self.slots.get(&fork).filter(|slot| slot.point.parent_number == parent_number);
                if let Some(slot) = slot.filter(|slot| allowed(slot, call)) {
                    candidates.push(Candidate { fork, call, found, slot });
                }
            }
        }
        candidates
    }

    fn unclaimed(&self, child: Child, who: &Who, body: BodyDigest) -> Result<Recognised, Stop> {
        if self.is_claimed(&child, who, body) {
            return Err(WhyPlain::Claimed.into());
        }
        Ok(Recognised::Child(child, body))
    }

    /// Returns true if another request has started from the call of a child. Without hints each call starts one
    /// conversation.
    pub(super) fn is_claimed(&self, child: &Child, who: &Who, body: BodyDigest) -> bool {
        let claim = child.call.and_then(|call| self.slots.get(&child.fork.id)?.claims.get(&call));
        !who.hinted() && claim.is_some_and(|claim| claim.body != body)
    }

    /// Notes who has started from a call.
    pub(super) fn claim(&mut self, child: &Child, who: &Who, body: BodyDigest) {
        let (Some(call), fork) = (child.call, child.fork.id) else { return };
        let Some(slot) = self.slots.get_mut(&fork) else { return };
        slot.claims.entry(call).or_insert(Claim { body, agent: who.agent, is_accepted: false });
        self.note_child(fork, call);
    }

    /// Returns why this request cannot be a child of this call, whatever it says.
    fn veto(
        &self,
        slot: &Slot,
        call: Option<usize>,
        newcomer: &Newcomer<'_>,
        body: BodyDigest,
        now: Moment,
    ) -> Option<WhyPlain> {
        let who = &newcomer.who;
        let parent = &slot.point.parent.who;
        let claim = call.and_then(|call| slot.claims.get(&call));
        let retried = claim.is_some_and(|claim| claim.body == body && claim.agent == who.agent);
        let late =
            slot.point.is_sealed() && now.since(slot.since) > self.rules.match_window_s.saturating_mul(1_000);
        if !who.agrees(parent) {
            return Some(WhyPlain::Hints);
        }
        if !who.hinted() && late && !retried {
            return Some(WhyPlain::Window);
        }
        if newcomer.explicit.is_some() || who.agent.is_some() || retried {
            return None;
        }
        if self.names_agents(who) {
            return Some(WhyPlain::NoAgent);
        }
        if !shape::has_tools(newcomer.request) {
            return Some(WhyPlain::NoTools);
        }
        // Tools that start agents may answer at once and go on in the background; others are done.
        let call =
            call.filter(|call| slot.returned.contains(call)).and_then(|call| slot.point.calls.get(call));
        call.filter(|call| call.spawning == Spawning::Unknown).map(|_| WhyPlain::Returned)
    }
}

/// A call whose directive was found.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    fork: ForkId,
    call: usize,
    /// Which match it is.
    found: usize,
    slot: &'a Slot,
}

/// The likelihood that a call has started a request, if its directive is all that is known; the likelier comes later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CallStanding {
    /// Another request has started from it.
    Claimed,
    /// No child has started from it, and its result is back: some tools answer before their agents start.
    Returned,
    /// This very request has started from it, and the upstream took it.
    Repeated,
    /// No child has started from it.
    Open,
    /// This agent has started from it, or this very request, which the upstream has not taken yet.
    Own,
}

impl Candidate<'_> {
    fn standing(&self, newcomer: &Newcomer<'_>, body: BodyDigest) -> CallStanding {
        let Some(claim) = self.slot.claims.get(&self.call) else {
            let is_back = self.slot.returned.contains(&self.call);
            return if is_back { CallStanding::Returned } else { CallStanding::Open };
        };
        match (claim.agent, newcomer.who.agent) {
            (None, None) if claim.body != body => CallStanding::Claimed,
            (None, None) if claim.is_accepted => CallStanding::Repeated,
            (one, two) if one == two => CallStanding::Own,
            _ => CallStanding::Claimed,
        }
    }

    /// Returns true if another fan-out is a later one of the same conversation, or of the same session or user.
    fn is_followed_by(&self, other: &Candidate<'_>) -> bool {
        let (mine, its) = (&self.slot.point.parent, &other.slot.point.parent);
        let goes_on = || {
            let [_, shared] = its.request.chain().shared(mine.request.chain());
            shared == mine.request.anatomy().pieces.len()
        };
        other.slot.age > self.slot.age && (mine.who.hinted() || goes_on())
    }
}

enum BestCall<'a> {
    None,
    One(Candidate<'a>),
    Several,
}

/// The one call that fits best: a whole block before a part of one, the longer before the shorter.
fn choose<'a>(
    mut candidates: Vec<Candidate<'a>>,
    newcomer: &Newcomer<'_>,
    body: BodyDigest,
    search: &Search,
    rules: &Rules,
) -> BestCall<'a> {
    let of = |candidate: &Candidate<'_>| &search.matches[candidate.found];
    // Of a parent that was retried, the newest turn counts.
    let mut newest: HashMap<PrefixHash, u64> = HashMap::new();
    for candidate in &candidates {
        let age = newest.entry(candidate.slot.point.prefix).or_default();
        *age = candidate.slot.age.max(*age);
    }
    candidates.retain(|it| newest.get(&it.slot.point.prefix) == Some(&it.slot.age));
    // What is only a part of a longer directive was not said for itself.
    let mut found: Vec<_> = candidates.iter().map(|candidate| candidate.found).collect();
    found.dedup();
    let inside = |m: &Match| found.iter().any(|other| m.is_inside(&search.matches[*other]));
    candidates.retain(|candidate| !inside(of(candidate)));
    let candidates = without_rivals(&candidates, newcomer, body);

    let rank = |candidate: &Candidate<'_>| (of(candidate).is_whole(), of(candidate).len());
    let covers = |m: &Match| m.len() as f64 >= rules.min_coverage * m.block_len as f64;
    let Some(best) = candidates.iter().filter(|it| covers(of(it))).max_by_key(|it| rank(it)).copied() else {
        return BestCall::None;
    };
    let rivals = candidates.iter().any(|other| {
        let (mine, its) = (of(&best), of(other));
        let (same_fork, equal) = (other.fork == best.fork, rank(other) == rank(&best));
        // A request that mixes the directives of two calls belongs to neither.
        let mixed = same_fork && its.block != mine.block && its.is_whole() == mine.is_whole();
        (equal || mixed) && covers(its) && !(same_fork && other.call == best.call)
    });
    if rivals { BestCall::Several } else { BestCall::One(best) }
}

/// Leaves out the calls that have their child, where another fan-out gave out the same directive: agents are told the
/// same again and again. Of calls that have none, the newest of a conversation counts.
fn without_rivals<'a>(
    candidates: &[Candidate<'a>],
    newcomer: &Newcomer<'_>,
    body: BodyDigest,
) -> Vec<Candidate<'a>> {
    let of = |candidate: &Candidate<'a>| (candidate.standing(newcomer, body), *candidate);
    let mut ranked: Vec<(CallStanding, Candidate<'a>)> = candidates.iter().map(of).collect();
    // The calls of one match are together, the likelier first, and of those the newer.
    ranked.sort_by_key(|(standing, it)| (it.found, Reverse(*standing), Reverse(it.slot.age)));
    let mut kept = Vec::new();
    for of_match in ranked.chunk_by(|(_, one), (_, other)| one.found == other.found) {
        let (best, likeliest) = of_match[0];
        // Another call of the same fan-out is no rival.
        let elsewhere = of_match.iter().find(|(_, it)| it.fork != likeliest.fork).map(|(best, _)| *best);
        let least = |it: &Candidate<'_>| if it.fork == likeliest.fork { elsewhere } else { Some(best) };
        for alike in of_match.chunk_by(|(one, _), (other, _)| one == other) {
            let alike = alike.iter().filter(|(standing, it)| Some(*standing) >= least(it));
            let alike: Vec<Candidate<'a>> = alike.map(|(_, it)| *it).collect();
            let by_fork: Vec<&[Candidate<'a>]> =
                alike.chunk_by(|one, other| one.fork == other.fork).collect();
            let newest = newest(&by_fork, |older, newer| older[0].is_followed_by(&newer[0]));
            kept.extend(newest.into_iter().flatten());
        }
    }
    kept
}

/// Leaves out what is followed by another, given the newest first. If many are followed by none of the others, nobody
/// can tell which of them is meant: then the rest is not compared any more.
fn newest<T: Copy>(newest_first: &[T], mut is_followed: impl FnMut(T, T) -> bool) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for one in newest_first {
        if kept.len() >= COMPARED_MAX || !kept.iter().any(|newer| is_followed(*one, *newer)) {
            kept.push(*one);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of comparisons among this many, of so many conversations.
    fn comparisons(count: usize, conversations: usize) -> usize {
        let all: Vec<usize> = (0..count).collect();
        let mut compared = 0;
        let kept = newest(&all, |one, newer| {
            compared += 1;
            one % conversations == newer % conversations
        });
        assert_eq!(kept.len(), if conversations < COMPARED_MAX { conversations } else { count });
        compared
    }

    #[test]
    fn fan_outs_with_the_same_directive_are_compared_with_the_newest_of_few_conversations() {
        assert_eq!(comparisons(10_000, 1), 9_999);
        assert!(comparisons(10_000, 7) <= 10_000 * COMPARED_MAX);
        assert!(comparisons(10_000, 10_000) <= COMPARED_MAX * COMPARED_MAX);
    }
}
