//! `observe` says what `align` would have cost.

use crate::harness::Forkpoint;
use crate::workload::{Behaviour, Client, Shape, play};

use super::{Stage, mode, simulator};

const TURNS: usize = 10;
/// An estimate may be off by this share.
const SLACK: f64 = 0.1;

#[tokio::test]
async fn what_observe_takes_aligned_requests_to_cost_is_what_they_cost() {
    for shape in [Shape::Chat, Shape::Tools, Shape::LongTurns] {
        for behaviour in Behaviour::ALL {
            let sim = simulator(|_| ()).await;
            let observe = |config: &mut forkpoint::config::Config| config.server.mode = mode("observe");
            let observed = Stage { forkpoint: Forkpoint::with(&sim.url(), observe).await, sim };
            let aligned = Stage::aligned().await;
            for stage in [&observed, &aligned] {
                let exchanges = play(&mut Client::new(shape, behaviour, 3), &stage.line(), TURNS).await;
                assert_eq!(exchanges.len(), TURNS);
                stage.forkpoint.recorded(TURNS as u32).await;
            }
            let of = |stage: &Stage, baseline: &str| {
                let label = format!("baseline=\"{baseline}\"");
                stage.forkpoint.metric("forkpoint_counterfactual_usd_total", &[&label])
            };
            let (estimate, billed) = (of(&observed, "aligned"), of(&aligned, "aligned"));
            let what = format!("{shape:?} {behaviour:?}: {estimate} for {billed}");
            assert!(billed > 0.0 && (estimate / billed - 1.0).abs() < SLACK, "{what}");
            let (as_sent, direct) = (of(&aligned, "sent"), of(&observed, "sent"));
            let off = as_sent / direct - 1.0;
            assert!(off.abs() < SLACK, "{shape:?} {behaviour:?} as sent: {as_sent} for {direct}");
            if behaviour == Behaviour::Naive {
                assert!(estimate < 0.6 * of(&observed, "sent"), "{what}: without markers all is paid anew");
            }
        }
    }
}
