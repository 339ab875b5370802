//! The tenants with something to be written, each once, in the order in which they are to be served.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::engine::durable::Pace;
use crate::engine::words::TenantId;

/// Bounded by the number of tenants: each is in either part at most once, which its [`Link`](super::link::Link) sees to.
#[derive(Default)]
pub struct Queue {
    parts: Mutex<Parts>,
    pushed: Notify,
}

#[derive(Default)]
struct Parts {
    /// Served first, in their order.
    soon: VecDeque<TenantId>,
    /// Served when they are due.
    later: BinaryHeap<Reverse<(Instant, TenantId)>>,
    /// The number of those that are served now.
    served: usize,
}

impl Queue {
    pub fn push(&self, tenant: TenantId) {
        self.lock().soon.push_back(tenant);
        self.pushed.notify_one();
    }

    pub fn push_later(&self, tenant: TenantId, due: Instant) {
        self.lock().later.push(Reverse((due, tenant)));
        self.pushed.notify_one();
    }

    /// Waits for a tenant whose turn it is, and takes it out of its part of the queue.
    pub async fn next(&self) -> (TenantId, Pace) {
        loop {
            // Asked for before the look, so that no push falls between the two.
            let pushed = self.pushed.notified();
            let (turn, due) = self.lock().take(Instant::now());
            if let Some(turn) = turn {
                // Another writer may take what is left.
                self.pushed.notify_one();
                return turn;
            }
            match due {
                None => pushed.await,
                Some(due) => tokio::select! {
                    () = pushed => {}
                    () = sleep_until(due) => {}
                },
            }
        }
    }

    /// A tenant whose turn it was is done.
    pub fn done(&self) {
        let mut parts = self.lock();
        parts.served = parts.served.saturating_sub(1);
    }

    /// The number of tenants that wait for their turn, or have it.
    pub fn len(&self) -> usize {
        let parts = self.lock();
        parts.soon.len() + parts.later.len() + parts.served
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Parts {
    /// Takes the next due tenant, or returns when one will be due.
    fn take(&mut self, now: Instant) -> (Option<(TenantId, Pace)>, Option<Instant>) {
        let due = self.later.peek().map(|Reverse((due, _))| *due);
        // What is due goes first: it waits for longer, and there is little of it.
        let is_due = due.is_some_and(|due| due <= now);
        let turn = if is_due {
            self.later.pop().map(|Reverse((_, tenant))| (tenant, Pace::All))
        } else {
            self.soon.pop_front().map(|tenant| (tenant, Pace::Soon))
        };
        self.served += usize::from(turn.is_some());
        (turn, due)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn tenant(number: u8) -> TenantId {
        TenantId([number; 32])
    }

    #[tokio::test(start_paused = true)]
    async fn who_came_first_is_served_first_and_the_rest_when_it_is_due() {
        let queue = Queue::default();
        let now = Instant::now();
        queue.push_later(tenant(9), now + Duration::from_secs(2));
        queue.push_later(tenant(8), now + Duration::from_secs(1));
        queue.push(tenant(1));
        queue.push(tenant(2));
        assert_eq!(queue.len(), 4);
        let mut served = Vec::new();
        for _ in 0..4 {
            let (tenant, pace) = queue.next().await;
            served.push((tenant.0[0], pace, now.elapsed().as_secs()));
        }
        assert_eq!(queue.len(), 4, "they have their turns");
        (0..4).for_each(|_| queue.done());
        assert_eq!(queue.len(), 0);
        let expected = [(1, Pace::Soon, 0), (2, Pace::Soon, 0), (8, Pace::All, 1), (9, Pace::All, 2)];
        assert_eq!(served, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn several_writers_share_what_is_pushed_at_once() {
        let queue = std::sync::Arc::new(Queue::default());
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let queue = std::sync::Arc::clone(&queue);
                tokio::spawn(async move { queue.next().await.0.0[0] })
            })
            .collect();
        tokio::task::yield_now().await;
        (1..=3).for_each(|number| queue.push(tenant(number)));
        let mut served = Vec::new();
        for writer in writers {
            served.push(writer.await.unwrap());
        }
        served.sort_unstable();
        assert_eq!(served, [1, 2, 3]);
    }
}
