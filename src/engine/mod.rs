//! The pure core: bytes and facts in, readings and reasons out.
//!
//! Nothing here touches a socket, a file, a clock or a log, so nothing here can fail for outside reasons:
//! what the engine does not understand becomes a [`Reason`](words::Reason), never an error to a client.

pub mod words;
pub mod records;
pub mod request;
pub mod answer;
pub mod respell;
pub mod cache;
pub mod family;
pub mod fork;
pub mod gate;
pub mod align;
pub mod policy;
pub mod tenant;
pub mod durable;
pub mod count;
pub mod prepare;
pub mod outgoing;
pub mod decide;
