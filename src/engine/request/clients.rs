//! The name that is shown for a client: its family and minor version, if the family is known.
//!
//! A user agent is whatever a client likes to send, a key or a line of a prompt by mistake too. So only families that
//! are listed here or configured (`identity.clients`) are ever shown, and of a version only numbers: the first two with the
//! name, and all of them beside it.

/// Classes of the SDKs of Anthropic, whose user agents are `class/language version`.
const SDK_CLASSES: [&str; 13] = [
    "Anthropic",
    "AsyncAnthropic",
    "AnthropicBedrock",
    "AsyncAnthropicBedrock",
    "AnthropicVertex",
    "AsyncAnthropicVertex",
    "AnthropicFoundry",
    "AsyncAnthropicFoundry",
    "AnthropicClient",
    "AnthropicClientImpl",
    "AnthropicClientAsyncImpl",
    "BaseAnthropic",
    "Agents",
];
const SDK_LANGUAGES: [&str; 7] = ["Python", "JS", "Go", "Java", "Ruby", "PHP", "CSharp"];

/// Agents, frameworks and gateways, and the HTTP libraries of clients that have no name of their own.
const FAMILIES: [&str; 46] = [
    "claude-cli",
    "claude-code",
    "claude-agent-sdk",
    "anthropic-python",
    "anthropic-sdk",
    "anthropic-typescript",
    "langchain-anthropic",
    "deepagents",
    "pydantic-ai",
    "ai-sdk",
    "ai-sdk-anthropic",
    "mastra",
    "strands-agents",
    "agno",
    "litellm",
    "smolagents",
    "openai-agents",
    "autogen",
    "crewai",
    "llama-index",
    "haystack",
    "dspy",
    "semantic-kernel",
    "spring-ai",
    "opencode",
    "aider",
    "cline",
    "roo-code",
    "continue",
    "goose",
    "zed",
    "cursor",
    "n8n",
    "curl",
    "python-requests",
    "python-httpx",
    "python-urllib3",
    "aiohttp",
    "node",
    "node-fetch",
    "undici",
    "axios",
    "Bun",
    "Deno",
    "Go-http-client",
    "okhttp",
];

/// More digits are no version.
const VERSION_DIGITS_MAX: usize = 4;
/// More parts are no version either.
const VERSION_PARTS_MAX: usize = 4;
/// Words of a user agent that may belong to the name, its version included.
const WORDS_MAX: usize = 3;

/// The name of a client without a user agent, and of one whose family is unknown.
pub const NONE: &str = "none";
pub const OTHER: &str = "other";

/// `AsyncAnthropic/Python 2.8.0` → `AsyncAnthropic-Python/2.8`; `claude-cli/2.1.325 (…)` → `claude-cli/2.1`.
pub fn name(agent: &str, own: &[String]) -> String {
    match family(agent, own) {
        None if agent.is_empty() => NONE.into(),
        None => OTHER.into(),
        Some(family) => match version_word(agent).and_then(|version| numbers(version, 2)) {
            Some(version) => format!("{family}/{version}"),
            None => family,
        },
    }
}

/// The whole version of a known client: `claude-cli/2.1.325 (…)` → `2.1.325`.
pub fn version(agent: &str, own: &[String]) -> Option<String> {
    family(agent, own)?;
    let version = version_word(agent)?;
    (version.split('.').count() <= VERSION_PARTS_MAX).then(|| numbers(version, VERSION_PARTS_MAX))?
}

fn family(agent: &str, own: &[String]) -> Option<String> {
    let named: Vec<&str> =
        words(agent).take_while(|word| !is_version(word) && !word.starts_with('(')).collect();
    let family = named.join("-");
    (!family.is_empty() && is_known(&named, &family, own)).then_some(family)
}

fn words(agent: &str) -> impl Iterator<Item = &str> {
    agent.split([' ', '/']).take(WORDS_MAX)
}

