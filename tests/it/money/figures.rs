//! The figures of a point, the bounds on them, and the table of the worst.

use std::collections::HashMap;
use std::fmt;

use forkpoint::config::Mode;
use forkpoint::engine::answer::usage::Usage;
use forkpoint::engine::cache::prices::{Prices, Usd};

use super::player::{Arm, Line, Pace, Played, play};
use super::point::Point;
use super::replayed::Replayed;
use super::script::{Part, Writer};
use crate::harness::prices;

/// What a mode may cost, in multiples of the direct bill, beyond the stated bets.
const DIRECT_MAX: f64 = 1.02;
/// What default `fork` and `fork` without a premium may cost, in multiples of `align`.
const DEFAULT_TO_ALIGN_MAX: f64 = 1.30;
const CHEAPEST_TO_ALIGN_MAX: f64 = 1.05;
/// How far the saving that is shown may be off, as a part of the direct bill.
const SAVED_SLACK: f64 = 0.05;
/// How far a replay may be off, as a part of the direct bill, and the modes whose recordings are replayed, with the names of
/// the runs that are to agree with them.
const REPLAY_SLACK: f64 = 0.05;
const REPLAYED: [(&str, &str); 2] = [("align", "aligned"), ("fork", "forked")];
/// The conversations with a tool set that may be marked before any of them is known to go on, and what each of them
/// may lose, in multiples of its prompt uncached.
const BETS: usize = 8;
const BET: f64 = 0.25;
/// Of a model that nobody has priced.
const WEIGHTS: [f64; 4] = [1.0, 0.1, 1.25, 2.0];
/// The points that are shown.
const WORST: usize = 10;

const OBSERVED: &str = "observe";

/// The modes that a series is played in.
pub const ARMS: [(&str, Mode, f64); 5] = [
    (OBSERVED, Mode::Observe, 0.25),
    ("align", Mode::Align, 0.25),
    ("fork", Mode::Fork, 0.25),
    ("premium 0", Mode::Fork, 0.0),
    ("premium 100", Mode::Fork, 100.0),
];

/// The figures of one point. Bills are of prompts, in dollars or, for a model without a price, in units.
pub struct Figures {
    pub point: Point,
    pub is_priced: bool,
    pub direct: f64,
    /// The most that bets may lose.
    pub bets: f64,
    pub arms: Vec<ArmFigures>,
}

pub struct ArmFigures {
    pub name: &'static str,
    pub billed: f64,
    /// The saving as the metric shows it, and as the log lines add up to.
    pub saved: f64,
    pub logged: f64,
    /// What the same would have cost aligned, as the log lines add up to.
    pub aligned: f64,
    /// The ledger's error at the end.
    pub ledger: f64,
    /// Requests that went out forked.
    pub forked: usize,
    /// Requests that could not be compared.
    pub unknown: usize,
    pub requests: f64,
    /// Those of them that have no price, by the metric.
    pub unpriced: f64,
    /// Every request: its bill, directly and taken for, and what was decided for it.
    requests_shown: Vec<String>,
    replayed: Option<Replayed>,
}

/// One bound on one figure.
pub struct Bound {
    pub what: String,
    pub value: f64,
    pub most: f64,
}

impl Figures {
    /// `replays`: also by a replay of its recording.
    pub async fn of(point: &Point, replays: bool) -> Figures {
        let parts = Writer::write(point);
        let pace = Pace { base_ms: point.to_begin_ms, per_token_us: point.per_token_us };
        let direct = play(&parts, pace, Arm::Direct).await;
        let bill = Bill::new(point.model);
        let mut arms = Vec::new();
        for (name, mode, premium) in ARMS {
            let played = play(&parts, pace, Arm::Through(mode, premium)).await;
            let mut figures = ArmFigures::of(name, &played, &direct.bills, &bill);
            if replays
                && bill.is_priced()
                && let Some((_, run)) = REPLAYED.into_iter().find(|(arm, _)| *arm == name)
            {
                figures.replayed = Some(Replayed::of(&parts, &played, premium, run).await);
            }
            arms.push(figures);
        }
        Figures {
            point: point.clone(),
            is_priced: bill.is_priced(),
            direct: bill.sum(&direct.bills),
            bets: bets(&parts, &direct.bills, &bill),
            arms,
        }
    }

    /// Every request in each mode.
    pub fn requests(&self) -> String {
        let of = |arm: &ArmFigures| format!("{}:\n  {}\n", arm.name, arm.requests_shown.join("\n  "));
        self.arms.iter().map(of).collect()
    }

    fn arm(&self, name: &str) -> &ArmFigures {
        self.arms.iter().find(|arm| arm.name == name).unwrap()
    }

    /// How far `align` costs from what `observe` takes it for, as a part of the direct bill.
    fn estimate_is_off(&self) -> f64 {
        (self.arm(OBSERVED).aligned - self.arm("align").billed).abs() / self.direct
    }

