//! The table of keys: every option that this version has, declared once.
//!
//! Parsing, messages, hints, `check-config` and the manual (`config/forkpoint.toml`) are all driven by it. To
//! add an option, add its field and default in [`super::types`] and one row here; a test then asks for the
//! manual to be written anew.
//!
//! Rule: a row says what the key means and *why* its default is what it is. The default itself stands in
//! [`Config::default`] alone.

use super::kind::{Choice, Given, Kind, Shown};
use super::problem::Complaint;
use super::types::{Config, LogFormat, Mode, OAuth, Profile, StoreKind, Volatile};
use crate::engine::canonical::Order;

/// One option.
#[derive(Debug)]
pub struct Key {
    /// Section and name: `server.listen`.
    pub path: &'static str,
    pub kind: Kind,
    /// What it does, in one line.
    pub meaning: &'static str,
    /// Why the default is what it is.
    pub reason: &'static str,
}

/// A section of the file.
#[derive(Debug)]
pub struct Section {
    pub name: &'static str,
    pub meaning: &'static str,
}

pub static SECTIONS: &[Section] = &[
    Section { name: "server", meaning: "The doors of the proxy, and what it does with requests." },
    Section { name: "upstream", meaning: "The Messages API behind the proxy." },
    Section {
        name: "identity",
        meaning: "How tenants are told apart; nothing ever crosses from one to another.",
    },
    Section { name: "canonical", meaning: "One spelling for what is said again and again." },
    Section { name: "store", meaning: "What is remembered between requests." },
    Section { name: "prices", meaning: "What tokens cost, for metrics and estimates." },
    Section {
        name: "limits",
        meaning: "The most of everything; beyond a limit requests pass or are refused, never queued without end.",
    },
    Section { name: "log", meaning: "Log lines, on standard error." },
    Section { name: "drain", meaning: "What happens between SIGTERM and the exit." },
];

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
        meaning: "Where operators connect: health, readiness and metrics. Loopback only in this version.",
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
];

/// An option of the design that this version does not have: a whole section, or one key.
#[derive(Debug)]
pub(super) struct Later {
    path: &'static str,
    instead: &'static str,
}

const OBSERVES: &str = "remove it; this version observes and aligns, and has nothing to set here";
const MEMORY: &str = "remove it; this version remembers in memory only, and has nothing to set here";

static LATER: &[Later] = &[
    Later { path: "fork", instead: OBSERVES },
    Later { path: "gate", instead: OBSERVES },
    Later { path: "policy", instead: "remove it; in this version all requests are treated alike" },
    Later { path: "tenants", instead: "remove it; in this version tenants have digests and no names" },
    Later { path: "record", instead: "remove it; this version records no traffic" },
    Later { path: "trace", instead: "remove it; this version has metrics and log lines, and no traces" },
    Later {
        path: "admin",
        instead: "remove it; the admin port of this version is server.admin_listen, on loopback",
    },
    Later { path: "privacy", instead: "remove it; this version never shows prompt text" },
    Later { path: "store.path", instead: MEMORY },
    Later { path: "store.url", instead: MEMORY },
    Later { path: "store.key", instead: MEMORY },
    Later { path: "store.deadline_ms", instead: MEMORY },
    Later { path: "store.child_ttl_s", instead: MEMORY },
    Later { path: "limits.pending_forks", instead: OBSERVES },
];

/// The option of the design at this path, if it is one that this version does not have.
pub(super) fn later(path: &str) -> Option<&'static Later> {
    let section = path.split('.').next().unwrap_or(path);
    LATER.iter().find(|later| later.path == path || later.path == section)
}

impl Later {
    pub fn complaint(&self) -> Complaint {
        let version = env!("CARGO_PKG_VERSION");
        Complaint::new(format!("known, but not built in forkpoint {version}"), self.instead)
    }
}

