//! What no client waits for: done once the bytes that were handed on are on their way.
//!
//! An answer is read, remembered and counted by the task that relays it, and hyper writes what a body has given only
//! when the poll of its connection ends. So this work is put off until then, in the order in which it came up:
//!
//! ```text
//! poll of a connection:   answer's head ─ chunk ─ end ─▶ written ─▶ what was put off: accepted ─ seen ─ recorded
//! ```
//!
//! Nobody can tell the difference: work counts as put off before the bytes that it is about can be seen, and whoever
//! asks for its outcome (the tenant's next request, a scrape, a clock that is set forward) lets it finish first. Over
//! HTTP/2 streams are tasks of their own, whose bytes another task writes; nothing is put off there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::engine::types::TenantId;

/// Tenants share these by their first byte, so that a request seldom waits for the work of others.
const SHARES: usize = 64;
/// Such work takes microseconds. Whoever waits longer than this goes on without it.
const PATIENCE: Duration = Duration::from_millis(100);

/// How much is put off right now.
static BEHIND: [AtomicUsize; SHARES] = [const { AtomicUsize::new(0) }; SHARES];

tokio::task_local! {
    static LATER: Later;
}

type Work = Box<dyn FnOnce() + Send>;

/// What the connection that is being polled has put off.
#[derive(Default)]
struct Later(RefCell<VecDeque<Work>>);

impl Later {
    fn catch_up(&self) {
        loop {
            // It may put off more.
            let Some(work) = self.0.borrow_mut().pop_front() else { return };
            work();
        }
    }
}

impl Drop for Later {
    /// The connection was dropped, and with it bodies that have something to say about that.
    fn drop(&mut self) {
        self.catch_up();
    }
}

/// Counts as put off while it lives.
struct Behind(&'static AtomicUsize);

impl Behind {
    fn of(tenant: Option<&TenantId>) -> Behind {
        let share = share(tenant);
        share.fetch_add(1, SeqCst);
        Behind(share)
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn share(tenant: Option<&TenantId>) -> &'static AtomicUsize {
    &BEHIND[tenant.map_or(0, |tenant| tenant.0[0] as usize % SHARES)]
}

/// Does this work for a tenant once the connection has written; outside of a connection at once.
pub fn put_off(tenant: Option<&TenantId>, work: impl FnOnce() + Send + 'static) {
    let mut work = Some(work);
    let _ = LATER.try_with(|later| {
        let (behind, work) = (Behind::of(tenant), work.take());
        later.0.borrow_mut().push_back(Box::new(move || {
            work.into_iter().for_each(|work| work());
            drop(behind);
        }));
    });
    work.into_iter().for_each(|work| work());
}

/// A connection that does what it puts off when it has written.
pub async fn connection<F: Future>(connection: F) -> F::Output {
    LATER.scope(Later::default(), Written(Box::pin(connection))).await
}

struct Written<F>(Pin<Box<F>>);

impl<F: Future> Future for Written<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let polled = self.0.as_mut().poll(cx);
        let _ = LATER.try_with(Later::catch_up);
        polled
    }
}

/// Nothing of this tenant's is put off any more.
pub async fn caught_up_with(tenant: Option<&TenantId>) {
    let share = share(tenant);
    let mut since = None;
    while share.load(SeqCst) > 0 && since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
        // What is waited for may be the work of this very connection.
        tokio::task::yield_now().await;
    }
}

/// What was put off before is done. For whoever is no connection: it waits on the spot.
pub fn catch_up() {
    catch_up_within(PATIENCE);
}

fn catch_up_within(patience: Duration) {
    let mut since = None;
    for share in &BEHIND {
        while share.load(SeqCst) > 0 && since.get_or_insert_with(Instant::now).elapsed() < patience {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    type Said = Arc<Mutex<Vec<&'static str>>>;

    fn say(said: &Said, word: &'static str) {
        said.lock().unwrap().push(word);
    }

    fn say_later(said: &Said, tenant: &TenantId, word: &'static str) {
        let said = Arc::clone(said);
        put_off(Some(tenant), move || say(&said, word));
    }

    #[tokio::test]
    async fn what_is_put_off_is_done_in_order_when_the_poll_ends() {
        let (said, tenant) = (Said::default(), TenantId([1; 32]));
        connection(async {
            say_later(&said, &tenant, "first");
            say_later(&said, &tenant, "second");
            say(&said, "written");
            tokio::task::yield_now().await;
            say(&said, "polled again");
        })
        .await;
        assert_eq!(*said.lock().unwrap(), ["written", "first", "second", "polled again"]);
        say_later(&said, &tenant, "outside");
        assert_eq!(said.lock().unwrap().last(), Some(&"outside"), "at once");
    }

    #[tokio::test]
    async fn a_connection_that_is_dropped_leaves_nothing_undone() {
        struct Leaves(Said);
        impl Drop for Leaves {
            fn drop(&mut self) {
                say_later(&self.0, &TenantId([2; 32]), "left");
            }
        }
        let said = Said::default();
        let mut served = Box::pin(connection({
            let leaves = Leaves(Arc::clone(&said));
            async move {
                let _leaves = leaves;
                std::future::pending::<()>().await;
            }
        }));
        assert!(futures_util::poll!(&mut served).is_pending());
        drop(served);
        assert_eq!(*said.lock().unwrap(), ["left"]);
    }

    #[tokio::test]
    async fn the_next_request_of_a_connection_waits_for_what_it_has_put_off() {
        let (said, tenant) = (Said::default(), TenantId([3; 32]));
        connection(async {
            say_later(&said, &tenant, "answered");
            caught_up_with(Some(&tenant)).await;
            say(&said, "asked");
        })
        .await;
        assert_eq!(*said.lock().unwrap(), ["answered", "asked"]);
    }

    #[test]
    fn whoever_asks_elsewhere_waits_for_what_is_put_off() {
        let (said, tenant) = (Said::default(), TenantId([4; 32]));
        let behind = Behind::of(Some(&tenant));
        let asks = std::thread::spawn({
            let said = Arc::clone(&said);
            move || {
                catch_up_within(Duration::MAX);
                say(&said, "asked");
            }
        });
        say(&said, "answered");
        drop(behind);
        asks.join().unwrap();
        assert_eq!(*said.lock().unwrap(), ["answered", "asked"]);
    }
}
