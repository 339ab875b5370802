//! The state machine: who writes, who waits, who goes next.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use super::holds::{Holds, Lesson};
use super::{Arrival, LetGo, Settings, Ticket, Verdict, Wait, Write};
use crate::engine::words::{GateOutcome, Moment};

/// The API takes four breakpoints, so no request writes more entries.
const WRITES_MAX: usize = 4;

/// Less room than this is not worth giving back.
const SPARE_ENTRIES: usize = 64;

/// Decides who goes. It calls nobody: whoever must look again is returned.
#[derive(Clone, Debug)]
pub struct Gatekeeper<K, G> {
    settings: Settings,
    next: Ticket,
    requests: BTreeMap<Ticket, (Request<K, G>, Stage<G>)>,
    entries: HashMap<K, Entry>,
    pub(super) holds: Holds<G>,
}

#[derive(Clone, Debug)]
struct Request<K, G> {
    ticket: Ticket,
    /// The entries it would write, or is writing.
    keys: Vec<K>,
    streams: bool,
    deadline: Moment,
    group: G,
}

#[derive(Clone, Debug)]
enum Stage<G> {
    Waiting(Wait),
    /// It was let go then, and its answer has not begun.
    Writing(Moment, LetGo<G>),
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// The first is the one waited for.
    writers: BTreeSet<Writer>,
    /// Those that would write it, whether they wait for it or for another of their entries.
    waiting: BTreeSet<Ticket>,
}

/// In the order of whom to wait for: those that stream, then whoever went first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Writer {
    answers_whole: bool,
    since: Moment,
    ticket: Ticket,
}

/// The obstacles before an entry, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Obstacle {
    Nothing,
    /// A leader that does not stream has had its time.
    Presumed(Ticket),
    /// A leader that does not stream, and no use in waiting for it.
    GivenUp(Ticket),
    /// A leader that does not stream, to be waited for until then.
    Whole(Moment, Ticket),
    Streaming(Ticket),
}

/// Why nothing stands before a request, if nothing does.
#[derive(Clone, Copy, Debug)]
enum Cause {
    NoLeader,
    LeaderBegan(Ticket),
    LeaderGone(Ticket),
}

impl<K: Clone + Eq + Hash, G: Clone + Eq + Hash> Gatekeeper<K, G> {
    pub fn new(settings: Settings) -> Gatekeeper<K, G> {
        let holds = Holds::new(&settings);
        Gatekeeper { settings, next: Ticket(0), requests: BTreeMap::new(), entries: HashMap::new(), holds }
    }

    /// Other settings for whoever comes from now on; what was learned stays.
    pub fn configure(&mut self, settings: Settings) {
        self.holds.configure(&settings);
        self.settings = settings;
    }

    /// A request has come. One that is let go must be reported as [`begun`](Self::begun) or
    /// [`gone`](Self::gone); one that waits must [`look`](Self::look) again, or be reported as gone.
    pub fn arrive(&mut self, arrival: Arrival<K, G>, now: Moment) -> (Ticket, Verdict<G>) {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        let Arrival { writes, streams, deadline, group } = arrival;
        let keys = self.large(writes);
        if keys.is_empty() {
            return (ticket, Verdict::Go(GateOutcome::Unneeded.into()));
        }
        if self.requests.len() >= self.settings.limits.requests {
            return (ticket, Verdict::Go(GateOutcome::Full.into()));
        }
        let deadline = deadline.min(now.after(self.settings.max_hold_ms));
        let request = Request { ticket, keys, streams, deadline, group };
        let mut verdict = self.judge(&request, Cause::NoLeader, now);
        if let Verdict::Wait(Wait { leader, .. }) = verdict
            && !self.has_room_for(&request)
        {
            verdict = Verdict::Go(LetGo { outcome: GateOutcome::Full, leader: Some(leader), lesson: None });
        }
        match &verdict {
            Verdict::Go(let_go) => self.let_go(request, let_go.clone(), now),
            Verdict::Wait(wait) => self.queue(request, *wait),
        }
        (ticket, verdict)
    }

    /// Returns what a request may do now. One that was let go hears the same again.
    pub fn look(&mut self, ticket: Ticket, now: Moment) -> Verdict<G> {
        if let Some((_, Stage::Waiting(wait))) = self.requests.get(&ticket) {
            let cause = Cause::LeaderBegan(wait.leader);
            self.reconsider(ticket, cause, now);
        }
        match self.requests.get(&ticket) {
            Some((_, Stage::Waiting(wait))) => Verdict::Wait(*wait),
            Some((_, Stage::Writing(_, let_go))) => Verdict::Go(let_go.clone()),
            // Of whom nothing is known, nothing is kept waiting.
            None => Verdict::Go(GateOutcome::Unneeded.into()),
        }
    }

