//! Random schedules, and the laws that hold in each.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Entries and whether there is much to write, whether it streams, and how long it may wait.
    Arrive(Vec<(u8, bool)>, bool, u64),
    /// Of those that have gone, this one begins.
    Begin(usize),
    /// Of those that have gone, this one fails.
    Fail(usize),
    /// Of those that wait, this one's client leaves.
    Leave(usize),
    Time(u64),
    /// Of all lessons so far, this one was (not) enough.
    Learn(usize, bool),
}

fn any_step() -> impl Strategy<Value = Step> {
    let writes = vec((0..4_u8, prop::bool::weighted(0.9)), 0..4);
    prop_oneof![
        6 => (writes, any::<bool>(), 0..6_000_u64).prop_map(|(w, s, ms)| Step::Arrive(w, s, ms)),
        2 => any::<usize>().prop_map(Step::Begin),
        2 => any::<usize>().prop_map(Step::Fail),
        1 => any::<usize>().prop_map(Step::Leave),
        2 => (0..3_000_u64).prop_map(Step::Time),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(i, enough)| Step::Learn(i, enough)),
    ]
}

#[derive(Clone, Debug)]
struct Person {
    ticket: Ticket,
    streams: bool,
    deadline: Moment,
    /// What it would write or writes, as far as nobody has warmed it.
    cold: Vec<u8>,
    /// What it set out to write when it went, and warms when it begins.
    writes: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting(Moment),
    /// In which step it went, and when.
    Gone(usize, Moment),
    Done,
}

/// What the gate is told, and what it should make of it by its rules alone.
struct World {
    gate: TestGate,
    now: Moment,
    step: usize,
    people: Vec<Person>,
    lessons: Vec<Lesson>,
}

const LIMITS: GateLimits = GateLimits { requests: 10, followers: 4, models: 1 };

impl World {
    fn new() -> World {
        let gate = TestGate::new(GateSettings { limits: LIMITS, ..GateSettings::default() });
        World { gate, now: Moment(0), step: 0, people: Vec::new(), lessons: Vec::new() }
    }

    fn take(&mut self, step: Step) {
        self.step += 1;
        match step {
            Step::Arrive(writes, streams, patience_ms) => self.arrive(writes, streams, patience_ms),
            Step::Begin(i) => self.pick(i, false).map_or((), |i| self.begin(i)),
            Step::Fail(i) => self.pick(i, false).map_or((), |i| self.leave(i)),
            Step::Leave(i) => self.pick(i, true).map_or((), |i| self.leave(i)),
            Step::Time(ms) => self.pass_time(self.now.after(ms)),
            Step::Learn(i, enough) => {
                if !self.lessons.is_empty() {
                    let lesson = self.lessons[i % self.lessons.len()].clone();
                    self.gate.learned(lesson, enough);
                }
            }
        }
        self.check();
    }

    /// One of those that wait, or of those that have gone and not begun.
    fn pick(&self, i: usize, waiting: bool) -> Option<usize> {
        let fits = |person: &Person| match person.state {
            State::Waiting(_) => waiting,
            State::Gone(..) => !waiting,
            State::Done => false,
        };
        let all: Vec<_> = (0..self.people.len()).filter(|i| fits(&self.people[*i])).collect();
        (!all.is_empty()).then(|| all[i % all.len()])
    }

    fn arrive(&mut self, writes: Vec<(u8, bool)>, streams: bool, patience_ms: u64) {
        let tokens = |large| if large { 2_000 } else { 1_000 };
        let mut cold: Vec<_> = writes.iter().filter(|(_, large)| *large).map(|(key, _)| *key).collect();
        cold.sort_unstable();
        cold.dedup();
        let known = self.people.iter().filter(|person| person.state != State::Done).count();
        let followers = cold.iter().map(|key| self.waiting_with(*key)).max().unwrap_or(0);
        let is_full = known >= LIMITS.requests || followers >= LIMITS.followers;
        let deadline = self.now.after(patience_ms);
        let write = |(entry, large)| GateWrite { write: numbered(u64::from(entry)), tokens: tokens(large) };
        let writes = writes.into_iter().map(write).collect();
        let arrival = GateArrival { writes, deadline, ..arrival(&[], streams, 0) };
        let (ticket, verdict) = self.gate.arrive(arrival, self.now);
        let deadline = deadline.min(self.now.after(HOLD_MS));
        self.people.push(Person { ticket, streams, deadline, cold, writes: Vec::new(), state: State::Done });
        let new = self.people.len() - 1;
        match &verdict {
            GateVerdict::Go(let_go) if let_go.outcome == GateOutcome::Full => assert!(is_full),
            GateVerdict::Go(let_go) if let_go.outcome == GateOutcome::Unneeded => {
                assert!(self.people[new].cold.is_empty());
                return;
            }
            GateVerdict::Wait(_) => assert!(!is_full),
            GateVerdict::Go(_) => {}
        }
        if known < LIMITS.requests {
            self.hear(new, verdict);
        }
    }

