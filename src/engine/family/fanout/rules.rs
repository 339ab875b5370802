//! The settings of recognition, and who is on either side of it.

use serde::{Deserialize, Serialize};

use super::glob;
use crate::engine::request::identify::Session;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{IdDigest, first};

/// `fork.*` and `limits.*` as far as they decide who is a child.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// A shorter string is a title, a path or a name.
    pub min_directive_chars: usize,
    /// Calls with directives that make a turn a fan-out.
    pub min_children: usize,
    /// The part of a text block that a directive must make up.
    pub min_coverage: f64,
    /// Without hints a child must come within this time of the seal.
    pub match_window_s: u64,
    /// The life of a fork point.
    pub ttl_s: u64,
    /// As much of a first turn is searched; a longer directive is not found.
    pub scan_bytes: usize,
    /// Globs over the names of tools that start agents.
    pub tools: Vec<String>,
    /// Fan-outs of one tenant that may stream at once.
    pub pending_forks: usize,
    /// The number of bytes that the fork points of one tenant may hold in memory.
    pub bytes: usize,
    /// The life of a binding after its last use.
    pub child_ttl_s: u64,
}

impl Default for Rules {
    fn default() -> Rules {
        let tools = ["Agent", "Task", "task", "*agent*", "spawn*", "delegate*", "dispatch*"];
        Rules {
            min_directive_chars: 60,
            min_children: 2,
            min_coverage: 0.5,
            match_window_s: 300,
            ttl_s: 3_600,
            scan_bytes: 256 << 10,
            tools: tools.map(String::from).to_vec(),
            pending_forks: 64,
            bytes: 64 << 20,
            child_ttl_s: 3_600,
        }
    }
}

impl Rules {
    /// Returns true if a tool of this name starts agents.
    pub(in crate::engine) fn lists(&self, tool: &str) -> bool {
        self.tools.iter().any(|pattern| glob::fits(pattern, tool))
    }
}

/// The hints of a request about its sender, besides its credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    pub session: Option<Session>,
    /// The digest of `metadata.user_id`.
    user: Option<IdDigest>,
    pub agent: Option<IdDigest>,
}

impl Who {
    pub fn of(request: &Remembered, session: Option<Session>, agent: Option<IdDigest>) -> Who {
        let user = request.anatomy().user_id(request.body());
        let user = user.map(|user| IdDigest(first(blake3::hash(user.as_bytes()).as_bytes())));
        Who { session, user, agent }
    }

    /// Returns true if there is anything to tell two users of one credential apart.
    pub(super) fn hinted(&self) -> bool {
        self.session.is_some() || self.user.is_some()
    }

    /// A hint on one side must be on the other too, and be equal.
    pub(super) fn agrees(&self, other: &Who) -> bool {
        let hints = |who: &Who| who.session.map(|session| session.hints);
        hints(self) == hints(other) && self.user == other.user
    }
}
