//! `forkpoint serve`: bind, say what is running, serve until a signal, drain.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::admin::{self, Hosts, token::Token};
use crate::config::{Config, Drain, Loaded, LogFormat, Mode, Overrides};
use crate::proxy::files;
use crate::proxy::live::Live;
use crate::store::{Opened, Store};

use super::records;
use super::reload::{ConfigSource, Reloader};
use super::start::{self, ServerTask};
use super::{Failure, logging};

const EXAMPLE: &str = "\
Examples:
  forkpoint serve
  forkpoint serve --mode observe --listen 127.0.0.1:9000
  forkpoint serve --config forkpoint.toml

SIGTERM and SIGINT drain: running streams finish, then it exits with 0. A
second signal ends at once. SIGHUP, or a change of its file, loads the
configuration anew: whole, or not at all.";

/// How long recordings and open streams may take to be cut, once somebody has asked twice.
const CUT: Duration = Duration::from_millis(500);

/// How long the store may take for what the last answers have changed.
const LAST_WRITES: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct ServeArgs {
    #[command(flatten)]
    overrides: Overrides,
}

pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let source = ConfigSource::new(args.overrides);
    let loaded = source.load()?;
    let token = token(&loaded.config)?;
    let log = logging::start(&loaded.config.log);
    files::raise_limit();
    let runtime = super::runtime()?;
    let outcome = runtime.block_on(serve(loaded, token, source));
    // Streams that are cut write their log lines; what waits for a disk or a name server must not keep us.
    runtime.shutdown_timeout(CUT);
    log.flush();
    outcome
}

/// Reads the token of the admin port, if it has one.
fn token(config: &Config) -> Result<Option<Token>, Failure> {
    let Some(path) = &config.admin.token_file else { return Ok(None) };
    let unusable = |error| {
        Failure::usage(format!("admin.token_file = \"{}\": {error}", path.display()))
            .hint("write one with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)")
    };
    Token::read(path).map(Some).map_err(unusable)
}

async fn serve(loaded: Loaded, token: Option<Token>, source: ConfigSource) -> Result<(), Failure> {
    let Loaded { config, prices, .. } = loaded;
    // Signals count from here on, so that none that comes while we start is lost.
    let mut signals = ServeSignals::new()?;
    let listeners = Listeners::bind(&config).await?;
    let options = records::options(&config)?;
    let store = options.as_ref().map_or_else(|| config.store.kind.as_str().to_owned(), records::described);
    let (proxy, metrics) = start::proxy(config.clone(), prices)?;
    if let Some(options) = options {
        proxy.put_behind(Opened::open(options).await);
    }
    let memory = Arc::clone(proxy.store());
    let sinks = proxy.sinks().clone();
    announce(&config, &listeners, &store);
    let exchanges = proxy.exchanges_max();
    if exchanges < config.limits.connections {
        let (files, wanted) = (files::limit(), config.limits.connections);
        tracing::warn!(
            files,
            exchanges,
            wanted,
            "the limit of open files allows fewer exchanges than limits.connections"
        );
    }

    let readiness = admin::Readiness::of(&memory);
    readiness.set(true);
    let live = Live::from(Arc::new(proxy));
    let pages = admin::pages(&live, metrics.clone(), readiness.clone(), token);
    tokio::spawn(admin::serve(listeners.admin, pages, Hosts::OfThisMachine, live.clone(), "admin"));
    if let Some(listener) = listeners.metrics {
        let open = admin::router(metrics.clone(), readiness.clone());
        let hosts = Hosts::of_metrics(&listener);
        tokio::spawn(admin::serve(listener, open, hosts, live.clone(), "metrics"));
    }
    let server = ServerTask::spawn(listeners.proxy, live.clone());

    let mut reloader = Reloader::new(source, live.clone(), metrics);
    let first = loop {
        tokio::select! {
            signal = signals.next() => match signal {
                HANGUP => reloader.reload(HANGUP),
                end => break end,
            },
            () = reloader.changed() => reloader.reload("file"),
        }
    };
    let drain_rules = live.now().config().drain.clone();
    readiness.set(false);
    tracing::info!(signal = first, delay_ms = drain_rules.delay.as_millis() as u64, "draining");
    tokio::select! {
        () = drain(&drain_rules, server, &memory) => {}
        second = signals.end() => {
            tracing::warn!(signal = second, "second signal; open streams are cut");
            let _ = tokio::time::timeout(CUT, async { tokio::join!(sinks.flush(), memory.close(CUT)) }).await;
            return Ok(());
        }
    }
    tokio::join!(sinks.flush(), memory.close(LAST_WRITES));
    Ok(())
}

