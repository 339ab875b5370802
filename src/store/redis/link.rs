//! The connection to Redis, made in the background and again when it breaks.
//!
//! Nobody waits for a connection: while there is none, every command fails at once. One task connects, with pauses that
//! grow and differ by chance, so that a server that comes back is not met by everybody at the same time. Afterwards the
//! connection manager of the `redis` crate (on a cluster, its cluster connection) mends what breaks. One task asks a
//! single server until there is an answer, and commands fail at once until then. A cluster goes on being asked: when one
//! node of it is gone, the others still answer for what they have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError,
    ServerErrorKind, Value,
};

use crate::engine::words::StoreError;

/// The time for one attempt to connect.
const CONNECT: Duration = Duration::from_secs(2);

/// The first pause between two attempts; each next one is twice as long.
const PAUSE_LEAST: Duration = Duration::from_millis(100);

/// The longest pause between two attempts.
const PAUSE_MOST: Duration = Duration::from_secs(2);

/// The time that each MiB may take beyond the deadline.
const PER_MIB: Duration = Duration::from_millis(20);

/// The time after which an answer that nobody waits for any more is not expected any more.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The nodes that one URL may name.
const NODES_MAX: usize = 32;

/// The nodes to connect to, as `store.url` has them.
#[derive(Clone)]
pub struct RedisAddress(Vec<ConnectionInfo>);

impl RedisAddress {
    /// Reads `redis://` and `rediss://` URLs: one, or several nodes of a cluster with commas between them. The reason
    /// why it is none names neither user nor password.
    pub fn parse(url: &str) -> Result<RedisAddress, String> {
        let nodes: Vec<&str> = url.split(',').map(str::trim).collect();
        if nodes.len() > NODES_MAX {
            return Err(format!(
                "names {} nodes, and {NODES_MAX} are enough to find all of a cluster",
                nodes.len()
            ));
        }
        let node = |node: &&str| {
            let is_known = ["redis://", "rediss://", "valkey://", "valkeys://", "redis+unix://", "unix://"]
                .iter()
                .any(|scheme| node.starts_with(scheme));
            if !is_known {
                return Err("does not begin with redis:// or rediss://".to_owned());
            }
            node.into_connection_info()
                .map_err(|error| format!("is not the URL of a Redis: {}", error.category()))
        };
        nodes.iter().map(node).collect::<Result<_, _>>().map(RedisAddress)
    }
}

impl std::fmt::Debug for RedisAddress {
    /// The number of nodes: their URLs may hold passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedisAddress({} nodes)", self.0.len())
    }
}

#[derive(Clone)]
enum Connection {
    Single(ConnectionManager),
    Cluster(ClusterConnection),
}

impl Connection {
    async fn query(&self, command: &Cmd) -> Result<Value, RedisError> {
        let answer = match self {
            Connection::Single(connection) => connection.clone().send_packed_command(command).await,
            Connection::Cluster(connection) => connection.clone().req_packed_command(command).await,
        };
        answer.and_then(Value::extract_error)
    }
}

/// A connection that is there or will be.
#[derive(Clone)]
pub struct Link(Arc<Shared>);

struct Shared {
    address: RedisAddress,
    deadline: Duration,
    connection: ArcSwapOption<Connection>,
    /// True while a task connects, or asks a broken connection if it works again.
    is_mending: AtomicBool,
}

impl Link {
    /// Begins to connect. To be called within a runtime.
    pub fn open(address: RedisAddress, deadline: Duration) -> Link {
        let link = Link(Arc::new(Shared {
            address,
            deadline,
            connection: ArcSwapOption::empty(),
            is_mending: AtomicBool::new(false),
        }));
        link.mend();
        link
    }

    /// Sends a command, within the deadline and what its `bytes` take beyond.
    pub async fn query(&self, command: &Cmd, bytes: usize) -> Result<Value, StoreError> {
        let Some(connection) = self.working() else { return Err(StoreError::Down) };
        let deadline = self.0.deadline + PER_MIB * (bytes >> 20) as u32;
        match tokio::time::timeout(deadline, connection.query(command)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => Err(StoreError::Slow),
        }
    }

    /// Runs a script on the keys of one slot. A server that does not know it is sent its text.
    pub async fn script(&self, script: &Script, call: ScriptCall) -> Result<Value, StoreError> {
        let Some(connection) = self.working() else { return Err(StoreError::Down) };
        let deadline = self.0.deadline + PER_MIB * (call.bytes >> 20) as u32;
        let known = call.command("EVALSHA", &script.sha);
        let run = async {
            match connection.query(&known).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    connection.query(&call.command("EVAL", script.text)).await
                }
                result => result,
            }
        };
        match tokio::time::timeout(deadline, run).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.failed(&error)),
            Err(_) => Err(StoreError::Slow),
        }
    }

    fn working(&self) -> Option<Arc<Connection>> {
        let connection = self.0.connection.load_full();
        let is_asked = |connection: &Arc<Connection>| match **connection {
            Connection::Single(_) => !self.0.is_mending.load(Relaxed),
            Connection::Cluster(_) => true,
        };
        connection.filter(is_asked)
    }

    fn failed(&self, error: &RedisError) -> StoreError {
        let word = word(error);
        match word {
            StoreError::Down => self.mend(),
            // Behind the same name another server may be the one that takes writes now.
            StoreError::ReadOnly => {
                self.0.connection.store(None);
                self.mend();
            }
            _ => {}
        }
        word
    }

    /// Lets one task connect, or find out when the connection works again.
    fn mend(&self) {
        if self.0.is_mending.swap(true, Relaxed) {
            return;
        }
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let mut pause = PAUSE_LEAST;
            loop {
                // The store may be closed meanwhile.
                let Some(shared) = shared.upgrade() else { return };
                if shared.is_answered().await {
                    shared.is_mending.store(false, Relaxed);
                    return;
                }
                drop(shared);
                tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * chance())).await;
                pause = (2 * pause).min(PAUSE_MOST);
            }
        });
    }
}

