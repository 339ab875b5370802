//! Money: what random clients of one tenant pay directly, and through forkpoint in every mode, and whether forkpoint
//! knows it.

mod figures;
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
use point::Point;

/// The points that are played where nobody asks for more.
const POINTS: u64 = 200;
/// One of so many points is also replayed from its recording.
const REPLAY_EVERY: u64 = 16;

/// The figures of a point.
fn figures(seed: u64) -> Figures {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Figures::of(&Point::of(seed), seed.is_multiple_of(REPLAY_EVERY)))
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}: {value}")))
}

/// `tests/deep money` asks for more points, or for one.
#[test]
fn nobody_pays_more_and_every_figure_is_true() {
    let (points, seed) = (variable("MONEY_POINTS"), variable("MONEY_SEED"));
    let seeds: Vec<u64> = seed.map_or_else(|| (0..points.unwrap_or(POINTS)).collect(), |seed| vec![seed]);
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
