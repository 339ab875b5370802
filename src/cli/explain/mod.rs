//! `forkpoint explain A [B]`: what the prompt cache sees of a request, and where two of them part. Each is a file, standard
//! input (`-`) or a line of a recording (`FILE#ID`, or `ID` with `--recording FILE`).
//! `forkpoint explain --request ID`: what was made of a recorded request.
//!
//! With `--parent` and `--answer` the request is a child, and its plan is explained: forked or not, why, and what each
//! plan costs.

mod cost;
mod moving;
mod report;
mod child;
mod request;
mod source;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{self, Overrides};
use crate::engine::cache::divergence::{Divergence, divergence};
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::json::Malformed;
use crate::engine::request::prefix::Subject;
use crate::engine::request::prefix::{Attribution, Chain};
use crate::proxy::rules;

use super::Failure;
use super::style::Style;

const AFTER_HELP: &str = "\
A and B are bodies of POST /v1/messages: each a file, - for standard input, or a request of a
recording as it came: its id with --recording FILE, or FILE#ID. The second should extend the first:
the first place where it does not is what the cache loses from there on. What that costs is an
estimate: tokens are counted from bytes, all of the first request counts as cached, and prices come
from a table.

Examples:
  forkpoint explain turn-1.json
  forkpoint explain turn-1.json turn-2.json
  forkpoint explain --json turn-1.json turn-2.json | jq .divergence
  forkpoint explain --recording traffic.jsonl 17 18           two turns, by the ids of their log lines
  forkpoint explain turn-1.json - < turn-2.json
  forkpoint explain --request 17 --recording traffic.jsonl    what was made of a recorded request
  forkpoint explain --parent parent.json --answer answer.json child.json
  forkpoint explain --config forkpoint.toml --parent parent.json --answer answer.json child.json

The last two ask what mode fork would make of a child: the request of its parent, the answer that
called it, and its own first request. It assumes that the parent's cache entry is warm and that
nobody has sent the child's own prompt before. The settings are those that --config, FORKPOINT_CONFIG
and the environment give, as serve would have them; fork.share leaves no fan-out out unless it is 0.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A request body: a file, - for standard input, or a request of a recording
    #[arg(value_name = "A", required_unless_present = "request")]
    first: Option<PathBuf>,
    /// A later request body to compare with
    #[arg(value_name = "B")]
    second: Option<PathBuf>,
    /// Show what was made of the recorded request with this number, the id of its log line
    #[arg(long, value_name = "ID", conflicts_with_all = ["first", "second", "prices"])]
    request: Option<u64>,
    /// The recording whose ids --request, A and B are [default: record.file of FORKPOINT_CONFIG or the environment]
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Count the attribution line in system[0], for upstreams that do not strip it
    #[arg(long)]
    count_attribution: bool,
    /// Estimate costs with this price table instead of the built-in one
    #[arg(long, value_name = "PATH")]
    prices: Option<PathBuf>,
    /// The request of A's parent: explain whether A would be forked
    #[arg(long, value_name = "PARENT.json", requires = "answer", conflicts_with = "second")]
    parent: Option<PathBuf>,
    /// The answer to that parent which called the child: its JSON, or the events of its stream
    #[arg(long, value_name = "ANSWER.json", requires = "parent")]
    answer: Option<PathBuf>,
    /// The child comes with x-claude-code-agent-id: its client keeps it to the tools it brings
    #[arg(long, requires = "parent")]
    agent: bool,
    /// Plan the child by the settings of this TOML file
    ///
    /// Environment: FORKPOINT_CONFIG. Without either, the defaults and the environment count.
    #[arg(long, value_name = "PATH", requires = "parent")]
    config: Option<PathBuf>,
    /// How many turns the child is taken to live [default: that of fork.horizon_turns]
    #[arg(long, value_name = "N", requires = "parent", value_parser = clap::value_parser!(u16).range(1..=256))]
    turns: Option<u16>,
}

/// One request, read.
struct Exhibit {
    name: String,
    body: Vec<u8>,
    anatomy: Anatomy,
    chain: Chain,
}

