//! The simulator against the rules it claims to follow.
