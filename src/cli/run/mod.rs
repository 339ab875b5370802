//! `forkpoint run -- CMD…`: a proxy for one command, for as long as it runs, and a receipt at its end.
//!
//! The command has the terminal to itself: standard input, output and error are its own, nothing of ours is
//! written there until it has ended, and log lines go to a file or nowhere. It is in our process group, so that
//! what the terminal sends (Ctrl-C, Ctrl-Z, a new size) reaches it without us; what is sent to us alone is
//! passed on. Its exit code is ours.

mod reasons;
mod receipt;
mod screen;
mod sheet;
mod signals;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use crate::config::{self, Bodies, Loaded, Overrides, ValueOrigin};
use crate::engine::fork::experiment::Declined;
use crate::proxy::Proxy;
use crate::proxy::files::{self, Raised};
use crate::store::Opened;
use crate::store::records::Options;

use super::records;
use super::start::{self, ServerTask};
use super::{Failure, logging};
use receipt::Receipt;
use screen::Screen;
use signals::Signals;

/// The variable that tells the command where its API is.
const BASE_URL: &str = "ANTHROPIC_BASE_URL";
/// Variables that send requests elsewhere, and those that name exceptions.
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// How long exchanges that the command left behind may take to be recorded.
const LINGER: Duration = Duration::from_secs(2);

/// As shells say that a command was not found, or could not be started.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_NOT_STARTED: u8 = 126;
/// As shells say that a command was ended by a signal: this and its number.
const EXIT_SIGNAL: i32 = 128;

const AFTER_HELP: &str = "\
Examples:
  forkpoint run -- claude
  forkpoint run --mode observe -- python agent.py --verbose
  forkpoint run --log forkpoint.log -- npm start
  forkpoint run --record session.jsonl -- claude   # then: forkpoint replay session.jsonl

The command finds a proxy of its own at ANTHROPIC_BASE_URL, on a free port of
this machine. If that variable is set already and no upstream is configured,
what it names becomes the upstream, and the command keeps its path: the Vercel
AI SDK wants ANTHROPIC_BASE_URL=https://api.anthropic.com/v1 to be set before.
Addresses of the configuration are not used.

Signals and the terminal are the command's. Exits with its code, with 128 and
the number of the signal that ended it, with 127 if it was not found, and with
126 if it could not be started.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct RunArgs {
    /// Read this TOML file
    ///
    /// Environment: FORKPOINT_CONFIG.
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Forward to this Messages API [default: what ANTHROPIC_BASE_URL names, else https://api.anthropic.com]
    ///
    /// Key: upstream.url. Environment: FORKPOINT_UPSTREAM.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// What to do with requests: observe, align or fork
    ///
    /// Key: server.mode. Environment: FORKPOINT_MODE.
    #[arg(long, value_name = "MODE", value_parser = config::WordsOf("server.mode"), hide_possible_values = true)]
    mode: Option<String>,
    /// Append log lines to this file; without it none are written
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Record every Messages exchange in this file, for `forkpoint replay`
    ///
    /// Key: record.file. Words of prompts are replaced by filler unless record.bodies says otherwise.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print no receipt
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    let mut loaded = load(&args)?;
    if args.record.is_some() && loaded.origin("record.bodies") == ValueOrigin::Default {
        // Without bodies a recording cannot be played again.
        loaded.config.record.bodies = Bodies::Redacted;
    }
    let log = args.log.as_deref().map(|path| logging::append(&loaded.config.log, path)).transpose()?;
    let raised = files::raise_limit();
    let runtime = super::runtime()?;
    let outcome = runtime.block_on(session(&args, loaded, &raised));
    // A name that is still being looked up is nobody's concern any more.
    runtime.shutdown_background();
    if let Some(log) = log {
        log.flush();
    }
    outcome
}

/// The configuration, less its addresses: the proxy of one command is on a free port, and has no admin port.
fn load(args: &RunArgs) -> Result<Loaded, Failure> {
    let free = || Some("127.0.0.1:0".to_owned());
    let overrides = Overrides {
        config: args.config.clone(),
        upstream: args.upstream.clone(),
        mode: args.mode.clone(),
        listen: free(),
        admin_listen: free(),
        record: args.record.clone(),
        ..Overrides::default()
    };
    let loaded = config::load(&overrides, std::env::vars_os())?;
    let Some(inherited) = InheritedUrl::from_environment() else { return Ok(loaded) };
    if loaded.origin("upstream.url") != ValueOrigin::Default {
        return Ok(loaded);
    }
    let overrides = Overrides { upstream: Some(inherited.origin), ..overrides };
    config::load(&overrides, std::env::vars_os()).map_err(|problems| {
        Failure::usage(problems.to_string()).hint(format!(
            "{BASE_URL} is set, so it was taken for --upstream; mend it, unset it, or give --upstream"
        ))
    })
}

/// The base URL that the command would have used. Its path stays with the command: some clients leave the version of
/// the API to it, and put `/messages` behind it.
struct InheritedUrl {
    origin: String,
    /// Without a slash at its end.
    path: String,
}

impl InheritedUrl {
    fn from_environment() -> Option<InheritedUrl> {
        let url = std::env::var_os(BASE_URL).filter(|url| !url.is_empty())?;
        let url = url.to_string_lossy();
        let parsed = url.parse::<http::Uri>().ok();
        let parts = parsed.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.authority()?, uri.path())));
        Some(match parts {
            Some((scheme, authority, path)) => InheritedUrl {
                origin: format!("{scheme}://{authority}"),
                path: path.trim_end_matches('/').to_owned(),
            },
            // What is no URL is refused as the upstream.
            None => InheritedUrl { origin: url.into_owned(), path: String::new() },
        })
    }
}

