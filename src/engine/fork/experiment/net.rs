//! The safety net: it judges forked children by their bills, and not by what was believed of them.

use super::fan_out::ForkedBills;
use crate::engine::family::fanout::ForkId;
use crate::engine::words::{Moment, StandDown};

/// The factors by which forked children may exceed what is allowed beside as sent: after one fan-out, and after
/// several.
const SLACK_ONE: f64 = 0.25;
const SLACK_SEVERAL: f64 = 0.05;
const SEVERAL: f64 = 3.0;
/// Beyond this many judged fan-outs, older ones count half.
const FAN_OUTS_MAX: f64 = 64.0;
/// The time for which forking stands down at first; then twice as long, and so on.
pub const STAND_DOWN_MS: u64 = 60 * 60 * 1_000;
/// It doubles so often at most, to about five days.
const DOUBLINGS_MAX: u32 = 7;
/// A trial that is silent for this long is over.
const TRIAL_MS: u64 = 60 * 60 * 1_000;

/// The bills of a tool's forked children beside what they would have cost as sent.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct SafetyNet {
    fan_outs: f64,
    /// In the order of [`CostUnit`](crate::engine::words::CostUnit).
    sums: [NetSums; 2],
    stood_down: Option<StoodDown>,
}

#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
struct NetSums {
    billed: f64,
    sent: f64,
}

/// Forking stands down, or is tried again.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct StoodDown {
    why: StandDown,
    until: Moment,
    /// The number of times it has stood down in a row.
    times: u32,
    /// The fan-out that it is tried with, and since when.
    trial: Option<(ForkId, Moment)>,
}

impl SafetyNet {
    /// Returns why the children of this fan-out are not forked for now.
    pub fn verdict(&self, fork: ForkId, now: Moment) -> Option<StandDown> {
        let StoodDown { why, until, trial, .. } = self.stood_down?;
        let is_on_trial =
            now >= until && trial.is_none_or(|(trial, since)| trial == fork || now.since(since) > TRIAL_MS);
        (!is_on_trial).then_some(why)
    }

    /// Returns true if forking stands down for this fan-out: it was forked before that, if it was.
    pub fn is_closed_to(&self, fork: ForkId, now: Moment) -> bool {
        self.verdict(fork, now).is_some()
    }

    /// A child of this fan-out is forked: if forking has stood down, that is the trial.
    pub fn forked(&mut self, fork: ForkId, now: Moment) {
        if let Some(stood_down) = &mut self.stood_down
            && stood_down.trial.is_none_or(|(trial, _)| trial != fork)
        {
            stood_down.trial = Some((fork, now));
        }
    }

    /// Takes over what another process knows, unless forking stands down here for longer. Returns true if it does.
    pub fn merge(&mut self, other: SafetyNet, now: Moment) -> bool {
        let until = |net: &SafetyNet| net.stood_down.map(|down| down.until).filter(|until| *until > now);
        let stays = until(self) > until(&other);
        if !stays {
            *self = other;
        }
        stays
    }

    /// A fan-out has ended. Returns why forking stands down from now on, if its bills show it.
    pub fn judge(
        &mut self,
        fork: ForkId,
        bills: ForkedBills,
        max_cost_ratio: f64,
        now: Moment,
    ) -> Option<StandDown> {
        if self.is_closed_to(fork, now) {
            return None;
        }
        if self.fan_outs >= FAN_OUTS_MAX {
            self.fan_outs /= 2.0;
            self.sums.iter_mut().for_each(|sums| {
                (sums.billed, sums.sent) = (sums.billed / 2.0, sums.sent / 2.0);
            });
        }
        self.fan_outs += 1.0;
        let sums = &mut self.sums[bills.unit as usize];
        sums.billed += bills.billed;
        sums.sent += bills.sent;
        let slack = if self.fan_outs >= SEVERAL { SLACK_SEVERAL } else { SLACK_ONE };
        if sums.billed - sums.sent > (max_cost_ratio - 1.0 + slack) * sums.sent {
            self.stand_down(StandDown::Dearer, now);
            return Some(StandDown::Dearer);
        }
        // The trial went well.
        self.stood_down = None;
        None
    }

    /// Forking stands down, for twice as long as the last time if that was a trial.
    pub fn stand_down(&mut self, why: StandDown, now: Moment) {
        let times = self.stood_down.map_or(0, |before| before.times.saturating_add(1)).min(DOUBLINGS_MAX);
        let until = now.after(STAND_DOWN_MS << times);
        *self = SafetyNet::default();
        self.stood_down = Some(StoodDown { why, until, times, trial: None });
    }
}
