//! An answer as it arrives: events, the turn that they make up, what was billed, and what the upstream says of the
//! cache or of a refusal.

pub mod sse;
pub mod turn;
pub mod usage;
pub mod diagnosis;
pub mod refused;