async fn session(args: &RunArgs, loaded: Loaded, raised: &Raised) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new()?;
    let started = Instant::now();
    let Loaded { config, prices, .. } = loaded;
    let upstream = config.upstream.url.to_string();
    let mode = config.server.mode;
    let options = records::options(&config)?;
    let (proxy, metrics) = start::proxy(config, prices.clone())?;
    if let Some(options) = options {
        // A folder that somebody else has is left to him: the command is not to wait.
        let options = Options { lock_wait: Duration::ZERO, ..options };
        proxy.put_behind(Opened::open(options).await);
    }
    let sinks = proxy.sinks().clone();
    let proxy = Arc::new(proxy);
    let (server, address) = ServerTask::on_free_port(Arc::clone(&proxy)).await?;
    let mut child = raised.aside(|| spawn(&args.command, address))?;
    let status = attend(&mut child, &mut signals).await?;
    let _ = server.stop(LINGER).await;
    tokio::join!(sinks.flush(), proxy.store().close(LINGER));
    if !args.quiet {
        let exposition = metrics.render().map_err(|error| Failure::new(format!("metrics: {error}")))?;
        let receipt = Receipt {
            upstream: &upstream,
            mode,
            prices: &prices,
            lasted: started.elapsed(),
            rereads: rereads(&proxy),
            declined: declined(&proxy),
        };
        let shown = Screen::of_stderr().show(&receipt.of(&exposition));
        let _ = std::io::stderr().write_all(shown.as_bytes());
    }
    Ok(exit_code(status))
}

/// The tokens that children have read again, by the tool that started them.
fn rereads(proxy: &Proxy) -> BTreeMap<String, u64> {
    let mut by_tool = BTreeMap::new();
    for (_, tool, _, rereads) in proxy.store().rereads() {
        *by_tool.entry(tool).or_default() += rereads.tokens;
    }
    by_tool
}

/// The children that were not forked, by the tool that started them and the reason.
fn declined(proxy: &Proxy) -> BTreeMap<(String, Option<&'static str>), Declined> {
    let mut all = BTreeMap::new();
    for (tool, why, declined) in proxy.store().declined() {
        let sum: &mut Declined = all.entry((tool, why.map(reasons::in_words))).or_default();
        sum.children += declined.children;
        sum.forked_usd += declined.forked_usd;
        sum.aligned_usd += declined.aligned_usd;
        sum.as_sent_usd += declined.as_sent_usd;
    }
    all
}

fn spawn(words: &[OsString], proxy: SocketAddr) -> Result<Child, Failure> {
    let (program, arguments) = words.split_first().ok_or_else(|| Failure::usage("no command given"))?;
    let path = InheritedUrl::from_environment().map(|inherited| inherited.path).unwrap_or_default();
    let mut command = Command::new(program);
    command.args(arguments).env(BASE_URL, format!("http://{proxy}{path}"));
    if PROXIES.iter().any(|name| std::env::var_os(name).is_some()) {
        for name in NO_PROXY {
            command.env(name, excepted(std::env::var_os(name).as_deref(), proxy));
        }
    }
    command.spawn().map_err(|error| {
        let message = format!("cannot start '{}': {error}", program.to_string_lossy());
        let (code, hint) = match error.kind() {
            ErrorKind::NotFound => (
                EXIT_NOT_FOUND,
                "is it installed and on PATH? a shell's aliases and functions are no commands",
            ),
            _ => (EXIT_NOT_STARTED, "is it a program, and may you run it?"),
        };
        Failure { code, ..Failure::new(message).hint(hint) }
    })
}

/// The exceptions from an environment's proxies, with ours: a loopback address is of no use to them.
fn excepted(before: Option<&OsStr>, proxy: SocketAddr) -> OsString {
    let mut list = before.map(OsStr::to_owned).unwrap_or_default();
    if !list.is_empty() {
        list.push(",");
    }
    list.push(proxy.ip().to_string());
    list
}

/// Waits for the command's end, and passes on what is sent to us until then.
async fn attend(child: &mut Child, signals: &mut Signals) -> Result<ExitStatus, Failure> {
    loop {
        let pid = child.id();
        tokio::select! {
            status = child.wait() => {
                return status.map_err(|error| Failure::new(format!("cannot wait for the command: {error}")));
            }
            signal = signals.next() => signal.pass_on(pid),
        }
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| EXIT_SIGNAL + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_from_proxies_are_added_to() {
        let proxy = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(excepted(None, proxy), "127.0.0.1");
        assert_eq!(excepted(Some(OsStr::new("a.example")), proxy), "a.example,127.0.0.1");
    }
}
