//! A limit on the time without progress, at no cost while bytes flow.
//!
//! The timer is set at the first wait and not touched while chunks pass. When it fires, the start of the *current*
//! wait decides. Ten thousand chunks cost no timer operation at all.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::displaced::UploadPlace;

pub struct Stall {
    limit: Duration,
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub fn new(limit: Duration) -> Stall {
        Stall { limit, waiting_since: None, timer: None }
    }

    /// Notes progress, which ends the current wait. Returns how long that was.
    pub fn progress(&mut self) -> Duration {
        self.waiting_since.take().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Begins a wait, or continues the current one. Ready once it has lasted as long as the limit.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let deadline = since + self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        loop {
            match timer.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) if Instant::now() >= deadline => return Poll::Ready(()),
                Poll::Ready(()) => timer.as_mut().reset(deadline),
            }
        }
    }
}

/// The time that the body of a request may take: no wait for more of it may be as long as the limit, and all waits
/// together may exceed it only by what was sent at [`UPLOAD_RATE`]. Time in which nobody asks for more does not count.
///
/// It may also have to make room for another, wherever it is read at that time.
pub struct Upload {
    stall: Stall,
    limit: Duration,
    waited: Duration,
    bytes: u64,
    place: Option<UploadPlace>,
}

/// Why nobody waits for the rest of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadEnd {
    Stalled,
    /// Another has taken its place.
    Displaced,
}

/// The fewest bytes in a second that an upload may bring in the long run: half of what the slowest usable link brings.
const UPLOAD_RATE: u64 = 4096;

impl Upload {
    pub fn new(limit: Duration, place: Option<UploadPlace>) -> Upload {
        Upload { stall: Stall::new(limit), limit, waited: Duration::ZERO, bytes: 0, place }
    }

    /// Notes that more has come.
    pub fn progress(&mut self, bytes: usize) {
        self.waited += self.stall.progress();
        self.bytes += bytes as u64;
        if let Some(place) = &self.place {
            place.moved();
        }
    }

    /// Begins a wait, or continues the current one. Ready once the time is over, or the place is another's.
    pub fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<UploadEnd> {
        if let Some(place) = &self.place
            && place.poll_taken(cx).is_ready()
        {
            return Poll::Ready(UploadEnd::Displaced);
        }
        let earned = Duration::from_millis(self.bytes.saturating_mul(1000) / UPLOAD_RATE);
        self.stall.limit = (self.limit + earned).saturating_sub(self.waited).min(self.limit);
        self.stall.poll_expired(cx).map(|()| UploadEnd::Stalled)
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

    /// How long an upload lasts that brings this much at this pace.
    async fn lasts(bytes: usize, pace: Duration, most: Duration) -> Option<Duration> {
        let mut upload = Upload::new(LIMIT, None);
        let start = Instant::now();
        while start.elapsed() < most {
            if timeout(pace, poll_fn(|cx| upload.poll_end(cx))).await.is_ok() {
                return Some(start.elapsed());
            }
            upload.progress(bytes);
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_trickles_ends_and_one_on_a_slow_link_does_not() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let trickle = lasts(1, second, hour).await.expect("an end");
        assert!(trickle <= LIMIT + second, "{trickle:?}");
        assert_eq!(lasts(UPLOAD_RATE as usize, second, hour).await, None);
        assert_eq!(lasts(1 << 20, LIMIT, hour).await, Some(LIMIT), "no single wait is as long as the limit");
    }
}
