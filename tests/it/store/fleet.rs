//! Replicas that share a Redis, behind a round robin: real servers, the real proxy, and the simulator's bills.

use forkpoint::config::{Config, StoreKind, StoreUrl};
use forkpoint::sim::{Sim, SimConfig};
use futures_util::future::join_all;
use serde_json::Value;

use super::{SCRIPT, prefix_bytes, shared};
use crate::fork::children::{BOUND, FORKED, FREE, child, directives, extend, parent, plan, usage};
use crate::harness::redis::{RedisCluster, RedisServer};
use crate::harness::{Forkpoint, PATIENCE, until};
use crate::workload::{Exchange, Letter, Line};

/// The turns of each child.
pub const TURNS: usize = 3;

/// The simulator, and replicas in front of it that share a store.
pub struct Fleet {
    pub sim: Sim,
    pub replicas: Vec<Forkpoint>,
}

/// How the turns of children follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Each turn of each child after the one before.
    OneByOne,
    /// Each turn of all children at once, when each replica may know what the others did before.
    Together,
    /// Each turn of all children at once, whatever is known where.
    AtOnce,
}

/// A fan-out, as it was played: the turns of each child.
pub struct Played {
    pub children: Vec<Vec<Exchange>>,
    /// The bill of all requests, parent included, in dollars.
    pub billed: f64,
    /// What the replicas show as saved.
    pub saved: f64,
}

impl Fleet {
    pub async fn new(url: &str, replicas: usize) -> Fleet {
        // A test on a busy machine is about what is known, not about when.
        Fleet::with(url, replicas, |config| config.store.deadline = PATIENCE).await
    }

    pub async fn with(url: &str, replicas: usize, configure: impl Fn(&mut Config)) -> Fleet {
        let sim = Sim::start(SimConfig::default()).await.unwrap();
        let mut fleet = Fleet { sim, replicas: Vec::new() };
        for _ in 0..replicas {
            let behind = |config: &mut Config| {
                config.gate.max_hold = PATIENCE;
                shares(config, url);
                configure(config);
            };
            let replica = Forkpoint::with(&fleet.sim.url(), behind).await;
            is_connected(&replica).await;
            fleet.replicas.push(replica);
        }
        fleet
    }

    /// Sends a request through a replica, in a round robin; without any, to the simulator.
    pub async fn send(&self, replica: usize, body: &Value) -> Exchange {
        self.line(replica).send(&Letter::alone(body)).await
    }

    /// A line through such a replica.
    pub fn line(&self, replica: usize) -> Line<'_> {
        match self.replicas.len() {
            0 => Line::direct(&self.sim),
            replicas => {
                let replica = &self.replicas[replica % replicas];
                let url = format!("http://{}", replica.address);
                Line::through(url, replica.proxy.clone(), &self.sim)
            }
        }
    }

    /// Lets a parent fan out on the first replica, and returns the directives of its children.
    pub async fn fan_out(&self, body: &Value) -> Vec<String> {
        let fan_out = self.send(0, body).await;
        if let Some(first) = self.replicas.first() {
            let sealed = || first.metric("forkpoint_forks_total", &["outcome=\"sealed\""]) > 0.0;
            until("the fan-out to be sealed", sealed).await;
        }
        directives(&fan_out)
    }

    /// Waits until each replica has written what it knows.
    pub async fn settles(&self) {
        for replica in &self.replicas {
            until("all to be written", || replica.metric("forkpoint_store_queue", &[]) == 0.0).await;
        }
    }

    /// The sum of a metric over all replicas.
    pub fn sum(&self, metric: &str, labels: &[&str]) -> f64 {
        let name = format!("forkpoint_{metric}");
        self.replicas.iter().map(|replica| replica.metric(&name, labels)).sum()
    }

    pub fn billed(&self) -> f64 {
        self.sim.requests().iter().filter_map(|request| request.cost_usd).sum()
    }

    /// Plays a parent and the turns of its children, each turn of each child on the next replica.
    async fn plays(self, model: &str, pace: Pace) -> Played {
        let told = self.fan_out(&parent(model, SCRIPT)).await;
        let mut bodies: Vec<Value> = told.iter().map(|directive| child(model, directive)).collect();
        let mut children: Vec<Vec<Exchange>> = bodies.iter().map(|_| Vec::new()).collect();
        for turn in 0..TURNS {
            if pace != Pace::AtOnce {
                self.settles().await;
            }
            let sent: Vec<Exchange> = if pace == Pace::OneByOne {
                let mut sent = Vec::new();
                for (number, body) in bodies.iter().enumerate() {
                    sent.push(self.send(number + turn, body).await);
                }
                sent
            } else {
                let all = bodies.iter().enumerate().map(|(number, body)| self.send(number + turn, body));
                join_all(all).await
            };
            for ((body, turns), exchange) in bodies.iter_mut().zip(&mut children).zip(sent) {
                let said = String::from_utf8_lossy(&exchange.answer).into_owned();
                assert_eq!(exchange.status, 200, "{model}, turn {turn}: {said}");
                extend(body, &exchange);
                turns.push(exchange);
            }
        }
        self.settles().await;
        let replicas = self.replicas.len();
        assert_eq!(self.sum("fallbacks_total", &[]), 0.0, "{model} on {replicas}");
        Played { children, billed: self.billed(), saved: self.sum("saved_usd", &[]) }
    }
}

