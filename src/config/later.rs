//! Options that this version does not have: those that are designed and not built, and those that were replaced. Each
//! is refused by name, with a hint on what to do instead.

use super::problem::Complaint;

/// An option that this version does not have: a whole section, or one key.
#[derive(Debug)]
pub(super) struct AbsentOption {
    path: &'static str,
    why: Absence,
    instead: &'static str,
}

#[derive(Debug)]
enum Absence {
    /// It is designed and not built.
    NotBuilt,
    /// An earlier version had it; this key replaces it.
    ReplacedBy(&'static str),
}

static ABSENT: &[AbsentOption] = &[
    not_built("policy", "remove it; in this version all requests are treated alike"),
    not_built("privacy", "remove it; this version never shows prompt text"),
    AbsentOption {
        path: "fork.prefer",
        why: Absence::ReplacedBy("fork.context_premium"),
        instead: "use fork.context_premium: 0 forks only what is cheapest, 100 whatever fork.max_cost_ratio allows",
    },
];

const fn not_built(path: &'static str, instead: &'static str) -> AbsentOption {
    AbsentOption { path, why: Absence::NotBuilt, instead }
}

/// Returns the option at this path, if this version does not have it.
pub(super) fn later(path: &str) -> Option<&'static AbsentOption> {
    let section = path.split('.').next().unwrap_or(path);
    ABSENT.iter().find(|absent| absent.path == path || absent.path == section)
}

impl AbsentOption {
    pub fn complaint(&self) -> Complaint {
        let what = match self.why {
            Absence::NotBuilt => format!("known, but not built in forkpoint {}", env!("CARGO_PKG_VERSION")),
            Absence::ReplacedBy(key) => format!("replaced by {key}"),
        };
        Complaint::new(what, self.instead)
    }
}