fn is_version(word: &&str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

fn version_word(agent: &str) -> Option<&str> {
    words(agent).find(is_version)
}

fn is_known(named: &[&str], family: &str, own: &[String]) -> bool {
    let is_sdk = matches!(named, [class, language]
        if SDK_CLASSES.contains(class) && SDK_LANGUAGES.contains(language));
    is_sdk || FAMILIES.contains(&family) || own.iter().any(|own| own == family)
}

/// The first numbers of a version, if they are ones: `2.1.325` → `2.1`.
fn numbers(version: &str, most: usize) -> Option<String> {
    let parts: Vec<&str> = version.split('.').take(most).collect();
    let is_number = |part: &&str| {
        (1..=VERSION_DIGITS_MAX).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit())
    };
    parts.iter().all(is_number).then(|| parts.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_clients_are_named_by_family_and_minor_version() {
        for (agent, shown) in [
            ("claude-cli/2.1.325 (external, cli)", "claude-cli/2.1"),
            ("AsyncAnthropic/Python 2.8.0", "AsyncAnthropic-Python/2.8"),
            ("Anthropic/JS 1.8.0", "Anthropic-JS/1.8"),
            ("Agents/Python 0.24.0", "Agents-Python/0.24"),
            ("langchain-anthropic/1.7.7", "langchain-anthropic/1.7"),
            ("pydantic-ai/2.66.0", "pydantic-ai/2.66"),
            ("ai-sdk-anthropic/4.0.102 runtime/node.js/22", "ai-sdk-anthropic/4.0"),
            ("ai-sdk/anthropic/4.0.102 ai/7", "ai-sdk-anthropic/4.0"),
            ("litellm/1.106.2", "litellm/1.106"),
            ("curl", "curl"),
            ("node", "node"),
            ("", "none"),
        ] {
            assert_eq!(name(agent, &[]), shown, "{agent}");
        }
    }

    #[test]
    fn whole_versions_are_numbers_of_known_clients() {
        for (agent, shown) in [
            ("claude-cli/2.1.325 (external, cli)", Some("2.1.325")),
            ("AsyncAnthropic/Python 2.8.0", Some("2.8.0")),
            ("ai-sdk/anthropic/4.0.102 ai/7", Some("4.0.102")),
            ("claude-cli/3", Some("3")),
            ("claude-cli/1.2.3.4", Some("1.2.3.4")),
            ("claude-cli/1.2.3.4.5", None),
            ("claude-cli/2.1.secret", None),
            ("claude-cli/2.1.325-secret", None),
            ("claude-cli/2.1.12345", None),
            ("secret/1.0.1", None),
            ("curl", None),
            ("", None),
        ] {
            assert_eq!(version(agent, &[]).as_deref(), shown, "{agent}");
        }
        assert_eq!(version("till/3.2.1 (north)", &["till".to_owned()]).as_deref(), Some("3.2.1"));
    }

    #[test]
    fn what_a_user_agent_says_beside_a_known_name_is_not_shown() {
        for agent in [
            "sk-ant-api03-secret",
            "sk-ant-api03-secret/1.0",
            "Summarize the merger",
            "<script>/1.0",
            "Anthropic/secret 1.0",
            "secret/Python 1.0",
            "/2.1",
            "2.1.3",
            "(claude-cli)",
            " ",
        ] {
            assert_eq!(name(agent, &[]), "other", "{agent}");
        }
        for version in ["2.secret", "12345.1", "2.12345", "1234567890123456", "2-secret"] {
            assert_eq!(name(&format!("claude-cli/{version}"), &[]), "claude-cli", "{version}");
        }
    }

    #[test]
    fn an_operators_own_clients_are_shown_where_they_are_configured() {
        let own = ["till".to_owned(), "back-office".to_owned()];
        assert_eq!(name("till/3.2.1 (north)", &own), "till/3.2");
        assert_eq!(name("back/office 1.0", &own), "back-office/1.0");
        assert_eq!(name("tills/3.2.1", &own), "other");
    }
}
