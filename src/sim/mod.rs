//! A Messages API of our own: the independent witness in tests, and the upstream of `forkpoint demo`.
//!
//! Nobody can show a saving without the provider's cache, and no test can reach it. So this is a server that accepts
//! and refuses what the API does, answers by script, and is faithful about the prompt cache: what is read, what is
//! written, when it becomes readable, what it costs. It shares no code with the rest of the crate, so that a
//! mistake there cannot agree with itself here. Every rule that the vendor leaves open is a setting ([`SimRules`]).
//!
//! ```text
//! server ─ collect ─ faults ─ caller ─ threads ─ body ─ rules ─ prompt ─ cache ─ script ─ answer ─ outgoing
//!                                                                            └──── journal: what arrived, what it cost
//! ```
//!
//! # Example
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use forkpoint::sim::{InjectedFault, Sim, SimConfig};
//!
//! let sim = Sim::start(SimConfig::default()).await?;
//! println!("point a client at {}", sim.url());
//! let _ = sim.faults().order(InjectedFault::Status { status: 529, retry_after_s: None });
//! sim.clock().advance(std::time::Duration::from_secs(301));
//! for request in sim.requests() {
//!     println!("{} {:?} {:?}", request.number, request.usage, request.cost_usd);
//! }
//! # Ok(())
//! # }
//! ```

mod server;
mod control;
mod caller;
mod exchange;
mod body;
mod rules;
mod prompt;
mod render;
mod spelling;
mod parameters;
pub mod cache;
pub mod instruction;
pub mod recital;
mod script;
mod summary;
pub mod threads;
mod words;
mod answer;
mod diagnostics;
pub mod faults;
mod reply;
mod outgoing;
mod visit;
mod incoming;
pub mod journal;
pub mod clock;
pub mod config;
pub mod settings;
pub mod models;
mod error;
pub mod refusal;
mod encode;
mod world;

pub use clock::VirtualClock;
pub use config::{Encoding, Latency, SimConfig, SimLimits};
pub use faults::{Faults, InjectedFault};
pub use journal::{ExchangeEnding, Hit, RequestRecord};
pub use models::{BilledUsage, ModelSpec};
pub use recital::{Cue, Recital, Recitals};
pub use refusal::RefusalCode;
pub use settings::SimRules;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use world::World;

/// How long running answers may delay a stop; a stalled one would delay it forever.
const LONGEST_GOODBYE: Duration = Duration::from_secs(5);

/// A running simulator. Dropping it closes the port and ends what runs at its next pause; [`Sim::stop`] waits.
#[derive(Debug)]
pub struct Sim {
    addr: SocketAddr,
    world: Arc<World>,
    stop: watch::Sender<bool>,
    server: JoinHandle<io::Result<()>>,
}

impl Sim {
    /// Binds first, then serves: the address is good when this returns.
    pub async fn start(config: SimConfig) -> io::Result<Sim> {
        let listener = TcpListener::bind(config.listen).await?;
        let addr = listener.local_addr()?;
        let world = Arc::new(World::new(config));
        let (stop, mut stopped) = watch::channel(false);
        // Small events must leave at once, as they do on the real service.
        let listener = listener.tap_io(|connection| {
            let _ = connection.set_nodelay(true);
        });
        let serve =
            axum::serve(listener, server::router(Arc::clone(&world))).with_graceful_shutdown(async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            });
        let server = tokio::spawn(async move { serve.await });
        Ok(Sim { addr, world, stop, server })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The base URL for clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The requests that have arrived so far, oldest first.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.world.journal().records()
    }

    pub fn forget_requests(&self) {
        self.world.journal().clear();
    }

    /// The live cache entries, longest prefix first.
    pub fn cache_entries(&self) -> Vec<cache::CacheEntry> {
        let now_ms = self.world.clock.now_ms();
        self.world.cache().entries(now_ms).into_iter().map(|(_, entry)| entry).collect()
    }

    pub fn clock(&self) -> &VirtualClock {
        &self.world.clock
    }

    pub fn faults(&self) -> &Faults {
        &self.world.faults
    }

    /// The answers to requests with `thread` that can be continued, and those that were; oldest first.
    pub fn threads(&self) -> Vec<threads::ThreadShown> {
        self.world.threads().shown()
    }

    /// Answers to be given when a request names them.
    pub fn recitals(&self) -> &Recitals {
        &self.world.recitals
    }

    /// Stops accepting, lets running answers finish for a while, and returns.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        if tokio::time::timeout(LONGEST_GOODBYE, &mut self.server).await.is_err() {
            self.server.abort();
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}
