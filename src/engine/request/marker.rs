//! The spelling of a marker, the member that asks for a cache entry. No other file of the engine or proxy spells it.

use bytes::Bytes;

use crate::engine::words::Ttl;

/// The name of the member.
pub const NAME: &str = "cache_control";

/// The name as nearly everybody writes it in a body: between quotes, without escapes.
pub const KEY: &[u8] = b"\"cache_control\"";

/// The start of the member up to its value, where another member comes before it.
pub const AFTER_MEMBER: &[u8] = b",\"cache_control\":";

/// Returns a marker to be put behind the last member of an object.
pub fn as_last_member(ttl: Ttl) -> Bytes {
    let member = between_members(ttl);
    Bytes::from_static(&member[..member.len() - 1])
}

/// Returns a marker to be put before the first member of an object.
pub fn as_first_member(ttl: Ttl) -> Bytes {
    Bytes::from_static(&between_members(ttl)[1..])
}

/// A marker with a comma on either side; where it is put only one of them is needed.
fn between_members(ttl: Ttl) -> &'static [u8] {
    match ttl {
        Ttl::FiveMinutes => br#","cache_control":{"type":"ephemeral"},"#,
        Ttl::OneHour => br#","cache_control":{"type":"ephemeral","ttl":"1h"},"#,
    }
}
