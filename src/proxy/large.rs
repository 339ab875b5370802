//! Work in proportion to a large body. Reading one that was never seen takes milliseconds, and on a thread of the
//! runtime everybody else whose socket that thread serves would wait as long. So the thread hands its other tasks over
//! before it begins, and only a part of the cores work on large bodies at a time. A runtime of a single thread has nobody
//! to hand them to: there the others go on between one piece of work and the next.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::account::{Payer, Standing};
use crate::engine::request::recall::{Reading, Remembered};
use crate::engine::words::TenantId;

/// A body from this size on is large. Below it the work is mostly shorter than it takes to hand other tasks over.
pub(super) const LARGE_BYTES: usize = 256 << 10;

/// The bytes that are as much work as one part of a body, beside its own.
const PART_BYTES: usize = 8;

/// The places for large bodies. Whoever waits for one waits in the line of its tenant, and the lines take turns: a tenant
/// with fifty bodies keeps another with one of them from nothing. All tenants without an accepted request are in one line,
/// since credentials are free to invent.
#[derive(Debug)]
pub struct LargeBodies {
    lines: Mutex<Lines>,
}

#[derive(Debug)]
struct Lines {
    places: usize,
    taken: usize,
    /// By line, for as long as it has a place or waits for one.
    lines: HashMap<LineName, Line>,
    /// The lines in which somebody waits, in the order of their turns.
    turns: VecDeque<LineName>,
}

#[derive(Debug, Default)]
struct Line {
    taken: usize,
    waiting: VecDeque<oneshot::Sender<TakenPlace>>,
}

/// Whose line it is; `None` for all strangers.
type LineName = Option<TenantId>;

/// The place of a large body, given back when dropped; a small one needs none.
pub type Place = Option<TakenPlace>;

#[derive(Debug)]
pub struct TakenPlace {
    bodies: Arc<LargeBodies>,
    line: LineName,
}

impl LargeBodies {
    /// As many places as half of the cores, so that the others are there for everybody else, and one more that no tenant
    /// takes beside all of those.
    pub fn new() -> LargeBodies {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        LargeBodies::with_places((cores / 2).max(1) + 1)
    }

    fn with_places(places: usize) -> LargeBodies {
        let (taken, lines, turns) = Default::default();
        LargeBodies { lines: Mutex::new(Lines { places, taken, lines, turns }) }
    }

    /// Does the work on a body of this size, once there is a place for it.
    pub async fn work<R>(self: &Arc<Self>, payer: Payer, bytes: usize, work: impl FnOnce() -> R) -> R {
        if !is_large(bytes) {
            return work();
        }
        let _place = self.place(payer, bytes).await;
        if can_hand_over() {
            return tokio::task::block_in_place(work);
        }
        tokio::task::yield_now().await;
        let done = work();
        tokio::task::yield_now().await;
        done
    }

    /// Waits until there is a place for a body of this size.
    pub fn place(self: &Arc<Self>, payer: Payer, bytes: usize) -> impl Future<Output = Place> + Send + use<> {
        let bodies = Arc::clone(self);
        async move {
            // Nobody throws away whoever waits; were it so, the work would be done all the same.
            if is_large(bytes) { bodies.wait(payer).await.ok() } else { None }
        }
    }

    fn wait(self: Arc<Self>, payer: Payer) -> oneshot::Receiver<TakenPlace> {
        let line = (payer.standing != Standing::Stranger).then_some(payer.tenant);
        let (waits, place) = oneshot::channel();
        self.lock().join(line, waits);
        self.give_out();
        place
    }

