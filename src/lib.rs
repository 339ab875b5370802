//! forkpoint: an HTTP reverse proxy between agent clients and the Messages API.
//!
//! # The map
//!
//! | folder | contents |
//! |---|---|
//! | [`engine`] | the pure core: bytes and facts in, decisions and reasons out |
//! | [`config`] | file + environment + flags → one valid configuration, or every problem at once |
//! | [`metrics`] | every metric, declared once |
//! | [`store`] | what is remembered between requests, tenant by tenant |
//! | [`report`] | one record per exchange → log line, metrics, recording, traces |
//! | [`proxy`] | the request path: collect, read, plan, hold, forward, observe, record |
//! | [`admin`] | the second port: health, readiness, metrics, and what operators may ask of the store |
//! | [`sim`] | a Messages API of our own, the independent witness in tests and `demo` |
//! | [`cli`] | one file per command |
//!
//! Inside the engine a folder uses only those before it:
//!
//! | folder | contents |
//! |---|---|
//! | [`engine::words`] | every word that is shown: roles, plans, reasons, causes; ids; moments |
//! | [`engine::request`] | bytes → pieces, meanings, the chain of prefix hashes, what is known from the body before |
//! | [`engine::answer`] | events, the turn as it arrives, usage, refusals |
//! | [`engine::respell`] | the spelling that was seen first |
//! | [`engine::cache`] | entry keys, the ledger and its worlds, breakpoints, breaks, volatile text, prices |
//! | [`engine::family`] | conversations, fan-outs, recognition, bindings, snapshots |
//! | [`engine::fork`] | eligibility, composition, economics, the experiment |
//! | [`engine::gate`] | who writes first |
//! | [`engine::align`] | one spelling and breakpoints for one request |
//!
//! # Life of a request
//!
//! In the order of the code; a test compares the two. Mode `observe` sends the bytes first, and reads them while the
//! upstream is at work.
//!
//! ```text
//! collect    the sender is named; the body of a Messages call is collected, everything else streams through unread
//! read       spans over the received bytes; what a conversation repeats in another spelling is put back into its own
//! align      one spelling, and breakpoints where they will be read
//! recognise  plain, parent, or child of which fan-out
//! await_seal a child whose parent still streams waits for that answer's end, at most `fork.await_parent_ms`
//! fork       an eligible child goes on its parent's prefix instead (mode `fork`)
//! hold       a sibling waits at the gate while another writes what it would write too
//! send       one upstream call; a refused rewrite goes out once more as it came
//! relay      each chunk is decoded, framed and indexed before it is handed on, in the same poll
//! report     fan-outs, bindings, usage; one record: metrics, log line, recording, traces, exactly once
//! ```
//!
//! A child that was held for a fork which was refused meanwhile is planned again, at most four times, under one deadline
//! that is fixed when it comes.
//!
//! # Invariants
//!
//! - **The arrows**: `cli → admin → proxy → report → { metrics, config, store } → engine`; `sim` knows nobody.
//!   A module uses only what is to its right; a test checks it, and the order of the engine's folders.
//! - **The engine is pure**: no I/O, clock, randomness, logging or async. Time comes in as an argument. A few of its
//!   types still share state behind locks; a test names their files, and no other may.
//! - **The answer's bytes are never altered**, reordered or buffered.
//! - **What we do not understand goes through unchanged**, byte for byte, with a counted reason.
//! - **Framing is the same for every chunking** of a stream.
//! - **Every request is recorded exactly once**: at its end, on an error, or when its client leaves.
//! - **Everything has a limit with a name**: body, wait, map, queue.

pub mod engine;
pub mod config;
pub mod metrics;
pub mod store;
pub mod report;
pub mod proxy;
pub mod admin;
pub mod sim;
pub mod cli;