    /// Its answer began (one that is not streamed: came), so what it wrote is warm. Returns who must look
    /// again.
    pub fn begun(&mut self, ticket: Ticket, now: Moment) -> Vec<Ticket> {
        let written = self.withdraw(ticket);
        let mut followers = BTreeSet::new();
        for key in &written {
            followers.extend(self.entries.remove(key).into_iter().flat_map(|entry| entry.waiting));
        }
        for follower in &followers {
            if let Some((request, _)) = self.requests.get_mut(follower) {
                request.keys.retain(|key| !written.contains(key));
            }
        }
        self.settle(followers, Cause::LeaderBegan(ticket), now)
    }

    /// It failed, was refused, or its client left: before its answer began, or while it waited. Returns who
    /// must look again.
    pub fn gone(&mut self, ticket: Ticket, now: Moment) -> Vec<Ticket> {
        let written = self.withdraw(ticket);
        let entries = written.iter().filter_map(|key| self.entries.get(key));
        let followers = entries.flat_map(|entry| entry.waiting.iter().copied()).collect();
        self.settle(followers, Cause::LeaderGone(ticket), now)
    }

    /// Learns what the usage of a request said about the time it had waited.
    pub fn learned(&mut self, lesson: Lesson<G>, was_enough: bool) {
        self.holds.learn(lesson, was_enough, self.next);
    }

    /// How many wait, those aside whose time has come and who have not looked yet.
    pub fn waiting(&self, now: Moment) -> usize {
        self.waits().filter(|wait| wait.until > now).count()
    }

    /// Until when the first of them waits.
    pub fn next_due(&self) -> Option<Moment> {
        self.waits().map(|wait| wait.until).min()
    }

    fn waits(&self) -> impl Iterator<Item = &Wait> {
        self.requests.values().filter_map(|(_, stage)| match stage {
            Stage::Waiting(wait) => Some(wait),
            Stage::Writing(..) => None,
        })
    }

