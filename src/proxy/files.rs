//! Open files. An exchange needs one for its client and one for the upstream, and idle connections of clients need
//! theirs. So there may be no more exchanges than the system leaves room for, whatever `limits.connections` says; some
//! files are kept for everything else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The files for listeners, logs and recordings, and for the connections of operators, probes and scrapers.
const RESERVED: usize = 192;
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
    (left / 3).max(1)
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
