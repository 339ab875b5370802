//! The models the simulator serves, and what differs between them.
//!
//! Minimum prefix, window, prices and thinking rules are per model and change with every release, so they are
//! rows of a table that a configuration can replace ([`SimConfig::models`](super::SimConfig)), not code.
//! Where the vendor's figures were not at hand the row follows its family; what a row says is then an assumption.

use serde::Serialize;

/// One model's row.
#[derive(Debug, Clone, Serialize)]
pub struct ModelSpec {
    pub id: String,
    pub display_name: String,
    pub created_at: String,
    /// Prefixes with fewer tokens are silently not cached.
    pub minimum_tokens: u64,
    /// Prompt plus `max_tokens` must fit.
    pub window_tokens: u64,
    pub max_output_tokens: u64,
    pub price: ModelPrice,
    pub kept_thinking: KeptThinking,
    pub binding: ThinkingBinding,
    /// May `messages` hold a `role:"system"` message?
    pub system_messages: Support,
    /// May the conversation end with an assistant message?
    pub prefill: Support,
    pub string_content: StringContent,
}

/// The treatment of thinking blocks of earlier turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptThinking {
    /// They stay in the prompt.
    All,
    /// A user message that is not a tool result strips those before it.
    LastTurn,
}

/// The tie between a thinking block and the exact prompt it was produced under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingBinding {
    Bound,
    Free,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    Yes,
    No,
}

/// Decides if `"content":"x"` and `"content":[{"type":"text","text":"x"}]` are one prefix or two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StringContent {
    SameAsOneBlock,
    Different,
}

/// Dollars per million tokens, and multiples of the input price for cache traffic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ModelPrice {
    pub input_usd: f64,
    pub output_usd: f64,
    pub read_multiple: f64,
    pub write_5m_multiple: f64,
    pub write_1h_multiple: f64,
    pub long_prompt: Option<LongPrompt>,
}

/// The dearer tier of a model whose price depends on the size of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LongPrompt {
    /// Prompts with more tokens than this pay the prices below, for all their tokens.
    pub above_tokens: u64,
    pub input_usd: f64,
    pub output_usd: f64,
}

/// The tokens that one request was billed for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BilledUsage {
    /// Tokens after the last breakpoint.
    pub uncached: u64,
    pub cache_read: u64,
    pub cache_write_5m: u64,
    pub cache_write_1h: u64,
    pub output: u64,
}

impl BilledUsage {
    pub fn prompt(&self) -> u64 {
        self.uncached + self.cache_read + self.cache_write()
    }

    pub fn cache_write(&self) -> u64 {
        self.cache_write_5m + self.cache_write_1h
    }
}

impl ModelPrice {
    /// The dollars for `usage`, cache multiples and the long-prompt tier included.
    pub fn cost_usd(&self, usage: &BilledUsage) -> f64 {
        let (input_usd, output_usd) = match self.long_prompt {
            Some(tier) if usage.prompt() > tier.above_tokens => (tier.input_usd, tier.output_usd),
            _ => (self.input_usd, self.output_usd),
        };
        let input_units = usage.uncached as f64
            + usage.cache_read as f64 * self.read_multiple
            + usage.cache_write_5m as f64 * self.write_5m_multiple
            + usage.cache_write_1h as f64 * self.write_1h_multiple;
        (input_units * input_usd + usage.output as f64 * output_usd) / 1e6
    }
}

/// The row a request's `model` names: its id, or the id with a release date or `-latest` behind it.
pub fn find<'a>(models: &'a [ModelSpec], name: &str) -> Option<&'a ModelSpec> {
    models.iter().find(|model| {
        name.strip_prefix(model.id.as_str()).is_some_and(|rest| match rest {
            "" | "-latest" | "-0" => true,
            // Vertex writes the date behind an `@`.
            _ => rest.strip_prefix(['-', '@']).is_some_and(is_release_date),
        })
    })
}

