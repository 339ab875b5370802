//! Options that this version does not have: those of the design that come later, and those that are gone. Each is
//! refused by name, with what to do instead.

use super::problem::Complaint;

/// An option that this version does not have: a whole section, or one key.
#[derive(Debug)]
pub(super) struct PlannedOption {
    path: &'static str,
    instead: &'static str,
}

/// An earlier version had it: 0 is what "cost" meant, 100 what "context" meant.
const PREFER: PlannedOption = PlannedOption {
    path: "fork.prefer",
    instead: "use fork.context_premium: 0 forks only what is cheapest, 100 whatever fork.max_cost_ratio allows",
};

const MEMORY: &str = "remove it; this version remembers in memory only, and has nothing to set here";

static LATER: &[PlannedOption] = &[
    PlannedOption { path: "policy", instead: "remove it; in this version all requests are treated alike" },
    PlannedOption { path: "admin.subscribers", instead: "remove it; this version has no live page" },
    PlannedOption { path: "privacy", instead: "remove it; this version never shows prompt text" },
    PlannedOption { path: "store.path", instead: MEMORY },
    PlannedOption { path: "store.url", instead: MEMORY },
    PlannedOption { path: "store.key", instead: MEMORY },
    PlannedOption { path: "store.deadline_ms", instead: MEMORY },
];

/// The option of the design at this path, if it is one that this version does not have.
pub(super) fn later(path: &str) -> Option<&'static PlannedOption> {
    let section = path.split('.').next().unwrap_or(path);
    let later = LATER.iter().find(|later| later.path == path || later.path == section);
    later.or(Some(&PREFER).filter(|gone| gone.path == path))
}

impl PlannedOption {
    pub fn complaint(&self) -> Complaint {
        if self.path == PREFER.path {
            return Complaint::new("replaced by fork.context_premium".to_owned(), self.instead);
        }
        let version = env!("CARGO_PKG_VERSION");
        Complaint::new(format!("known, but not built in forkpoint {version}"), self.instead)
    }
}
