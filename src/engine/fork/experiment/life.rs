//! One child from its first turn to its last, and what many of them teach.

use super::fan_out::ForkedBills;
use super::{Answered, Measured};
use crate::engine::family::fanout::ForkId;
use crate::engine::fork::economics::ChildHabits;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::words::{Arm, Moment, Ttl};

/// Children that must have ended before their habits count.
const LIVES_MIN: f64 = 4.0;
/// Beyond this many ended children, older ones count half.
const LIVES_MAX: f64 = 64.0;

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Life {
    pub arm: Arm,
    pub fork: ForkId,
    /// The tools that it has in its own words; none in a record of an earlier version.
    #[serde(default)]
    pub tools: Option<PrefixHash>,
    pub is_empty: bool,
    /// All its bills; none if one of them cannot be compared with what it would have been as sent.
    pub bills: Option<ForkedBills>,
    turns: u64,
    output: u64,
    first_prompt: u64,
    last_prompt: u64,
    reread_turns: u64,
    reread_tokens: u64,
    came_at: Moment,
    /// Turns that came later than five minutes after the one before, and later than an hour.
    pauses: [u64; 2],
    /// Turns that came in time, and yet could read nothing of the messages.
    #[serde(default)]
    losses: u64,
}

impl Life {
    pub fn begin(turn: &Answered<'_>) -> Life {
        Life {
            arm: turn.arm,
            fork: turn.fork,
            tools: Some(turn.tools),
            is_empty: false,
            bills: turn.cost.map(|cost| ForkedBills { unit: cost.unit, billed: 0.0, sent: 0.0 }),
            turns: 0,
            output: 0,
            first_prompt: turn.prompt_tokens,
            last_prompt: turn.prompt_tokens,
            reread_turns: 0,
            reread_tokens: 0,
            came_at: turn.came_at,
            pauses: [0; 2],
            losses: 0,
        }
    }

    pub fn add(&mut self, turn: &Answered<'_>) {
        let pause = turn.came_at.since(self.came_at);
        for (ttl, count) in [Ttl::FiveMinutes, Ttl::OneHour].into_iter().zip(&mut self.pauses) {
            *count += u64::from(pause > ttl.ms());
        }
        self.losses += u64::from(turn.loses_messages && pause <= Ttl::FiveMinutes.ms());
        self.came_at = turn.came_at;
        self.turns += 1;
        self.output = self.output.saturating_add(turn.output_tokens);
        self.last_prompt = turn.prompt_tokens;
        self.is_empty |= turn.is_empty;
        self.reread_turns += u64::from(turn.reread_tokens.is_some());
        self.reread_tokens = self.reread_tokens.saturating_add(turn.reread_tokens.unwrap_or(0));
        let known = turn.cost.and_then(|Measured { unit, billed, sent, .. }| Some((unit, billed, sent?)));
        self.bills = self.bills.zip(known).and_then(|(bills, (unit, billed, sent))| {
            let is_usable = bills.unit == unit && billed.is_finite() && sent.is_finite();
            is_usable.then_some(ForkedBills { unit, billed: bills.billed + billed, sent: bills.sent + sent })
        });
    }
}

/// Sums over the children of a tool; the older count less. Reading again is left out: it is counted by itself.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Lives {
    lives: f64,
    turns: f64,
    output: f64,
    /// Tokens that prompts have grown by, and the turns that it took.
    grown: f64,
    later_turns: f64,
    /// Turns after the first, and those of them that came after a pause, or could read nothing of the messages.
    followed: f64,
    pauses: [f64; 2],
    #[serde(default)]
    losses: f64,
}

impl Lives {
    pub fn add(&mut self, life: &Life) {
        if self.lives >= LIVES_MAX {
            let Lives { lives, turns, output, grown, later_turns, followed, pauses: [short, long], losses } =
                self;
            let sums = [lives, turns, output, grown, later_turns, followed, short, long, losses];
            sums.into_iter().for_each(|sum| *sum /= 2.0);
        }
        let turns = life.turns.saturating_sub(life.reread_turns).max(1);
        self.lives += 1.0;
        self.turns += turns as f64;
        self.output += life.output as f64 * turns as f64 / life.turns.max(1) as f64;
        self.followed += life.turns.saturating_sub(1) as f64;
        for (sum, count) in self.pauses.iter_mut().zip(life.pauses) {
            *sum += count as f64;
        }
        self.losses += life.losses as f64;
        // The growth of a child that was compacted, or that only re-read, is unknown.
        if life.last_prompt > life.first_prompt && turns > 1 {
            let grown = life.last_prompt - life.first_prompt;
            self.grown += grown.saturating_sub(life.reread_tokens) as f64;
            self.later_turns += turns.saturating_sub(1) as f64;
        }
    }

    /// Returns true if enough have ended for their habits to count.
    fn are_known(&self) -> bool {
        self.lives >= LIVES_MIN
    }

    /// With those that still live, where they tell anything: one that has had more turns than is expected has had
    /// these at least.
    pub fn and_living<'l>(self, living: impl Iterator<Item = &'l Life>, horizon_turns: usize) -> Lives {
        let expected = self.habits(horizon_turns).turns.unwrap_or(horizon_turns as f64);
        let mut all = self;
        living.filter(|life| life.turns as f64 > expected).for_each(|life| all.add(life));
        all
    }

    /// A few are no habit, unless they live longer than anybody is taken to: to be wrong about that is dear.
    pub fn habits(&self, horizon_turns: usize) -> ChildHabits {
        if !self.are_known() && self.turns <= horizon_turns as f64 * self.lives {
            return ChildHabits::default();
        }
        let mean = |sum: f64, count: f64| if count > 0.0 { (sum / count).round() as u64 } else { 0 };
        let share = |part: f64| if self.followed > 0.0 { part / self.followed } else { 0.0 };
        ChildHabits {
            turns: Some(self.turns / self.lives),
            growth: mean(self.grown, self.later_turns),
            output: mean(self.output, self.turns),
            pauses: self.pauses.map(share),
            losses: share(self.losses),
            ..ChildHabits::default()
        }
    }
}
