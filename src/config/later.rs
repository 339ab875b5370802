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
    not_built("budget", "remove it; limit what a key may spend in the console of your provider"),
    not_built(
        "server.tls",
        "remove it; put a proxy that ends TLS before server.listen, or keep it on loopback or within one pod",
    ),
    not_built(
        "upstream.proxy",
        "remove it; connections to the upstream are direct, or set upstream.url to a proxy that forwards to it",
    ),
    not_built(
        "upstream.ca",
        "remove it; add the authority to the system's certificates, or name a bundle with it in SSL_CERT_FILE",
    ),
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

/// Returns the option at this path or above it, if this version does not have it: of a variable such as
/// `FORKPOINT_SERVER__TLS__CERT` the path is `server.tls__cert`.
pub(super) fn later(path: &str) -> Option<&'static AbsentOption> {
    ABSENT.iter().find(|absent| {
        path.strip_prefix(absent.path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '_']))
    })
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