fn is_release_date(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The rows of the public models, newest first.
pub fn public_models() -> Vec<ModelSpec> {
    let (five, older) = (Era::Five, Era::FourSix);
    vec![
        row("claude-fable-5-2", "2026-11-09", 512, Era::Bound, price(8.0, 40.0).read(0.025)),
        row("claude-mythos-5-2", "2026-11-09", 512, Era::Bound, price(8.0, 40.0).read(0.025)),
        row("claude-opus-5-5", "2026-10-20", 512, Era::Bound, price(4.0, 20.0).read(0.05)),
        row("claude-sonnet-5-5", "2026-10-20", 512, Era::Bound, price(2.0, 10.0)),
        row("claude-haiku-5-5", "2026-10-20", 512, Era::Bound, price(0.1, 0.5).above(100_000, 0.5, 2.5)),
        row("claude-fable-5-1", "2026-09-08", 512, Era::Bound, price(10.0, 50.0).read(0.025)),
        row("claude-mythos-5-1", "2026-09-08", 512, Era::Bound, price(10.0, 50.0).read(0.025)),
        row("claude-opus-5", "2026-07-01", 512, five, price(5.0, 25.0)),
        row("claude-fable-5", "2026-07-01", 512, five, price(10.0, 50.0)),
        row("claude-mythos-5", "2026-07-01", 512, five, price(10.0, 50.0)),
        row("claude-sonnet-5", "2026-07-01", 1024, older, price(3.0, 15.0)),
        row("claude-opus-4-8", "2026-05-12", 1024, five, price(5.0, 25.0)),
        row("claude-opus-4-7", "2026-04-16", 2048, older, price(5.0, 25.0)),
        row("claude-mythos-preview", "2026-04-07", 2048, older, price(25.0, 125.0)),
        row("claude-opus-4-6", "2026-02-05", 4096, older, price(5.0, 25.0)),
        row("claude-sonnet-4-6", "2026-02-17", 1024, older, price(3.0, 15.0)),
        row("claude-opus-4-5", "2025-11-01", 4096, Era::OpusFourFive, price(5.0, 25.0)),
        row("claude-haiku-4-5", "2025-10-01", 4096, Era::FourFive, price(1.0, 5.0)),
        row("claude-sonnet-4-5", "2025-09-29", 1024, Era::FourFive, price(3.0, 15.0)),
        row("claude-opus-4-1", "2025-08-05", 1024, Era::Four, price(15.0, 75.0)),
        row("claude-opus-4", "2025-05-14", 1024, Era::Four, price(15.0, 75.0)),
        row("claude-sonnet-4", "2025-05-14", 1024, Era::FourFive, price(3.0, 15.0)),
        row("claude-3-5-haiku", "2024-10-22", 2048, Era::Three, price(0.8, 4.0)),
    ]
}

/// A generation of models with common properties.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Era {
    Three,
    Four,
    FourFive,
    /// The first that keeps all thinking.
    OpusFourFive,
    /// No prefill from here on.
    FourSix,
    /// `role:"system"` messages from here on.
    Five,
    /// Thinking is bound to its prompt.
    Bound,
}

fn row(id: &str, created: &str, minimum_tokens: u64, era: Era, price: ModelPrice) -> ModelSpec {
    let (window_tokens, max_output_tokens) = match era {
        Era::Three => (200_000, 8_192),
        Era::Four => (200_000, 32_000),
        Era::FourFive | Era::OpusFourFive => (200_000, 64_000),
        Era::FourSix | Era::Five | Era::Bound => (1_000_000, 128_000),
    };
    let yes_if = |condition| if condition { Support::Yes } else { Support::No };
    let bound = era == Era::Bound;
    ModelSpec {
        id: id.to_owned(),
        display_name: display_name(id),
        created_at: format!("{created}T00:00:00Z"),
        minimum_tokens,
        window_tokens,
        max_output_tokens,
        price,
        kept_thinking: match era {
            Era::Three | Era::Four | Era::FourFive => KeptThinking::LastTurn,
            _ => KeptThinking::All,
        },
        binding: if bound { ThinkingBinding::Bound } else { ThinkingBinding::Free },
        system_messages: yes_if(bound || era == Era::Five),
        prefill: yes_if(!(bound || era == Era::Five || era == Era::FourSix)),
        string_content: if bound { StringContent::Different } else { StringContent::SameAsOneBlock },
    }
}

fn price(input_usd: f64, output_usd: f64) -> ModelPrice {
    ModelPrice {
        input_usd,
        output_usd,
        read_multiple: 0.1,
        write_5m_multiple: 1.25,
        write_1h_multiple: 2.0,
        long_prompt: None,
    }
}

impl ModelPrice {
    fn read(self, read_multiple: f64) -> ModelPrice {
        ModelPrice { read_multiple, ..self }
    }