    fn waiting_with(&self, key: u8) -> usize {
        let waits =
            |person: &&Person| matches!(person.state, State::Waiting(_)) && person.cold.contains(&key);
        self.people.iter().filter(waits).count()
    }

    fn begin(&mut self, i: usize) {
        let begun = std::mem::replace(&mut self.people[i].state, State::Done);
        assert!(matches!(begun, State::Gone(..)));
        for key in std::mem::take(&mut self.people[i].writes) {
            self.people.iter_mut().for_each(|person| person.cold.retain(|other| *other != key));
        }
        let woken = self.gate.begun(self.people[i].ticket, self.now);
        self.wake(
            woken,
            &[GateOutcome::Released, GateOutcome::Overtook, GateOutcome::Presumed, GateOutcome::GivenUp],
        );
    }

    fn leave(&mut self, i: usize) {
        let was_waiting = matches!(self.people[i].state, State::Waiting(_));
        self.people[i].state = State::Done;
        let woken = self.gate.gone(self.people[i].ticket, self.now);
        assert!(!was_waiting || woken.is_empty(), "a follower that leaves is nobody's business");
        self.wake(
            woken,
            &[GateOutcome::Succeeded, GateOutcome::Overtook, GateOutcome::Presumed, GateOutcome::GivenUp],
        );
    }

    fn wake(&mut self, woken: Vec<Ticket>, outcomes: &[GateOutcome]) {
        for ticket in woken {
            let i = self.people.iter().position(|person| person.ticket == ticket).unwrap();
            assert!(matches!(self.people[i].state, State::Waiting(_)), "woken though it does not wait");
            let verdict = self.gate.look(ticket, self.now);
            assert_eq!(verdict, self.gate.look(ticket, self.now), "looking twice changes nothing");
            assert!(verdict.outcome().is_none_or(|outcome| outcomes.contains(&outcome)), "{verdict:?}");
            self.hear(i, verdict);
        }
    }

    /// As timers would: everybody looks when its time has come, the earliest first.
    fn pass_time(&mut self, target: Moment) {
        loop {
            let due = |person: &Person| match person.state {
                State::Waiting(until) if until <= target => Some(until),
                _ => None,
            };
            let next = (0..self.people.len()).filter_map(|i| Some((due(&self.people[i])?, i))).min();
            let Some((until, i)) = next else { break };
            self.now = self.now.max(until);
            let verdict = self.gate.look(self.people[i].ticket, self.now);
            self.hear(i, verdict);
        }
        self.now = target;
    }

