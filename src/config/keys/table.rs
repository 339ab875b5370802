//! The rows, section by section.

mod server;
mod family;
mod store;
mod observability;

use std::sync::LazyLock;

use super::ConfigKey;

/// Every option, in the order of the manual.
pub static KEYS: LazyLock<Vec<&'static ConfigKey>> = LazyLock::new(|| {
    [server::KEYS, family::KEYS, store::KEYS, observability::KEYS]
        .into_iter()
        .flat_map(<[ConfigKey]>::iter)
        .collect()
});
