//! A Redis that fails in the middle of a fan-out: nobody notices but those who look after it.

use std::time::Duration;

use forkpoint::engine::words::StoreError;
use serde_json::Value;

use super::SCRIPT;
use super::fleet::Fleet;
use crate::fork::children::{BOUND, FORKED, FREE, child, extend, parent, plan};
use crate::harness::redis::RedisServer;
use crate::harness::samples::{OK, PROMPT};
use crate::harness::{Binary, Forkpoint, Upstream, call, until};

/// Long enough for a busy machine, and short enough for a test with a server that does not answer.
const DEADLINE: Duration = Duration::from_millis(1_500);

/// What happens to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    RestartedEmpty,
    Paused,
    ReadOnly,
    Full,
}

impl Fault {
    fn happens(self, redis: &mut RedisServer) {
        match self {
            Fault::Killed => redis.kill(),
            Fault::RestartedEmpty => {
                redis.kill();
                redis.restart();
            }
            Fault::Paused => redis.pause(),
            // A replica whose master is not there, as after a failover that went wrong.
            Fault::ReadOnly => assert_eq!(redis.command(&["REPLICAOF", "127.0.0.1", "1"]), "OK"),
            Fault::Full => assert_eq!(redis.command(&["CONFIG", "SET", "maxmemory", "1"]), "OK"),
        }
    }

    fn is_mended(self, redis: &mut RedisServer) {
        match self {
            Fault::RestartedEmpty => {}
            Fault::Killed => redis.restart(),
            Fault::Paused => redis.resume(),
            Fault::ReadOnly => assert_eq!(redis.command(&["REPLICAOF", "NO", "ONE"]), "OK"),
            Fault::Full => assert_eq!(redis.command(&["CONFIG", "SET", "maxmemory", "0"]), "OK"),
        }
    }

    /// The error that is said of it, if it lasts.
    fn error(self) -> Option<StoreError> {
        match self {
            Fault::RestartedEmpty => None,
            Fault::Killed => Some(StoreError::Down),
            Fault::Paused => Some(StoreError::Slow),
            Fault::ReadOnly => Some(StoreError::ReadOnly),
            Fault::Full => Some(StoreError::Full),
        }
    }
}

/// What a fan-out has cost, and what the replicas show as saved.
struct Money {
    billed: f64,
    saved: f64,
}

/// A fan-out on a number of replicas, in whose middle something happens to the server.
async fn fails_in_the_middle(model: &str, replicas: usize, fault: Option<Fault>) -> Money {
    let mut redis = RedisServer::start();
    let fleet = Fleet::with(&redis.url(), replicas, |config| config.store.deadline = DEADLINE).await;
    let told = fleet.fan_out(&parent(model, SCRIPT)).await;
    let mut bodies: Vec<Value> = told.iter().map(|directive| child(model, directive)).collect();
    fleet.settles().await;
    let turn = async |replica: usize, body: &mut Value, what: &str| {
        let exchange = fleet.send(replica, body).await;
        assert_eq!(exchange.status, 200, "{model}, {fault:?}: {what}");
        if replicas > 0 {
            assert_eq!(plan(&exchange), FORKED, "{model}, {fault:?}: {what}");
        }
        extend(body, &exchange);
    };
    turn(0, &mut bodies[0], "the first child").await;
    turn(1, &mut bodies[1], "the second child").await;
    fleet.settles().await;
    if let Some(fault) = fault {
        fault.happens(&mut redis);
    }
    turn(0, &mut bodies[0], "the first child goes on").await;
    turn(1, &mut bodies[1], "the second child goes on").await;
    turn(0, &mut bodies[2], "a child that begins where its parent is known").await;
    turn(1, &mut bodies[1], "the second child goes on and on").await;
    if let Some(fault) = fault {
        is_said(&fleet, fault).await;
        fault.is_mended(&mut redis);
        for replica in &fleet.replicas {
            until("the store to be used again", || error(replica).is_none()).await;
        }
    }
    fleet.settles().await;
    // Both know again what the other has done meanwhile.
    turn(1, &mut bodies[0], "the first child on the other replica").await;
    turn(0, &mut bodies[1], "the second child on the other replica").await;
    turn(1, &mut bodies[2], "the third child on the other replica").await;
    assert_eq!(fleet.sum("fallbacks_total", &[]), 0.0, "{model}, {fault:?}");
    fleet.settles().await;
    Money { billed: fleet.billed(), saved: fleet.sum("saved_usd", &[]) }
}

fn error(replica: &Forkpoint) -> Option<StoreError> {
    replica.proxy.store().condition().unwrap().error
}

/// Each replica gives the store up, and says why.
async fn is_said(fleet: &Fleet, fault: Fault) {
    let Some(expected) = fault.error() else { return };
    for replica in &fleet.replicas {
        until("the store to be given up", || error(replica).is_some()).await;
        let said = error(replica).unwrap();
        // A replica that reconnects meanwhile has no connection.
        assert!(said == expected || said == StoreError::Down, "{said:?} of {fault:?}");
    }
}

/// No child notices, and nothing that was lost is shown as saved: what is shown is what the same requests cost without
/// forkpoint, less what they have cost.
async fn costs_nobody_anything(fault: Fault) {
    for model in [FREE, BOUND] {
        let direct = fails_in_the_middle(model, 0, None).await.billed;
        let Money { billed, saved } = fails_in_the_middle(model, 2, Some(fault)).await;
        let really = direct - billed;
        assert!(really > 0.0 && saved <= 1.05 * really, "{model}, {fault:?}: {saved} shown of {really}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_killed_within_a_fan_out_costs_no_child_its_prefix() {
    costs_nobody_anything(Fault::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_comes_back_empty_within_a_fan_out_is_told_everything_again() {
    costs_nobody_anything(Fault::RestartedEmpty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_answer_within_a_fan_out_costs_no_child_its_prefix() {
    costs_nobody_anything(Fault::Paused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_nothing_within_a_fan_out_costs_no_child_its_prefix() {
    costs_nobody_anything(Fault::ReadOnly).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_full_within_a_fan_out_costs_no_child_its_prefix() {
    costs_nobody_anything(Fault::Full).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_is_said_once_and_so_is_its_return() {
    let upstream = Upstream::bind().await;
    let mut redis = RedisServer::start();
    let url = redis.url();
    let settings = [("FORKPOINT_STORE", "redis"), ("STORE__URL", &*url), ("LOG__FORMAT", "json")];
    let binary = Binary::serve(&upstream.url(), &settings).await;
    let asks = async || {
        let mut client = binary.client().await;
        client.send(&call(PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        server.send(OK).await;
        assert_eq!(client.reply().await.status(), 200);
    };
    asks().await;
    assert_eq!(binary.admin("/readyz").await, (200, "ready\n".to_owned()));
    for round in 1..=2 {
        redis.kill();
        while !binary.admin("/readyz").await.1.contains("degraded") {
            asks().await;
        }
        let (status, text) = binary.admin("/readyz").await;
        assert_eq!((status, &*text), (200, "ready\ndegraded store=redis error=down\n"));
        binary.lines("the store fails", round).await;
        redis.restart();
        while binary.admin("/readyz").await.1.contains("degraded") {
            asks().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        binary.lines("the store works again", round).await;
        for text in ["the store fails", "the store works again"] {
            let said = binary.said().iter().filter(|line| line.contains(text)).count();
            assert_eq!(said, round, "{text}");
        }
    }
}