impl Shared {
    /// Returns true if the connection works, the present one or, if there is none, a new one.
    async fn is_answered(&self) -> bool {
        if let Some(connection) = self.connection.load_full() {
            return self.probe(&connection).await;
        }
        match tokio::time::timeout(2 * CONNECT, connect(&self.address)).await {
            Ok(Ok(connection)) => {
                self.connection.store(Some(Arc::new(connection)));
                true
            }
            Ok(Err(error)) => {
                // The error of a server may say more than the word does: wrong password, no permission.
                tracing::debug!(
                    reason = error.category(),
                    code = error.code(),
                    "cannot connect to the store"
                );
                false
            }
            Err(_) => false,
        }
    }

    /// Asks a connection until it answers. It mends itself, with pauses of its own.
    async fn probe(&self, connection: &Connection) -> bool {
        let ping = redis::cmd("PING");
        matches!(tokio::time::timeout(CONNECT, connection.query(&ping)).await, Ok(Ok(_)))
    }
}

/// Connects to a single server, or to the cluster that the first node belongs to that answers.
async fn connect(address: &RedisAddress) -> Result<Connection, RedisError> {
    let mut failed = None;
    for node in &address.0 {
        match connect_by(node, address).await {
            Ok(connection) => return Ok(connection),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| (ErrorKind::InvalidClientConfig, "no node is named").into()))
}

async fn connect_by(node: &ConnectionInfo, address: &RedisAddress) -> Result<Connection, RedisError> {
    let client = Client::open(node.clone())?;
    if is_cluster(&client).await? {
        let cluster = ClusterClient::builder(address.0.clone())
            .connection_timeout(CONNECT)
            .response_timeout(ANSWER_MAX)
            .retries(3)
            .max_retry_wait(PAUSE_LEAST.as_millis() as u64)
            .build()?;
        return Ok(Connection::Cluster(cluster.get_async_connection().await?));
    }
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(ANSWER_MAX))
        .set_min_delay(PAUSE_LEAST)
        .set_max_delay(PAUSE_MOST)
        .set_number_of_retries(usize::MAX);
    Ok(Connection::Single(ConnectionManager::new_with_config(client, config).await?))
}

async fn is_cluster(client: &Client) -> Result<bool, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(CONNECT));
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let info: Result<String, RedisError> =
        redis::cmd("INFO").arg("cluster").query_async(&mut connection).await;
    match info {
        Ok(info) => Ok(info.contains("cluster_enabled:1")),
        // Whoever may not ask is taken to be at a single server.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The word for an error of Redis.
fn word(error: &RedisError) -> StoreError {
    match (error.kind(), error.code()) {
        (_, Some("OOM")) => StoreError::Full,
        // MISCONF: it cannot write its own files, and takes nothing until it can.
        (ErrorKind::Server(ServerErrorKind::ReadOnly), _)
        | (_, Some("READONLY" | "MISCONF" | "NOREPLICAS")) => StoreError::ReadOnly,
        (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) | (_, Some("WRONGTYPE")) => {
            StoreError::Garbage
        }
        _ if error.is_timeout() => StoreError::Slow,
        _ => StoreError::Down,
    }
}

/// A number from 0 to 1, by chance.
pub fn chance() -> f64 {
    let mut bytes = [0; 4];
    match aws_lc_rs::rand::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

/// A script that servers know by its digest.
pub struct Script {
    text: &'static str,
    sha: String,
}

impl Script {
    pub fn new(text: &'static str) -> Script {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        Script { text, sha: super::names::hex(digest.as_ref()) }
    }
}

/// The keys and arguments of one run of a script.
#[derive(Default)]
pub struct ScriptCall {
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
    /// The bytes that it moves, in either direction.
    bytes: usize,
}

impl ScriptCall {
    pub fn key(mut self, key: impl Into<String>) -> ScriptCall {
        self.keys.push(key.into());
        self
    }

    pub fn argument(mut self, argument: impl Into<Vec<u8>>) -> ScriptCall {
        let argument = argument.into();
        self.bytes += argument.len();
        self.arguments.push(argument);
        self
    }

    /// The bytes that it may answer.
    pub fn answers(mut self, bytes: usize) -> ScriptCall {
        self.bytes += bytes;
        self
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(&self.keys);
        for argument in &self.arguments {
            command.arg(&argument[..]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_one_server_or_some_nodes() {
        assert_eq!(RedisAddress::parse("redis://127.0.0.1:6379/").unwrap().0.len(), 1);
        assert_eq!(RedisAddress::parse("rediss://a:1, rediss://b:2").unwrap().0.len(), 2);
    }

    #[test]
    fn a_bad_address_is_refused_without_its_password() {
        for bad in ["", "http://u:secret@h", "redis://u:secret@h:port", "redis://h,secret@x"] {
            let reason = RedisAddress::parse(bad).unwrap_err();
            assert!(!reason.contains("secret"), "{reason}");
        }
        let good = RedisAddress::parse("redis://user:secret@h:1").unwrap();
        assert_eq!(format!("{good:?}"), "RedisAddress(1 nodes)");
    }
}
