//! The recent requests that are kept beyond this process.

use std::sync::Arc;

use super::Recent;

impl Recent {
    /// The answers that the server holds, by their ids.
    pub fn held_ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.threads.keys()
    }
}
