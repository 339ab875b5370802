//! The provider's cache of one tenant in three worlds, which differ in how the tenant's requests go out.
//!
//! | world | every request goes out | when |
//! |---|---|---|
//! | `billed` | as it did | as it did; corrected by the usage of each answer |
//! | `sent` | as its client sent it | when it came |
//! | `aligned` | aligned, and no child is forked | when it came, after its wait at that world's gate |
//!
//! A request plays in `billed` while it lasts. In the other two it plays once, when its answer begins and its usage is
//! known: what it finds there at its arrival, what it writes, and when that can be read. The rules are the
//! provider's, and the same in every world.
//!
//! The rule: an unknown bill is left out; it never counts as a saving.

mod pace;
mod prompt;
mod saved;
mod tokens;

use std::sync::Arc;

use super::entry::EntryKey;
use super::ledger::{CacheLedger, EntryWrite, Prediction};
use crate::engine::answer::usage::Usage;
use crate::engine::words::{Moment, Ttl};
use pace::{Begun, FirstContent, Paces};
use tokens::{Counts, PromptTokens};

pub use prompt::{Position, Sizes, WorldPrompt};
pub use saved::{SavedPart, SavedWorlds};
pub use tokens::{ModelWeights, Segment, TokenWeights, Weights};

/// A read whose end is looked for by size is found if it is off by no more than this part of it.
const PLACE_SLACK: f64 = 0.03;

/// The provider's cache of one tenant in three worlds.
#[derive(Debug, Default)]
pub struct Worlds {
    pub billed: CacheLedger,
    pub sent: CacheLedger,
    pub aligned: CacheLedger,
    counts: Counts,
    paces: Paces,
    /// Until then there may be entries that are not known here: requests went past us, or what was known is lost.
    incomplete_until: Moment,
}

/// A request as it plays in each world.
#[derive(Clone, Debug)]
pub struct WorldPrompts {
    pub billed: Arc<WorldPrompt>,
    pub sent: Arc<WorldPrompt>,
    pub aligned: Arc<WorldPrompt>,
}

/// The gate of the aligned world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldGate {
    pub min_tokens: u64,
    pub max_hold_ms: u64,
}

/// How much sooner a conversation would have gone on in the other worlds, in milliseconds: what is held here is not held
/// there, and all that follows it comes so much sooner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lead {
    pub sent: u64,
    pub aligned: u64,
}

impl Lead {
    /// The lead of a request that comes after both.
    pub fn and(self, other: Lead) -> Lead {
        Lead {
            sent: self.sent.saturating_add(other.sent),
            aligned: self.aligned.saturating_add(other.aligned),
        }
    }
}

/// A request whose answer has begun, and its usage.
#[derive(Clone, Copy, Debug)]
pub struct Play<'a> {
    pub prompts: &'a WorldPrompts,
    pub model: &'a str,
    /// The billed world's prediction when it was sent.
    pub prediction: &'a Prediction,
    pub usage: Usage,
    pub is_forked: bool,
    pub came_at: Moment,
    /// How much sooner it would have come in the other worlds.
    pub lead: Lead,
    pub sent_at: Moment,
    /// The moment when its answer was seen to begin: one that is not streamed is only seen when it is whole.
    pub begun_at: Moment,
    pub streams: bool,
    /// None if it does not wait at the gate of the aligned world.
    pub gate: Option<WorldGate>,
    pub minimum_tokens: u64,
    pub weights: Weights,
    /// True if a read beyond the prediction is explained by betas that turned out to be harmless.
    pub is_harmless_read: bool,
}

/// The bills of a request in the other worlds; none where it cannot be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherBills {
    /// As its client sent it.
    pub sent: Option<Usage>,
    /// As mode `align` sends it.
    pub aligned: Option<Usage>,
    /// The bill that they take the place of. Whatever else the answer was billed for costs the same in every world.
    pub billed: Usage,
}

/// A request that was played.
#[derive(Clone, Debug, Default)]
pub struct Played {
    pub bills: OtherBills,
    /// How much sooner its answer would have ended in the other worlds.
    pub lead: Lead,
    /// The entries that it wrote in the other worlds.
    written: [Vec<EntryKey>; 2],
}

/// The outcome of a request in one world.
struct PlayOutcome {
    /// When it goes out there.
    at: Moment,
    usage: Usage,
    hit: Option<EntryKey>,
    written: Vec<EntryKey>,
}

