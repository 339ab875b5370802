//! `forkpoint sim`: the Messages API simulator alone, until SIGINT or SIGTERM.

use std::net::SocketAddr;
use std::time::Duration;

use super::Failure;
use crate::sim::{Encoding, Latency, Sim, SimConfig, SimRules};

const AFTER_HELP: &str = r#"What the scripted model does, the user's text says:

  [[sim:VERB key=value … | instruction for each child]]

  fan_out   n=3 tool=NAME field=NAME words=40 alike=false short=false type=NAME rounds=1
  tools     turns=1 calls=1 tool=NAME words=30
  text      words=30
  thinking  words=30
  empty
  any verb  thinking=WORDS pace_ms=0 first_ms=0

  Example: Survey it. [[sim:fan_out n=5 tool=Agent alike=true | tools turns=2]]

Look at it, and disturb it:

  GET, DELETE        /sim/requests   what arrived, raw, and what it cost
  GET, DELETE        /sim/cache      the live cache entries
  GET, DELETE        /sim/threads    the answers held for threads
  GET, POST          /sim/clock      {"advance_ms":300000} {"set_ms":0} {"frozen":true}
  GET, POST, DELETE  /sim/faults     {"fault":"status","status":529,"count":2}
                                     {"fault":"refusal","code":"thread_not_found"}
                                     latency, status, refusal, stall, cut, error_event, compress
  or per request     x-sim-latency-ms, x-sim-status, x-sim-retry-after, x-sim-refusal, x-sim-stall-at,
                     x-sim-stall-ms, x-sim-cut-at, x-sim-error-after, x-sim-compress

Example:

  forkpoint sim --listen 127.0.0.1:8789 &
  curl http://127.0.0.1:8789/v1/messages -H 'x-api-key: any' -H 'anthropic-version: 2023-06-01' \
    -d '{"model":"claude-opus-5-5","max_tokens":100,"messages":[{"role":"user","content":"hello"}]}'
  curl http://127.0.0.1:8789/sim/requests

Threads, compaction on demand and both versions of the API are known:

  thread      {"type":"create"}, then {"type":"continue","previous_message_id":"msg_…"}
              with anthropic-beta: message-threads-2026-08-12
  compaction  {"type":"summarize"} with anthropic-beta: compact-2026-09-04
  versions    anthropic-version: 2023-06-01 or 2026-10-21
  uncertain   --rule threads.markers=4, threads.loss_percent=20, threads.refusal_percent=20,
              threads.repeated_fields=refused, iterations=always; all with --list-rules

Any credential is accepted; what stands behind @ in it names the workspace (sk-any@blue).
Tokens are an estimate: one per four bytes of a rendered block."#;

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct SimArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8789")]
    listen: SocketAddr,
    /// Words, ids and signatures follow from this number and the request
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Milliseconds to the first token of a fully cached prompt
    #[arg(long, value_name = "MS", default_value_t = 5)]
    latency: u64,
    /// Microseconds added per uncached or written prompt token
    #[arg(long, value_name = "US", default_value_t = 2)]
    latency_per_token: u64,
    /// Milliseconds between two events of a stream
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pace: u64,
    /// Compress answers for clients that accept it: gzip, deflate, br or zstd
    #[arg(long, value_name = "CODING", value_parser = parse_encoding)]
    compress: Option<Encoding>,
    /// Turn one rule of the cache or of validation, e.g. merging=separate; repeatable
    #[arg(long = "rule", value_name = "NAME=VALUE")]
    rules: Vec<String>,
    /// Print every rule with its value, and exit
    #[arg(long)]
    list_rules: bool,
}

fn parse_encoding(name: &str) -> Result<Encoding, String> {
    Encoding::parse(name).ok_or_else(|| "expected gzip, deflate, br or zstd".to_owned())
}

pub fn run(args: SimArgs) -> Result<(), Failure> {
    let rules = rules_of(&args.rules)?;
    if args.list_rules {
        for (name, value) in rules.list() {
            println!("{name}={value}");
        }
        return Ok(());
    }
    super::runtime()?.block_on(serve(args, rules))
}

fn rules_of(orders: &[String]) -> Result<SimRules, Failure> {
    let mut rules = SimRules::default();
    for order in orders {
        let Some((name, value)) = order.split_once('=') else {
            return Err(Failure::usage(format!("--rule '{order}' is not of the form NAME=VALUE")));
        };
        rules.set(name.trim(), value.trim()).map_err(|error| {
            Failure::usage(error.to_string())
                .hint("forkpoint sim --list-rules prints every rule with its value")
        })?;
    }
    Ok(rules)
}

async fn serve(args: SimArgs, rules: SimRules) -> Result<(), Failure> {
    let listen = args.listen;
    let config = SimConfig {
        listen,
        seed: args.seed,
        latency: Latency {
            base: Duration::from_millis(args.latency),
            per_uncached_token: Duration::from_micros(args.latency_per_token),
            pace: Duration::from_millis(args.pace),
        },
        compress: args.compress,
        rules,
        ..SimConfig::default()
    };
    let sim = Sim::start(config).await.map_err(|error| {
        Failure::new(format!("cannot listen on {listen}: {error}"))
            .hint("choose another address with --listen, or port 0 for a free one")
    })?;
    println!("listening on {}", sim.url());
    wait_for_signal().await?;
    sim.stop().await;
    Ok(())
}

async fn wait_for_signal() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |error| Failure::new(format!("cannot wait for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
