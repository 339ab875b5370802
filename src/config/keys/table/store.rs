//! The store, prices, and limits.

use super::super::super::kind::{KeyKind, WordChoice};
use super::super::super::types::StoreKind;
use super::super::ConfigKey;

const GIB: u64 = 1 << 30;

pub static KEYS: &[ConfigKey] = &[
    ConfigKey {
        path: "store.kind",
        kind: KeyKind::Choice(WordChoice {
            words: &["memory", "file", "redis"],
            later: &[],
            get: |config| config.store.kind.as_str(),
            put: |config, word| {
                config.store.kind = match word {
                    "file" => StoreKind::File,
                    "redis" => StoreKind::Redis,
                    _ => StoreKind::Memory,
                }
            },
        }),
        meaning: "Where it is remembered: \"memory\" is this process, and forgets at exit; \"file\" is also a folder of this machine, and survives a restart; \"redis\" is also a Redis or Valkey server, which several processes share. A store that fails is the same as none: nothing is known, and no client notices.",
        reason: "memory needs nothing installed, and leaves no prompt on a disk that nobody asked for",
    },
    ConfigKey {
        path: "store.path",
        kind: KeyKind::OptionalPath(|config| &mut config.store.path),
        meaning: "The folder of the file store. One process has it at a time; it is made if it is not there, and only its user may look into it. \"\" is $STATE_DIRECTORY, else $XDG_STATE_HOME/forkpoint, else ~/.local/state/forkpoint.",
        reason: "where systemd and the desktop keep what a program may not lose",
    },
    ConfigKey {
        path: "store.url",
        kind: KeyKind::StoreUrl(|config| &mut config.store.url),
        meaning: "The server of the redis store: redis://[user:password@]host[:port][/database], or rediss:// for TLS; of a cluster one server or several, with commas between them.",
        reason: "none, because whoever shares prompts between machines should say where",
    },
    ConfigKey {
        path: "store.key",
        kind: KeyKind::Secret(|config| &mut config.store.key),
        meaning: "Encrypts what the file and redis stores hold (AES-256-GCM-SIV): at least 32 random characters, the same for all processes that share a store. What another key wrote is not known any more.",
        reason: "none, because a key that lies beside what it encrypts protects nobody",
    },
    ConfigKey {
        path: "store.key_file",
        kind: KeyKind::OptionalPath(|config| &mut config.store.key_file),
        meaning: "A file with that key, less the white space around it; others on the machine may not read it. Read at the start.",
        reason: "none; a file of its own is how secrets are mounted",
    },
    ConfigKey {
        path: "store.deadline_ms",
        kind: KeyKind::Millis(1..=10_000, |config| &mut config.store.deadline),
        meaning: "The longest that a request waits for the store: once for what is known of its tenant, when this process meets the tenant first, and with redis also when a conversation begins. When the time is over, nothing is known.",
        reason: "many times what a healthy store needs, and less than anybody notices before a model's first word",
    },
    ConfigKey {
        path: "store.lock_wait_ms",
        kind: KeyKind::Millis(0..=600_000, |config| &mut config.store.lock_wait),
        meaning: "The longest that a start waits for a folder that another process has, and before that for its addresses (server.listen and the others). When the time is over, it begins without the folder, in memory, and says so; without an address it ends.",
        reason: "a process that drains gives its folder up within a second of SIGTERM; the rest is for a slow disk",
    },
    ConfigKey {
        path: "store.max_age_s",
        kind: KeyKind::Seconds(60..=31_536_000, |config| &mut config.store.max_age),
        meaning: "The longest that the file and redis stores keep a record after it was written last, whatever it is.",
        reason: "a week, so that what was learned outlives a weekend; prompts go sooner, by fork.ttl_s and store.child_ttl_s",
    },
    ConfigKey {
        path: "store.max_bytes",
        kind: KeyKind::Bytes(1 << 20..=64 * GIB, |config| &mut config.store.max_bytes),
        meaning: "The most that is remembered of all tenants, recent bodies aside: spellings, fan-outs, snapshots, and forked children with what they stand on. The oldest goes first, and last the prefixes of children that wait for nothing; while children that work fill it, no further ones are forked (reason \"store_full\").",
        reason: "the spellings of dozens of tenants and hundreds of fan-outs, in a small container",
    },
    ConfigKey {
        path: "store.tenant_share",
        kind: KeyKind::Share(|config| &mut config.store.tenant_share),
        meaning: "The part of store.max_bytes and store.recent_bytes that one tenant may take.",
        reason: "a quarter, so that one busy tenant leaves room for others and still has plenty",
    },
    ConfigKey {
        path: "store.recent_bytes",
        kind: KeyKind::Bytes(0..=64 * GIB, |config| &mut config.store.recent_bytes),
        meaning: "The most of recent request bodies that is kept, so that what a conversation says again is compared and not read again. Of older ones a digest is kept in half of this, enough to name what broke the cache.",
        reason: "hundreds of live conversations; without its last body a conversation costs a few hundred microseconds more (config/README.md has the rule for more)",
    },
    ConfigKey {
        path: "store.child_ttl_s",
        kind: KeyKind::Seconds(1..=604_800, |config| &mut config.store.child_ttl),
        meaning: "How long a child is remembered after its last request.",
        reason: "an hour: as long as the longest-lived cache entry",
    },
    ConfigKey {
        path: "prices.file",
        kind: KeyKind::OptionalPath(|config| &mut config.prices.file),
        meaning: "A table of prices and cache facts per model, in the form of config/prices.toml, used instead of the built-in one; \"\" for that.",
        reason: "the built-in table, which holds only what a source states; a model without a price has tokens and no dollars",
    },
    ConfigKey {
        path: "limits.body_bytes",
        kind: KeyKind::Bytes(1..=GIB, |config| &mut config.limits.body_bytes),
        meaning: "The largest body of a POST to …/messages that is collected and read, also when decoded; a larger one is forwarded unread.",
        reason: "the Messages API itself refuses requests above 32 MB",
    },
    ConfigKey {
        path: "limits.observe_bytes",
        kind: KeyKind::Bytes(1..=GIB, |config| &mut config.limits.observe_bytes),
        meaning: "The most of one answer, decoded, that is read along; the rest is still forwarded. All answers together count towards limits.held_bytes.",
        reason: "many times the longest answer of any model, and small enough to defuse a decompression bomb",
    },
    ConfigKey {
        path: "limits.connections",
        kind: KeyKind::Count(1..=1_000_000, |config| &mut config.limits.connections),
        meaning: "The most exchanges at once, each from its headers to the end of its answer; further ones are answered with a 503. Where the system allows too few open files for them and as many idle connections, there are fewer. Of every such limit, tenants without an accepted request share a quarter, in which the slowest upload makes room for others; no credential takes more than three times what it leaves for others, and the last eighth is for tenants with forked children.",
        reason: "four thousand streams need about as many files on each side, within common limits of a service",
    },
    ConfigKey {
        path: "limits.held_requests",
        kind: KeyKind::Count(1..=1_000_000, |config| &mut config.limits.held_requests),
        meaning: "The most requests that are collected or held back at once; beyond it they stream through unread.",
        reason: "far more than one team's parallel agents, and a bound on what waiting can cost",
    },
    ConfigKey {
        path: "limits.held_bytes",
        kind: KeyKind::Bytes(1..=64 * GIB, |config| &mut config.limits.held_bytes),
        meaning: "The most bytes in memory at once of collected bodies and what was read of them, until the upstream has accepted them, and of answers that are read along; and of prompts that were accepted and whose answers still stream, as many again. At least limits.body_bytes.",
        reason: "eight of the largest bodies, or hundreds of usual ones, in a small container",
    },
    ConfigKey {
        path: "limits.pending_forks",
        kind: KeyKind::Count(1..=65_536, |config| &mut config.limits.pending_forks),
        meaning: "The most fan-outs of one tenant that stream at once; further ones are not recognised.",
        reason: "far more than one team's agents fan out in the same second",
    },
    ConfigKey {
        path: "limits.tool_uses",
        kind: KeyKind::Count(1..=65_536, |config| &mut config.limits.tool_uses),
        meaning: "The most tool calls of one answer that are read along.",
        reason: "real fan-outs have a handful; this bounds what one hostile answer can make us remember",
    },
    ConfigKey {
        path: "limits.header_s",
        kind: KeyKind::Seconds(1..=3_600, |config| &mut config.limits.header),
        meaning: "How long a connection may be without an exchange, on every port: silent, sending the headers of a request, or kept alive between requests, in HTTP/2 also with pings.",
        reason: "as long as nginx keeps an idle connection; clients that pool connections give up sooner",
    },
    ConfigKey {
        path: "limits.stall_s",
        kind: KeyKind::Seconds(1..=86_400, |config| &mut config.limits.stall),
        meaning: "How long a client may stall: sending nothing of its body, or taking nothing of its answer; and how long it may be waited for in all while it sends less than 4 KiB a second.",
        reason: "a minute survives a sleeping radio or a paused debugger step, and frees what a dead client holds",
    },
];
