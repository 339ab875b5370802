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
//!
//! What not even the next request depends on (metrics, the log line) is left for *leisure*: a client that answers at
//! once would wait for it, so it is done a little later, or when somebody asks.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::engine::types::TenantId;

/// Tenants share these by their first byte, so that a request seldom waits for the work of others.
const SHARES: usize = 64;
/// Such work takes microseconds. Whoever waits longer than this goes on without it.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long an ended exchange waits at most to be told of, and how many may wait: together they cost less.
const LEISURE: Duration = Duration::from_millis(10);
const LEISURE_MAX: usize = 64;
/// So many are told of before whoever has bytes to move goes first.
const AT_ONCE: usize = 8;

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

/// What waits until there is leisure for it.
#[derive(Debug, Default)]
pub struct Leisure {
    queue: Mutex<Queue>,
    /// How much of it is not done yet.
    untold: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    works: VecDeque<Work>,
    /// Somebody will come for them.
    awaited: bool,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waiting", self.works.len())
    }
}

impl Leisure {
    /// Does this work a little later; outside of a connection at once.
    pub fn tell(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) {
        let (Ok(()), Ok(runtime)) = (LATER.try_with(|_| ()), Handle::try_current()) else { return work() };
        self.untold.fetch_add(1, SeqCst);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.works.push_back(Box::new(work));
        let is_full = queue.works.len() > LEISURE_MAX;
        let was_awaited = std::mem::replace(&mut queue.awaited, true);
        drop(queue);
        if is_full {
            return while self.tell_one() {};
        }
        if was_awaited {
            return;
        }
        let leisure = Arc::clone(self);
        runtime.spawn(async move {
            tokio::time::sleep(LEISURE).await;
            while (0..AT_ONCE).all(|_| leisure.tell_one()) {
                tokio::task::yield_now().await;
            }
        });
    }

    /// What was put off before is done, and what was left for later. It waits on the spot.
    pub fn catch_up(&self) {
        catch_up();
        while self.tell_one() {}
        wait_for([&self.untold], PATIENCE);
    }

    /// Whether there was anything to do.
    fn tell_one(&self) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let work = queue.works.pop_front();
        queue.awaited &= work.is_some();
        drop(queue);
        let told = work.map(|work| {
            // However it ends, nobody waits for it any more.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(work));
            self.untold.fetch_sub(1, SeqCst);
        });
        told.is_some()
    }
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
    wait_for(&BEHIND, patience);
}

/// Waits on the spot until all of these are zero.
fn wait_for<'a>(counters: impl IntoIterator<Item = &'a AtomicUsize>, patience: Duration) {
    let mut since = None;
    for counter in counters {
        while counter.load(SeqCst) > 0 && since.get_or_insert_with(Instant::now).elapsed() < patience {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn what_is_left_for_leisure_is_done_soon_or_when_somebody_asks() {
        let (said, leisure) = (Said::default(), Arc::<Leisure>::default());
        let tell_later = |word| {
            let said = Arc::clone(&said);
            leisure.tell(move || say(&said, word));
        };
        connection(async {
            tell_later("asked for");
            say(&said, "answered");
            leisure.catch_up();
            tell_later("told");
            say(&said, "answered again");
        })
        .await;
        while said.lock().unwrap().len() < 4 {
            tokio::task::yield_now().await;
        }
        tell_later("outside");
        assert_eq!(*said.lock().unwrap(), ["answered", "asked for", "answered again", "told", "outside"]);
    }

    #[tokio::test]
    async fn many_are_told_of_together_by_one_who_comes_for_them() {
        let (said, leisure) = (Said::default(), Arc::<Leisure>::default());
        let many = 3 * AT_ONCE + 1;
        for _ in 0..2 {
            connection(async {
                for _ in 0..many {
                    let said = Arc::clone(&said);
                    leisure.tell(move || say(&said, "told"));
                    assert!(leisure.queue.lock().unwrap().awaited);
                }
            })
            .await;
            while leisure.queue.lock().unwrap().awaited {
                tokio::task::yield_now().await;
            }
            assert_eq!(said.lock().unwrap().drain(..).count(), many);
        }
        assert_eq!(leisure.untold.load(SeqCst), 0);
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
