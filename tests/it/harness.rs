//! The two ends of a conversation, and forkpoint between them.
//!
//! Both ends are raw sockets: a test writes exactly the bytes it means and reads exactly the bytes that
//! came, one step after the other, so it can pause, stall or cut at any byte. Listeners are bound before
//! anything runs and every wait has a bound that fails with a message, so nothing here sleeps to be right.

pub mod peer;
pub mod upstream;
pub mod binary;
pub mod log;
pub mod terminal;
pub mod http2;
pub mod tls;
pub mod samples;
pub mod bystander;
#[allow(dead_code, reason = "unit tests of the store need more of it")]
pub mod redis;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forkpoint::cli::records;
use forkpoint::config::{Config, ValueOrigin, load_prices};
use forkpoint::engine::cache::prices::Prices;
use forkpoint::metrics::Metrics;
use forkpoint::proxy::live::Live;
use forkpoint::proxy::{Proxy, server};
use forkpoint::store::Opened;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use binary::Binary;
pub use bystander::Bystander;
pub use log::Log;
pub use peer::{End, Peer};
pub use samples::{call, get, post};
pub use upstream::Upstream;

/// Only a guard against hanging: long enough for a busy machine, and never part of what is asserted.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often a condition without an event of its own is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits for something that must happen.
pub async fn within<T>(what: &str, happens: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, happens).await {
        Ok(value) => value,
        Err(_) => panic!("waited too long for: {what}"),
    }
}

/// Waits until a condition holds that nobody announces.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
    .await;
}

/// A core that this process may use.
fn one_core() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    cores.trim().split(['-', ',']).next().unwrap().to_owned()
}

/// Runs a test on a single core, with a runtime of one worker, as `serve` has there.
pub fn on_one_core(test: impl Future<Output = ()> + Send + 'static) {
    let thread = std::thread::spawn(|| {
        let this = std::fs::read_link("/proc/thread-self").unwrap();
        let (core, id) = (one_core(), this.file_name().unwrap().to_owned());
        let mut pin = std::process::Command::new("taskset");
        let pinned = pin.args(["-c", "-p", &core]).arg(id).stdout(std::process::Stdio::null()).status();
        assert!(pinned.unwrap().success());
        // Threads begin on the cores of the one that starts them.
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(runtime.spawn(test)).unwrap();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// forkpoint in this process, on a port of its own.
pub struct Forkpoint {
    pub address: SocketAddr,
    pub metrics: Arc<Metrics>,
    pub proxy: Arc<Proxy>,
    live: Live,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Forkpoint {
    /// In front of the upstream at this address.
    pub async fn before(url: &str) -> Forkpoint {
        Forkpoint::with(url, |_| ()).await
    }

    /// With a configuration of its own.
    pub async fn with(url: &str, configure: impl FnOnce(&mut Config)) -> Forkpoint {
        let mut config = Config::default();
        config.upstream.url = url.parse().unwrap();
        // Most tests are about who is forked and how. What that may cost has tests of its own.
        config.fork.policy.context_premium = 100.0;
        config.fork.policy.max_cost_ratio = 100.0;
        configure(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        let options = records::options(&config).unwrap();
        let proxy = Arc::new(Proxy::new(config, prices(), metrics.clone()).unwrap());
        if let Some(options) = options {
            proxy.put_behind(Opened::open(options).await);
        }
        let (stop, stopped) = watch::channel(false);
        let live = Live::from(proxy.clone());
        let serving = tokio::spawn(server::serve(listener, live.clone(), stopped));
        Forkpoint { address, metrics, proxy, live, stop, serving }
    }

    /// Puts another configuration in force.
    pub fn reload(&self, configure: impl FnOnce(&mut Config)) {
        let running = self.live.now();
        let mut config = running.config().clone();
        configure(&mut config);
        self.live.reload(running.config().reload(&config), prices());
    }

    /// Puts another price table in force.
    pub fn reprice(&self, prices: Prices) {
        let running = self.live.now();
        self.live.reload(running.config().reload(running.config()), prices);
    }

    /// A client's connection.
    pub async fn client(&self) -> Peer {
        Peer::connect(self.address).await
    }

    /// Starts the drain.
    pub fn stop(&self) {
        // Nobody listens any more once it is over.
        let _ = self.stop.send(true);
    }

    /// Starts the drain and waits for its end, and for what is left to be stored.
    pub async fn drained(self) {
        self.stop();
        within("the drain", self.serving).await.unwrap();
        self.proxy.store().close(PATIENCE).await;
    }

    /// The sum of a metric's samples whose labels contain all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        sum(&self.metrics.render().unwrap(), name, labels)
    }

    /// Waits until `count` exchanges are recorded, and fails if there are more.
    pub async fn recorded(&self, count: u32) {
        let recorded = || self.metric("forkpoint_requests_total", &[]);
        until(&format!("{count} records, have {}", recorded()), || recorded() >= f64::from(count)).await;
        assert_eq!(recorded(), f64::from(count), "recorded more than once");
    }

    /// A whole exchange on connections of their own: what a healthy forkpoint always can do.
    pub async fn still_works(&self, upstream: &Upstream) {
        let mut client = self.client().await;
        client.send(&get("/still/works")).await;
        let mut server = upstream.accept().await;
        loop {
            // A connection that was opened for an abused request may come first.
            match server.try_head().await {
                Some(head) if head.line() == "GET /still/works HTTP/1.1" => break,
                Some(_) => continue,
                None => server = upstream.accept().await,
            }
        }
        server.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        let reply = client.reply().await;
        assert_eq!((reply.status(), &reply.body[..]), (200, &b"ok"[..]));
    }
}

pub fn prices() -> Prices {
    load_prices(None, &ValueOrigin::Default).unwrap()
}

/// The sum of a family's samples in a text exposition.
pub fn sum(exposition: &str, name: &str, labels: &[&str]) -> f64 {
    exposition
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
        .filter(|line| labels.iter().all(|label| line.contains(label)))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
