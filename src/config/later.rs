//! Options of the design that this version does not have: refused by name, with what to do instead.

use super::problem::Complaint;

/// An option of the design that this version does not have: a whole section, or one key.
#[derive(Debug)]
pub(super) struct Later {
    path: &'static str,
    instead: &'static str,
}

const MEMORY: &str = "remove it; this version remembers in memory only, and has nothing to set here";

static LATER: &[Later] = &[
    Later { path: "policy", instead: "remove it; in this version all requests are treated alike" },
    Later { path: "admin.subscribers", instead: "remove it; this version has no live page" },
    Later { path: "privacy", instead: "remove it; this version never shows prompt text" },
    Later { path: "store.path", instead: MEMORY },
    Later { path: "store.url", instead: MEMORY },
    Later { path: "store.key", instead: MEMORY },
    Later { path: "store.deadline_ms", instead: MEMORY },
];

/// The option of the design at this path, if it is one that this version does not have.
pub(super) fn later(path: &str) -> Option<&'static Later> {
    let section = path.split('.').next().unwrap_or(path);
    LATER.iter().find(|later| later.path == path || later.path == section)
}

impl Later {
    pub fn complaint(&self) -> Complaint {
        let version = env!("CARGO_PKG_VERSION");
        Complaint::new(format!("known, but not built in forkpoint {version}"), self.instead)
    }
}
