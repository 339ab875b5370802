//! forkpoint: an HTTP reverse proxy between agent clients and the Messages API.
//!
//! # The map
//!
//! | folder | contents |
//! |---|---|
//! | [`engine`] | the pure core: bytes and facts in, decisions and reasons out |
//! | [`config`] | file + environment + flags → one valid configuration, or every problem at once |
//! | [`metrics`] | every metric, declared once |
//! | [`store`] | what is remembered between requests, tenant by tenant, each behind one lock |
//! | [`report`] | one record per exchange → log line, metrics, recording, traces, events |
//! | [`proxy`] | the request path: caller, collect, read, prepare, wait, send, relay |
//! | [`admin`] | the second port: the live page and its events, health, readiness, metrics, and what operators may ask |
//! | [`sim`] | a Messages API of our own, the independent witness in tests and `demo` |
//! | [`cli`] | one file per command |
//!
//! Inside the engine a folder uses only those before it:
//!
//! | folder | contents |
//! |---|---|
//! | [`engine::words`] | every word that is shown: roles, plans, reasons, causes; ids; moments |
//! | [`engine::records`] | the form in which what is known outlives the process |
//! | [`engine::request`] | bytes → pieces, meanings, the chain of prefix hashes, what is known from the body before |
//! | [`engine::answer`] | events, the turn as it arrives, usage, refusals |
//! | [`engine::respell`] | the spelling that was seen first |
//! | [`engine::cache`] | entry keys, the ledger and its worlds, breakpoints, breaks, volatile text, prices |
//! | [`engine::family`] | conversations, fan-outs, recognition, bindings, snapshots |
//! | [`engine::fork`] | eligibility, composition, economics, the experiment |
//! | [`engine::gate`] | who waits for whom |
//! | [`engine::align`] | one spelling and breakpoints for one request |
//! | [`engine::policy`] | the settings that requests are planned by |
//! | [`engine::tenant`] | everything known of one tenant, and the four transitions that change it |
//! | [`engine::durable`] | what is known of one tenant ⇄ records |
//! | [`engine::count`] | a count of tokens on the prefix of a forked child |
//! | [`engine::prepare`] | a request, read and composed in every way in which it may go out |
//! | [`engine::outgoing`] | a request as it goes out by the plan that was chosen |
//! | [`engine::decide`] | prepared request + tenant + policy + now → send, wait, or prepare again |
//!
//! # Life of a request
//!
//! In the order of the code; a test compares the two. [`proxy::handle`] has it on one screen. Mode `observe` sends the
//! bytes first, and reads them while the upstream is at work.
//!
//! ```text
//! caller     the headers are read: who sends it, and how much may be done to it
//! collect    the body of a Messages call is collected, everything else streams through unread
//! read       spans over the received bytes; what a conversation repeats in another spelling is put back into its own
//! prepare    one spelling and breakpoints; plain, parent or child; a child on its parent's prefix: on copies
//! proceed    decides, and in the same critical section the request goes out or takes its place among those that wait
//! wait       for the end of the parent's answer, or for the sibling or replica that writes what this one would write too
//! send       one upstream call; a refused rewrite goes out once more as it came
//! relay      each chunk is decoded, framed and indexed before it is handed on, in the same poll
//! settle     fan-outs, bindings, usage: what was learned from the answer
//! report     one record: metrics, log line, recording, traces, events, exactly once
//! ```
//!
//! After a wait a request proceeds again; if what it was prepared by has changed, it is prepared again: four times in all,
//! and once more if another replica has news of its parent. One deadline, fixed when it comes, is for all its waits. The
//! wait for another replica comes last: the request has begun, and has its place, when it asks for the lease.
//!
//! The state of a tenant is one value, [`engine::tenant::TenantState`], behind one lock in [`store`] (its spellings have
//! another). Four transitions take a request through it: *begin* (with the decision that sends), *progress* (accepted, first
//! content, a finished block), *settle* and *abandon*. Beside them it changes where the upstream refuses a request, or takes
//! as it came what it refused as it was made; where a request waits or stops waiting; where another state of the same tenant
//! is left for this one; where a store brings or takes what was written; where another replica tells of a seal or an entry;
//! where the rules are read anew, and where room is made. Before it goes out, a request keeps there what its siblings share:
//! the prefix that was made of their parent, and the spelling of its conversation, which it borrows while it is read.
//! Nothing that takes time in proportion to a body happens under that lock, and a waiting request is woken by its ticket.
//!
//! # Invariants
//!
//! - **The arrows**: `cli → admin → proxy → report → { metrics, config, store } → engine`; `sim` knows nobody.
//!   A module uses only what is to its right; a test checks it, and the order of the engine's folders.
//! - **The engine is pure**: no I/O, clock, lock, atomic, randomness, logging or async. Time comes in as an argument, and
//!   state as a plain value. A test checks both.
//! - **The answer's bytes are never altered** or reordered, and go on in the poll in which they came, with three exceptions:
//!   a refusal is read before it is relayed (its first bytes, for a bounded time), since it may mean another attempt;
//!   forkpoint answers in its place where the server holds a conversation otherwise than its client; and the last frame
//!   of a large exchange waits until that is settled, so that a child never comes before its parent's calls are known.
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
