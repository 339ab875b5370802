//! `forkpoint serve`: bind, say what is running, serve until a signal, drain.

use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::admin::{self, Hosts, token::Token};
use crate::config::{Config, Loaded, LogFormat, Mode, Overrides, StoreKind};
use crate::engine::cache::prices::Prices;
use crate::metrics::Metrics;
use crate::proxy::Proxy;
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

/// The pause between two looks at an address that another process listens on.
const BIND_PAUSE: Duration = Duration::from_millis(50);

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
    let (listeners, proxy, metrics) = tokio::select! {
        begun = begin(&config, prices) => begun?,
        signal = signals.end("starting") => {
            tracing::info!(signal, "ended before it served");
            return Ok(());
        }
    };
    let memory = Arc::clone(proxy.store());
    let sinks = proxy.sinks().clone();
    let readiness = admin::Readiness::of(&memory);
    readiness.set(true);
    let live = Live::from(Arc::new(proxy));
    let pages = admin::pages(&live, metrics.clone(), readiness.clone(), token);
    let mut lookouts = Lookouts::default();
    lookouts.serve(listeners.admin, pages, Hosts::OfThisMachine, &live, "admin");
    if let Some(listener) = listeners.metrics {
        let open = admin::router(metrics.clone(), readiness.clone());
        let hosts = Hosts::of_metrics(&listener);
        lookouts.serve(listener, open, hosts, &live, "metrics");
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
    let running = live.now();
    let delay_ms = running.config().drain.delay.as_millis() as u64;
    readiness.set(false);
    tracing::info!(signal = first, delay_ms, "draining");
    tokio::select! {
        () = drain(running.config(), server, lookouts, &memory) => {}
        second = signals.end("draining") => {
            tracing::warn!(signal = second, "second signal; open streams are cut");
            let _ = tokio::time::timeout(CUT, async { tokio::join!(sinks.flush(), memory.close(CUT)) }).await;
            return Ok(());
        }
    }
    tokio::join!(sinks.flush(), memory.close(LAST_WRITES));
    Ok(())
}

/// Takes the ports, then opens the store: whoever connects meanwhile waits, and is not refused.
async fn begin(config: &Config, prices: Prices) -> Result<(Listeners, Proxy, Arc<Metrics>), Failure> {
    let options = records::options(config)?;
    let store = options.as_ref().map_or_else(|| config.store.kind.as_str().to_owned(), records::described);
    let listeners = Listeners::bind(config).await?;
    let (proxy, metrics) = start::proxy(config.clone(), prices)?;
    if let Some(options) = options {
        proxy.put_behind(Opened::open(options).await);
    }
    announce(config, &listeners, &store);
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
    Ok((listeners, proxy, metrics))
}

async fn drain(config: &Config, server: ServerTask, lookouts: Lookouts, memory: &Arc<Store>) {
    tokio::time::sleep(config.drain.delay).await;
    server.stop_accepting().await;
    let hand_over = async {
        // Whoever comes next may have the store.
        memory.hand_over().await;
        // Without one that the next process waits for, whoever looks after this one may see its end.
        if config.store.kind == StoreKind::File {
            lookouts.leave().await;
        }
    };
    let (stopped, ()) = tokio::join!(server.stop(config.drain.deadline), hand_over);
    match stopped {
        Ok(()) => tracing::info!("drained"),
        Err(_) => tracing::warn!("drain.deadline_s is over; open streams are cut"),
    }
}

/// The ports for operators, which are served until the process ends or they are left.
#[derive(Default)]
struct Lookouts(Vec<JoinHandle<()>>);

impl Lookouts {
    fn serve(
        &mut self,
        listener: TcpListener,
        router: axum::Router,
        hosts: Hosts,
        live: &Live,
        port: &'static str,
    ) {
        self.0.push(tokio::spawn(admin::serve(listener, router, hosts, live.clone(), port)));
    }

    /// Accepts nothing more, so that another process may listen there. Connections that are open go on.
    async fn leave(self) {
        for port in self.0 {
            port.abort();
            // The listener is closed once the task has ended, which it does as an error since it was aborted.
            let _ = port.await;
        }
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
        let mut patience = Patience::of(config);
        Ok(Listeners {
            proxy: patience.bind(server.listen, "server.listen").await?,
            admin: patience.bind(server.admin_listen, "server.admin_listen").await?,
            metrics: match server.metrics_listen {
                Some(address) => Some(patience.bind(address, "server.metrics_listen").await?),
                None => None,
            },
        })
    }
}

/// How long a start waits for its addresses. A process that has the folder of a file store gives them up as it drains, so
/// that the next one may begin meanwhile.
struct Patience {
    wait: Duration,
    until: Instant,
    has_said: bool,
}

impl Patience {
    fn of(config: &Config) -> Patience {
        let wait = if config.store.kind == StoreKind::File { config.store.lock_wait } else { Duration::ZERO };
        Patience { wait, until: Instant::now() + wait, has_said: false }
    }

    async fn bind(&mut self, address: SocketAddr, key: &str) -> Result<TcpListener, Failure> {
        loop {
            let error = match TcpListener::bind(address).await {
                Ok(listener) => return Ok(listener),
                Err(error) => error,
            };
            if error.kind() != ErrorKind::AddrInUse || Instant::now() >= self.until {
                let hint = format!(
                    "is another forkpoint running? set {key} to a free address, or to port 0 for any"
                );
                let waited = if self.has_said { " (waited for store.lock_wait_ms)" } else { "" };
                let message = format!("cannot listen on {address} ({key}): {error}{waited}");
                return Err(Failure::new(message).hint(hint));
            }
            if !std::mem::replace(&mut self.has_said, true) {
                let wait_ms = self.wait.as_millis() as u64;
                tracing::info!(%address, key, wait_ms, "the address is in use; waiting for its process to give it up");
            }
            tokio::time::sleep(BIND_PAUSE).await;
        }
    }
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

    /// The next one that tells us to end, while we are at something.
    async fn end(&mut self, at: &str) -> &'static str {
        loop {
            match self.next().await {
                HANGUP => tracing::info!("{at}; the configuration is not loaded anew"),
                end => return end,
            }
        }
    }
}
