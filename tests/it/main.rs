//! Every end-to-end promise, one module each, in one binary.

// Tests may fail loudly, their helpers too; the lint only knows about the former.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Both ends of a conversation with forkpoint between them, over raw sockets.
mod harness;
// Conversations as clients have them, also played by the benches.
#[path = "../workload/mod.rs"]
mod workload;

// Rules about the code itself: arrows between modules, purity, sizes of files.
mod architecture;
// The configuration: layers, messages, `check-config`, and its manual.
mod config;
// Help and completions of every command.
mod help;
// The READMEs: what they say of metrics and log lines, whether their snippets run and their links resolve.
mod readme;

// The simulator against the rules of the API that it claims to follow.
mod sim;

// What came goes out byte for byte, in both directions.
mod transparency;
// Versions of HTTP, bodiless and interim answers, trailers, tunnels.
mod protocols;
// Bytes that move as soon as they come.
mod streaming;
// Clients and upstreams that leave in the middle.
mod disconnects;
// Upstreams behind TLS.
mod tls;
// Upstreams behind a path, and the paths of Bedrock and Vertex.
mod other_upstreams;

// Every limit, and its answer.
mod limits;
// How long others wait while somebody's bytes are worked on; by the process on one core, in the second, and beside floods,
// in the third.
mod bystanders;
mod bystanders_binary;
mod bystanders_floods;
// Answers that forkpoint gives itself.
mod own_errors;
// Bodies and messages that are broken or not understood.
mod bad_input;
// Requests made to be misread; over HTTP/2, where a client writes frames, in the second.
mod abuse;
mod abuse_http2;
// What becomes of each form of request target.
mod targets;
// Connections that tenants share.
mod reuse;

// Breakpoints planned by the engine, against the simulator.
mod breakpoints;
// Mode `align`: stable prefixes, nothing changed that the model reads.
mod align;
// Cache breaks: their cause and their price.
mod breaks;
// Fan-outs: recognition, the gate, children on their parent's prefix, and how those are composed.
mod fork;
// What outlives a process: restarts, and stores that fail.
mod store;
// Money: random clients, directly and through forkpoint, and what forkpoint says of it.
mod money;

// Health, readiness and metrics on the admin port; then the questions operators may ask there.
mod admin;
mod admin_api;
// The stream of what happens, and the files of the page that shows it. A real browser runs it in tests/page.
mod events;
// From start to exit, as a process.
mod lifecycle;
// Another configuration while requests run.
mod reload;
// What clients say is nowhere but in what they send and get.
mod privacy;
// Recordings, and `explain --request` on them.
mod recording;
// Traces, as a receiver decodes them.
mod traces;

// What a person at a terminal sees of `serve`.
mod terminal;
// The commands besides `serve`.
mod run;
mod top;
mod demo;
mod explain;
mod replay;
