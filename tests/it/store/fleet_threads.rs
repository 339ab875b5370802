//! Conversations that the server holds, and replicas that share a Redis: a continue comes to another one than the
//! request before it.

use super::fleet::Fleet;
use crate::fork::children::threads::{Client, Repeats};
use crate::fork::children::{BOUND, FORKED, FREE, child, directives, parent, plan, usage};
use crate::harness::redis::RedisServer;
use crate::harness::until;

const FAN_OUT: &str = "[[sim:fan_out n=3 tool=Agent field=prompt | tools turns=2 calls=1 tool=search]]";

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_goes_on_elsewhere_fans_out_there_and_its_children_are_forked_on_both() {
    for (model, repeats) in [(FREE, Repeats::Nothing), (FREE, Repeats::All), (BOUND, Repeats::All)] {
        let redis = RedisServer::start();
        let fleet = Fleet::new(&redis.url(), 2).await;
        let mut lead = Client::new(parent(model, "[[sim:text words=9]]"), repeats);
        lead.turn_through(&fleet.line(0)).await;
        fleet.settles().await;
        lead.says(&format!("Go on. {FAN_OUT}"));
        let told = directives(&lead.turn_through(&fleet.line(1)).await);
        let sealed = || fleet.sum("forks_total", &["outcome=\"sealed\""]) > 0.0;
        until("the fan-out to be sealed", sealed).await;
        fleet.settles().await;
        for (number, told) in told.iter().enumerate() {
            let mut client = Client::new(child(model, told), repeats);
            for turn in 0..3 {
                let exchange = client.turn_through(&fleet.line(number + turn)).await;
                let at = format!("{model} {repeats:?} child {number} turn {turn}");
                assert_eq!((plan(&exchange), client.replays), (FORKED, 0), "{at}");
                assert_eq!(usage(&exchange).uncached, 0, "{at}");
                fleet.settles().await;
            }
        }
        let last = lead.turn_through(&fleet.line(0)).await;
        assert_eq!((&plan(&last)[..2], lead.replays), (&["parent", "aligned"][..], 0), "{model} {repeats:?}");
        assert_eq!(fleet.sum("fallbacks_total", &[]), 0.0);
        assert_eq!(fleet.sum("store_unreadable_total", &[]), 0.0, "{model} {repeats:?}");
        assert!(fleet.sim.requests().iter().all(|request| request.status == Some(200)), "{model}");
    }
}