    /// A verdict must be one that the rules allow.
    fn hear(&mut self, i: usize, verdict: GateVerdict) {
        let person = self.people[i].clone();
        let let_go = match verdict {
            GateVerdict::Wait(GateWait { until, .. }) => {
                assert!(self.now < until, "it looks for ever");
                self.people[i].state = State::Waiting(until);
                return;
            }
            GateVerdict::Go(let_go) => let_go,
        };
        let leaders: Vec<_> = person.cold.iter().filter_map(|key| self.leader(*key)).collect();
        match let_go.outcome {
            GateOutcome::Led | GateOutcome::Released | GateOutcome::Succeeded => {
                assert!(leaders.is_empty(), "a second writer");
            }
            GateOutcome::Overtook => {
                assert!(person.streams && leaders.iter().all(|leader| !leader.streams));
                assert!(leaders.iter().any(|leader| !self.has_had_its_time(leader)));
            }
            GateOutcome::Presumed => assert!(leaders.iter().all(|leader| self.has_had_its_time(leader))),
            GateOutcome::TimedOut => assert!(person.deadline <= self.now && !leaders.is_empty()),
            GateOutcome::GivenUp => {
                assert!(!person.streams && leaders.iter().all(|leader| !leader.streams));
                assert_eq!(self.gate.gate.holds.hold_ms(MODEL), None);
            }
            GateOutcome::Full => assert!(!leaders.is_empty()),
            GateOutcome::Unneeded | GateOutcome::ClientLeft | GateOutcome::TooSlow => panic!("{let_go:?}"),
        }
        if let Some(lesson) = let_go.lesson {
            assert!(leaders.iter().any(|leader| leader.ticket == lesson.leader && !leader.streams));
            self.lessons.push(lesson);
        }
        let presumed: Vec<_> = person.cold.iter().copied().filter(|key| self.is_presumed(*key)).collect();
        self.people[i].cold.retain(|key| !presumed.contains(key));
        self.people[i].writes = self.people[i].cold.clone();
        self.people[i].state = State::Gone(self.step, self.now);
    }

    fn is_writing(&self, ticket: Ticket) -> bool {
        let is_it = |person: &Person| person.ticket == ticket && matches!(person.state, State::Gone(..));
        self.people.iter().any(is_it)
    }

    /// The one to wait for.
    fn leader(&self, key: u8) -> Option<&Person> {
        let writers = self.people.iter().filter_map(|person| match person.state {
            State::Gone(_, since) if person.cold.contains(&key) => Some((!person.streams, since, person)),
            _ => None,
        });
        writers
            .min_by_key(|(whole, since, person)| (*whole, *since, person.ticket))
            .map(|(_, _, person)| person)
    }

    fn has_had_its_time(&self, leader: &Person) -> bool {
        let State::Gone(_, since) = leader.state else { return false };
        let hold_ms = self.gate.gate.holds.hold_ms(MODEL);
        !leader.streams && hold_ms.is_some_and(|hold_ms| since.after(hold_ms) <= self.now)
    }

    fn is_presumed(&self, key: u8) -> bool {
        self.leader(key).is_some_and(|leader| self.has_had_its_time(leader))
    }

    fn check(&self) {
        let order = |person: &Person| (!person.streams, person.ticket);
        for person in &self.people {
            let State::Waiting(until) = person.state else { continue };
            assert!(self.now < until && until <= person.deadline, "past its deadline");
            // Nobody is forgotten: whoever was not woken has nothing to hear, or nothing but patience.
            let news = self.gate.clone().look(person.ticket, self.now);
            if let GateVerdict::Wait(wait) = &news {
                assert!(self.is_writing(wait.leader), "nobody waits for one that does not write");
            }
            if self.gate.gate.holds.hold_ms(MODEL).is_some() {
                assert!(news.until().is_some_and(|news| until.0 <= news), "{person:?} was not told {news:?}");
            }
            let mut leaders = person.cold.iter().filter_map(|key| self.leader(*key));
            assert!(!person.streams || leaders.any(|leader| leader.streams), "{person:?} should overtake");
            // Whoever leads since this step was before it in order.
            let writers = self.people.iter().filter(|writer| match writer.state {
                State::Gone(step, _) => step < self.step || order(writer) < order(person),
                _ => false,
            });
            let mut keys = writers.flat_map(|writer| &writer.cold);
            assert!(keys.any(|key| person.cold.contains(key)), "{person:?} waits for nobody");
        }
        let known = self.people.iter().filter(|person| person.state != State::Done).count();
        assert_eq!(self.gate.requests(), known);
    }

    /// Everybody who still waits is let go by and by.
    fn end(mut self) {
        while let Some(i) = self.pick(0, false) {
            self.step += 1;
            self.begin(i);
            self.check();
        }
        assert!(self.people.iter().all(|person| person.state == State::Done), "somebody still waits");
        assert_eq!((self.gate.requests(), self.gate.entries().0), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_keeps_the_laws(steps in vec(any_step(), 0..80)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.end();
    }
}