async fn drain(rules: &Drain, server: ServerTask, memory: &Arc<Store>) {
    tokio::time::sleep(rules.delay).await;
    server.stop_accepting().await;
    // Whoever comes next may have the store.
    let (stopped, ()) = tokio::join!(server.stop(rules.deadline), memory.hand_over());
    match stopped {
        Ok(()) => tracing::info!("drained"),
        Err(_) => tracing::warn!("drain.deadline_s is over; open streams are cut"),
    }
}

struct Listeners {
    proxy: TcpListener,
    admin: TcpListener,
    metrics: Option<TcpListener>,
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Listeners, Failure> {
        let server = &config.server;
        Ok(Listeners {
            proxy: bind(server.listen, "server.listen").await?,
            admin: bind(server.admin_listen, "server.admin_listen").await?,
            metrics: match server.metrics_listen {
                Some(address) => Some(bind(address, "server.metrics_listen").await?),
                None => None,
            },
        })
    }
}

async fn bind(address: SocketAddr, key: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::new(format!("cannot listen on {address} ({key}): {error}"))
            .hint(format!("is another forkpoint running? set {key} to a free address, or to port 0 for any"))
    })
}

/// Says the addresses, and what is on or off: as the first line of a log in JSON, else as a few lines on standard error,
/// as standard output is for data.
fn announce(config: &Config, listeners: &Listeners, store: &str) {
    let local =
        |listener: &TcpListener| listener.local_addr().map_or_else(|_| "?".into(), |a| format!("http://{a}"));
    let (proxy, admin) = (local(&listeners.proxy), local(&listeners.admin));
    let metrics = listeners.metrics.as_ref().map_or_else(|| "off".into(), local);
    let version = env!("CARGO_PKG_VERSION");
    let (upstream, mode) = (config.upstream.url.to_string(), config.server.mode.as_str());
    let off = match config.server.mode {
        Mode::Observe => "align, fork: this mode forwards every byte as it came",
        Mode::Align => "fork: this mode changes nothing that the model reads",
        Mode::Fork => "none",
    };
    match config.log.format {
        LogFormat::Json => {
            tracing::info!(version, proxy, admin, metrics, upstream, mode, store, off, "serving");
        }
        LogFormat::Human => {
            let _ = write!(
                std::io::stderr().lock(),
                "forkpoint {version}\n  \
                   proxy     {proxy}\n  \
                   admin     {admin}\n  \
                   metrics   {metrics}\n  \
                   upstream  {upstream}\n  \
                   mode      {mode}\n  \
                   store     {store}\n  \
                   off       {off}\n",
            );
        }
    }
}

/// The signal to load the configuration anew.
const HANGUP: &str = "SIGHUP";

struct ServeSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl ServeSignals {
    fn new() -> Result<ServeSignals, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::new(format!("cannot handle signals: {error}")));
        Ok(ServeSignals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => HANGUP,
        }
    }

    /// The next one that tells us to end.
    async fn end(&mut self) -> &'static str {
        loop {
            match self.next().await {
                HANGUP => tracing::info!("draining; the configuration is not loaded anew"),
                end => return end,
            }
        }
    }
}