impl Worlds {
    /// Plays a request in the other worlds. Its bill has been [learned](Worlds::learn) from.
    pub fn play(&mut self, play: &Play<'_>) -> Played {
        let unread = play.usage.prompt().saturating_sub(play.usage.cache_read);
        let Play { came_at, sent_at, begun_at, streams, .. } = *play;
        let output = play.usage.output;
        let wait =
            self.paces.begun(play.model, Begun { came_at, sent_at, at: begun_at, unread, output, streams });
        let [sent, aligned] = [false, true].map(|is_aligned| self.play_in(is_aligned, play, &wait));
        let bill = |prompt: &Arc<WorldPrompt>, outcome: &PlayOutcome| {
            let is_known = if play.is_forked {
                self.is_complete(came_at)
            } else {
                Arc::ptr_eq(prompt, &play.prompts.billed) || !self.has_forgotten(came_at)
            };
            is_known.then_some(outcome.usage)
        };
        let WorldPrompts { sent: as_sent, aligned: as_aligned, .. } = play.prompts;
        let bills = OtherBills {
            sent: bill(as_sent, &sent),
            aligned: bill(as_aligned, &aligned),
            billed: play.usage,
        };
        // Once it has begun, an answer takes as long in every world.
        let begins = sent_at.after(wait.ms(unread));
        let lead = |outcome: &PlayOutcome| {
            begins.since(outcome.at.after(wait.ms(outcome.usage.prompt() - outcome.usage.cache_read)))
        };
        let lead = Lead { sent: lead(&sent), aligned: lead(&aligned) };
        Played { bills, lead, written: [sent.written, aligned.written] }
    }

    /// The answer of a request that was played has ended: whatever came after that may have come because of it, so that
    /// its entries can be read by then.
    pub fn ended(&mut self, played: &Played, at: Moment) {
        for (ledger, written) in [&mut self.sent, &mut self.aligned].into_iter().zip(&played.written) {
            written.iter().for_each(|key| ledger.readable_by(key, at));
        }
    }

    /// Returns true if every entry of the tenant that lives at a moment is known.
    fn is_complete(&self, at: Moment) -> bool {
        at >= self.incomplete_until && !self.has_forgotten(at)
    }

    /// Returns true if an entry that lives at a moment may have been dropped for want of room.
    fn has_forgotten(&self, at: Moment) -> bool {
        let forgot = |ledger: &CacheLedger| {
            ledger.forgot_at().is_some_and(|forgot| at < forgot.after(Ttl::OneHour.ms()))
        };
        [&self.billed, &self.sent, &self.aligned].into_iter().any(forgot)
    }

    /// Learns from a bill how many tokens the prefixes of its prompt have, and of entries that were not written from
    /// here. Returns the stretches of the prompt whose tokens are known from the bill.
    pub fn learn(&mut self, play: &Play<'_>) -> Vec<Segment> {
        let (prompt, usage) = (&play.prompts.billed, play.usage);
        let all = usage.prompt();
        let tokens = PromptTokens { prompt, counts: &self.counts, weights: play.weights, billed: Some(all) };
        let read_until = place(&tokens, play.prediction, usage.cache_read);
        let mut ends = Vec::with_capacity(3);
        ends.extend(
            read_until
                .map(|at| (prompt.positions[at].sizes, usage.cache_read, Some(prompt.positions[at].key))),
        );
        if usage.cached() > usage.cache_read
            && let Some(last) = prompt.positions.first()
        {
            ends.push((last.sizes, usage.cached(), Some(last.key)));
        }
        let tip = prompt.positions.first().filter(|last| last.sizes == prompt.sizes);
        ends.push((prompt.sizes, all, tip.map(|last| last.key)));
        if let Some(at) = read_until {
            self.adopt(&prompt.positions[at], play);
        }
        let (mut from, mut counted) = (Sizes::default(), 0);
        let mut segments = Vec::with_capacity(ends.len());
        for (sizes, tokens, key) in ends {
            if let Some(key) = key {
                self.counts.insert(key, tokens);
            }
            segments
                .push(Segment { sizes: sizes.minus(from), tokens: tokens.saturating_sub(counted) as f64 });
            (from, counted) = (sizes, tokens);
        }
        segments
    }

    /// An entry was read that no request here has written: it is there in every world.
    fn adopt(&mut self, read: &Position, play: &Play<'_>) {
        let Prediction { read: predicted, underway, .. } = play.prediction;
        // The request that wrote it may have been answered meanwhile, and not yet have been known when this one was
        // sent.
        let WorldPrompts { billed, sent, aligned } = play.prompts;
        let is_written = |prompt: &Arc<WorldPrompt>, ledger: &CacheLedger| {
            Arc::ptr_eq(prompt, billed) && ledger.holds(&read.key, play.sent_at)
        };
        let is_known = predicted.is_some_and(|warm| warm.piece >= read.piece)
            || underway.iter().any(|underway| underway.piece >= read.piece)
            || is_written(sent, &self.sent)
            || is_written(aligned, &self.aligned);
        if is_known || play.is_harmless_read {
            return;
        }
        let write = EntryWrite { key: read.key, piece: read.piece, bytes: read.bytes, ttl: Ttl::FiveMinutes };
        for ledger in [&mut self.billed, &mut self.sent, &mut self.aligned] {
            ledger.enter(&write, play.sent_at, play.sent_at, play.usage.cache_read);
        }
        self.incomplete_until = self.incomplete_until.max(play.sent_at.after(Ttl::FiveMinutes.ms()));
    }

