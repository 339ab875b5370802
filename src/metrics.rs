//! Every metric, declared once: the doc line of a field is its HELP text, its name follows `forkpoint_`.
//!
//! Labels are bounded by construction: they are enums, or names that passed through [`LabelValues`].

mod exposition;
mod labels;
mod process;
mod series;
mod zeros;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

pub use exposition::{Exposition, SharedText};
pub use labels::{Admit, LabelValues};
pub use process::memory_limit;
pub use series::{Alike, Series};

use crate::engine::request::clients::{NONE, OTHER};
use crate::engine::words::{Step, TenantId};

/// From a microsecond to 100 ms: what the proxy itself adds.
const OVERHEAD_BUCKETS: &[f64] =
    &[1e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1];
/// From a fast cache hit to the longest thinking.
const UPSTREAM_BUCKETS: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0];

/// Children, turns: few of most, and a long tail.
const COUNT_BUCKETS: &[f64] =
    &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 250.0];
/// From a folder in memory to a server that does not answer.
const STORE_BUCKETS: &[f64] =
    &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0];
/// From a moment to the longest hold.
const HOLD_BUCKETS: &[f64] = &[0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 10.0];

const MODELS_MAX: usize = 64;
const CLIENTS_MAX: usize = 64;
const TENANTS_MAX: usize = 50;
const TOOLS_MAX: usize = 50;
const FORKS_SHOWN_MAX: usize = 50;

