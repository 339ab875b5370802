//! Money: what random clients of one tenant pay directly, and through forkpoint in every mode, and whether forkpoint
//! knows it.

mod figures;
mod ledger;
mod mended;
mod player;
mod point;
mod replayed;
mod rows;
mod script;
mod unknown;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use figures::{Figures, Verdict};
use point::{FURTHER, Point};

/// The points that are played where nobody asks for more.
const POINTS: u64 = 200;
/// One further point is played beside so many.
const FURTHER_EVERY: u64 = 4;
/// One of so many points is also replayed from its recordings.
const REPLAY_EVERY: u64 = 16;

/// The figures of a point.
fn figures(seed: u64) -> Figures {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let is_replayed = seed.is_multiple_of(REPLAY_EVERY) && seed < FURTHER;
    runtime.block_on(Figures::of(&Point::of(seed), is_replayed))
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}: {value}")))
}

/// `tests/deep money` asks for more points, or for one.
#[test]
fn nobody_pays_more_and_every_figure_is_true() {
    let (points, seed) = (variable("MONEY_POINTS"), variable("MONEY_SEED"));
    let points = points.unwrap_or(POINTS);
    let seeds: Vec<u64> = match (seed, variable("MONEY_FIRST")) {
        (Some(seed), _) => vec![seed],
        (None, Some(first)) => (first..first + points).collect(),
        (None, None) => (0..points).chain(FURTHER..FURTHER + points / FURTHER_EVERY).collect(),
    };
    let next = AtomicUsize::new(0);
    let played = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Relaxed)) {
                    let figures = figures(*seed);
                    played.lock().unwrap().push(figures);
                }
            });
        }
    });
    let verdict = Verdict::of(played.into_inner().unwrap());
    println!("{verdict}");
    if let [figures] = &verdict.0[..] {
        println!("{}", figures.requests());
    }
    verdict.check();
}
