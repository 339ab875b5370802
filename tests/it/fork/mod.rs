//! Fan-outs from the spawning answer to the last turn of the last child.
//!
//! Costs are what the simulator bills. Where it matters who goes first, a [`scene::Scene`] plays the upstream
//! itself, one step after the other; where it matters what a request is taken for, [`talk::Talk`] answers as the
//! test says.

// Helpers: a parent and its children, answers that a test writes itself, and an upstream that it plays itself.
mod fan_out;
pub mod talk;
pub mod scene;
// Which answers are fan-outs, and which requests are their children.
pub mod recognise;
// One writer per cache entry: siblings that wait for each other.
mod gate;
// Children on their parent's prefix, through a real forkpoint.
pub mod children;
// The composed bodies alone: accepted, read from the cache, the same for a child's life.
mod layout;
// Real clients, whole and held by the server, with the answers that they got.
mod recorded;
