//! Enough connections for everybody.
//!
//! Over HTTP/2 a client puts all its calls on one connection, and the upstream bounds how many of them run
//! at a time, usually 100 or 128. Further ones would wait, unseen, until an earlier one ends: minutes, with
//! streams. So there are several clients, each with a connection of its own, and a call takes the first that
//! has room. Over HTTP/1.1 each call has its own connection anyway, and a lane is merely a pool.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Below the bound of any common server.
const CALLS_PER_LANE: usize = 64;
/// Together 4096 calls, as many as `limits.connections` allows by default. The last lane takes any number.
const LANES: usize = 64;

pub struct Lanes<C> {
    lanes: Arc<[Lane<C>]>,
}

struct Lane<C> {
    client: OnceLock<C>,
    running: AtomicUsize,
}

/// One call's place on a lane, given back when dropped.
pub struct Ride<C> {
    lanes: Arc<[Lane<C>]>,
    lane: usize,
}

impl<C> Lanes<C> {
    /// For an upstream that may choose HTTP/2.
    pub fn several() -> Lanes<C> {
        Lanes::new(LANES)
    }

    /// For an upstream that speaks HTTP/1.1.
    pub fn single() -> Lanes<C> {
        Lanes::new(1)
    }

    fn new(count: usize) -> Lanes<C> {
        let lane = |_| Lane { client: OnceLock::new(), running: AtomicUsize::new(0) };
        Lanes { lanes: (0..count).map(lane).collect() }
    }

    /// Takes the first lane that has room, so that few calls share few connections.
    pub fn ride(&self) -> Ride<C> {
        let last = self.lanes.len() - 1;
        let has_room = |lane: &Lane<C>| {
            lane.running.fetch_update(Relaxed, Relaxed, |n| (n < CALLS_PER_LANE).then_some(n + 1)).is_ok()
        };
        let lane = self.lanes[..last].iter().position(has_room).unwrap_or_else(|| {
            self.lanes[last].running.fetch_add(1, Relaxed);
            last
        });
        Ride { lanes: self.lanes.clone(), lane }
    }
}

impl<C> Ride<C> {
    /// The lane's client, made when it is first needed.
    pub fn client(&self, make: impl FnOnce() -> C) -> &C {
        self.lanes[self.lane].client.get_or_init(make)
    }
}

impl<C> Drop for Ride<C> {
    fn drop(&mut self) {
        self.lanes[self.lane].running.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lane_with_room_is_taken_and_the_last_takes_all() {
        let lanes = Lanes::<usize>::new(3);
        let mut rides: Vec<_> = (0..CALLS_PER_LANE * 2 + 5).map(|_| lanes.ride()).collect();
        let taken = |lane| rides.iter().filter(|ride| ride.lane == lane).count();
        assert_eq!([taken(0), taken(1), taken(2)], [CALLS_PER_LANE, CALLS_PER_LANE, 5]);
        rides.remove(0);
        assert_eq!(lanes.ride().lane, 0);
        assert_eq!(*lanes.ride().client(|| 7), 7);
        assert_eq!(*lanes.ride().client(|| 8), 7);
    }

    #[test]
    fn a_single_lane_has_no_bound() {
        let lanes = Lanes::<()>::single();
        let rides: Vec<_> = (0..1000).map(|_| lanes.ride()).collect();
        assert!(rides.iter().all(|ride| ride.lane == 0));
    }
}
