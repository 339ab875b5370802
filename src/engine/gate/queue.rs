//! The state machine: who waits, and who goes next.

use std::collections::BTreeMap;

use super::holds::{Holds, Lesson, SavedHolds};
use super::{GateArrival, GateSettings, GateVerdict, GateWait, GateWrite, LetGo};
use crate::engine::cache::entry::EntryKey;
use crate::engine::cache::ledger::{CacheLedger, EntryWrite, Prediction};
use crate::engine::words::{GateOutcome, Moment, Ticket};

/// The API takes four breakpoints, so no request writes more entries.
const WRITES_MAX: usize = 4;

/// Decides which requests go, by the ledger of what is billed: it is given the same one in every call. It wakes no
/// request: those that must look again are returned.
#[derive(Clone, Debug)]
pub struct Gate {
    settings: GateSettings,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Those that were let go, and whose answers have not begun.
    gone: BTreeMap<Ticket, LetGo>,
    pub(super) holds: Holds,
}

/// A request that waits.
#[derive(Clone, Debug)]
struct Waiting {
    request: Request,
    wait: GateWait,
}

#[derive(Clone, Debug)]
struct Request {
    ticket: Ticket,
    /// The entries it would write.
    writes: Vec<EntryWrite>,
    streams: bool,
    deadline: Moment,
    model: String,
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

/// The reason why a request need not wait.
#[derive(Clone, Copy, Debug)]
enum GoReason {
    NoLeader,
    LeaderBegan(Ticket),
    LeaderGone(Ticket),
}

impl Gate {
    pub fn new(settings: GateSettings) -> Gate {
        let holds = Holds::new(&settings);
        Gate { settings, waiting: BTreeMap::new(), gone: BTreeMap::new(), holds }
    }

    /// How long to wait for what a request writes whose answer comes as a whole; none if nobody waits for it.
    pub fn hold_ms(&self, model: &str) -> Option<u64> {
        self.holds.hold_ms(model)
    }

    /// The holds that were learned, to be kept beyond this process.
    pub fn save_holds(&self) -> SavedHolds {
        self.holds.save()
    }

    /// Takes over the holds of models that have taught none here.
    pub fn restore_holds(&mut self, saved: SavedHolds) {
        self.holds.restore(saved);
    }

    pub fn settings(&self) -> &GateSettings {
        &self.settings
    }

    /// Changes the settings for requests that come from now on; what was learned stays.
    pub fn configure(&mut self, settings: GateSettings) {
        self.holds.configure(&settings);
        self.settings = settings;
    }

    /// Returns what a request may do now: one that comes, that waits, or that was let go, which hears the same again.
    /// This changes nothing; [`arrive`](Self::arrive) does what follows from it.
    pub fn verdict(&self, arrival: &GateArrival, ledger: &CacheLedger, now: Moment) -> GateVerdict {
        if let Some(let_go) = self.gone.get(&arrival.ticket) {
            return GateVerdict::Go(let_go.clone());
        }
        if let Some(Waiting { request, wait }) = self.waiting.get(&arrival.ticket) {
            return self.judge(request, GoReason::LeaderBegan(wait.leader), ledger, now);
        }
        let Some(request) = self.request(arrival, now) else {
            return GateVerdict::Go(GateOutcome::Unneeded.into());
        };
        if self.requests() >= self.settings.limits.requests {
            return GateVerdict::Go(GateOutcome::Full.into());
        }
        match self.judge(&request, GoReason::NoLeader, ledger, now) {
            GateVerdict::Wait(GateWait { leader, .. }) if !self.has_room_for(&request) => {
                GateVerdict::Go(LetGo { outcome: GateOutcome::Full, leader: Some(leader), lesson: None })
            }
            verdict => verdict,
        }
    }

    /// A request has come, or looks again, and does what its verdict says. One that is let go must be reported as
    /// [`begun`](Self::begun) or [`gone`](Self::gone); one that waits must arrive again, or be reported as gone.
    pub fn arrive(&mut self, arrival: GateArrival, ledger: &mut CacheLedger, now: Moment) -> GateVerdict {
        let verdict = self.verdict(&arrival, ledger, now);
        let is_full = self.requests() >= self.settings.limits.requests;
        let request = match self.waiting.remove(&arrival.ticket) {
            Some(Waiting { request, .. }) => Some(request),
            None if is_full || self.gone.contains_key(&arrival.ticket) => None,
            None => self.request(&arrival, now),
        };
        let Some(request) = request else { return verdict };
        match &verdict {
            GateVerdict::Go(let_go) => self.let_go(request, let_go.clone(), ledger, now),
            GateVerdict::Wait(wait) => {
                self.waiting.insert(arrival.ticket, Waiting { request, wait: *wait });
            }
        }
        verdict
    }

