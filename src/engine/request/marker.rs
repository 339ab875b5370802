//! The spelling of a marker, the member that asks for a cache entry.

/// The name of the member.
pub const NAME: &str = "cache_control";

/// The name as nearly everybody writes it in a body: between quotes, without escapes.
pub const KEY: &[u8] = b"\"cache_control\"";

/// The start of the member up to its value, where another member comes before it.
pub const AFTER_MEMBER: &[u8] = b",\"cache_control\":";