impl Key {
    pub fn find(path: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.path == path)
    }

    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        super::environment::long_name(self.path)
    }

    pub fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::Secret(_))
    }

    /// What an empty configuration holds.
    pub fn default(&self) -> Shown {
        self.shown(&Config::default())
    }

    /// What this configuration holds.
    pub fn shown(&self, config: &Config) -> Shown {
        self.kind.show(config)
    }

    /// Key and given value as a message may repeat them.
    pub(super) fn assignment(&self, given: &Given) -> String {
        match given {
            Given::Other(_) => self.path.to_owned(),
            _ => format!("{} = {}", self.path, self.kind.quote(given)),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Canonical, Drain, Identity, Limits, Log, PriceTable, Server, Store, Upstream};

    #[test]
    fn every_field_of_the_configuration_has_a_row() {
        // A new field does not compile here until it is named, and named it must be counted.
        let Config { server, upstream, identity, canonical, store, prices, limits, log, drain } =
            Config::default();
        let Server { listen: _, admin_listen: _, metrics_listen: _, mode: _, response_headers: _ } = server;
        let Upstream { url: _, profile: _, strips_attribution: _, connect: _, idle: _ } = upstream;
        let Identity { pepper: _, tenant_headers: _, oauth: _ } = identity;
        let Canonical { order: _, volatile: _, diagnose: _ } = canonical;
        let Store { kind: _, max_bytes: _, tenant_share: _, recent_bytes: _ } = store;
        let PriceTable { file: _ } = prices;
        let Limits {
            body_bytes: _,
            observe_bytes: _,
            connections: _,
            held_requests: _,
            held_bytes: _,
            tool_uses: _,
            header: _,
            stall: _,
        } = limits;
        let Log { format: _, level: _ } = log;
        let Drain { delay: _, deadline: _ } = drain;
        assert_eq!(KEYS.len(), 5 + 5 + 3 + 3 + 4 + 1 + 8 + 2 + 2);
    }

    #[test]
    fn each_row_fills_a_field_of_its_own() {
        for key in KEYS {
            let Some(other) = another_value(&key.kind) else { continue };
            let mut config = Config::default();
            key.kind.put(&mut config, &Given::Word(other.to_owned())).unwrap();
            let changed: Vec<_> =
                KEYS.iter().filter(|k| k.shown(&config) != k.default()).map(|k| k.path).collect();
            assert_eq!(changed, [key.path]);
        }
    }

    /// A valid value that is no key's default; none where a choice has but one word.
    fn another_value(kind: &Kind) -> Option<&'static str> {
        match kind {
            Kind::Switch(slot) => {
                let mut config = Config::default();
                Some(if *slot(&mut config) { "false" } else { "true" })
            }
            Kind::OptionalSwitch(_) => Some("true"),
            Kind::Share(_) => Some("0.5"),
            Kind::Address(_) | Kind::OptionalAddress(_) => Some("127.0.0.9:9"),
            Kind::Url(_) => Some("http://other.example"),
            Kind::Secret(_) => Some("hunter2"),
            Kind::OptionalPath(_) => Some("other.toml"),
            Kind::Headers(_) => Some("x-user,x-team"),
            Kind::Bytes(..) => Some("7777777"),
            Kind::Count(..) | Kind::Millis(..) | Kind::Seconds(..) => Some("777"),
            Kind::Choice(choice) => {
                let default = (choice.get)(&Config::default());
                choice.words.iter().find(|word| **word != default).copied()
            }
        }
    }

    #[test]
    fn every_choice_is_what_it_says_and_every_later_word_is_refused_as_such() {
        for key in KEYS {
            let Kind::Choice(choice) = &key.kind else { continue };
            for word in choice.words {
                let mut config = Config::default();
                key.kind.put(&mut config, &Given::Text((*word).to_owned())).unwrap();
                assert_eq!(key.shown(&config), Shown::Text((*word).to_owned()));
            }
            for word in choice.later {
                let refused = key.kind.put(&mut Config::default(), &Given::Text((*word).to_owned()));
                assert!(refused.unwrap_err().message.starts_with("known, but not built"), "{word}");
            }
        }
    }

    #[test]
    fn rows_stand_in_the_order_of_their_sections_and_are_written_out() {
        let sections: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
        let place = |key: &Key| sections.iter().position(|name| *name == key.section());
        assert!(KEYS.iter().all(|key| place(key).is_some()));
        assert!(KEYS.iter().map(place).is_sorted());
        for key in KEYS {
            assert!(key.meaning.ends_with('.') && !key.reason.is_empty(), "{}", key.path);
            assert!(later(key.path).is_none(), "{} is built", key.path);
        }
    }
}
