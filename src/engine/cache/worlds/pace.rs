//! How long an answer takes to begin, by the tokens that the upstream has to read anew.
//!
//! A request that waited for another reads what that one wrote, and its answer begins sooner by that. Each such pair
//! tells how much longer an answer takes to begin for every token that is not read from the cache.
//!
//! An answer that is not streamed is only seen when it is whole. It is taken to have begun when a streamed one would or,
//! where none was streamed, when one without a word would have been whole: those that say more take longer.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::engine::words::Moment;

/// Milliseconds to a token until a pair has shown it.
const PRIOR_MS: f64 = 0.03;
/// Milliseconds until a streamed answer has shown how long one takes to begin whose prompt is read whole.
const PRIOR_BASE_MS: f64 = 800.0;
/// Models whose pace is kept.
const MODELS_MAX: usize = 16;
/// Pairs that the median is taken of, and answers among which the leader of a pair is looked for.
const PAIRS_MAX: usize = 31;
const RECENT_MAX: usize = 32;
/// The whole answers, and the standard deviation of their tokens, from which it follows how long one without a word takes.
const WHOLE_MIN: usize = 2;
const OUTPUT_DIFFERENCE_MIN: f64 = 50.0;
/// Two prompts that differ by less say nothing.
const DIFFERENCE_MIN: f64 = 2_000.0;
/// Shorter holds are no wait for a leader.
const HELD_MS_MIN: u64 = 20;

/// An answer that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    pub came_at: Moment,
    pub sent_at: Moment,
    pub at: Moment,
    /// Tokens of the prompt that were not read from the cache.
    pub unread: u64,
    /// Tokens of the answer.
    #[serde(default)]
    pub output: u64,
    pub streams: bool,
}

/// The time until one answer begins, by the tokens that are not read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstContent {
    base_ms: f64,
    token_ms: f64,
}

impl FirstContent {
    pub fn ms(&self, unread: u64) -> u64 {
        (self.base_ms + self.token_ms * unread as f64).max(0.0) as u64
    }
}

impl Begun {
    fn took_ms(&self) -> f64 {
        self.at.since(self.sent_at) as f64
    }
}

/// The paces of one tenant's models.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Paces(HashMap<String, AnswerPace>);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct AnswerPace {
    pairs: VecDeque<f64>,
    recent: VecDeque<Begun>,
    /// Those that were not streamed.
    #[serde(default)]
    whole: VecDeque<Begun>,
}

impl Paces {
    /// Takes over the paces of models that have shown none here.
    pub fn restore(&mut self, saved: Paces) {
        for (model, mut pace) in saved.0 {
            if self.0.len() < MODELS_MAX && !self.0.contains_key(&model) {
                pace.pairs.truncate(PAIRS_MAX);
                pace.recent.truncate(RECENT_MAX);
                pace.whole.truncate(RECENT_MAX);
                self.0.insert(model, pace);
            }
        }
    }

    /// An answer has begun. Returns how long it would have taken to, had more or less been read.
    pub fn begun(&mut self, model: &str, begun: Begun) -> FirstContent {
        if !self.0.contains_key(model) && self.0.len() >= MODELS_MAX {
            return AnswerPace::default().of(&begun);
        }
        let pace = self.0.entry(model.to_owned()).or_default();
        if begun.streams {
            pace.add(begun);
        } else {
            push(&mut pace.whole, begun, RECENT_MAX);
        }
        pace.of(&begun)
    }
}

impl AnswerPace {
    fn add(&mut self, begun: Begun) {
        let apart = |other: &&Begun| other.at.0.abs_diff(begun.sent_at.0);
        if begun.sent_at.since(begun.came_at) >= HELD_MS_MIN
            && let Some(leader) = self.recent.iter().min_by_key(apart)
        {
            let more = leader.unread as f64 - begun.unread as f64;
            if more.abs() >= DIFFERENCE_MIN {
                push(&mut self.pairs, ((leader.took_ms() - begun.took_ms()) / more).max(0.0), PAIRS_MAX);
            }
        }
        push(&mut self.recent, begun, RECENT_MAX);
    }

