//! Lessons of a tenant's traffic: which prefixes came before, how many tokens its bytes make, and which breakpoints of
//! its conversations are read.

mod saved;

pub use saved::SavedLearned;

use std::collections::HashMap;

use super::breakpoints::StaticEnds;
use super::habits::ReadHabits;
use super::prefixes::Prefixes;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::ledger::Harmless;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Reading;
use crate::engine::words::{Layer, Moment, SightingClass};

/// Models whose ratio is kept; a tenant uses a few.
const MODELS_MAX: usize = 16;
/// When new bills weigh this much, older ones count half.
const RATIO_BYTES: f64 = 4e6;

/// The layers that are classed, in their order.
pub const LAYERS: [Layer; 4] = [Layer::Model, Layer::Tools, Layer::System, Layer::Messages];

#[derive(Debug, Default)]
pub struct Learned {
    prefixes: [Prefixes; 4],
    ratios: HashMap<String, Ratio>,
    /// Which breakpoints of its conversations are read.
    pub habits: ReadHabits,
    /// By model: writes of this many tokens begin their answer too late to be waited for.
    slow_from: HashMap<String, u64>,
    /// Other betas that do not cost the messages of the cache.
    pub betas: Harmless,
}

impl Learned {
    /// Takes in the prefixes of a request, and classes each against the request that it continues. `starts`: a
    /// conversation of its own words begins with it. `readable`: when what it writes can be read.
    pub fn sight(
        &mut self,
        request: &Reading,
        before: Option<&Reading>,
        starts: bool,
        sent: Moment,
        readable: Moment,
    ) -> [SightingClass; 4] {
        let mut index = 0;
        LAYERS.map(|layer| {
            let prefixes = &mut self.prefixes[index];
            index += 1;
            let prefix = request.chain().layer(request.anatomy(), layer);
            let (repeats, streak) = prefixes.see(prefix, starts, sent, readable);
            if starts {
                self.habits.shared(request, layer, streak, sent);
            }
            match before {
                None if repeats => SightingClass::Repeat,
                None => SightingClass::New,
                Some(before) if extends(request, before, layer, prefix) => SightingClass::Repeat,
                Some(_) => SightingClass::Drift,
            }
        })
    }

    /// Returns which ends of a request other conversations will read. `has_siblings`: others with the same tools come
    /// with this one.
    pub fn read_by_others(&self, request: &Reading, has_siblings: bool, now: Moment) -> StaticEnds {
        let follows = |layer| {
            let prefix = request.chain().layer(request.anatomy(), layer);
            LAYERS
                .iter()
                .zip(&self.prefixes)
                .any(|(of, prefixes)| *of == layer && prefixes.is_live(&prefix, now))
        };
        self.habits.read_by_others(request, has_siblings, follows)
    }

    /// Returns the number of prefixes of each layer that are remembered.
    pub fn prefixes(&self) -> [usize; 4] {
        [0, 1, 2, 3].map(|index| self.prefixes[index].count())
    }

    /// Learns from a bill how many tokens the bytes of a prompt make. An image has a thousand bytes to a token, and
    /// of a document their number is unknown: what holds one says nothing about text. `text`: its [`text_bytes`].
    pub fn bill(&mut self, model: &str, text: Option<usize>, usage: &Usage) {
        let Some(bytes) = text.map(|bytes| bytes as f64) else { return };
        let tokens = (usage.uncached + usage.cache_read + usage.cache_write_5m + usage.cache_write_1h) as f64;
        if bytes <= 0.0 || tokens <= 0.0 {
            return;
        }
        if !self.ratios.contains_key(model) && self.ratios.len() >= MODELS_MAX {
            return;
        }
        self.ratios.entry(model.to_owned()).or_default().add(tokens, bytes);
    }

    pub fn tokens_per_byte(&self, model: &str) -> Option<f64> {
        self.ratios.get(model).map(|ratio| ratio.tokens / ratio.bytes)
    }

    /// The answer to a request that wrote this many tokens began in time, or too late, for those that waited.
    pub fn began(&mut self, model: &str, written: u64, in_time: bool) {
        let slow_from = self.slow_from.get(model).copied();
        match (in_time, slow_from) {
            (true, Some(slow_from)) if written >= slow_from => {
                self.slow_from.remove(model);
            }
            (true, _) => {}
            (false, None) if self.slow_from.len() >= MODELS_MAX => {}
            (false, slow_from) => {
                let least = slow_from.map_or(written, |slow_from| slow_from.min(written));
                self.slow_from.insert(model.to_owned(), least);
            }
        }
    }

    /// Returns true if a write of this many tokens should not be waited for.
    pub fn is_slow(&self, model: &str, tokens: u64) -> bool {
        self.slow_from.get(model).is_some_and(|slow_from| tokens >= *slow_from)
    }
}