    /// The bounds that hold for this point.
    pub fn bounds(&self) -> Vec<Bound> {
        let mut bounds = Vec::new();
        let mut bound = |what: String, value: f64, most: f64| {
            bounds.push(Bound { what, value, most });
        };
        for arm in &self.arms {
            if self.is_priced {
                let off = |saved: f64| (saved - (self.direct - arm.billed)).abs() / self.direct;
                bound(format!("saved in {}", arm.name), off(arm.saved), SAVED_SLACK);
                bound(format!("logged in {}", arm.name), off(arm.logged), SAVED_SLACK);
            } else {
                // Without a price there are no dollars, and every answer says so.
                bound(format!("dollars in {}", arm.name), arm.saved.abs() + arm.logged.abs(), 0.0);
                let missing = (arm.requests - arm.unpriced).abs();
                bound(format!("answers without a price in {}", arm.name), missing, 0.0);
            }
            if let Some(replayed) = &arm.replayed {
                let off = |said: f64, truth: f64| (said - truth).abs() / self.direct;
                let name = arm.name;
                bound(format!("replay of {name} as sent"), off(replayed.as_sent, self.direct), REPLAY_SLACK);
                bound(format!("replay of {name}"), off(replayed.own, arm.billed), REPLAY_SLACK);
            }
            if arm.name == OBSERVED {
                bound("observe beside direct".into(), (arm.billed - self.direct).abs(), 0.0);
            }
            if self.point.is_long() {
                let beyond = (arm.billed - self.bets) / self.direct;
                bound(format!("{} to direct", arm.name), beyond, DIRECT_MAX);
            }
        }
        // A child on its parent's prompt does not read again, so that forking is chosen for what it saves; here it does.
        if self.point.is_long() && !self.point.rereads() {
            let aligned = self.arm("align").billed;
            bound("fork to align".into(), self.arm("fork").billed / aligned, DEFAULT_TO_ALIGN_MAX);
            bound("premium 0 to align".into(), self.arm("premium 0").billed / aligned, CHEAPEST_TO_ALIGN_MAX);
        }
        bounds
    }

    /// The bound that is exceeded most, or comes closest to it.
    fn worst(&self) -> Bound {
        let bounds = self.bounds().into_iter();
        let worst = bounds.max_by(|one, other| one.excess().total_cmp(&other.excess()));
        worst.unwrap_or(Bound { what: "nothing".into(), value: 0.0, most: 1.0 })
    }
}

impl Bound {
    /// The figure in multiples of what is allowed.
    fn excess(&self) -> f64 {
        if self.value > 0.0 { self.value / self.most } else { 0.0 }
    }
}

impl ArmFigures {
    fn of(name: &'static str, played: &Played, direct: &[Usage], bill: &Bill) -> ArmFigures {
        let mut figures = ArmFigures {
            name,
            billed: bill.sum(&played.bills),
            saved: played.metric("forkpoint_saved_usd", &[]),
            logged: 0.0,
            aligned: bill.sum(&played.bills),
            ledger: played.metric("forkpoint_ledger_error_ratio", &[]),
            forked: 0,
            unknown: 0,
            requests: played.lines.iter().filter(|line| line.record.is_success()).count() as f64,
            unpriced: played.metric("forkpoint_uncompared_total", &["no_price"]),
            requests_shown: Vec::new(),
            replayed: None,
        };
        for line in &played.lines {
            let record = &line.record;
            figures.forked += usize::from(record.plan == "forked");
            if let Some((aligned, billed)) = record.aligned_usd.zip(record.cost_usd) {
                figures.aligned += aligned - billed;
            }
            let mut taken_for = None;
            match record.as_sent_usd.zip(record.cost_usd) {
                Some((sent, billed)) => {
                    figures.logged += sent - billed;
                    let said = sent - billed + bill.of(&played.bills[line.part]);
                    taken_for = Some(said / bill.of(&direct[line.part]));
                }
                None => figures.unknown += usize::from(record.is_success()),
            }
            figures.requests_shown.push(shown(line, &played.bills, direct, taken_for));
        }
        figures
    }
}

/// A request as it was billed and as it is billed directly, what that was taken for, and what was decided.
fn shown(line: &Line, billed: &[Usage], direct: &[Usage], taken_for: Option<f64>) -> String {
    let Line { part, record, times } = line;
    let kinds = |usage: &Usage| {
        let Usage { uncached, cache_read, cache_write_5m, cache_write_1h, .. } = usage;
        format!("{uncached}+{cache_read}r+{cache_write_5m}w+{cache_write_1h}h")
    };
    let taken_for = taken_for.map_or("nothing".to_owned(), |ratio| format!("{ratio:.2} of that"));
    let decided = record.predicted_turns.map_or_else(String::new, |turns| {
        format!(
            "; over {turns} turns forked {:.4}, sent {:.4}, aligned {:.4}; limits {:?} {:?} {:?} {:?}",
            record.predicted_forked.unwrap_or_default(),
            record.predicted_as_sent.unwrap_or_default(),
            record.predicted_aligned.unwrap_or_default(),
            record.limit_sent,
            record.limit_aligned,
            record.limit_twice,
            record.limit_unknown,
        )
    });
    format!(
        "{part} {} {} {} came {} sent {} begun {} ended {}: {} billed, {} directly, taken for {taken_for}{decided}",
        record.role,
        record.plan,
        record.reason,
        times.came,
        times.sent,
        times.begun,
        times.ended,
        kinds(&billed[*part]),
        kinds(&direct[*part]),
    )
}