    /// Gives free places to those whose turn it is.
    fn give_out(self: &Arc<Self>) {
        loop {
            let next = self.lock().next();
            let Some((line, waits)) = next else { return };
            // The place of somebody who does not wait any more is dropped here, and with it given to the next.
            drop(waits.send(TakenPlace { bodies: Arc::clone(self), line }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn join(&mut self, name: LineName, waits: oneshot::Sender<TakenPlace>) {
        let line = self.lines.entry(name).or_default();
        if line.waiting.is_empty() {
            self.turns.push_back(name);
        }
        line.waiting.push_back(waits);
    }

    /// Takes a place for the first of the lines that may have one more.
    fn next(&mut self) -> Option<(LineName, oneshot::Sender<TakenPlace>)> {
        if self.taken >= self.places {
            return None;
        }
        let most = (self.places - 1).max(1);
        loop {
            let may_have = |name: &LineName| self.lines.get(name).is_some_and(|line| line.taken < most);
            let name = self.turns.iter().position(may_have).and_then(|turn| self.turns.remove(turn))?;
            let line = self.lines.get_mut(&name)?;
            // Clients leave while they wait.
            while line.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                line.waiting.pop_front();
            }
            let Some(waits) = line.waiting.pop_front() else {
                self.forget_idle(name);
                continue;
            };
            if !line.waiting.is_empty() {
                self.turns.push_back(name);
            }
            line.taken += 1;
            self.taken += 1;
            return Some((name, waits));
        }
    }

    fn forget_idle(&mut self, name: LineName) {
        if self.lines.get(&name).is_some_and(|line| line.taken == 0 && line.waiting.is_empty()) {
            self.lines.remove(&name);
        }
    }

    fn give_back(&mut self, name: LineName) {
        self.taken -= 1;
        if let Some(line) = self.lines.get_mut(&name) {
            line.taken -= 1;
        }
        self.forget_idle(name);
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        self.bodies.lock().give_back(self.line);
        self.bodies.give_out();
    }
}

/// The size of a body that was not read yet, as far as the work on it goes: small parts are as much work as large ones.
/// Parts are not counted where they cannot make it large: each has two bytes at least.
pub fn weight(body: &[u8]) -> usize {
    let at_most = body.len() + PART_BYTES * (body.len() / 2);
    if is_large(body.len()) || !is_large(at_most) {
        return body.len();
    }
    body.len() + PART_BYTES * memchr::memchr_iter(b',', body).count()
}

/// The size of a body that was read, as far as the work on it goes.
pub fn read_weight(request: &Remembered) -> usize {
    request.body().len() + Reading::memory_bytes(request)
}

pub fn is_large(bytes: usize) -> bool {
    bytes >= LARGE_BYTES
}

impl Default for LargeBodies {
    fn default() -> LargeBodies {
        LargeBodies::new()
    }
}

/// Does the work on a body of this size now, after the other tasks of this thread were handed over if it is large.
pub fn aside<R>(bytes: usize, work: impl FnOnce() -> R) -> R {
    if is_large(bytes) && can_hand_over() { tokio::task::block_in_place(work) } else { work() }
}

/// Returns true on a thread that can hand its other tasks over.
fn can_hand_over() -> bool {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    matches!(flavor, Ok(RuntimeFlavor::MultiThread))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    const PAYER: Payer = Payer { tenant: TenantId([1; 32]), standing: Standing::Known };

    fn payer(number: u8, standing: Standing) -> Payer {
        Payer { tenant: TenantId([number; 32]), standing }
    }

    /// Returns the order in which those are worked on that come while all places are taken.
    async fn order(places: usize, come: impl Iterator<Item = Payer>) -> Vec<u8> {
        let bodies = Arc::new(LargeBodies::with_places(places));
        let mut taken = Vec::new();
        for number in 0..places {
            taken.push(bodies.place(payer(200 + number as u8, Standing::Known), LARGE_BYTES).await);
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let works: Vec<_> = come
            .map(|payer| {
                let (waits, order) = (Arc::clone(&bodies).wait(payer), Arc::clone(&order));
                async move {
                    let _place = waits.await.unwrap();
                    order.lock().unwrap().push(payer.tenant.0[0]);
                }
            })
            .collect();
        drop(taken);
        futures_util::future::join_all(works).await;
        assert!(bodies.lock().lines.is_empty() && bodies.lock().taken == 0);
        Arc::into_inner(order).unwrap().into_inner().unwrap()
    }

    #[test]
    fn parts_are_counted_where_they_can_make_a_body_large() {
        let parts = |bytes: usize| b"1,".repeat(bytes / 2);
        assert_eq!(weight(&parts(50_000)), 50_000);
        assert_eq!(weight(&parts(60_000)), 60_000 + PART_BYTES * 30_000);
        assert!(is_large(weight(&parts(60_000))), "ten thousands of parts are as much work as a large body");
        assert_eq!(weight(&[b'a'; 200_000]), 200_000);
    }

    #[tokio::test]
    async fn tenants_take_turns_and_all_strangers_are_one() {
        let many = std::iter::repeat_n(payer(1, Standing::Known), 50);
        let order_of = order(1, many.chain([payer(2, Standing::Known)])).await;
        assert_eq!((order_of.len(), &order_of[..3]), (51, &[1, 2, 1][..]));
        let strangers = (10..60).map(|number| payer(number, Standing::Stranger));
        let order_of = order(1, strangers.chain([payer(2, Standing::WithChildren)])).await;
        assert_eq!(order_of[..3], [10, 2, 11]);
    }

    #[tokio::test]
    async fn nobody_takes_the_last_place_beside_all_others() {
        let bodies = Arc::new(LargeBodies::with_places(3));
        let mut greedy: Vec<_> = (0..4).map(|_| Arc::clone(&bodies).wait(PAYER)).collect();
        let mut has_place = |number: usize| greedy[number].try_recv().ok();
        let places = [has_place(0), has_place(1)];
        assert!(places.iter().all(Option::is_some) && has_place(2).is_none());
        let other = bodies.place(payer(2, Standing::Known), LARGE_BYTES).await;
        drop((places, other));
        assert!(has_place(2).is_some());
    }

    #[tokio::test]
    async fn whoever_leaves_passes_its_place_on() {
        let bodies = Arc::new(LargeBodies::with_places(1));
        let first = bodies.place(PAYER, LARGE_BYTES).await;
        drop(Arc::clone(&bodies).wait(PAYER));
        let last = Arc::clone(&bodies).wait(PAYER);
        drop(first);
        assert!(last.await.is_ok());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_while_a_large_body_is_worked_on() {
        let bodies = Arc::new(LargeBodies::new());
        let meeting = Arc::new(Barrier::new(2));
        let large = tokio::spawn({
            let (bodies, meeting) = (Arc::clone(&bodies), Arc::clone(&meeting));
            async move { bodies.work(PAYER, LARGE_BYTES, || meeting.wait().is_leader()).await }
        });
        // The only worker would be blocked for ever, were its other tasks not handed over.
        let small = tokio::spawn(async move { bodies.work(PAYER, 1, || meeting.wait().is_leader()).await });
        large.await.unwrap();
        small.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_a_part_of_the_cores_work_on_large_bodies() {
        let bodies = Arc::new(LargeBodies::with_places(1));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let works = (0..8).map(|_| {
            let (bodies, now, most) = (Arc::clone(&bodies), Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(async move {
                bodies
                    .work(PAYER, LARGE_BYTES, || {
                        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                        now.fetch_sub(1, SeqCst);
                    })
                    .await;
            })
        });
        for work in works.collect::<Vec<_>>() {
            work.await.unwrap();
        }
        assert_eq!(most.load(SeqCst), 1);
    }

    #[test]
    fn many_small_parts_weigh_as_much_as_a_large_body() {
        assert!(is_large(weight("1,".repeat(32 << 10).as_bytes())));
        let text = r#"{"type":"text","text":"As long as what is said between two commas, mostly."},"#;
        assert!(!is_large(weight(text.repeat(2_500).as_bytes())));
        assert!(is_large(weight("x".repeat(LARGE_BYTES).as_bytes())));
    }

    #[tokio::test]
    async fn a_runtime_with_one_thread_lets_others_go_on_between_two_pieces_of_work() {
        let bodies = Arc::new(LargeBodies::new());
        let (pieces, turns) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let other = tokio::spawn({
            let (pieces, turns) = (Arc::clone(&pieces), Arc::clone(&turns));
            async move {
                while pieces.load(SeqCst) < 8 {
                    turns.fetch_add(1, SeqCst);
                    tokio::task::yield_now().await;
                }
            }
        });
        for _ in 0..8 {
            bodies.work(PAYER, LARGE_BYTES, || pieces.fetch_add(1, SeqCst)).await;
        }
        other.await.unwrap();
        assert!(turns.load(SeqCst) >= 8, "{turns:?}");
    }
}
