//! Work in proportion to a large body. Reading one that was never seen takes milliseconds, and on a thread of the
//! runtime everybody else whose socket that thread serves would wait as long. So the thread hands its other tasks over
//! before it begins, and only a part of the cores work on large bodies at a time. A runtime of a single thread has nobody
//! to hand them to: there the others go on between one piece of work and the next.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A body from this size on is large. The work is in proportion to its parts as much as to its bytes, and a body of this
/// size has room for thousands of them.
pub(super) const LARGE_BYTES: usize = 64 << 10;

/// The places for large bodies.
#[derive(Debug)]
pub struct LargeBodies {
    places: Arc<Semaphore>,
}

/// The place of a large body, given back when dropped; a small one needs none.
pub type Place = Option<OwnedSemaphorePermit>;

impl LargeBodies {
    /// As many places as half of the cores, so that the others are there for everybody else.
    pub fn new() -> LargeBodies {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        LargeBodies { places: Arc::new(Semaphore::new((cores / 2).max(1))) }
    }

    /// Does the work on a body of this size, once there is a place for it.
    pub async fn work<R>(&self, bytes: usize, work: impl FnOnce() -> R) -> R {
        if !is_large(bytes) {
            return work();
        }
        let _place = self.place(bytes).await;
        if can_hand_over() {
            return tokio::task::block_in_place(work);
        }
        tokio::task::yield_now().await;
        let done = work();
        tokio::task::yield_now().await;
        done
    }

    /// Waits until there is a place for a body of this size.
    pub fn place(&self, bytes: usize) -> impl Future<Output = Place> + Send + use<> {
        let places = Arc::clone(&self.places);
        async move {
            // They are never closed; if they were, the work would be done all the same.
            if is_large(bytes) { places.acquire_owned().await.ok() } else { None }
        }
    }
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_while_a_large_body_is_worked_on() {
        let bodies = Arc::new(LargeBodies::new());
        let meeting = Arc::new(Barrier::new(2));
        let large = tokio::spawn({
            let (bodies, meeting) = (Arc::clone(&bodies), Arc::clone(&meeting));
            async move { bodies.work(LARGE_BYTES, || meeting.wait().is_leader()).await }
        });
        // The only worker would be blocked for ever, were its other tasks not handed over.
        let small = tokio::spawn(async move { bodies.work(1, || meeting.wait().is_leader()).await });
        large.await.unwrap();
        small.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_a_part_of_the_cores_work_on_large_bodies() {
        let bodies = Arc::new(LargeBodies { places: Arc::new(Semaphore::new(1)) });
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let works = (0..8).map(|_| {
            let (bodies, now, most) = (Arc::clone(&bodies), Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(async move {
                bodies
                    .work(LARGE_BYTES, || {
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
            bodies.work(LARGE_BYTES, || pieces.fetch_add(1, SeqCst)).await;
        }
        other.await.unwrap();
        assert!(turns.load(SeqCst) >= 8, "{turns:?}");
    }
}