/// The bytes of a prompt that is text throughout. It takes time in proportion to its pieces.
pub fn text_bytes(request: &Reading) -> Option<usize> {
    let prompt = request.anatomy().pieces.iter().filter(|piece| !piece.deferred);
    let bytes = || prompt.map(|piece| piece.span.len()).sum();
    (!request.anatomy().has_payload()).then(bytes)
}

/// Returns true if the layer is as the last request had it, or longer.
fn extends(request: &Reading, before: &Reading, layer: Layer, prefix: PrefixHash) -> bool {
    match layer {
        Layer::Messages => request.shared_pieces(before) == before.anatomy().pieces.len(),
        _ => before.chain().layer(before.anatomy(), layer) == prefix,
    }
}

#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
struct Ratio {
    tokens: f64,
    bytes: f64,
}

impl Ratio {
    fn add(&mut self, tokens: f64, bytes: f64) {
        let fade = if self.bytes + bytes > RATIO_BYTES { 0.5 } else { 1.0 };
        self.tokens = self.tokens * fade + tokens;
        self.bytes = self.bytes * fade + bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::prefix::Attribution;
    use crate::engine::request::recall::{Nothing, Remembered};

    fn request(system: &str, messages: &[&str]) -> Remembered {
        let messages: Vec<String> =
            messages.iter().map(|text| format!(r#"{{"role":"user","content":"{text}"}}"#)).collect();
        let body = format!(
            r#"{{"model":"m","tools":[{{"name":"a"}}],"system":"{system}","messages":[{}]}}"#,
            messages.join(",")
        );
        Remembered::read(body.into(), &Nothing, Attribution::Counted).unwrap()
    }

    #[test]
    fn layers_are_new_then_repeat_and_drift_within_a_conversation() {
        use SightingClass::{Drift, New, Repeat};
        let mut learned = Learned::default();
        let first = request("s", &["one"]);
        let mut sight = |request: &Remembered, before: Option<&Remembered>| {
            let before = before.map(|before| &**before);
            learned.sight(request, before, before.is_none(), Moment(0), Moment(0))
        };
        assert_eq!(sight(&first, None), [New; 4]);
        let second = request("s", &["one", "two"]);
        assert_eq!(sight(&second, Some(&first)), [Repeat; 4]);
        let drifted = request("S", &["one", "two", "three"]);
        assert_eq!(sight(&drifted, Some(&second)), [Repeat, Repeat, Drift, Drift]);
        assert_eq!(sight(&request("s", &["other"]), None), [Repeat, Repeat, Repeat, New]);
        assert_eq!(learned.prefixes(), [1, 1, 2, 4]);
    }

    #[test]
    fn tokens_per_byte_follow_the_bills() {
        let mut learned = Learned::default();
        let body = request("s", &["one"]);
        assert_eq!(learned.tokens_per_byte("m"), None);
        let bytes = body.anatomy().pieces.iter().map(|piece| piece.span.len()).sum::<usize>() as u64;
        learned.bill(
            "m",
            text_bytes(&body),
            &Usage { cache_read: bytes, uncached: bytes, ..Usage::default() },
        );
        assert_eq!(learned.tokens_per_byte("m"), Some(2.0));
        for number in 0..100 {
            learned.bill(
                &format!("m{number}"),
                text_bytes(&body),
                &Usage { uncached: 1, ..Usage::default() },
            );
        }
        assert_eq!(learned.ratios.len(), MODELS_MAX);
    }

    #[test]
    fn what_begins_too_late_is_not_waited_for_until_it_begins_in_time() {
        let mut learned = Learned::default();
        learned.began("m", 100_000, false);
        learned.began("m", 200_000, false);
        assert!(
            learned.is_slow("m", 100_000) && !learned.is_slow("m", 99_999) && !learned.is_slow("n", 1 << 40)
        );
        learned.began("m", 50_000, true);
        assert!(learned.is_slow("m", 100_000));
        learned.began("m", 100_000, true);
        assert!(!learned.is_slow("m", 200_000));
    }

    #[test]
    fn a_prompt_with_an_image_says_nothing_about_the_tokens_of_text() {
        let mut learned = Learned::default();
        let image = "iVBORw0K".repeat(1 << 17);
        let source = format!(r#"{{"type":"base64","media_type":"image/png","data":"{image}"}}"#);
        let shown = [
            format!(r#"{{"type":"image","source":{source}}}"#),
            format!(r#"{{"type":"document","source":{source}}}"#),
            format!(
                r#"{{"type":"tool_result","tool_use_id":"t","content":[{{"type":"image","source":{source}}}]}}"#
            ),
        ];
        for block in shown {
            let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{block}]}}]}}"#);
            let body = Remembered::read(body.into(), &Nothing, Attribution::Counted).unwrap();
            learned.bill("m", text_bytes(&body), &Usage { uncached: 1_600, ..Usage::default() });
            assert_eq!(learned.tokens_per_byte("m"), None);
        }
        learned.bill("m", text_bytes(&request("s", &["one"])), &Usage { uncached: 16, ..Usage::default() });
        assert!(learned.tokens_per_byte("m").is_some());
    }
}
