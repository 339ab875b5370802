//! A limit on the time without progress, at no cost while bytes flow.
//!
//! The timer is set at the first wait and not touched while chunks pass. When it fires, the start of the *current*
//! wait decides. Ten thousand chunks cost no timer operation at all.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

pub struct Stall {
    limit: Duration,
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub fn new(limit: Duration) -> Stall {
        Stall { limit, waiting_since: None, timer: None }
    }

    /// Notes progress, which ends the current wait.
    pub fn progress(&mut self) {
        self.waiting_since = None;
    }

    /// Begins a wait, or continues the current one. Ready once it has lasted as long as the limit.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let deadline = since + self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        loop {
            match timer.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) if Instant::now() >= deadline => return Poll::Ready(()),
                Poll::Ready(()) => timer.as_mut().reset(deadline),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::time::{advance, timeout};

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_wait_as_long_as_the_limit_expires() {
        let mut stall = Stall::new(LIMIT);
        let start = Instant::now();
        poll_fn(|cx| stall.poll_expired(cx)).await;
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_current_wait_counts() {
        let mut stall = Stall::new(LIMIT);
        let wait = timeout(Duration::from_secs(9), poll_fn(|cx| stall.poll_expired(cx)));
        assert!(wait.await.is_err());
        stall.progress();
        advance(Duration::from_secs(100)).await;
        let start = Instant::now();
        poll_fn(|cx| stall.poll_expired(cx)).await;
        assert_eq!(start.elapsed().as_secs(), 10);
    }
}