/// Lets a process share a store.
pub fn shares(config: &mut Config, url: &str) {
    config.store.kind = StoreKind::Redis;
    config.store.url = Some(StoreUrl::new(url.to_owned()));
}

/// Waits until a process has reached its store.
pub async fn is_connected(replica: &Forkpoint) {
    let stranger = forkpoint::engine::words::TenantId([0xfe; 32]);
    let answered = || replica.metric("forkpoint_store_ops_total", &["op=\"load\"", "outcome=\"miss\""]) > 0.0;
    while !answered() {
        replica.proxy.store().meet(&stranger).await;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

impl Played {
    /// Every child was put on its parent's prefix, the same bytes on every turn and every replica.
    #[track_caller]
    pub fn is_forked(&self, on: &str) {
        let first = &self.children[0][0];
        for (number, turns) in self.children.iter().enumerate() {
            for (turn, exchange) in turns.iter().enumerate() {
                let at = format!("{on}: child {number}, turn {turn}");
                assert_eq!(plan(exchange), FORKED, "{at}");
                assert_eq!(exchange.said("prefix"), first.said("prefix"), "{at}");
                let same = shared(&exchange.forwarded, &first.forwarded);
                assert!(same >= prefix_bytes(first), "{at}: {same} of {}", prefix_bytes(first));
            }
        }
    }

    /// One of the children has written what all of them share, and the others have read it.
    #[track_caller]
    fn has_one_writer(&self, on: &str) {
        let written: Vec<u64> = self.children.iter().map(|turns| usage(&turns[0]).cache_write_5m).collect();
        let (most, all) = (*written.iter().max().unwrap(), written.iter().sum::<u64>());
        assert!(most > 5_000 && 2 * (all - most) < most, "{on}: {written:?} tokens written");
    }
}

/// Plays the script on one replica and on several, and compares.
async fn costs_no_more_than_on_one(url: impl Fn() -> String, model: &str, replicas: usize, pace: Pace) {
    let on = format!("{model} on {replicas}, {pace:?}");
    let alone = Fleet::new(&url(), 1).await.plays(model, pace).await;
    let apart = Fleet::new(&url(), replicas).await.plays(model, pace).await;
    let direct = Fleet::new(&url(), 0).await.plays(model, pace).await;
    for (played, on) in [(&alone, format!("{model} on one, {pace:?}")), (&apart, on.clone())] {
        played.is_forked(&on);
        played.has_one_writer(&on);
    }
    assert!(apart.billed <= 1.02 * alone.billed, "{on}: {} against {}", apart.billed, alone.billed);
    let saved = direct.billed - apart.billed;
    assert!(apart.saved <= 1.05 * saved, "{on}: {} shown as saved, of {saved}", apart.saved);
    assert!(saved > 0.0, "{on}: {saved} saved");
}

/// Servers of their own for each fleet: what one has stored another is not to know.
async fn of_their_own(model: &str, replicas: usize, pace: Pace) {
    let servers = std::cell::RefCell::new(Vec::new());
    let url = || {
        let server = RedisServer::start();
        let url = server.url();
        servers.borrow_mut().push(server);
        url
    };
    costs_no_more_than_on_one(url, model, replicas, pace).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_two_replicas_children_are_forked_and_cost_no_more_than_on_one() {
    for model in [FREE, BOUND] {
        of_their_own(model, 2, Pace::OneByOne).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_three_replicas_children_are_forked_and_cost_no_more_than_on_one() {
    for model in [FREE, BOUND] {
        of_their_own(model, 3, Pace::OneByOne).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn children_of_a_settled_fan_out_that_come_at_once_have_one_writer_on_two_and_three_replicas() {
    let each = [(FREE, 2), (FREE, 3), (BOUND, 2), (BOUND, 3)];
    join_all(each.map(|(model, replicas)| of_their_own(model, replicas, Pace::Together))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_as_good_as_one_server() {
    let clusters = std::cell::RefCell::new(Vec::new());
    let url = || {
        let cluster = RedisCluster::start();
        let url = cluster.url();
        clusters.borrow_mut().push(cluster);
        url
    };
    costs_no_more_than_on_one(url, BOUND, 2, Pace::OneByOne).await;
}

/// A child may be quicker than its parent's record. Then it goes as its own, for life, and costs no more than that.
#[tokio::test(flavor = "multi_thread")]
async fn children_that_are_sent_at_once_are_answered_and_keep_what_was_decided_for_them() {
    for model in [FREE, BOUND] {
        let (redis, none) = (RedisServer::start(), RedisServer::start());
        let played = Fleet::new(&redis.url(), 3).await.plays(model, Pace::AtOnce).await;
        let direct = Fleet::new(&none.url(), 0).await.plays(model, Pace::OneByOne).await;
        for (number, turns) in played.children.iter().enumerate() {
            let plans: Vec<&str> = turns.iter().map(|exchange| plan(exchange)[1]).collect();
            assert!(plans.iter().all(|plan| *plan == plans[0]), "{model}, child {number}: {plans:?}");
            // Its parent was answered by the same replica.
            assert!(number > 0 || plans[0] == "forked", "{model}, child {number}: {plans:?}");
        }
        let forked = played.children.iter().flatten().filter(|exchange| plan(exchange) == FORKED);
        let prefixes: std::collections::BTreeSet<_> = forked.map(|one| one.said("prefix")).collect();
        assert_eq!(prefixes.len(), 1, "{model}");
        assert!(
            played.billed <= 1.02 * direct.billed,
            "{model}: {} against {}",
            played.billed,
            direct.billed
        );
    }
}