/// The prices of one model.
pub struct Bill {
    prices: Prices,
    model: &'static str,
}

impl Bill {
    pub fn new(model: &'static str) -> Bill {
        Bill { prices: prices(), model }
    }

    fn is_priced(&self) -> bool {
        self.prices.price(self.model).is_some()
    }

    /// The cost of a prompt.
    pub fn of(&self, usage: &Usage) -> f64 {
        match self.prices.price(self.model) {
            Some(price) => price.cost(usage).prompt().map(Usd::as_f64).unwrap(),
            None => {
                let tokens = [usage.uncached, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h];
                tokens.into_iter().zip(WEIGHTS).map(|(tokens, weight)| tokens as f64 * weight).sum()
            }
        }
    }

    pub fn sum(&self, bills: &[Usage]) -> f64 {
        bills.iter().map(|usage| self.of(usage)).sum()
    }
}

/// The most that bets may lose: a part of the first prompts of a tool set's first conversations, where the client
/// does not mark their end itself.
fn bets(parts: &[Part], bills: &[Usage], bill: &Bill) -> f64 {
    let mut begun: HashMap<(usize, &String), usize> = HashMap::new();
    let mut sum = 0.0;
    for (part, usage) in parts.iter().zip(bills) {
        let Some(opening) = &part.opens else { continue };
        let mut may_bet = !opening.is_marked;
        for tool_set in opening.tool_sets.iter().enumerate() {
            let count = begun.entry(tool_set).or_default();
            *count += 1;
            may_bet &= *count <= BETS;
        }
        if may_bet {
            sum += BET * bill.of(&usage.without_cache());
        }
    }
    sum
}

/// All points, the worst first.
pub struct Verdict(pub Vec<Figures>);

impl Verdict {
    pub fn of(mut all: Vec<Figures>) -> Verdict {
        let excess = |figures: &Figures| figures.worst().excess();
        all.sort_by(|one, other| excess(other).total_cmp(&excess(one)));
        Verdict(all)
    }

    /// Checks every bound.
    #[track_caller]
    pub fn check(&self) {
        let of = |figures: &Figures| -> Vec<String> {
            let broken = figures.bounds().into_iter().filter(|bound| bound.value > bound.most);
            broken.map(|bound| format!("seed {}: {bound}", figures.point.seed)).collect()
        };
        let broken: Vec<String> = self.0.iter().flat_map(of).collect();
        assert!(
            broken.is_empty(),
            "{} bounds, {} points:\n{}",
            broken.len(),
            self.0.len(),
            broken.join("\n")
        );
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.3} (at most {})", self.what, self.value, self.most)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {}\n  direct {:.4}, bets {:.4}",
            self.point.seed,
            self.worst(),
            self.direct,
            self.bets
        )?;
        for arm in &self.arms {
            let (billed, truth) = (arm.billed / self.direct, 1.0 - arm.billed / self.direct);
            write!(f, "; {} {billed:.3}", arm.name)?;
            if self.is_priced {
                write!(f, ", saved {:+.3} for {truth:+.3}", arm.saved / self.direct)?;
            }
            if arm.name == OBSERVED && self.is_priced {
                write!(f, ", aligned taken for {:.3}", arm.aligned / self.direct)?;
            }
            if let Some(replayed) = &arm.replayed {
                let [sent, own] = [replayed.as_sent, replayed.own].map(|usd| usd / self.direct);
                write!(f, ", replayed {sent:.3} as sent and {own:.3}")?;
            }
            if arm.ledger > 0.0 {
                write!(f, ", ledger off by {:.3}", arm.ledger)?;
            }
            if arm.forked > 0 {
                write!(f, ", {} forked", arm.forked)?;
            }
            if arm.unknown > 0 && self.is_priced {
                write!(f, ", {} unknown", arm.unknown)?;
            }
        }
        write!(f, "\n  {}", self.point)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} points, the worst:", self.0.len())?;
        for figures in self.0.iter().take(WORST) {
            writeln!(f, "{figures}")?;
        }
        for (name, ..) in ARMS {
            let mean =
                |of: &dyn Fn(&Figures) -> f64| self.0.iter().map(of).sum::<f64>() / self.0.len() as f64;
            let ratio = mean(&|figures| figures.arm(name).billed / figures.direct);
            let ledger = mean(&|figures| figures.arm(name).ledger);
            writeln!(f, "{name}: {ratio:.3} of direct on average, the ledger off by {ledger:.3}")?;
        }
        let priced = self.0.iter().filter(|figures| figures.is_priced);
        let misses = priced.map(|figures| (figures.estimate_is_off(), figures.point.seed));
        if let Some((miss, seed)) = misses.max_by(|one, other| one.0.total_cmp(&other.0)) {
            writeln!(f, "`observe` takes `align` for {miss:.3} of direct more or less at most, seed {seed}")?;
        }
        Ok(())
    }
}