impl Exhibit {
    fn read(operand: &Path, recording: Option<&Path>, attribution: Attribution) -> Result<Exhibit, Failure> {
        let (name, body) = source::load(operand, recording)?;
        Exhibit::of(name, body, attribution)
    }

    fn of(name: String, body: Vec<u8>, attribution: Attribution) -> Result<Exhibit, Failure> {
        let anatomy = Anatomy::read(&body).map_err(|malformed| not_a_request(&name, &body, malformed))?;
        let chain = Chain::of(&body, &anatomy, attribution);
        Ok(Exhibit { name, body, anatomy, chain })
    }

    fn subject(&self) -> Subject<'_> {
        Subject { body: &self.body, anatomy: &self.anatomy, chain: &self.chain }
    }
}

fn not_a_request(name: &str, body: &[u8], malformed: Malformed) -> Failure {
    let what = match malformed {
        Malformed::At(byte) => {
            let line = 1 + body[..byte.min(body.len())].iter().filter(|b| **b == b'\n').count();
            format!("{name}:{line}: not one JSON object, byte {byte} cannot stand there")
        }
        Malformed::Truncated => format!("{name}: the JSON ends too early"),
        Malformed::TooDeep => format!("{name}: nested too deeply"),
        Malformed::TooMany => format!("{name}: too many members, messages and blocks"),
    };
    Failure::new(what)
        .hint("give the body of a request as the client sends it; forkpoint would forward this one unread")
}

pub fn run(args: Args) -> Result<(), Failure> {
    let attribution = if args.count_attribution { Attribution::Counted } else { Attribution::Stripped };
    let style = Style::of_stdout();
    if let Some(id) = args.request {
        return request::run(id, &args, attribution, style);
    }
    let operands = [&args.first, &args.second, &args.parent, &args.answer];
    source::check(operands.into_iter().flatten().map(PathBuf::as_path))?;
    let Some(first) = &args.first else { return Err(Failure::usage("no request body is named")) };
    if let (Some(parent), Some(answer)) = (&args.parent, &args.answer) {
        return explain_child(parent, answer, first, &args, style);
    }
    let prices = config::load_prices(args.prices.as_deref(), &config::ValueOrigin::Flag("--prices"))?;
    let read = |operand: &Path| Exhibit::read(operand, args.recording.as_deref(), attribution);
    let first = read(first)?;
    let second = args.second.as_deref().map(read).transpose()?;
    let parted = second.as_ref().map(|second| divergence(&first.subject(), &second.subject()));
    let comparison = second.as_ref().zip(parted.as_ref());
    if args.json {
        println!("{:#}", report::json(&first, comparison, &prices));
        return Ok(());
    }
    print!("{}", report::text(&first, comparison, &prices, style));
    Ok(())
}

/// Explains the plan of a child, by the configuration that `serve` would have.
fn explain_child(
    parent: &Path,
    answer: &Path,
    child: &Path,
    args: &Args,
    style: Style,
) -> Result<(), Failure> {
    let overrides = Overrides { config: args.config.clone(), ..Overrides::default() };
    let loaded = config::load(&overrides, std::env::vars_os())?;
    let prices = match &args.prices {
        Some(path) => config::load_prices(Some(path), &config::ValueOrigin::Flag("--prices"))?,
        None => loaded.prices,
    };
    let config = loaded.config;
    let mut policy = rules::policy(&config, Arc::new(prices));
    // Which fan-outs a share leaves out depends on their tenant and message, which are not known here.
    if policy.fork.share > 0.0 {
        policy.fork.share = 1.0;
    }
    if args.count_attribution {
        policy.align.attribution = Attribution::Counted;
    }
    let recording = args.recording.as_deref();
    let question = child::Question {
        parent,
        answer,
        child,
        recording,
        policy: &policy,
        gate: rules::gate(&config),
        has_agent: args.agent,
        turns: args.turns,
    };
    let finding = child::explain(&question)?;
    if args.json {
        println!("{:#}", verdict::json(&finding));
    } else {
        print!("{}", verdict::text(&finding, style));
    }
    Ok(())
}

/// The second request and where it parts from the first, if it does.
type Comparison<'a> = Option<(&'a Exhibit, &'a Option<Divergence>)>;
