//! The pure core: bytes and facts in, readings and reasons out.
//!
//! Nothing here touches a socket, a file, a clock or a log, so nothing here can fail for outside reasons:
//! what the engine does not understand becomes a [`Reason`](words::Reason), never an error to a client.

pub mod words;
pub mod endpoint;
pub mod json;
pub mod marker;
pub mod anatomy;
pub mod meaning;
pub mod prefix;
pub mod recall;
pub mod canonical;
pub mod echo;
pub mod divergence;
pub mod breakpoints;
pub mod conversation;
pub mod learned;
pub mod arrival;
pub mod align;
pub mod edit;
pub mod images;
pub mod entry;
pub mod cache;
pub mod breaks;
pub mod volatile;
pub mod diagnosis;
pub mod gate;
pub mod clients;
pub mod identify;
pub mod sse;
pub mod usage;
pub mod prices;
pub mod turn;
pub mod fanout;
pub mod fork;
pub mod counterfactual;
pub mod refused;
