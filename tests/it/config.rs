//! The configuration as a user meets it.