macro_rules! metrics {
    ($(#[doc = $help:literal] $name:ident: $kind:ident [$($label:literal),*] $(in $buckets:expr)?;)*) => {
        pub struct Metrics {
            registry: Registry,
            families: Vec<MetricFamily>,
            pub models: LabelValues,
            pub clients: LabelValues,
            pub tenants: LabelValues,
            tools: LabelValues,
            newest: Mutex<VecDeque<[String; 2]>>,
            versions: RwLock<VecDeque<[String; 2]>>,
            tenant_names: OnceLock<BTreeMap<String, String>>,
            kept: series::SeriesCache,
            scrape: OnceLock<Scrape>,
            started: f64,
            $(#[doc = $help] pub $name: $kind,)*
        }

        impl Metrics {
            pub fn new() -> Result<Metrics, prometheus::Error> {
                let registry = Registry::new();
                $(
                    let opts = Opts::new(concat!("forkpoint_", stringify!($name)), $help.trim());
                    let $name = metrics!(@new $kind, opts, &[$($label),*] $(, $buckets)?)?;
                    registry.register(Box::new($name.clone()))?;
                    metrics!(@show $name [$($label),*]);
                )*
                let mut families = vec![$(MetricFamily::of(&$name)),*];
                families.extend(process::families());
                let metrics = Metrics {
                    registry,
                    families,
                    models: LabelValues::new(MODELS_MAX),
                    clients: LabelValues::new(CLIENTS_MAX),
                    tenants: LabelValues::new(TENANTS_MAX),
                    tools: LabelValues::new(TOOLS_MAX),
                    newest: Mutex::default(),
                    versions: RwLock::default(),
                    tenant_names: OnceLock::new(),
                    kept: series::SeriesCache::default(),
                    scrape: OnceLock::new(),
                    started: process::started(),
                    $($name,)*
                };
                metrics.begin_at_zero();
                metrics.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
                Ok(metrics)
            }
        }
    };
    (@new HistogramVec, $opts:expr, $labels:expr, $buckets:expr) => {
        HistogramVec::new(HistogramOpts::from($opts).buckets($buckets.to_vec()), $labels)
    };
    // What has no labels reads zero from the start.
    (@show $name:ident []) => { $name.with_label_values::<&str>(&[]); };
    (@show $name:ident [$($label:literal),+]) => {};
    (@new $kind:ident, $opts:expr, $labels:expr) => { $kind::new($opts, $labels) };
}

metrics! {
    /// Requests by what they were, what was done, the model and the status the client saw (none: it left before one).
    requests_total: IntCounterVec["role", "plan", "model", "status"];
    /// Requests left alone, by reason.
    passthrough_total: IntCounterVec["reason"];
    /// Rewritten requests that the upstream refused and that went out once more as they came, or whose client was asked for the whole conversation (`thread`), by reason.
    fallbacks_total: IntCounterVec["reason"];
    /// Messages calls whose path has its version twice and that got a 404, by whose URL is to be changed: client or upstream.
    misdirected_total: IntCounterVec["url"];
    /// Requests that forkpoint answered itself, by reason.
    refused_total: IntCounterVec["reason"];
    /// Bugs of forkpoint that were caught and cost nobody an answer, by step. Those in align and fork are reasons: internal.
    panics_total: IntCounterVec["step"];
    /// Tokens as the upstream billed them: uncached, cache_read, cache_write_5m, cache_write_1h or output.
    tokens_total: IntCounterVec["role", "model", "kind"];
    /// Tokens as the upstream billed them, by tenant: its name, or eight digits of its digest.
    tenant_tokens_total: IntCounterVec["tenant", "kind"];
    /// Requests by client family and version, and what was done.
    client_requests_total: IntCounterVec["client", "plan"];
    /// Whole versions of known clients that were seen, the newest 64; always 1.
    client_info: IntGaugeVec["client", "version"];
    /// Tokens as the upstream billed them, by client family and version.
    client_tokens_total: IntCounterVec["client", "kind"];
    /// Answers that read fewer cached tokens than predicted, by client family and version and the one cause.
    client_cache_breaks_total: IntCounterVec["client", "cause"];
    /// Layers of accepted requests: new to the tenant, a repeat, or a drift from what the conversation brought.
    prefix_sightings_total: IntCounterVec["layer", "class"];
    /// Answers that read fewer cached tokens than predicted, by the first layer that was lost and the one cause.
    cache_breaks_total: IntCounterVec["layer", "cause"];
    /// Tokens that those answers did not read from the cache.
    cache_break_tokens_total: IntCounterVec["layer", "cause"];
    /// Fan-outs that were recognised, and those that were given up, by outcome.
    forks_total: IntCounterVec["outcome"];
    /// Calls with a directive per fan-out.
    fork_children: HistogramVec[] in COUNT_BUCKETS;
    /// Turns of each child that came to its end.
    child_turns: HistogramVec[] in COUNT_BUCKETS;
    /// Children that were recognised, by what was done to their first request and why not more.
    children_total: IntCounterVec["plan", "reason"];
    /// Fan-outs of a tenant and tool that are no longer forked, by reason.
    standdowns_total: IntCounterVec["reason"];
    /// Fan-outs of children: those that they start are gated, and never forked.
    recursion_blocked_total: IntCounterVec[];
    /// Calls by forked children of tools that they did not bring themselves.
    foreign_tool_calls_total: IntCounterVec[];
    /// Tokens of tool results that children were given and that their parent had already read (an estimate), by plan.
    reread_tokens_total: IntCounterVec["plan"];
    /// Turns of children that brought such a result.
    reread_turns_total: IntCounterVec["plan"];
    /// Answers that ended a turn without a word or a call.
    empty_answers_total: IntCounterVec["role", "plan"];
    /// US dollars billed, by price table; models without a price are left out.
    cost_usd_total: CounterVec["role", "model", "kind"];
    /// US dollars that the same requests would have cost (an estimate): as sent, aligned, without a cache.
    counterfactual_usd_total: CounterVec["role", "model", "baseline"];
    /// US dollars that the requests as sent would have cost more than billed (an estimate). It falls by what was dearer.
    saved_usd: GaugeVec["role", "model"];
    /// US dollars by tenant: billed, and as the same requests would have cost as sent and aligned (an estimate).
    tenant_cost_usd_total: CounterVec["tenant", "baseline"];
    /// US dollars by client family and version: billed, and as sent and aligned (an estimate).
    client_cost_usd_total: CounterVec["client", "baseline"];
    /// US dollars of children by the tool that started them: billed, and as sent and aligned (an estimate).
    tool_cost_usd_total: CounterVec["tool", "baseline"];
    /// US dollars that forked children were billed more than aligned (an estimate): the price of their parent's context.
    context_usd_total: CounterVec[];
    /// Answers that no saving is counted for: no usage, no price, or an unknown cost as sent.
    uncompared_total: IntCounterVec["reason"];
    /// How far predictions of the cache are off, of late: the differences between what prompts were predicted to cost and what they were billed, whether more or less, over their bills. 0 if every prediction was right.
    ledger_error_ratio: GaugeVec[];
    /// Children, by arm: forked, held out to compare them with, or not forked for another reason.
    arm_children_total: IntCounterVec["arm"];
    /// Turns of those children.
    arm_turns_total: IntCounterVec["arm"];
    /// Tokens that those children wrote.
    arm_output_tokens_total: IntCounterVec["arm"];
    /// Answers to those children that ended a turn without a word or a call.
    arm_empty_answers_total: IntCounterVec["arm"];
    /// Tool results that those children brought back as errors.
    arm_tool_errors_total: IntCounterVec["arm"];
    /// Answers to those children by how they ended.
    arm_stop_reasons_total: IntCounterVec["arm", "reason"];
    /// US dollars billed for those children.
    arm_cost_usd_total: CounterVec["arm"];
    /// Seconds from the first request to the last answer of those children.
    arm_wall_seconds_total: CounterVec["arm"];
    /// Requests that came to the gate with something to write, by what became of them.
    gate_holds_total: IntCounterVec["outcome"];
    /// How long they were held.
    gate_hold_seconds: HistogramVec[] in HOLD_BUCKETS;
    /// Tokens read because their writer was waited for (saved), and written twice because nobody waited (missed).
    gate_tokens_total: IntCounterVec["kind"];
    /// Prefix hashes that are remembered, by layer.
    prefixes_live: IntGaugeVec["layer"];
    /// The newest fan-outs and the hash of their parent's prompt; always 1.
    prefix_info: IntGaugeVec["fork", "prefix"];
    /// Fan-outs that are remembered.
    forks_live: IntGaugeVec[];
    /// What the store holds in memory, recent bodies included.
    store_bytes: IntGaugeVec[];
    /// What the store was asked and how it went: hit (a recall that finds the conversation; a lease whose entry another process has written), miss (a lease that another process has) and ok are well.
    store_ops_total: IntCounterVec["store", "op", "outcome"];
    /// 1 while the store behind the memory is not asked, since it fails; its last error is in the log and in `/readyz`.
    store_degraded: IntGaugeVec["store"];
    /// Tenants with something to be written to the store behind the memory, or of which something is being written.
    store_queue: IntGaugeVec["store"];
    /// What the store behind the memory takes, where it knows that: on disk, compressed.
    store_kept_bytes: IntGaugeVec["store"];
    /// Records that were not written to the store behind the memory, or not read of a tenant that has more than memory may hold; what is still known is written anew later.
    store_dropped_total: IntCounterVec["store"];
    /// Records of the store behind the memory that could not be read, or belong to nothing.
    store_unreadable_total: IntCounterVec["store"];
    /// How long calls to the store behind the memory took.
    store_seconds: HistogramVec["store", "op"] in STORE_BUCKETS;
    /// Requests whose conversation's last body is not known: new, faded (its digests are known) or forgotten for want of room.
    recall_misses_total: IntCounterVec["reason"];
    /// Texts of tools and system that changed within a conversation, by what they are.
    volatile_total: IntCounterVec["layer", "kind"];
    /// Tokens from the first such text of a kind to the last breakpoint: what moving it there would save.
    volatile_tokens_total: IntCounterVec["layer", "kind"];
    /// Lines of the recording that were written.
    record_lines_total: IntCounterVec[];
    /// Lines of the recording that were not written, by reason.
    record_dropped_total: IntCounterVec["reason"];
    /// Traces that the collector took.
    traces_total: IntCounterVec[];
    /// Traces that were not sent or not taken, by reason.
    traces_dropped_total: IntCounterVec["reason"];
    /// Time that forkpoint itself added to an exchange, by phase.
    overhead_seconds: HistogramVec["phase"] in OVERHEAD_BUCKETS;
    /// From the upstream call to the first byte of its answer's body.
    upstream_first_byte_seconds: HistogramVec[] in UPSTREAM_BUCKETS;
    /// Requests with bodies in memory right now, bytes of those and of answers that are read, and prompts of open streams.
    held: IntGaugeVec["unit"];
    /// Accepted requests that were not followed to the end of their answers, because too much was in memory: prompt or answer.
    unfollowed_total: IntCounterVec["reason"];
    /// Exchanges right now, from their headers to the end of their answers.
    exchanges: IntGaugeVec[];
    /// Connections right now, by port: proxy, admin or metrics.
    connections: IntGaugeVec["port"];
    /// Requests by the part of the API that they call.
    endpoint_requests_total: IntCounterVec["endpoint"];
    /// The number of the configuration in force; each one that is loaded while running has the next.
    config_generation: IntGaugeVec[];
    /// 1 for the mode in force, 0 for the others.
    mode: IntGaugeVec["mode"];
    /// The limits in force, by their keys; `memory` is that of the container, where there is one.
    limit: IntGaugeVec["key"];
    /// Configurations that were loaded while running, and those that were refused whole.
    config_reloads_total: IntCounterVec["outcome"];
    /// The running version.
    build_info: IntGaugeVec["version"];
}

/// Sets the gauges that nobody needs to know between two scrapes.
type Scrape = Box<dyn Fn(&Metrics) + Send + Sync>;

impl Metrics {
    /// Calls `set` before each scrape. The first caller counts.
    pub fn at_scrape(&self, set: impl Fn(&Metrics) + Send + Sync + 'static) {
        let _ = self.scrape.set(Box::new(set));
    }

    /// Shows a new fan-out in `prefix_info`, and no longer the oldest one that was shown.
    pub fn show_fork(&self, fork: String, prefix: String) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let labels = [fork, prefix];
        if newest.contains(&labels) {
            return;
        }
        self.prefix_info.with_label_values(&labels).set(1);
        newest.push_back(labels);
        if newest.len() > FORKS_SHOWN_MAX
            && let Some(oldest) = newest.pop_front()
        {
            let _ = self.prefix_info.remove_label_values(&oldest);
        }
    }

    /// Shows a version of a client, and no longer the oldest one that was shown.
    pub fn show_client(&self, client: &str, version: &str) {
        let is_shown =
            |all: &VecDeque<[String; 2]>| all.iter().any(|[one, of]| one == client && of == version);
        if client == OTHER || is_shown(&self.versions.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut shown = self.versions.write().unwrap_or_else(PoisonError::into_inner);
        if is_shown(&shown) {
            return;
        }
        self.client_info.with_label_values(&[client, version]).set(1);
        shown.push_back([client.to_owned(), version.to_owned()]);
        if shown.len() > CLIENTS_MAX
            && let Some(oldest) = shown.pop_front()
        {
            let _ = self.client_info.remove_label_values(&oldest);
        }
    }

    /// Counts a bug that was caught.
    pub fn panicked(&self, step: Step) {
        self.panics_total.with_label_values(&[step.as_str()]).inc();
    }

    /// Gives tenants the names that are shown for them, by the digits of their digest. The first caller counts.
    pub fn name_tenants(&self, names: BTreeMap<String, String>) {
        self.tenants.reserve(names.values().map(String::as_str));
        let _ = self.tenant_names.set(names);
    }

    /// The label of a tenant: its name, else the digits of its digest, else `other`.
    pub fn tenant_label(&self, tenant: Option<TenantId>) -> String {
        let digits = tenant.map_or_else(|| NONE.to_owned(), |tenant| tenant.to_string());
        let name = self.tenant_names.get().and_then(|names| names.get(&digits));
        self.tenants.label(name.unwrap_or(&digits), Admit::New).to_owned()
    }

    /// Every metric, in the order of their declaration.
    pub fn families(&self) -> &[MetricFamily] {
        &self.families
    }

    /// The text exposition: every family with HELP and TYPE, also those without a sample yet.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        if let Some(set) = self.scrape.get() {
            set(self);
        }
        let gathered = self.registry.gather();
        let mut out = Vec::new();
        TextEncoder::new().encode(&gathered, &mut out)?;
        let mut text = String::from_utf8_lossy(&out).into_owned();
        for family in &self.families {
            if !gathered.iter().any(|found| found.name() == family.name) {
                text += &format!("# HELP {0} {1}\n# TYPE {0} {2}\n", family.name, family.help, family.kind);
                if let Some(value) = process::value(&family.name, self.started) {
                    text += &format!("{} {value}\n", family.name);
                }
            }
        }
        Ok(text)
    }
}