    fn of(&self, begun: &Begun) -> FirstContent {
        let token_ms = median(self.pairs.iter().copied()).unwrap_or(PRIOR_MS);
        let base = |begun: &Begun| begun.took_ms() - token_ms * begun.unread as f64;
        let seen = base(begun);
        let base_ms = if begun.streams {
            seen
        } else {
            let streamed = median(self.recent.iter().map(base));
            streamed.or_else(|| self.wordless_ms(base)).unwrap_or(PRIOR_BASE_MS).min(seen)
        };
        FirstContent { base_ms, token_ms }
    }

    /// How long a whole answer without a word takes, its prompt apart: where the line through those that came meets zero.
    fn wordless_ms(&self, base: impl Fn(&Begun) -> f64) -> Option<f64> {
        let count = self.whole.len() as f64;
        let mean = |of: &dyn Fn(&Begun) -> f64| self.whole.iter().map(of).sum::<f64>() / count;
        let (output, took) = (mean(&|begun| begun.output as f64), mean(&base));
        let spread = mean(&|begun| (begun.output as f64 - output).powi(2));
        if self.whole.len() < WHOLE_MIN || spread.sqrt() < OUTPUT_DIFFERENCE_MIN {
            return None;
        }
        let slope = mean(&|begun| (begun.output as f64 - output) * (base(begun) - took)) / spread;
        Some((took - slope.max(0.0) * output).max(0.0))
    }
}

fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let (low, high) = (figures.len().checked_sub(1)? / 2, figures.len() / 2);
    Some(f64::midpoint(figures[low], figures[high]))
}

fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(came: u64, sent: u64, at: u64, unread: u64) -> Begun {
        Begun {
            came_at: Moment(came),
            sent_at: Moment(sent),
            at: Moment(at),
            unread,
            output: 0,
            streams: true,
        }
    }

    #[test]
    fn pairs_of_a_leader_and_its_follower_tell_the_pace() {
        let mut paces = Paces::default();
        assert_eq!(paces.begun("m", begun(0, 0, 1_500, 20_000)).token_ms, PRIOR_MS);
        // Held until the leader began; it reads 18,000 tokens, and its answer begins 900 ms sooner.
        let pace = paces.begun("m", begun(10, 1_500, 2_100, 2_000));
        assert!((pace.token_ms - 900.0 / 18_000.0).abs() < 1e-9, "{pace:?}");
        assert_eq!([2_000, 20_000].map(|unread| pace.ms(unread)), [600, 1_500]);
        assert_eq!(
            paces.begun("m", begun(3_000, 3_000, 3_100, 100)).token_ms,
            pace.token_ms,
            "nobody waited"
        );
        assert_eq!(paces.begun("n", begun(10, 1_500, 2_100, 2_000)).token_ms, PRIOR_MS);
        for number in 0..100 {
            paces.begun(&number.to_string(), begun(0, 0, 1, 1));
        }
        assert_eq!(paces.0.len(), MODELS_MAX);
    }

    #[test]
    fn an_answer_that_is_not_streamed_began_when_a_streamed_one_would_have() {
        let whole = |at: u64, unread: u64| Begun { streams: false, ..begun(0, 0, at, unread) };
        let mut paces = Paces::default();
        assert_eq!(paces.begun("m", whole(20_000, 10_000)).ms(10_000), 1_100, "nothing was streamed yet");
        assert_eq!(paces.begun("m", whole(500, 10_000)).ms(10_000), 500, "it ended sooner than that");
        paces.begun("m", begun(0, 0, 2_300, 10_000));
        assert_eq!(paces.begun("m", whole(20_000, 10_000)).ms(20_000), 2_600);
    }
    #[test]
    fn whole_answers_that_say_more_tell_when_those_that_say_less_began() {
        let whole = |output: u64, unread: u64| {
            let took = 1_500 + 12 * output + 30 * unread / 1_000;
            Begun { streams: false, output, ..begun(0, 0, took, unread) }
        };
        let mut paces = Paces::default();
        assert_eq!(paces.begun("m", whole(500, 1_000)).ms(1_000), 830);
        assert_eq!(paces.begun("m", whole(50, 4_000)).ms(1_000), 1_530);
        assert_eq!(paces.begun("m", whole(120, 2_000)).ms(1_000), 1_530);
        let mut paces = Paces::default();
        (0..9).for_each(|_| assert_eq!(paces.begun("m", whole(50, 1_000)).ms(1_000), 830, "all alike"));
        paces.begun("m", begun(0, 0, 2_300, 10_000));
        assert_eq!(paces.begun("m", whole(500, 1_000)).ms(1_000), 2_030, "a streamed one tells better");
    }
}
