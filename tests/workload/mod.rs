//! Scripted clients and what they cost: conversations as agents hold them, on any line to a simulator.
//!
//! A [`Client`] has a shape (what its requests look like) and a behaviour (how carefully it spells and marks
//! them). It answers what it is really told, so its history is that of the line it speaks on. A [`Line`] is a
//! simulator, alone or behind a proxy; the same letters can be sent again on another line, so that two lines
//! are compared on the same bytes.
//!
//! ```text
//! Client ─ Letter ─▶ Line (url, Sim) ─▶ Exchange: sent, forwarded, answer, usage ─▶ Bill ─▶ table
//!    ▲────────────── the answer's blocks ──────────────┘
//! ```

mod blocks;
mod client;
pub mod dice;
mod figures;
mod line;
mod shape;
mod spelling;

pub use client::{Behaviour, Client, Letter};
pub use figures::{Bill, Row, table};
pub use line::{Exchange, Line, play, resend, resend_every};
pub use shape::{Shape, prose, tool};