    fn play_in(&mut self, is_aligned: bool, play: &Play<'_>, wait: &FirstContent) -> PlayOutcome {
        let (ledger, prompt, gate, lead) = if is_aligned {
            (&mut self.aligned, &play.prompts.aligned, play.gate, play.lead.aligned)
        } else {
            (&mut self.sent, &play.prompts.sent, None, play.lead.sent)
        };
        let came_at = Moment(play.came_at.min(play.sent_at).0.saturating_sub(lead));
        // A prompt that was not forked is billed for as many tokens in any spelling.
        let billed = (!play.is_forked).then(|| play.usage.prompt());
        let tokens = PromptTokens { prompt, counts: &self.counts, weights: play.weights, billed };
        let at = hold(ledger, &tokens, gate, came_at);
        let mut outcome = play_once(ledger, &tokens, at, play.minimum_tokens, wait);
        let is_as_billed = Arc::ptr_eq(prompt, &play.prompts.billed);
        let predicted = play.prediction.read.map(|warm| warm.key);
        if is_as_billed && outcome.hit == predicted {
            // What happened to it happens there too, expected or not.
            if play.usage.cache_read < play.prediction.tokens_min()
                && let Some(missed) = predicted
            {
                ledger.lost(&missed);
            }
            outcome.usage = play.usage;
        }
        outcome
    }
}

/// Returns the moment when the gate of a world lets a request go: as soon as it can read whatever others are writing.
fn hold(ledger: &CacheLedger, tokens: &PromptTokens<'_>, gate: Option<WorldGate>, came_at: Moment) -> Moment {
    let Some(gate) = gate else { return came_at };
    let (mut at, deadline) = (came_at, came_at.after(gate.max_hold_ms));
    let keys = || tokens.prompt.positions.iter().map(|position| position.key);
    while at < deadline {
        let reach = ledger.reach(keys(), at);
        let Some((soon, from)) = reach.soon else { break };
        let now = reach.now.map_or(0, |now| tokens.until(now));
        if tokens.until(soon).saturating_sub(now) < gate.min_tokens {
            break;
        }
        at = from.min(deadline);
    }
    at
}

/// Plays a request that goes out at this moment.
fn play_once(
    ledger: &mut CacheLedger,
    tokens: &PromptTokens<'_>,
    at: Moment,
    minimum_tokens: u64,
    wait: &FirstContent,
) -> PlayOutcome {
    let positions = &tokens.prompt.positions;
    let hit = ledger.reach(positions.iter().map(|position| position.key), at).now;
    let read = hit.map_or(0, |hit| tokens.until(hit));
    let all = tokens.all().max(read);
    if let Some(hit) = hit {
        positions[hit..].iter().for_each(|position| ledger.renew(&position.key, at));
    }
    let begins = at.after(wait.ms(all - read));
    // The deepest breakpoint that is written, and the deepest of an hour.
    let (mut last, mut long, mut written) = (None, read, Vec::new());
    for (number, position) in positions.iter().enumerate().take(hit.unwrap_or(positions.len())) {
        let Some(ttl) = position.marker else { continue };
        let count = tokens.until(number).max(read).min(all);
        if count < minimum_tokens {
            continue;
        }
        last = last.or(Some(count));
        if ttl == Ttl::OneHour {
            long = long.max(count);
        }
        let Position { key, piece, bytes, .. } = *position;
        ledger.enter(&EntryWrite { key, piece, bytes, ttl }, at, begins, count);
        written.push(key);
    }
    let last = last.unwrap_or(read);
    let usage = Usage {
        uncached: all - last,
        cache_read: read,
        cache_write_5m: last.saturating_sub(long),
        cache_write_1h: long - read,
        output: 0,
    };
    PlayOutcome { at, usage, hit: hit.map(|hit| positions[hit].key), written }
}

/// The position where a billed read ended: the predicted one if its size fits, else the one that fits best.
fn place(tokens: &PromptTokens<'_>, prediction: &Prediction, read: u64) -> Option<usize> {
    let slack = PLACE_SLACK * read as f64;
    let off = |until: u64| until.abs_diff(read) as f64;
    if read == 0 {
        return None;
    }
    let predicted =
        prediction.read.and_then(|warm| tokens.prompt.positions.iter().position(|at| at.key == warm.key));
    if let Some(predicted) = predicted.filter(|predicted| off(tokens.until(*predicted)) <= slack) {
        return Some(predicted);
    }
    let each = tokens.until_each().map(off).enumerate();
    let (best, least) = each.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
    (least <= slack).then_some(best)
}

#[cfg(test)]
mod tests;