    /// How many wait, or have gone and not begun.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// How many entries somebody writes or waits to write, and how many there is room for.
    pub fn entries(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.capacity())
    }

    /// Returns the entries that are worth waiting for, each once.
    fn large(&self, writes: Vec<Write<K>>) -> Vec<K> {
        let mut keys = Vec::new();
        for write in writes.into_iter().filter(|write| write.tokens >= self.settings.min_tokens) {
            if keys.len() < WRITES_MAX && !keys.contains(&write.entry) {
                keys.push(write.entry);
            }
        }
        keys
    }

    fn has_room_for(&self, request: &Request<K, G>) -> bool {
        let mut entries = request.keys.iter().filter_map(|key| self.entries.get(key));
        entries.all(|entry| entry.waiting.len() < self.settings.limits.followers)
    }

    fn judge(&self, request: &Request<K, G>, cause: Cause, now: Moment) -> Verdict<G> {
        let obstacles = request.keys.iter().map(|key| self.obstacle(key, now));
        let (outcome, leader) = match obstacles.max().unwrap_or(Obstacle::Nothing) {
            Obstacle::Nothing => return Verdict::Go(cause.let_go()),
            Obstacle::Presumed(leader) => (GateOutcome::Presumed, leader),
            Obstacle::GivenUp(leader) | Obstacle::Whole(_, leader) if request.streams => {
                (GateOutcome::Overtook, leader)
            }
            Obstacle::GivenUp(leader) => (GateOutcome::GivenUp, leader),
            Obstacle::Whole(_, leader) | Obstacle::Streaming(leader) if request.deadline <= now => {
                (GateOutcome::TimedOut, leader)
            }
            Obstacle::Whole(until, leader) => {
                return Verdict::Wait(Wait { until: until.min(request.deadline), leader });
            }
            Obstacle::Streaming(leader) => return Verdict::Wait(Wait { until: request.deadline, leader }),
        };
        Verdict::Go(LetGo { outcome, leader: Some(leader), lesson: self.lesson(outcome, leader) })
    }

    fn obstacle(&self, key: &K, now: Moment) -> Obstacle {
        let leader = self.entries.get(key).and_then(|entry| entry.writers.first());
        let Some(&Writer { answers_whole, since, ticket }) = leader else { return Obstacle::Nothing };
        if !answers_whole {
            return Obstacle::Streaming(ticket);
        }
        let hold_ms = self.requests.get(&ticket).and_then(|(leader, _)| self.holds.hold_ms(&leader.group));
        match hold_ms.map(|hold_ms| since.after(hold_ms)) {
            None => Obstacle::GivenUp(ticket),
            Some(until) if until <= now => Obstacle::Presumed(ticket),
            Some(until) => Obstacle::Whole(until, ticket),
        }
    }

    /// Whoever goes on a guess can tell whether it was good.
    fn lesson(&self, outcome: GateOutcome, leader: Ticket) -> Option<Lesson<G>> {
        let guessed = matches!(outcome, GateOutcome::Presumed | GateOutcome::TimedOut);
        let (request, _) = self.requests.get(&leader).filter(|(leader, _)| guessed && !leader.streams)?;
        Some(Lesson { group: request.group.clone(), leader })
    }

    fn queue(&mut self, request: Request<K, G>, wait: Wait) {
        for key in &request.keys {
            self.entries.entry(key.clone()).or_default().waiting.insert(request.ticket);
        }
        self.requests.insert(request.ticket, (request, Stage::Waiting(wait)));
    }

    fn let_go(&mut self, mut request: Request<K, G>, let_go: LetGo<G>, now: Moment) {
        // What is presumed warm, it will read.
        request.keys.retain(|key| !matches!(self.obstacle(key, now), Obstacle::Presumed(_)));
        for key in &request.keys {
            self.entries.entry(key.clone()).or_default().writers.insert(request.writer(now));
        }
        self.requests.insert(request.ticket, (request, Stage::Writing(now, let_go)));
    }

    /// Takes a request out, and returns what it was writing. Of that, what nobody else waits for or writes is
    /// forgotten.
    fn withdraw(&mut self, ticket: Ticket) -> Vec<K> {
        let Some((mut request, stage)) = self.requests.remove(&ticket) else { return Vec::new() };
        let mut keys = std::mem::take(&mut request.keys);
        keys.retain(|key| {
            let Some(entry) = self.entries.get_mut(key) else { return false };
            let was_writing = match stage {
                Stage::Writing(since, _) => entry.writers.remove(&request.writer(since)),
                Stage::Waiting(_) => {
                    entry.waiting.remove(&ticket);
                    false
                }
            };
            if entry.writers.is_empty() && entry.waiting.is_empty() {
                self.entries.remove(key);
            }
            was_writing
        });
        keys
    }

    /// Judges all whom a change may concern again, and gives back the room that nobody needs any more.
    /// Returns who must look again.
    fn settle(&mut self, concerned: BTreeSet<Ticket>, cause: Cause, now: Moment) -> Vec<Ticket> {
        let streams = |ticket: &Ticket| self.requests.get(ticket).is_some_and(|(request, _)| request.streams);
        let (streaming, others): (Vec<_>, Vec<_>) = concerned.into_iter().partition(streams);
        let in_order = streaming.into_iter().chain(others);
        let woken = in_order.filter(|ticket| self.reconsider(*ticket, cause, now)).collect();
        if self.entries.capacity() > SPARE_ENTRIES.max(self.entries.len() * 4) {
            self.entries.shrink_to(self.entries.len() * 2);
        }
        woken
    }

    /// Judges one that waits again; says whether it must look.
    fn reconsider(&mut self, ticket: Ticket, cause: Cause, now: Moment) -> bool {
        let Some((request, Stage::Waiting(before))) = self.requests.get(&ticket) else { return false };
        let before = *before;
        match self.judge(request, cause, now) {
            Verdict::Go(let_go) => {
                let request = request.clone();
                self.withdraw(ticket);
                self.let_go(request, let_go, now);
                true
            }
            Verdict::Wait(wait) => {
                if let Some((_, stage)) = self.requests.get_mut(&ticket) {
                    *stage = Stage::Waiting(wait);
                }
                wait.until != before.until
            }
        }
    }
}

impl<K, G> Request<K, G> {
    fn writer(&self, since: Moment) -> Writer {
        Writer { answers_whole: !self.streams, since, ticket: self.ticket }
    }
}

impl Cause {
    fn let_go<G>(self) -> LetGo<G> {
        let (outcome, leader) = match self {
            Cause::NoLeader => (GateOutcome::Led, None),
            Cause::LeaderBegan(leader) => (GateOutcome::Released, Some(leader)),
            Cause::LeaderGone(leader) => (GateOutcome::Succeeded, Some(leader)),
        };
        LetGo { outcome, leader, lesson: None }
    }
}

impl<G> From<GateOutcome> for LetGo<G> {
    /// Nobody was waited for.
    fn from(outcome: GateOutcome) -> LetGo<G> {
        LetGo { outcome, leader: None, lesson: None }
    }
}
