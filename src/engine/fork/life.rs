//! A child's life, played turn by turn under each plan.

use super::economics::{ChildHabits, OwnWarmth, PricedCache, weighed};
use super::sizes::PromptSizes;
use crate::engine::answer::usage::Usage;
use crate::engine::words::{CostUnit, Ttl};

/// A child lives at least one turn, and is not planned for more than this.
pub const TURNS_MAX: usize = 256;

/// A child's life, to be played under each plan.
pub struct Life<'a> {
    pub turns: u32,
    pub sizes: &'a PromptSizes,
    pub habits: &'a ChildHabits,
    pub cache: &'a PricedCache<'a>,
    pub unit: CostUnit,
}

/// The mean cost of a child under each plan.
pub struct Costs {
    pub forked: f64,
    pub as_sent: f64,
    pub aligned: f64,
    pub reread: f64,
    /// Forked and as sent, in the fan-out after this one.
    pub forked_next: f64,
    pub as_sent_next: f64,
    /// Aligned from the cache as it is, and in the fan-out after that.
    pub aligned_now: f64,
    pub aligned_next: f64,
}

impl Costs {
    /// The costs of a life that is longer than this one by a part of a turn, given those of a whole turn more.
    pub fn towards(&self, longer: &Costs, part: f64) -> Costs {
        let mix = |of: fn(&Costs) -> f64| (1.0 - part) * of(self) + part * of(longer);
        Costs {
            forked: mix(|costs| costs.forked),
            as_sent: mix(|costs| costs.as_sent),
            aligned: mix(|costs| costs.aligned),
            reread: mix(|costs| costs.reread),
            forked_next: mix(|costs| costs.forked_next),
            as_sent_next: mix(|costs| costs.as_sent_next),
            aligned_now: mix(|costs| costs.aligned_now),
            aligned_next: mix(|costs| costs.aligned_next),
        }
    }
}

/// The tokens of one prompt, and those of them that are read and written.
#[derive(Clone, Copy)]
struct TurnPrompt {
    tokens: u64,
    /// Up to its last breakpoint.
    marked: u64,
    read: u64,
    /// Up to its last breakpoint of an hour.
    hour: u64,
}

/// A request of a child: the number of its turn, and true for the sibling that comes first.
#[derive(Clone, Copy)]
struct LifeTurn {
    number: u32,
    is_first_child: bool,
}

/// Reading again, over this many turns after the first.
#[derive(Clone, Copy, Default)]
struct Rereading {
    turns: u32,
    tokens: u64,
}

/// A prompt as it may find the cache, each with its share; the shares are one in all.
type Mix = [(f64, TurnPrompt); 3];