/// The description of one metric, with or without samples.
#[derive(Debug)]
pub struct MetricFamily {
    pub name: String,
    pub help: String,
    pub kind: &'static str,
    pub labels: Vec<String>,
}

impl MetricFamily {
    fn of(collector: &(impl Collector + 'static)) -> MetricFamily {
        let desc = collector.desc().first().copied();
        let desc = desc.map(|desc| (desc.fq_name.clone(), desc.help.clone(), desc.variable_labels.clone()));
        let (name, help, labels) = desc.unwrap_or_default();
        let any: &dyn std::any::Any = collector;
        let kind = if any.is::<HistogramVec>() {
            "histogram"
        } else if any.is::<IntGaugeVec>() || any.is::<GaugeVec>() {
            "gauge"
        } else {
            "counter"
        };
        MetricFamily { name, help, kind, labels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_help_and_type_before_the_first_sample() {
        let text = Metrics::new().unwrap().render().unwrap();
        for (name, kind) in [
            ("requests_total", "counter"),
            ("overhead_seconds", "histogram"),
            ("held", "gauge"),
            ("cost_usd_total", "counter"),
            ("saved_usd", "gauge"),
        ] {
            assert!(text.contains(&format!("# HELP forkpoint_{name} ")), "{name}");
            assert!(text.contains(&format!("# TYPE forkpoint_{name} {kind}\n")), "{name}");
        }
        assert!(text.contains(concat!(
            "forkpoint_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1"
        )));
    }

    #[test]
    fn only_the_newest_fan_outs_are_shown() {
        let metrics = Metrics::new().unwrap();
        for number in 0..60 {
            metrics.show_fork(format!("{number:08x}"), "p".into());
            metrics.show_fork(format!("{number:08x}"), "p".into());
        }
        let text = metrics.render().unwrap();
        let shown = text.lines().filter(|line| line.starts_with("forkpoint_prefix_info{")).count();
        assert_eq!(shown, FORKS_SHOWN_MAX);
        assert!(text.contains("0000003b") && !text.contains("00000009"), "{text}");
    }

    #[test]
    fn only_the_newest_versions_of_clients_are_shown() {
        let metrics = Metrics::new().unwrap();
        for number in 0..80 {
            metrics.show_client("claude-cli/2.1", &format!("2.1.{number}"));
            metrics.show_client("claude-cli/2.1", &format!("2.1.{number}"));
            metrics.show_client(OTHER, &format!("9.9.{number}"));
        }
        let text = metrics.render().unwrap();
        let shown = text.lines().filter(|line| line.starts_with("forkpoint_client_info{")).count();
        assert_eq!(shown, CLIENTS_MAX);
        assert!(
            text.contains("\"2.1.79\"") && !text.contains("\"2.1.15\"") && !text.contains("9.9."),
            "{text}"
        );
    }

    #[test]
    fn what_has_no_labels_reads_zero_from_the_start() {
        let metrics = Metrics::new().unwrap();
        let text = metrics.render().unwrap();
        let is_plain =
            |family: &&MetricFamily| family.labels.is_empty() && family.name.starts_with("forkpoint_");
        for family in metrics.families().iter().filter(|family| is_plain(family)) {
            let suffix = if family.kind == "histogram" { "_count" } else { "" };
            let sample = format!("\n{}{suffix} 0\n", family.name);
            assert!(text.contains(&sample), "{}: {text}", family.name);
        }
    }
}