    /// A request as it is judged; none if it writes nothing that is worth waiting for.
    fn request(&self, arrival: &GateArrival, now: Moment) -> Option<Request> {
        let writes = self.large(&arrival.writes);
        if writes.is_empty() {
            return None;
        }
        let deadline = arrival.deadline.min(now.after(self.settings.max_hold_ms));
        let GateArrival { ticket, streams, ref model, .. } = *arrival;
        Some(Request { ticket, writes, streams, deadline, model: model.clone() })
    }

    /// Returns true if a request waits here, or was let go and has not begun.
    pub fn knows(&self, ticket: Ticket) -> bool {
        self.waiting.contains_key(&ticket) || self.gone.contains_key(&ticket)
    }

    /// Until when a request waits; none if it does not.
    pub fn waits_until(&self, ticket: Ticket) -> Option<Moment> {
        self.waiting.get(&ticket).map(|waiting| waiting.wait.until)
    }

    /// A request is sent, whether it asked here or not, and writes what is predicted now: that may be less than it
    /// was let go to write. Returns who must look again.
    pub fn sent(
        &mut self,
        ticket: Ticket,
        prediction: &Prediction,
        streams: bool,
        ledger: &mut CacheLedger,
        now: Moment,
    ) -> Vec<Ticket> {
        let mut claimed = keys(ledger.writes(ticket));
        ledger.begin(ticket, prediction, streams, now);
        claimed.retain(|key| ledger.writes(ticket).iter().all(|write| write.key != *key));
        let followers = self.followers(&claimed);
        self.settle(followers, GoReason::LeaderGone(ticket), ledger, now)
    }

    /// Its answer began (one that is not streamed: came), and the ledger knows that what it wrote is
    /// [readable](CacheLedger::readable). Returns who must look again.
    pub fn begun(&mut self, ticket: Ticket, ledger: &mut CacheLedger, now: Moment) -> Vec<Ticket> {
        self.withdraw(ticket);
        let written = keys(ledger.writes(ticket));
        self.written(ticket, &written, ledger, now)
    }

    /// These entries, which a request set out to write, can be read, and the ledger knows it. Returns who must look
    /// again.
    pub fn written(
        &mut self,
        ticket: Ticket,
        written: &[EntryKey],
        ledger: &mut CacheLedger,
        now: Moment,
    ) -> Vec<Ticket> {
        let followers = self.followers(written);
        for follower in &followers {
            if let Some(Waiting { request, .. }) = self.waiting.get_mut(follower) {
                request.writes.retain(|write| !written.contains(&write.key));
            }
        }
        self.settle(followers, GoReason::LeaderBegan(ticket), ledger, now)
    }

    /// It failed, was refused, or its client left: before its answer began, or while it waited. The ledger gives it
    /// up. Returns who must look again.
    pub fn gone(&mut self, ticket: Ticket, ledger: &mut CacheLedger, now: Moment) -> Vec<Ticket> {
        self.withdraw(ticket);
        let written = ledger.abandon(ticket);
        let followers = self.followers(&written);
        self.settle(followers, GoReason::LeaderGone(ticket), ledger, now)
    }

    /// Learns what the usage of a request said about the time it had waited. `next` is the first ticket that has not
    /// been given out yet.
    pub fn learned(&mut self, lesson: Lesson, was_enough: bool, next: Ticket) {
        self.holds.learn(lesson, was_enough, next);
    }

    /// Returns the number of requests that wait, those aside whose time has come and that have not looked yet.
    pub fn waiting(&self, now: Moment) -> usize {
        self.waiting.values().filter(|waiting| waiting.wait.until > now).count()
    }

    /// Until when the first of them waits.
    pub fn next_due(&self) -> Option<Moment> {
        self.waiting.values().map(|waiting| waiting.wait.until).min()
    }

    /// Returns the number of requests that wait, or have gone and not begun.
    pub fn requests(&self) -> usize {
        self.waiting.len() + self.gone.len()
    }

    /// Returns the entries that are worth waiting for, each once.
    fn large(&self, writes: &[GateWrite]) -> Vec<EntryWrite> {
        let mut large: Vec<EntryWrite> = Vec::new();
        for &GateWrite { write, tokens } in writes {
            let is_new = large.iter().all(|other| other.key != write.key);
            if tokens >= self.settings.min_tokens && large.len() < WRITES_MAX && is_new {
                large.push(write);
            }
        }
        large
    }

    fn has_room_for(&self, request: &Request) -> bool {
        let mut keys = request.writes.iter().map(|write| write.key);
        keys.all(|key| self.followers(&[key]).len() < self.settings.limits.followers)
    }

    /// Those that would write any of these entries, whether they wait for it or for another of theirs.
    fn followers(&self, keys: &[EntryKey]) -> Vec<Ticket> {
        if keys.is_empty() {
            return Vec::new();
        }
        let would_write =
            |waiting: &Waiting| waiting.request.writes.iter().any(|write| keys.contains(&write.key));
        let followers = self.waiting.iter().filter(|(_, waiting)| would_write(waiting));
        followers.map(|(ticket, _)| *ticket).collect()
    }

