//! The many names of one model.
//!
//! A model is asked for with or without the date of its release, and clouds add words of their own. The rule:
//! only these forms are known, spelt exactly; a name with anything else in it is another model, because a guess would
//! put somebody else's price on it.
//!
//! ```text
//! claude-opus-5-5                           -latest, @default
//! claude-opus-5-5-20260901                  claude-opus-5-5@20260901          Vertex
//! anthropic.claude-opus-5-5-20260901-v1:0   us.anthropic.claude-opus-5-5-v1   Bedrock
//! ```

/// The name without Bedrock's `anthropic.`, with or without a region before it.
pub(super) fn without_provider(name: &str) -> &str {
    let after_region = match name.split_once('.') {
        Some((region, rest)) if is_region(region) => rest,
        _ => name,
    };
    let own = after_region.strip_prefix(PROVIDER).or_else(|| name.strip_prefix(PROVIDER));
    own.unwrap_or(name)
}

/// Returns true if the name is the id itself, or the id followed by a date, a version or both.
pub(super) fn is_release_of(name: &str, id: &str) -> bool {
    name.strip_prefix(id).is_some_and(|rest| is_version(after_date(rest)))
}

const PROVIDER: &str = "anthropic.";

/// `us`, `apac`, `us-gov`, `global`: short, and not a list that ages.
const REGION_BYTES_MAX: usize = 8;

fn is_region(word: &str) -> bool {
    (2..=REGION_BYTES_MAX).contains(&word.len())
        && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

fn after_date(rest: &str) -> &str {
    if let Some(after) = rest.strip_prefix("-latest").or_else(|| rest.strip_prefix("@default")) {
        return after;
    }
    let dated = rest.strip_prefix(['-', '@']).and_then(|dated| dated.split_at_checked("20260901".len()));
    match dated {
        Some((date, after)) if date.starts_with("20") && is_number(date) => after,
        _ => rest,
    }
}

/// Nothing, or Bedrock's `-v1` or `-v1:0`.
fn is_version(rest: &str) -> bool {
    let Some(version) = rest.strip_prefix("-v") else { return rest.is_empty() };
    let (major, minor) = version.split_once(':').unwrap_or((version, "0"));
    [major, minor].iter().all(|number| number.len() <= 3 && is_number(number))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
