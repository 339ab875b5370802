//! forkpoint: an HTTP reverse proxy between agent clients and the Messages API.
//!
//! # The map
//!
//! | folder | what lives there |
//! |---|---|
//! | [`engine`] | the pure core: bytes and facts in, decisions and reasons out |
//! | [`config`] | file + environment + flags → one valid configuration, or every problem at once |
//! | [`metrics`] | every metric, declared once |
//! | [`store`] | what is remembered between requests, tenant by tenant |
//! | [`report`] | one record per exchange → log line, metrics, recording, traces |
//! | [`proxy`] | the request path: collect, read, decide, hold, forward, observe, record |
//! | [`admin`] | the second port: health, readiness, metrics, and what operators may ask of the store |
//! | [`sim`] | a Messages API of our own, the independent witness in tests and `demo` |
//! | [`cli`] | one file per command |
//!
//! # Life of a request
//!
//! ```text
//! listen     accept; the body of POST /v1/messages is collected, everything else streams
//! identify   tenant, session, agent, client
//! ahead      the next turn of a stable client goes out at once, and the steps up to `align` follow it
//! echo       what a conversation repeats in another spelling is put back into its own
//! parse      spans over the received bytes; nothing copied, nothing lost; what is known is only compared
//! recognise  plain, parent, or child of which fan-out
//! await      a child whose parent still streams waits for that answer's end, at most `fork.await_parent_ms`
//! fork       an eligible child goes on its parent's prefix (mode `fork`)
//! align      else one spelling, and breakpoints where they will be read (mode `align`)
//! hold       a sibling waits at the gate while another writes what it would write too
//! forward    one upstream call; a refused rewrite goes out once more as it came
//! observe    each chunk is decoded, framed and indexed before it is handed on, in the same poll
//! record     fan-outs, bindings, usage, metrics, one log line, exactly once
//! ```
//!
//! # Invariants
//!
//! - **The arrows**: `cli → admin → proxy → report → { metrics, config, store } → engine`; `sim` knows nobody.
//!   A module uses only what stands to its right; a test checks it.
//! - **The engine is pure**: no I/O, clock, randomness, logging or async. Time comes in as an argument.
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
