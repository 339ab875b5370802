//! The listeners, the upstream, identities, and the canonical spelling.

use super::super::super::kind::{KeyKind, WordChoice};
use super::super::super::types::{OAuth, Profile, Volatile};
use super::super::ConfigKey;
use crate::engine::respell::canonical::Order;
use crate::engine::respell::system_block::SystemForm;
use crate::engine::words::Mode;

pub static KEYS: &[ConfigKey] = &[
    ConfigKey {
        path: "server.listen",
        kind: KeyKind::Address(|config| &mut config.server.listen),
        meaning: "Where clients connect: their base URL is http:// and this address.",
        reason: "loopback, so that a first run opens nothing to the network; port 0 lets the system choose",
    },
    ConfigKey {
        path: "server.admin_listen",
        kind: KeyKind::Address(|config| &mut config.server.admin_listen),
        meaning: "Where operators connect: the live page, health, readiness, metrics and /api. Beyond loopback it needs admin.token_file.",
        reason: "a port of its own, because every path of the first one belongs to the upstream",
    },
    ConfigKey {
        path: "server.metrics_listen",
        kind: KeyKind::OptionalAddress(|config| &mut config.server.metrics_listen),
        meaning: "A third door with health and metrics only, for probes and scrapers on other machines; \"\" for none.",
        reason: "none, because nothing is opened to the network unless somebody asks for it",
    },
    ConfigKey {
        path: "server.mode",
        kind: KeyKind::Choice(WordChoice {
            words: &["observe", "align", "fork"],
            later: &[],
            get: |config| config.server.mode.as_str(),
            put: |config, word| config.server.mode = Mode::named(word).unwrap_or(Mode::Observe),
        }),
        meaning: "What to do with requests: \"observe\" forwards every byte as it came, and measures; \"align\" also gives one spelling to what is said again, and marks what the cache should keep; \"fork\" also puts the children of a fan-out on their parent's prompt, where that costs no more. A request may lower it with x-forkpoint-mode.",
        reason: "what forkpoint is for; begin with observe to see what it would do, and with align to change nothing that the model reads",
    },
    ConfigKey {
        path: "server.response_headers",
        kind: KeyKind::Switch(|config| &mut config.server.response_headers),
        meaning: "Whether answers carry x-forkpoint-* headers that say what was decided and why.",
        reason: "on, because a decision that nobody can see cannot be trusted; clients ignore unknown headers",
    },
    ConfigKey {
        path: "upstream.url",
        kind: KeyKind::Url(|config| &mut config.upstream.url),
        meaning: "Where requests go: http or https, host, optional port and path prefix; no credentials.",
        reason: "the public Messages API, which is where clients would have gone without forkpoint",
    },
    ConfigKey {
        path: "upstream.profile",
        kind: KeyKind::Choice(WordChoice {
            words: &["anthropic", "bedrock", "vertex", "automatic"],
            later: &[],
            get: |config| config.upstream.profile.as_str(),
            put: |config, word| {
                config.upstream.profile = match word {
                    "bedrock" => Profile::Bedrock,
                    "vertex" => Profile::Vertex,
                    "automatic" => Profile::Automatic,
                    _ => Profile::Anthropic,
                };
            },
        }),
        meaning: "How the upstream caches: \"anthropic\" by markers on blocks and one for the whole request, \"bedrock\" and \"vertex\" by markers on blocks only, \"automatic\" by itself (vLLM, SGLang, llama.cpp, DeepSeek): stable bytes, no markers.",
        reason: "what the default upstream.url does",
    },
    ConfigKey {
        path: "upstream.strips_attribution",
        kind: KeyKind::OptionalSwitch(|config| &mut config.upstream.strips_attribution),
        meaning: "Whether the upstream takes the attribution line of Claude Code out of system[0] before the model reads it; \"\" says yes for profile \"anthropic\" and no for the others.",
        reason: "as the profile says, because only the first-party API is documented to do so",
    },
    ConfigKey {
        path: "upstream.connect_ms",
        kind: KeyKind::Millis(1..=600_000, |config| &mut config.upstream.connect),
        meaning: "How long a connection to the upstream may take, TLS included, before the client gets a 502.",
        reason: "a healthy handshake takes well under a second; five allow for one lost packet and its retry",
    },
    ConfigKey {
        path: "upstream.idle_s",
        kind: KeyKind::Seconds(1..=86_400, |config| &mut config.upstream.idle),
        meaning: "The longest silence of the upstream within one exchange.",
        reason: "above the ten minutes that client libraries wait, so that forkpoint is never the first to give up",
    },
    ConfigKey {
        path: "identity.pepper",
        kind: KeyKind::Secret(|config| &mut config.identity.pepper),
        meaning: "A secret mixed into tenant digests, so that they cannot be computed from a known key.",
        reason: "empty, so that digests are the same on every replica without anything to share",
    },
    ConfigKey {
        path: "identity.tenant_headers",
        kind: KeyKind::Headers(|config| &mut config.identity.tenant_headers),
        meaning: "Request headers that name the tenant instead of the credentials: for rotating tokens, or one key shared by many.",
        reason: "empty, because credentials cannot be forged by another client and these headers can",
    },
    ConfigKey {
        path: "identity.clients",
        kind: KeyKind::Texts(|config| &mut config.identity.clients),
        meaning: "Your own clients, by how their user agents begin (\"till\" for till/3.2.1), that logs and metrics show by name beside the known ones; all others are \"other\".",
        reason: "empty, because a user agent may hold anything, and what it holds would be shown",
    },
    ConfigKey {
        path: "identity.oauth",
        kind: KeyKind::Choice(WordChoice {
            words: &["observe", "full"],
            later: &[],
            get: |config| config.identity.oauth.as_str(),
            put: |config, word| {
                config.identity.oauth = if word == "full" { OAuth::Full } else { OAuth::Observe };
            },
        }),
        meaning: "What may be done to the traffic of a consumer login: \"observe\" leaves it alone, \"full\" treats it like any other.",
        reason: "a consumer login has terms of its own; whoever runs the proxy must know that they allow it",
    },
    ConfigKey {
        path: "canonical.order",
        kind: KeyKind::Choice(WordChoice {
            words: &["first-seen", "sorted", "off"],
            later: &[],
            get: |config| config.canonical.order.as_str(),
            put: |config, word| {
                config.canonical.order = match word {
                    "sorted" => Order::Sorted,
                    "off" => Order::Off,
                    _ => Order::FirstSeen,
                };
            },
        }),
        meaning: "Which spelling of tools, system and echoed inputs is the one: \"first-seen\" in a request of this tenant, \"sorted\" puts the tools in the order of their names and changes nothing else, \"off\" leaves all as it came. Where a model's thinking is bound to its prompt, only the pod that saw a conversation begin keeps its spelling: without a shared store such conversations must stay with one pod.",
        reason: "the order of properties steers the model, so none is made up; \"sorted\" is for pods that share no store",
    },
    ConfigKey {
        path: "canonical.system",
        kind: KeyKind::Choice(WordChoice {
            words: &["auto", "keep", "block"],
            later: &[],
            get: |config| config.canonical.system.as_str(),
            put: |config, word| {
                config.canonical.system = match word {
                    "keep" => SystemForm::Keep,
                    "block" => SystemForm::Block,
                    _ => SystemForm::Auto,
                };
            },
        }),
        meaning: "Whether a system prompt that is a string goes out as one text block, which can carry a breakpoint: \"auto\" where the price table says that the model reads both as one prompt (string_is_block), \"keep\" never, \"block\" always. What was decided at a conversation's first request holds for its life.",
        reason: "a string cannot be marked, so that others pay for it again; some models read string and block as two prompts",
    },
    ConfigKey {
        path: "canonical.volatile",
        kind: KeyKind::Choice(WordChoice {
            words: &["off", "report"],
            later: &[],
            get: |config| config.canonical.volatile.as_str(),
            put: |config, word| {
                config.canonical.volatile = if word == "off" { Volatile::Off } else { Volatile::Report };
            },
        }),
        meaning: "\"report\" names the dates, clocks, directories, git status, counters and ids in system and tool text that changed within a conversation, and what that cost.",
        reason: "it moves nothing, shows no text, and is looked for only where a prefix broke",
    },
    ConfigKey {
        path: "canonical.diagnose",
        kind: KeyKind::Switch(|config| &mut config.canonical.diagnose),
        meaning: "Whether aligned requests ask the upstream for its own verdict on cache misses (diagnostics.previous_message_id); profile \"anthropic\" only.",
        reason: "off, because it adds a field to the request, and one to the answer",
    },
];
