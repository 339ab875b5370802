//! The rows.

use super::super::kind::{Choice, Kind};
use super::super::types::{GateScope, LogFormat, Mode, OAuth, Profile, StoreKind, Volatile};
use super::Key;
use crate::engine::canonical::Order;

const GIB: u64 = 1 << 30;

pub static KEYS: &[Key] = &[
    Key {
        path: "server.listen",
        kind: Kind::Address(|config| &mut config.server.listen),
        meaning: "Where clients connect: their base URL is http:// and this address.",
        reason: "loopback, so that a first run opens nothing to the network; port 0 lets the system choose",
    },
    Key {
        path: "server.admin_listen",
        kind: Kind::Address(|config| &mut config.server.admin_listen),
        meaning: "Where operators connect: health, readiness, metrics and /api. Beyond loopback it needs admin.token_file.",
        reason: "a port of its own, because every path of the first one belongs to the upstream",
    },
    Key {
        path: "server.metrics_listen",
        kind: Kind::OptionalAddress(|config| &mut config.server.metrics_listen),
        meaning: "A third door with health and metrics only, for probes and scrapers on other machines; \"\" for none.",
        reason: "none, because nothing is opened to the network unless somebody asks for it",
    },
    Key {
        path: "server.mode",
        kind: Kind::Choice(Choice {
            words: &["observe", "align"],
            later: &["fork"],
            get: |config| config.server.mode.as_str(),
            put: |config, word| config.server.mode = Mode::named(word).unwrap_or(Mode::Observe),
        }),
        meaning: "What to do with requests: \"observe\" forwards every byte as it came, and measures; \"align\" also gives one spelling to what is said again, and marks what the cache should keep. A request may lower it with x-forkpoint-mode.",
        reason: "align changes nothing that the model reads; what it writes costs a quarter more once, and each later turn reads it for a tenth",
    },
    Key {
        path: "server.response_headers",
        kind: Kind::Switch(|config| &mut config.server.response_headers),
        meaning: "Whether answers carry x-forkpoint-* headers that say what was decided and why.",
        reason: "on, because a decision that nobody can see cannot be trusted; clients ignore unknown headers",
    },
    Key {
        path: "upstream.url",
        kind: Kind::Url(|config| &mut config.upstream.url),
        meaning: "Where requests go: http or https, host, optional port and path prefix; no credentials.",
        reason: "the public Messages API, which is where clients would have gone without forkpoint",
    },
    Key {
        path: "upstream.profile",
        kind: Kind::Choice(Choice {
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
    Key {
        path: "upstream.strips_attribution",
        kind: Kind::OptionalSwitch(|config| &mut config.upstream.strips_attribution),
        meaning: "Whether the upstream takes the attribution line of Claude Code out of system[0] before the model reads it; \"\" says yes for profile \"anthropic\" and no for the others.",
        reason: "as the profile says, because only the first-party API is documented to do so",
    },
    Key {
        path: "upstream.connect_ms",
        kind: Kind::Millis(1..=600_000, |config| &mut config.upstream.connect),
        meaning: "How long a connection to the upstream may take, TLS included, before the client gets a 504.",
        reason: "a healthy handshake takes well under a second; five allow for one lost packet and its retry",
    },
    Key {
        path: "upstream.idle_s",
        kind: Kind::Seconds(1..=86_400, |config| &mut config.upstream.idle),
        meaning: "The longest silence of the upstream within one exchange.",
        reason: "above the ten minutes that client libraries wait, so that forkpoint is never the first to give up",
    },
    Key {
        path: "identity.pepper",
        kind: Kind::Secret(|config| &mut config.identity.pepper),
        meaning: "A secret mixed into tenant digests, so that they cannot be computed from a known key.",
        reason: "empty, so that digests are the same on every replica without anything to share",
    },
    Key {
        path: "identity.tenant_headers",
        kind: Kind::Headers(|config| &mut config.identity.tenant_headers),
        meaning: "Request headers that name the tenant instead of the credentials: for rotating tokens, or one key shared by many.",
        reason: "empty, because credentials cannot be forged by another client and these headers can",
    },
    Key {
        path: "identity.oauth",
        kind: Kind::Choice(Choice {
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
    Key {
        path: "canonical.order",
        kind: Kind::Choice(Choice {
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
        meaning: "Which spelling of tools, system and echoed inputs is the one: \"first-seen\" in a request of this tenant, \"sorted\" puts the tools in the order of their names and changes nothing else, \"off\" leaves all as it came.",
        reason: "the order of properties steers the model, so none is made up; \"sorted\" is for pods that share no store",
    },
    Key {
        path: "canonical.volatile",
        kind: Kind::Choice(Choice {
            words: &["off", "report"],
            later: &[],
            get: |config| config.canonical.volatile.as_str(),
            put: |config, word| {
                config.canonical.volatile = if word == "off" { Volatile::Off } else { Volatile::Report };
            },
        }),
        meaning: "\"report\" names the dates, clocks, directories, counters and ids in system and tool text that changed within a conversation, and what that cost.",
        reason: "it moves nothing, shows no text, and is looked for only where a prefix broke",
    },
    Key {
        path: "canonical.diagnose",
        kind: Kind::Switch(|config| &mut config.canonical.diagnose),
        meaning: "Whether aligned requests ask the upstream for its own verdict on cache misses (diagnostics.previous_message_id); profile \"anthropic\" only.",
        reason: "off, because it adds a field to the request, and one to the answer",
    },
    Key {
        path: "fork.tools",
        kind: Kind::Texts(|config| &mut config.fork.tools),
        meaning: "The names of tools that start agents: globs, upper and lower case alike. Others are learned once their children were seen.",
        reason: "what the tools of known agent clients are called",
    },
    Key {
        path: "fork.min_directive_chars",
        kind: Kind::Count(1..=1_000_000, |config| &mut config.fork.min_directive_chars),
        meaning: "The shortest text in a tool call that a child may be recognised by; shorter ones than 48 bytes never are.",
        reason: "shorter texts are titles, names and paths, which requests share by chance",
    },
    Key {
        path: "fork.min_children",
        kind: Kind::Count(2..=65_536, |config| &mut config.fork.min_children),
        meaning: "How many calls with such texts make an answer a fan-out.",
        reason: "two children are the fewest that can share anything",
    },
    Key {
        path: "fork.min_coverage",
        kind: Kind::Share(|config| &mut config.fork.min_coverage),
        meaning: "The part of a text block of a first message that the directive must make up, where it is not all of it.",
        reason: "half: what wraps a directive is short, and what quotes one is long",
    },
    Key {
        path: "fork.match_window_s",
        kind: Kind::Seconds(1..=86_400, |config| &mut config.fork.match_window),
        meaning: "How long after a fan-out a child may come, for clients that name neither session nor user.",
        reason: "every measured client starts its children within seconds; five minutes allow for a queue",
    },
    Key {
        path: "fork.scan_bytes",
        kind: Kind::Bytes(1_024..=64 << 20, |config| &mut config.fork.scan_bytes),
        meaning: "The most of a first message that is searched for directives.",
        reason: "larger than any measured first message, and cheap to search even when made to be dear",
    },
    Key {
        path: "fork.ttl_s",
        kind: Kind::Seconds(1..=604_800, |config| &mut config.fork.ttl),
        meaning: "How long a fan-out is remembered.",
        reason: "an hour: as long as the longest-lived cache entry",
    },
    Key {
        path: "gate.scope",
        kind: Kind::Choice(Choice {
            words: &["children", "all"],
            later: &[],
            get: |config| config.gate.scope.as_str(),
            put: |config, word| {
                config.gate.scope = if word == "all" { GateScope::All } else { GateScope::Children };
            },
        }),
        meaning: "Who may be held: \"children\" of a recognised fan-out, or \"all\" requests that would write what another is writing.",
        reason: "children come in bursts and share the most; nobody else waits unless asked for",
    },
    Key {
        path: "gate.max_hold_ms",
        kind: Kind::Millis(0..=600_000, |config| &mut config.gate.max_hold),
        meaning: "The longest that a request is ever held, counted from its arrival; 0 holds nobody.",
        reason: "five seconds, as clients do that stagger their own; most first answers begin sooner",
    },
    Key {
        path: "gate.min_tokens",
        kind: Kind::Count(0..=100_000_000, |config| &mut config.gate.min_tokens),
        meaning: "Nobody waits for an entry of fewer tokens.",
        reason: "below a thousand tokens the wait costs more than the write",
    },
    Key {
        path: "gate.json_hold_ms",
        kind: Kind::Millis(0..=600_000, |config| &mut config.gate.json_hold),
        meaning: "How long a request that does not stream is waited for, until it is learned whether that is enough.",
        reason: "half of the longest hold: such an answer shows nothing before its end",
    },
    Key {
        path: "store.kind",
        kind: Kind::Choice(Choice {
            words: &["memory"],
            later: &["file", "redis"],
            get: |config| config.store.kind.as_str(),
            put: |config, _| config.store.kind = StoreKind::Memory,
        }),
        meaning: "Where it is remembered: \"memory\" is this process, and forgets at exit.",
        reason: "the only store of this version, and the one that needs nothing installed",
    },
    Key {
        path: "store.max_bytes",
        kind: Kind::Bytes(1 << 20..=64 * GIB, |config| &mut config.store.max_bytes),
        meaning: "The most that is remembered of all tenants, recent bodies aside; the oldest goes first.",
        reason: "the spellings of dozens of tenants, in a small container",
    },
    Key {
        path: "store.tenant_share",
        kind: Kind::Share(|config| &mut config.store.tenant_share),
        meaning: "The part of store.max_bytes and store.recent_bytes that one tenant may take.",
        reason: "a quarter, so that one busy tenant leaves room for others and still has plenty",
    },
    Key {
        path: "store.recent_bytes",
        kind: Kind::Bytes(0..=64 * GIB, |config| &mut config.store.recent_bytes),
        meaning: "The most of recent request bodies that is kept, so that what a conversation says again is compared and not read again.",
        reason: "hundreds of live conversations; without its last body a conversation costs a few hundred microseconds more",
    },
    Key {
        path: "store.child_ttl_s",
        kind: Kind::Seconds(1..=604_800, |config| &mut config.store.child_ttl),
        meaning: "How long a child is remembered after its last request.",
        reason: "an hour: as long as the longest-lived cache entry",
    },
    Key {
        path: "prices.file",
        kind: Kind::OptionalPath(|config| &mut config.prices.file),
        meaning: "A table of prices and cache facts per model, in the form of config/prices.toml, used instead of the built-in one; \"\" for that.",
        reason: "the built-in table, which holds only what a source states; a model without a price has tokens and no dollars",
    },
    Key {
        path: "limits.body_bytes",
        kind: Kind::Bytes(1..=GIB, |config| &mut config.limits.body_bytes),
        meaning: "The largest body of POST /v1/messages that is collected and read; a larger one streams through unread.",
        reason: "the Messages API itself refuses requests above 32 MB",
    },
    Key {
        path: "limits.observe_bytes",
        kind: Kind::Bytes(1..=GIB, |config| &mut config.limits.observe_bytes),
        meaning: "The most of one answer, decoded, that is read along; the rest is still forwarded.",
        reason: "many times the longest answer of any model, and small enough to defuse a decompression bomb",
    },
    Key {
        path: "limits.connections",
        kind: Kind::Count(1..=1_000_000, |config| &mut config.limits.connections),
        meaning: "The most client connections at once; further ones are answered with a 503 and closed.",
        reason: "four thousand streams need about as many files on each side, within common limits of a service",
    },
    Key {
        path: "limits.held_requests",
        kind: Kind::Count(1..=1_000_000, |config| &mut config.limits.held_requests),
        meaning: "The most requests that are collected or held back at once; beyond it they stream through unread.",
        reason: "far more than one team's parallel agents, and a bound on what waiting can cost",
    },
    Key {
        path: "limits.held_bytes",
        kind: Kind::Bytes(1..=64 * GIB, |config| &mut config.limits.held_bytes),
        meaning: "The most bytes of collected bodies in memory at once; at least limits.body_bytes.",
        reason: "eight of the largest bodies, or hundreds of usual ones, in a small container",
    },
    Key {
        path: "limits.pending_forks",
        kind: Kind::Count(1..=65_536, |config| &mut config.limits.pending_forks),
        meaning: "The most fan-outs of one tenant that stream at once; further ones are not recognised.",
        reason: "far more than one team's agents fan out in the same second",
    },
    Key {
        path: "limits.tool_uses",
        kind: Kind::Count(1..=65_536, |config| &mut config.limits.tool_uses),
        meaning: "The most tool calls of one answer that are read along.",
        reason: "real fan-outs have a handful; this bounds what one hostile answer can make us remember",
    },
    Key {
        path: "limits.header_s",
        kind: Kind::Seconds(1..=3_600, |config| &mut config.limits.header),
        meaning: "How long a client may take to send its request headers, and how long a kept-alive connection may idle between requests.",
        reason: "as long as nginx keeps an idle connection; clients that pool connections give up sooner",
    },
    Key {
        path: "limits.stall_s",
        kind: Kind::Seconds(1..=86_400, |config| &mut config.limits.stall),
        meaning: "How long a client may stall: sending nothing of its body, or taking nothing of its answer.",
        reason: "a minute survives a sleeping radio or a paused debugger step, and frees what a dead client holds",
    },
    Key {
        path: "log.format",
        kind: Kind::Choice(Choice {
            words: &["human", "json"],
            later: &[],
            get: |config| config.log.format.as_str(),
            put: |config, word| {
                config.log.format = if word == "json" { LogFormat::Json } else { LogFormat::Human };
            },
        }),
        meaning: "\"human\" for a terminal, \"json\" for a collector.",
        reason: "the first reader is a person at a terminal",
    },
    Key {
        path: "log.level",
        kind: Kind::Choice(Choice {
            words: &["error", "warn", "info", "debug", "trace"],
            later: &[],
            get: |config| level_word(config.log.level),
            put: |config, word| config.log.level = level(word),
        }),
        meaning: "The least important lines that are written: \"error\", \"warn\", \"info\", \"debug\" or \"trace\".",
        reason: "info has one line per request and the start and end of the process",
    },
    Key {
        path: "drain.delay_ms",
        kind: Kind::Millis(0..=600_000, |config| &mut config.drain.delay),
        meaning: "How long the listener stays open after SIGTERM, so that load balancers notice readiness first.",
        reason: "none, because most set-ups have no load balancer in front; behind one, a few seconds",
    },
    Key {
        path: "drain.deadline_s",
        kind: Kind::Seconds(0..=86_400, |config| &mut config.drain.deadline),
        meaning: "How long running streams may take to finish before they are cut.",
        reason: "most answers end within five minutes; a supervisor's own patience should be longer",
    },
    Key {
        path: "admin.token_file",
        kind: Kind::OptionalPath(|config| &mut config.admin.token_file),
        meaning: "A file with a token of at least 16 characters, read at the start; all of the admin port but health then asks for it as authorization: Bearer. \"\" for none.",
        reason: "none, because the admin port is on loopback; beyond that it does not start without one",
    },
    Key {
        path: "admin.open_metrics",
        kind: Kind::Switch(|config| &mut config.admin.open_metrics),
        meaning: "Whether /metrics of the admin port is for everybody, token or not.",
        reason: "off, because metrics name models and count tenants; server.metrics_listen is the door for scrapers",
    },
];

fn level(word: &str) -> tracing::Level {
    match word {
        "error" => tracing::Level::ERROR,
        "warn" => tracing::Level::WARN,
        "debug" => tracing::Level::DEBUG,
        "trace" => tracing::Level::TRACE,
        _ => tracing::Level::INFO,
    }
}

fn level_word(level: tracing::Level) -> &'static str {
    match level {
        tracing::Level::ERROR => "error",
        tracing::Level::WARN => "warn",
        tracing::Level::DEBUG => "debug",
        tracing::Level::TRACE => "trace",
        _ => "info",
    }
}
