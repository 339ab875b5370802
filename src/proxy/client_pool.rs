//! A pool of upstream clients, so that no call waits for another to end.
//!
//! Over HTTP/2 a client puts all its calls on one connection, and the upstream bounds how many of them run
//! at a time, usually 100 or 128. Further ones would wait, unseen, until an earlier one ends: minutes, with
//! streams. So there are several clients, each with a connection of its own, and a call takes the first that
//! has room. Over HTTP/1.1 each call has its own connection anyway, and one client is enough.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::forward::HttpClient;

/// Below the bound of any common server.
const CALLS_PER_CLIENT: usize = 64;
/// Together 4096 calls, as many as `limits.connections` allows by default. The last client takes any number.
const CLIENTS: usize = 64;

/// The clients of one upstream.
pub struct ClientPool {
    clients: Arc<[PooledClient]>,
}

struct PooledClient {
    client: OnceLock<HttpClient>,
    running: AtomicUsize,
}

/// The place of one call in the pool, given back when dropped.
pub struct PoolSlot {
    clients: Arc<[PooledClient]>,
    index: usize,
}

impl ClientPool {
    /// Creates the pool for an upstream that may choose HTTP/2.
    pub fn several() -> ClientPool {
        ClientPool::new(CLIENTS)
    }

    /// Creates the pool for an upstream that speaks HTTP/1.1.
    pub fn single() -> ClientPool {
        ClientPool::new(1)
    }

    fn new(count: usize) -> ClientPool {
        let unused = |_| PooledClient { client: OnceLock::new(), running: AtomicUsize::new(0) };
        ClientPool { clients: (0..count).map(unused).collect() }
    }

    /// Takes a place at the first client that has room, so that few calls share few connections.
    pub fn slot(&self) -> PoolSlot {
        let last = self.clients.len() - 1;
        let has_room = |client: &PooledClient| {
            client.running.fetch_update(Relaxed, Relaxed, |n| (n < CALLS_PER_CLIENT).then_some(n + 1)).is_ok()
        };
        let index = self.clients[..last].iter().position(has_room).unwrap_or_else(|| {
            self.clients[last].running.fetch_add(1, Relaxed);
            last
        });
        PoolSlot { clients: self.clients.clone(), index }
    }
}

impl PoolSlot {
    /// Returns the client of this place, made by the first call that needs it.
    pub fn client(&self, make: impl FnOnce() -> HttpClient) -> &HttpClient {
        self.clients[self.index].client.get_or_init(make)
    }
}

impl Drop for PoolSlot {
    fn drop(&mut self) {
        self.clients[self.index].running.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::proxy::forward::Upstream;

    #[test]
    fn the_first_client_with_room_is_taken_and_the_last_takes_all() {
        let pool = ClientPool::new(3);
        let mut slots: Vec<_> = (0..CALLS_PER_CLIENT * 2 + 5).map(|_| pool.slot()).collect();
        let taken = |index| slots.iter().filter(|slot| slot.index == index).count();
        assert_eq!([taken(0), taken(1), taken(2)], [CALLS_PER_CLIENT, CALLS_PER_CLIENT, 5]);
        slots.remove(0);
        assert_eq!(pool.slot().index, 0);
    }

    #[test]
    fn a_client_is_made_once() {
        let url = "http://127.0.0.1".parse().unwrap();
        let upstream = Upstream::new(&config::Upstream { url, ..Default::default() }).unwrap();
        let pool = ClientPool::single();
        let first: *const HttpClient = pool.slot().client(|| upstream.client());
        let second: *const HttpClient = pool.slot().client(|| panic!("made a second time"));
        assert_eq!(first, second);
    }

    #[test]
    fn a_single_client_has_no_bound() {
        let pool = ClientPool::single();
        let slots: Vec<_> = (0..1000).map(|_| pool.slot()).collect();
        assert!(slots.iter().all(|slot| slot.index == 0));
    }
}
