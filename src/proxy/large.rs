//! Work in proportion to a large body. Reading one that was never seen takes milliseconds, and on a thread of the
//! runtime everybody else whose socket that thread serves would wait as long. So the thread hands its other tasks over
//! before it begins, and only a part of the cores work on large bodies at a time.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A body from this size on is large.
pub(super) const LARGE_BYTES: usize = 256 << 10;

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
        aside(bytes, work)
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
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    if is_large(bytes) && matches!(flavor, Ok(RuntimeFlavor::MultiThread)) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
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
    async fn a_runtime_with_one_thread_works_where_it_is() {
        assert_eq!(LargeBodies::new().work(LARGE_BYTES, || 7).await, 7);
    }
}
