//! Open files. An exchange needs one for its client, one for the upstream and another one if it goes out once more, and
//! idle connections of clients need theirs. So there may be no more exchanges than the system leaves room for, whatever `limits.connections` says; some
//! files are kept for everything else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The files for listeners, logs, recordings and stores, and for the connections of operators, probes and scrapers: each
/// port for those may have 64 connections, as many on their way out, and as many that were cut.
const RESERVED: usize = 448;
/// The files of an exchange, and of the idle connection that its client may keep.
const OF_EXCHANGE: usize = 4;
/// The fewest idle connections that are let be, so that clients of the smallest proxy hear that there is no place.
const IDLE_MIN: usize = 32;

/// The limit before it was raised.
pub struct Raised(Rlimit);

/// Raises the limit of this process as far as the system allows.
pub fn raise_limit() -> Raised {
    let before = getrlimit(Resource::Nofile);
    set(Rlimit { current: before.maximum, ..before });
    Raised(before)
}

impl Raised {
    /// Starts another program with the limit that there was: one that looks at all its files would take long with more.
    pub fn aside<R>(&self, start: impl FnOnce() -> R) -> R {
        let raised = getrlimit(Resource::Nofile);
        set(Rlimit { current: self.0.current, ..raised });
        let started = start();
        set(raised);
        started
    }
}

fn set(limit: Rlimit) {
    // Where that is refused, the limit stays as it is, and exchanges are fewer.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The number of files that this process may open.
pub fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// The most exchanges at once with this many files.
pub fn exchanges(files: usize) -> usize {
    let left = files - RESERVED.min(files / 2);
    (left / OF_EXCHANGE).max(1)
}

/// The most connections of clients beside those that have an exchange: as many again, so that clients can keep theirs.
pub fn idle_connections(exchanges: usize) -> usize {
    exchanges.max(IDLE_MIN)
}

/// The most connections of clients, those included on which something else than an exchange is going on: a request that is
/// refused, or one whose headers were not read to the end.
pub fn connections(exchanges: usize) -> usize {
    exchanges.saturating_mul(2).saturating_add(idle_connections(exchanges))
}