    fn above(self, above_tokens: u64, input_usd: f64, output_usd: f64) -> ModelPrice {
        ModelPrice { long_prompt: Some(LongPrompt { above_tokens, input_usd, output_usd }), ..self }
    }
}

/// `claude-opus-4-8` → `Claude Opus 4.8`.
fn display_name(id: &str) -> String {
    let mut name = String::new();
    let mut after_digit = false;
    for part in id.split('-') {
        let is_digit = part.bytes().all(|byte| byte.is_ascii_digit());
        if !name.is_empty() {
            name.push(if is_digit && after_digit { '.' } else { ' ' });
        }
        let mut letters = part.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.extend(letters);
        after_digit = is_digit;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str) -> ModelSpec {
        find(&public_models(), name).expect(name).clone()
    }

    #[test]
    fn the_minimum_prefix_is_per_model() {
        for (name, tokens) in [
            ("claude-opus-5", 512),
            ("claude-fable-5", 512),
            ("claude-mythos-5", 512),
            ("claude-opus-5-5", 512),
            ("claude-sonnet-5-5", 512),
            ("claude-haiku-5-5", 512),
            ("claude-fable-5-1", 512),
            ("claude-fable-5-2", 512),
            ("claude-opus-4-8", 1024),
            ("claude-sonnet-5", 1024),
            ("claude-sonnet-4-6", 1024),
            ("claude-sonnet-4-5", 1024),
            ("claude-opus-4-1", 1024),
            ("claude-opus-4", 1024),
            ("claude-sonnet-4", 1024),
            ("claude-opus-4-7", 2048),
            ("claude-mythos-preview", 2048),
            ("claude-3-5-haiku-20241022", 2048),
            ("claude-opus-4-6", 4096),
            ("claude-opus-4-5", 4096),
            ("claude-haiku-4-5", 4096),
        ] {
            assert_eq!(model(name).minimum_tokens, tokens, "{name}");
        }
    }

    #[test]
    fn a_model_answers_to_its_alias_and_its_release_date_but_not_to_a_longer_name() {
        assert_eq!(model("claude-sonnet-4-5-20250929").id, "claude-sonnet-4-5");
        assert_eq!(model("claude-3-5-haiku-latest").id, "claude-3-5-haiku");
        assert_eq!(model("claude-sonnet-4-0").id, "claude-sonnet-4");
        assert!(find(&public_models(), "claude-sonnet-4-9").is_none());
        assert!(find(&public_models(), "claude-opus-5-5x").is_none());
    }

    #[test]
    fn reads_are_cheaper_than_a_tenth_where_the_price_list_says_so() {
        let million_read = BilledUsage { cache_read: 1_000_000, ..BilledUsage::default() };
        for (name, usd) in [
            ("claude-opus-5-5", 0.20),
            ("claude-fable-5-1", 0.25),
            ("claude-fable-5-2", 0.20),
            ("claude-opus-5", 0.50),
        ] {
            let cost = model(name).price.cost_usd(&million_read);
            assert!((cost - usd).abs() < 1e-9, "{name}: {cost}");
        }
    }

    #[test]
    fn writes_cost_a_quarter_more_for_five_minutes_and_double_for_an_hour() {
        let price = model("claude-opus-5-5").price;
        let cost = |usage: BilledUsage| price.cost_usd(&usage);
        assert!(
            (cost(BilledUsage { cache_write_5m: 1_000_000, ..BilledUsage::default() }) - 5.0).abs() < 1e-9
        );
        assert!(
            (cost(BilledUsage { cache_write_1h: 1_000_000, ..BilledUsage::default() }) - 8.0).abs() < 1e-9
        );
    }

    #[test]
    fn haiku_5_5_is_dearer_above_a_hundred_thousand_prompt_tokens() {
        let price = model("claude-haiku-5-5").price;
        let short = price.cost_usd(&BilledUsage { uncached: 100_000, ..BilledUsage::default() });
        let long = price.cost_usd(&BilledUsage { uncached: 100_001, ..BilledUsage::default() });
        assert!((short - 0.01).abs() < 1e-9);
        assert!((long - 0.0500005).abs() < 1e-9);
    }

    #[test]
    fn display_names_read_like_names() {
        assert_eq!(display_name("claude-opus-4-8"), "Claude Opus 4.8");
        assert_eq!(display_name("claude-mythos-preview"), "Claude Mythos Preview");
    }
}