impl Life<'_> {
    /// None if a rate that is needed is not known.
    pub fn costs(&self) -> Option<Costs> {
        let OwnWarmth { sent, aligned, now } = self.cache.own;
        let forked = |is_warm: bool| self.play(self.turns, |turn| self.forked(turn, is_warm));
        let aligned_from =
            |warm: u64| self.play(self.turns, |turn| self.aligned(turn, warm, Rereading::default()));
        let sent_from = |warm: u64| self.play(self.turns, |turn| self.as_sent(turn, warm));
        let aligned_now = aligned_from(now)?;
        let warm_starts = self.warm_starts();
        let next = |cold: f64, warm: f64| warm_starts * warm + (1.0 - warm_starts) * cold;
        Some(Costs {
            forked: forked(self.cache.warm)?,
            as_sent: sent_from(sent)?,
            aligned: aligned_from(aligned)?,
            reread: (self.rereading(now)? - aligned_now).max(0.0),
            forked_next: forked(true)?,
            as_sent_next: next(sent_from(0)?, sent_from(self.sizes.marks.fixed)?),
            aligned_now,
            aligned_next: next(aligned_from(0)?, aligned_from(self.sizes.sent_fixed)?),
        })
    }

    /// The share of fan-outs that find their tools and system prompt warm, this one included. All until a second one has
    /// come: such fan-outs are cheaper aligned.
    fn warm_starts(&self) -> f64 {
        let Some([warm, all]) = self.habits.starts else { return 1.0 };
        let this = if self.cache.own.is_warm(self.sizes) { 1.0 } else { 0.0 };
        (warm + this) / (all + 1.0)
    }

    /// The cost aligned of a child that reads again first, and lives longer by that.
    fn rereading(&self, warm: u64) -> Option<f64> {
        let ChildHabits { reread_turns, reread_tokens, .. } = *self.habits;
        let turns = reread_turns.round().clamp(0.0, TURNS_MAX as f64) as u32;
        let rereading = Rereading { turns, tokens: reread_tokens.max(0.0) as u64 };
        self.play(self.turns + turns, |turn| self.aligned(turn, warm, rereading))
    }

    /// The cost of all turns, averaged over the siblings: one of them comes first.
    fn play(&self, turns: u32, prompts: impl Fn(LifeTurn) -> Mix) -> Option<f64> {
        let siblings = self.cache.siblings.max(1) as f64;
        let life = |is_first_child: bool| -> Option<f64> {
            let turns = (0..turns).map(|number| LifeTurn { number, is_first_child });
            let possible = turns.flat_map(&prompts).filter(|(share, _)| *share > 0.0);
            possible.map(|(share, prompt)| Some(share * self.cost(prompt)?)).sum()
        };
        Some((life(true)? + (siblings - 1.0) * life(false)?) / siblings)
    }

    fn forked(&self, turn: LifeTurn, is_warm: bool) -> Mix {
        let PromptSizes { entry, shared, instructions, .. } = *self.sizes;
        let whole = self.sizes.forked();
        let tokens = self.grown(whole, turn.number);
        let hour = match (self.cache.ttl, self.cache.entry_ttl) {
            (Ttl::OneHour, _) => tokens,
            // The entry of the parent is asked for on the first turn only.
            (Ttl::FiveMinutes, Ttl::OneHour) if turn.number == 0 => entry,
            (Ttl::FiveMinutes, _) => 0,
        };
        let prompt = |read: u64| TurnPrompt { tokens, marked: tokens, read, hour };
        match turn {
            LifeTurn { number: 0, is_first_child: true } => certain(prompt(self.warm(is_warm))),
            LifeTurn { number: 0, .. } => {
                // A system prompt that siblings are not known to share is not counted on.
                let later = self.by_prompt(0.0, prompt(shared + instructions), prompt(shared));
                let warm = self.warm(is_warm);
                self.unheld(shared + instructions, prompt(warm), later)
            }
            LifeTurn { number, .. } => {
                self.later(self.cache.ttl, self.sizes.fixed, prompt(self.grown(whole, number - 1)))
            }
        }
    }

    fn as_sent(&self, turn: LifeTurn, warm: u64) -> Mix {
        let marks = self.sizes.marks;
        let tokens = self.grown(self.sizes.sent, turn.number);
        let until = |mark: u64, number: u32| {
            if marks.is_rolling && mark == marks.last { self.grown(mark, number) } else { mark }
        };
        let (marked, hour) = (until(marks.last, turn.number), until(marks.hour, turn.number));
        let prompt = |read: u64| TurnPrompt { tokens, marked, read, hour };
        match turn {
            LifeTurn { number: 0, is_first_child: true } => certain(prompt(warm)),
            LifeTurn { number: 0, .. } => {
                let together = self.habits.together.unwrap_or(1.0);
                let [(alike, one), (other, another), _] =
                    self.by_prompt(1.0, prompt(warm.max(marks.fixed)), prompt(warm.max(marks.tools)));
                let later = 1.0 - together;
                [(together, prompt(warm)), (later * alike, one), (later * other, another)]
            }
            LifeTurn { number, .. } => {
                self.later(self.own_ttl(), marks.fixed, prompt(until(marks.last, number - 1)))
            }
        }
    }

    fn aligned(&self, turn: LifeTurn, warm: u64, rereading: Rereading) -> Mix {
        let PromptSizes { sent, sent_fixed, sent_tools, marks, .. } = *self.sizes;
        let tokens_at = |number: u32| {
            let turns = rereading.turns.max(1);
            let again = rereading.tokens * u64::from(number.min(turns)) / u64::from(turns);
            self.grown(sent + again, number.saturating_sub(rereading.turns))
        };
        let tokens = tokens_at(turn.number);
        // What is added behind the client's last hour lasts five minutes.
        let hour = if marks.is_rolling && marks.hour == marks.last { tokens } else { marks.hour };
        let prompt = |read: u64| TurnPrompt { tokens, marked: tokens, read, hour };
        match turn {
            LifeTurn { number: 0, is_first_child: true } => certain(prompt(warm)),
            LifeTurn { number: 0, .. } => {
                let later = self.by_prompt(1.0, prompt(warm.max(sent_fixed)), prompt(warm.max(sent_tools)));
                self.unheld(sent_fixed, prompt(warm), later)
            }
            LifeTurn { number, .. } => self.later(self.own_ttl(), sent_fixed, prompt(tokens_at(number - 1))),
        }
    }

    /// The tokens of the parent's entry that the first forked child reads.
    fn warm(&self, is_warm: bool) -> u64 {
        let PromptSizes { fixed, entry, .. } = *self.sizes;
        match (is_warm, self.cache.cold_messages) {
            (false, _) => 0,
            (true, true) => fixed.min(entry),
            (true, false) => entry,
        }
    }

    /// A sibling of one that writes up to here. The gate holds nobody for a small write: who comes at once finds what the
    /// first one found.
    fn unheld(&self, until: u64, cold: TurnPrompt, later: Mix) -> Mix {
        if until.saturating_sub(cold.read) >= self.cache.gate_tokens {
            return later;
        }
        let together = self.habits.together.unwrap_or(1.0);
        let [(alike, one), (other, another), _] = later;
        [(together, cold), ((1.0 - together) * alike, one), ((1.0 - together) * other, another)]
    }

    /// A sibling with the first one's system prompt, and one with another. `unknown`: the share of the former until known.
    fn by_prompt(&self, unknown: f64, alike: TurnPrompt, other: TurnPrompt) -> Mix {
        let share = self.habits.alike.unwrap_or(unknown);
        [(share, alike), (1.0 - share, other), (0.0, other)]
    }

    /// A later turn: some come when all has expired, and write it again; some find only tools and system prompt.
    fn later(&self, ttl: Ttl, fixed: u64, prompt: TurnPrompt) -> Mix {
        let [short, long] = self.habits.pauses;
        let paused = match ttl {
            Ttl::FiveMinutes => short,
            Ttl::OneHour => long,
        };
        let lost = self.habits.losses.min(1.0 - paused);
        let reading = |read: u64| TurnPrompt { read, ..prompt };
        [(1.0 - paused - lost, prompt), (paused, reading(0)), (lost, reading(fixed.min(prompt.read)))]
    }

    /// The tier of a child's own last breakpoint.
    fn own_ttl(&self) -> Ttl {
        let marks = self.sizes.marks;
        if marks.last > 0 && marks.hour == marks.last { Ttl::OneHour } else { Ttl::FiveMinutes }
    }

    fn grown(&self, tokens: u64, turns: u32) -> u64 {
        tokens.saturating_add(self.habits.growth.saturating_mul(u64::from(turns)))
    }

    fn cost(&self, prompt: TurnPrompt) -> Option<f64> {
        let usage = self.usage(prompt);
        match self.unit {
            CostUnit::Dollars => self.cache.price?.cost(&usage).total().map(|usd| usd.as_f64()),
            CostUnit::Tokens => weighed(&usage, self.cache.multipliers),
        }
    }

    /// Returns the usage of a prompt. One that is shorter than the model caches is not cached, in silence.
    fn usage(&self, prompt: TurnPrompt) -> Usage {
        let least = self.cache.facts.minimum_tokens.unwrap_or(0);
        let cacheable = |tokens: u64| if tokens < least { 0 } else { tokens };
        let marked = cacheable(prompt.marked.min(prompt.tokens));
        let read = cacheable(prompt.read.min(marked));
        let hour = cacheable(prompt.hour.min(marked)).saturating_sub(read);
        Usage {
            uncached: prompt.tokens - marked,
            cache_read: read,
            cache_write_5m: marked - read - hour,
            cache_write_1h: hour,
            output: self.habits.output,
        }
    }
}

fn certain(prompt: TurnPrompt) -> Mix {
    [(1.0, prompt), (0.0, prompt), (0.0, prompt)]
}
