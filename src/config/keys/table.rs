//! The rows, section by section.

mod doors;
mod family;
mod kept;
mod running;

use std::sync::LazyLock;

use super::Key;

/// Every option, in the order of the manual.
pub static KEYS: LazyLock<Vec<&'static Key>> =
    LazyLock::new(|| [doors::KEYS, family::KEYS, kept::KEYS, running::KEYS].into_iter().flatten().collect());
