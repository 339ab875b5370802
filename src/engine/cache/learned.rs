//! Lessons of a tenant's traffic: which prefixes came before, how many tokens its bytes make, and whether its
//! conversations go on.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::engine::answer::usage::Usage;
use crate::engine::cache::ledger::Harmless;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Reading;
use crate::engine::words::{Layer, Moment, SightingClass};

/// Prefix hashes that are remembered twice over: when so many are new, the older half is forgotten.
const PREFIXES_MAX: usize = 2048;
/// Models whose ratio is kept; a tenant uses a few.
const MODELS_MAX: usize = 16;
/// Tool sets whose conversations are counted.
const TOOL_SETS_MAX: usize = 32;
/// The conversations that a share is taken of, and how many it takes to speak of one.
const STARTS_MAX: usize = 64;
const STARTS_MIN: usize = 20;
/// A conversation that did not go on for so long did not go on while its cache entry lived.
const PATIENCE_MS: u64 = 5 * 60 * 1000;
/// Old bills count half when the new ones weigh as much.
const RATIO_BYTES: f64 = 4e6;

/// The layers that are classed, in their order.
pub const LAYERS: [Layer; 4] = [Layer::Model, Layer::Tools, Layer::System, Layer::Messages];

#[derive(Debug, Default)]
pub struct Learned {
    prefixes: [Prefixes; 4],
    ratios: HashMap<String, Ratio>,
    starts: HashMap<PrefixHash, Starts>,
    /// By model: writes of so many tokens begin their answer too late to be waited for.
    slow_from: HashMap<String, u64>,
    /// Other betas that do not cost the messages of the cache.
    pub betas: Harmless,
}

impl Learned {
    /// Takes in the prefixes of a request, and classes each against the request that it continues.
    pub fn sight(&mut self, request: &Reading, before: Option<&Reading>) -> [SightingClass; 4] {
        let mut index = 0;
        LAYERS.map(|layer| {
            let prefixes = &mut self.prefixes[index];
            index += 1;
            let prefix = request.chain().layer(request.anatomy(), layer);
            let repeats = prefixes.see(prefix);
            match before {
                None if repeats => SightingClass::Repeat,
                None => SightingClass::New,
                Some(before) if extends(request, before, layer, prefix) => SightingClass::Repeat,
                Some(_) => SightingClass::Drift,
            }
        })
    }

    /// Returns true if the tools and the system prompt of a request came before; false if it has none.
    pub fn knows_prefix(&self, request: &Reading) -> bool {
        let anatomy = request.anatomy();
        let prefix = request.chain().layer(anatomy, Layer::System);
        anatomy.tools + anatomy.system > 0 && self.prefixes[2].knows(&prefix)
    }

    /// How many prefixes of each layer are remembered.
    pub fn prefixes(&self) -> [usize; 4] {
        [0, 1, 2, 3].map(|index| self.prefixes[index].len())
    }

    /// Learns from a bill how many tokens the bytes of a prompt make. An image has a thousand bytes to a token, and
    /// a document nobody knows how many: what holds one says nothing about text.
    pub fn bill(&mut self, model: &str, request: &Reading, usage: &Usage) {
        if request.anatomy().has_payload() {
            return;
        }
        let prompt = request.anatomy().pieces.iter().filter(|piece| !piece.deferred);
        let bytes = prompt.map(|piece| piece.span.len()).sum::<usize>() as f64;
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

    /// The answer to a request that wrote so many tokens began in time, or too late, for those that waited.
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

    /// Returns true if nobody should wait for a write of so many tokens.
    pub fn is_slow(&self, model: &str, tokens: u64) -> bool {
        self.slow_from.get(model).is_some_and(|slow_from| tokens >= *slow_from)
    }

    /// A conversation began with these tools. What has none is taken to end, whatever others did.
    pub fn started(&mut self, request: &Reading, now: Moment) {
        let Some(tools) = tool_set(request) else { return };
        if !self.starts.contains_key(&tools) && self.starts.len() >= TOOL_SETS_MAX {
            let oldest =
                self.starts.iter().min_by_key(|(_, starts)| starts.newest()).map(|(tools, _)| *tools);
            oldest.map(|tools| self.starts.remove(&tools));
        }
        let starts = self.starts.entry(tools).or_default();
        starts.0.push_back(Start { at: now, prefix: request.chain().tip(), continued: false });
        if starts.0.len() > STARTS_MAX {
            starts.0.pop_front();
        }
    }

    /// The conversation whose last request was this one goes on. If it is its first, that start is counted so.
    pub fn continued(&mut self, last: &Reading) {
        let Some(starts) = tool_set(last).and_then(|tools| self.starts.get_mut(&tools)) else { return };
        let tip = last.chain().tip();
        if let Some(start) = starts.0.iter_mut().find(|start| !start.continued && start.prefix == tip) {
            start.continued = true;
        }
    }

    /// The share of conversations with these tools that went on, once there are enough to tell.
    pub fn continues(&self, request: &Reading, now: Moment) -> Option<f64> {
        let tools = tool_set(request)?;
        let (mut all, mut continued) = (0_usize, 0_usize);
        for start in &self.starts.get(&tools)?.0 {
            continued += usize::from(start.continued);
            all += usize::from(start.continued || now.since(start.at) >= PATIENCE_MS);
        }
        (all >= STARTS_MIN).then(|| continued as f64 / all as f64)
    }
}

/// The model and the tools, if there are any.
fn tool_set(request: &Reading) -> Option<PrefixHash> {
    let anatomy = request.anatomy();
    (anatomy.tools > 0).then(|| request.chain().layer(anatomy, Layer::Tools))
}

/// Returns true if the layer is as the last request had it, or longer.
fn extends(request: &Reading, before: &Reading, layer: Layer, prefix: PrefixHash) -> bool {
    match layer {
        Layer::Messages => request.shared_pieces(before) == before.anatomy().pieces.len(),
        _ => before.chain().layer(before.anatomy(), layer) == prefix,
    }
}

/// Two generations of hashes: those seen lately are in the younger one.
#[derive(Debug, Default)]
struct Prefixes {
    young: HashSet<PrefixHash>,
    old: HashSet<PrefixHash>,
}

impl Prefixes {
    fn knows(&self, prefix: &PrefixHash) -> bool {
        self.young.contains(prefix) || self.old.contains(prefix)
    }