    fn judge(&self, request: &Request, cause: GoReason, ledger: &CacheLedger, now: Moment) -> GateVerdict {
        let obstacles = request.writes.iter().map(|write| self.obstacle(&write.key, request, ledger, now));
        let (outcome, leader, is_guess) = match obstacles.max().unwrap_or(Obstacle::Nothing) {
            Obstacle::Nothing => return GateVerdict::Go(cause.let_go()),
            Obstacle::Presumed(leader) => (GateOutcome::Presumed, leader, true),
            Obstacle::GivenUp(leader) | Obstacle::Whole(_, leader) if request.streams => {
                (GateOutcome::Overtook, leader, false)
            }
            Obstacle::GivenUp(leader) => (GateOutcome::GivenUp, leader, false),
            Obstacle::Whole(_, leader) if request.deadline <= now => (GateOutcome::TimedOut, leader, true),
            Obstacle::Streaming(leader) if request.deadline <= now => (GateOutcome::TimedOut, leader, false),
            Obstacle::Whole(until, leader) => {
                return GateVerdict::Wait(GateWait { until: until.min(request.deadline), leader });
            }
            Obstacle::Streaming(leader) => {
                return GateVerdict::Wait(GateWait { until: request.deadline, leader });
            }
        };
        // A request that goes on a guess shows whether that was good.
        let lesson = is_guess.then(|| Lesson { model: request.model.clone(), leader });
        GateVerdict::Go(LetGo { outcome, leader: Some(leader), lesson })
    }

    fn obstacle(&self, key: &EntryKey, request: &Request, ledger: &CacheLedger, now: Moment) -> Obstacle {
        let Some(leader) = ledger.leader(key) else { return Obstacle::Nothing };
        if leader.streams {
            return Obstacle::Streaming(leader.ticket);
        }
        match self.holds.hold_ms(&request.model).map(|hold_ms| leader.since.after(hold_ms)) {
            None => Obstacle::GivenUp(leader.ticket),
            Some(until) if until <= now => Obstacle::Presumed(leader.ticket),
            Some(until) => Obstacle::Whole(until, leader.ticket),
        }
    }

    fn let_go(&mut self, request: Request, let_go: LetGo, ledger: &mut CacheLedger, now: Moment) {
        // What is presumed warm, it will read.
        let is_presumed = |write: &EntryWrite| {
            matches!(self.obstacle(&write.key, &request, ledger, now), Obstacle::Presumed(_))
        };
        let (presumed, writes): (Vec<_>, Vec<_>) =
            request.writes.iter().copied().partition(|write| is_presumed(write));
        ledger.claim(request.ticket, writes, keys(&presumed), request.streams, now);
        self.gone.insert(request.ticket, let_go);
    }

    fn withdraw(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
        self.gone.remove(&ticket);
    }

    /// Judges all whom a change may concern again. Returns who must look again.
    fn settle(
        &mut self,
        concerned: Vec<Ticket>,
        cause: GoReason,
        ledger: &mut CacheLedger,
        now: Moment,
    ) -> Vec<Ticket> {
        let streams = |ticket: &Ticket| self.waiting.get(ticket).is_some_and(|one| one.request.streams);
        let (streaming, others): (Vec<_>, Vec<_>) = concerned.into_iter().partition(streams);
        let in_order = streaming.into_iter().chain(others);
        in_order.filter(|ticket| self.reconsider(*ticket, cause, ledger, now)).collect()
    }

    /// Judges one that waits again. Returns true if it must look.
    fn reconsider(&mut self, ticket: Ticket, cause: GoReason, ledger: &mut CacheLedger, now: Moment) -> bool {
        let Some(mut waiting) = self.waiting.remove(&ticket) else { return false };
        match self.judge(&waiting.request, cause, ledger, now) {
            GateVerdict::Go(let_go) => {
                self.let_go(waiting.request, let_go, ledger, now);
                true
            }
            GateVerdict::Wait(wait) => {
                let before = std::mem::replace(&mut waiting.wait, wait);
                self.waiting.insert(ticket, waiting);
                wait.until != before.until
            }
        }
    }
}

fn keys(writes: &[EntryWrite]) -> Vec<EntryKey> {
    writes.iter().map(|write| write.key).collect()
}

impl GoReason {
    fn let_go(self) -> LetGo {
        let (outcome, leader) = match self {
            GoReason::NoLeader => (GateOutcome::Led, None),
            GoReason::LeaderBegan(leader) => (GateOutcome::Released, Some(leader)),
            GoReason::LeaderGone(leader) => (GateOutcome::Succeeded, Some(leader)),
        };
        LetGo { outcome, leader, lesson: None }
    }
}

impl From<GateOutcome> for LetGo {
    /// No request was waited for.
    fn from(outcome: GateOutcome) -> LetGo {
        LetGo { outcome, leader: None, lesson: None }
    }
}