    /// Remembers a prefix. Returns true if it was seen before.
    fn see(&mut self, prefix: PrefixHash) -> bool {
        if self.young.contains(&prefix) {
            return true;
        }
        if self.young.len() >= PREFIXES_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        let known = self.old.remove(&prefix);
        self.young.insert(prefix);
        known
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[derive(Debug, Default)]
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

#[derive(Debug, Default)]
struct Starts(VecDeque<Start>);

/// The first request of a conversation.
#[derive(Debug)]
struct Start {
    at: Moment,
    /// Of the whole request, by which the second one names it.
    prefix: PrefixHash,
    continued: bool,
}

impl Starts {
    fn newest(&self) -> Moment {
        self.0.back().map_or(Moment(0), |start| start.at)
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
        assert_eq!(learned.sight(&first, None), [New; 4]);
        assert!(learned.knows_prefix(&first) && !learned.knows_prefix(&request("t", &["one"])));
        let second = request("s", &["one", "two"]);
        assert_eq!(learned.sight(&second, Some(&first)), [Repeat; 4]);
        let drifted = request("S", &["one", "two", "three"]);
        assert_eq!(learned.sight(&drifted, Some(&second)), [Repeat, Repeat, Drift, Drift]);
        assert_eq!(learned.sight(&request("s", &["other"]), None), [Repeat, Repeat, Repeat, New]);
        assert_eq!(learned.prefixes(), [1, 1, 2, 4]);
    }

    #[test]
    fn prefixes_are_bounded() {
        let mut prefixes = Prefixes::default();
        let keep = request("keep", &[]).chain().pieces[1];
        prefixes.see(keep);
        for number in 0..5 * PREFIXES_MAX {
            prefixes.see(request(&number.to_string(), &[]).chain().pieces[1]);
            assert!(prefixes.see(keep), "{number}");
        }
        assert!(prefixes.len() <= 2 * PREFIXES_MAX);
    }

    #[test]
    fn tokens_per_byte_follow_the_bills() {
        let mut learned = Learned::default();
        let body = request("s", &["one"]);
        assert_eq!(learned.tokens_per_byte("m"), None);
        let bytes = body.anatomy().pieces.iter().map(|piece| piece.span.len()).sum::<usize>() as u64;
        learned.bill("m", &body, &Usage { cache_read: bytes, uncached: bytes, ..Usage::default() });
        assert_eq!(learned.tokens_per_byte("m"), Some(2.0));
        for number in 0..100 {
            learned.bill(&format!("m{number}"), &body, &Usage { uncached: 1, ..Usage::default() });
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
    fn the_share_of_conversations_that_go_on_needs_time_and_numbers() {
        let mut learned = Learned::default();
        let bodies: Vec<Remembered> = (0..STARTS_MIN).map(|n| request("s", &[&n.to_string()])).collect();
        let body = &bodies[0];
        for body in &bodies {
            learned.started(body, Moment(0));
        }
        assert_eq!(learned.continues(body, Moment(PATIENCE_MS - 1)), None, "they may still go on");
        assert_eq!(learned.continues(body, Moment(PATIENCE_MS)), Some(0.0));
        bodies[..5].iter().for_each(|body| learned.continued(body));
        assert_eq!(learned.continues(body, Moment(PATIENCE_MS)), Some(5.0 / STARTS_MIN as f64));
        learned.continued(&request("s", &["0", "more"]));
        assert_eq!(learned.continues(body, Moment(PATIENCE_MS)), Some(5.0 / STARTS_MIN as f64), "no start");
        for _ in 0..10 * STARTS_MAX {
            learned.started(body, Moment(0));
        }
        assert_eq!(learned.starts.values().map(|starts| starts.0.len()).sum::<usize>(), STARTS_MAX);
    }

    #[test]
    fn conversations_without_tools_are_not_counted_together() {
        let body = r#"{"model":"m","system":"s","messages":[{"role":"user","content":"one"}]}"#;
        let body = Remembered::read(body.into(), &Nothing, Attribution::Counted).unwrap();
        let mut learned = Learned::default();
        for _ in 0..STARTS_MIN {
            learned.started(&body, Moment(0));
        }
        assert_eq!(learned.continues(&body, Moment(PATIENCE_MS)), None);
        assert!(learned.starts.is_empty());
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
            learned.bill("m", &body, &Usage { uncached: 1_600, ..Usage::default() });
            assert_eq!(learned.tokens_per_byte("m"), None);
        }
        learned.bill("m", &request("s", &["one"]), &Usage { uncached: 16, ..Usage::default() });
        assert!(learned.tokens_per_byte("m").is_some());
    }
}
