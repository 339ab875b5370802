//! The cost of recognising fan-outs: a fork point, a child, a stranger, and a message made to be expensive.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use forkpoint::engine::answer::turn::{Turn, TurnLimits};
use forkpoint::engine::cache::breakpoints::Profile;
use forkpoint::engine::family::conversation::{Conversation, Forwarded, Outcome, Trace};
use forkpoint::engine::family::fanout::{
    Child, Draft, FanOuts, ForkPoint, Newcomer, Parent, Recognised, Rules, Who, recognise,
};
use forkpoint::engine::family::recent::AcceptedRequest;
use forkpoint::engine::fork::{self, ChildPrefix, ForkPolicy, ParentPrefix};
use forkpoint::engine::gate::GateSettings;
use forkpoint::engine::request::prefix::Attribution;
use forkpoint::engine::request::recall::{InParts, Nothing, Remembered, Shared};
use forkpoint::engine::respell::canonical::Pins;
use forkpoint::engine::tenant::{ReadMode, TenantAccess, View};
use forkpoint::engine::words::{Moment, Rank, TenantId};
use forkpoint::store::{Limits, Store};

const TENANT: TenantId = TenantId([7; 32]);
const CHILDREN: usize = 5;
const FORKS: usize = 64;
const ROUNDS: usize = 200;
const LIMITS: TurnLimits = TurnLimits { bytes: 16 << 20, tool_uses: 256 };

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches too, without arguments.
    if !std::env::args().any(|word| word == "--bench") {
        println!("nothing to test here; `tests/deep forks` measures");
        return ExitCode::SUCCESS;
    }
    let parent = request(200_000, "Survey it.");
    let mut forks = FanOuts::new(TENANT, Rules { bytes: 256 << 20, ..Rules::default() });
    for number in 0..FORKS {
        fan_out(&mut forks, &parent, number);
    }
    println!("{FORKS} fork points of {CHILDREN} children on one parent of 200 KB, median of {ROUNDS}");
    let per_fork = forks.bytes() / FORKS;
    println!("  memory of one, the parent's request counted in full   {:>9.1} KB", per_fork as f64 / 1e3);
    let own = per_fork - parent.memory_bytes();
    println!("  memory of one, the parent's request aside             {:>9.1} KB", own as f64 / 1e3);
    let (own, held) = remembered(50);
    println!("50 forked children of one parent of 200 KB, as the store counts them");
    println!("  memory of one child                                   {:>9.1} KB", own as f64 / 1e3);
    println!("  memory of all, what they stand on included            {:>9.1} KB", held as f64 / 1e3);
    println!("what they cost, median of {ROUNDS}");
    row("a fan-out of 5, from its first block to the seal", |round| {
        fan_out(&mut forks, &parent, FORKS + round);
    });
    let who = Who::default();
    let mut ask = |what: &str, first: &str, child: bool| {
        let request = request(24_000, first);
        row(what, |_| {
            let newcomer = Newcomer { request: &request, who, explicit: None };
            let met = recognise(black_box(&newcomer), |sought| forks.recognise(sought, Moment(1_000)));
            assert_eq!(matches!(met, Recognised::Child(..)), child, "{met:?}");
        });
    };
    ask("a first turn of 24 KB that is a child", &directive(3, 1), true);
    ask("a first turn of 24 KB that is not", "Tell me about the sea, and leave nothing out of it.", false);
    let end = &directive(3, 1)[20..];
    ask("a first turn of 256 KB full of a directive's end", &end.repeat((256 << 10) / end.len()), false);
    ExitCode::SUCCESS
}

fn row(what: &str, mut act: impl FnMut(usize)) {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let started = Instant::now();
            act(round);
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("  {what:<54}{:>9.1} µs", times[ROUNDS / 2]);
}

/// A request of about that size whose first message says this.
fn request(bytes: usize, first: &str) -> Remembered {
    let system = "Read before you write, and measure before you claim. ".repeat(bytes / 53);
    let body = serde_json::json!({
        "model": "claude-sonnet-4-6",
        "tools": [{"name": "Agent", "description": "d", "input_schema": {"type": "object"}}],
        "system": [{"type": "text", "text": system}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": first}]}],
    });
    Remembered::read(body.to_string().into(), &Nothing, Attribution::Counted).unwrap()
}

fn directive(fork: usize, child: usize) -> String {
    let about = format!("the part number {child} of project {fork}");
    format!(
        "Survey everything about {about}, read what matters there, and report what you found in a few words."
    )
}

/// The bytes that the store counts for the first turns of forked children: of one, and of all with the prefix that they
/// share.
fn remembered(children: usize) -> (usize, usize) {
    let limits = Limits { max_bytes: 64 << 20, recent_bytes: 64 << 20, tenant_share: 1.0 };
    let store = Store::new(limits, Rules::default(), GateSettings::default());
    let tenant = store.admit(&TENANT, &store.tenant(&TENANT));
    let mut forks = FanOuts::new(TENANT, Rules { bytes: 256 << 20, ..Rules::default() });
    let fork = fan_out_to(&mut forks, &request(200_000, "Survey it."), 0, children);
    let parent_prefix =
        Arc::new(ParentPrefix::of(&fork, None, None, Attribution::Counted, &ForkPolicy::default()).unwrap());
    let mut first = 0;
    for number in 0..children {
        let received = request(2_000, &directive(0, number));
        let view = View { tenant: &*tenant, hint: None };
        let arrival =
            view.read(received.body(), Attribution::Counted, ReadMode::AsItCame, [].into_iter()).unwrap();
        let own = &arrival.received;
        let child = Child { fork: Arc::clone(&fork), call: Some(number), rank: Rank::Whole };
        let (prefix, _) = ChildPrefix::of(&parent_prefix, own, &child, &ForkPolicy::default()).unwrap();
        let composed = prefix.compose(own, fork::Turn::First, Profile::Anthropic);
        let extent = parent_prefix.extent();
        let shared = Shared {
            request: Arc::clone(&fork.parent.request),
            bytes: composed.shared + extent.results as usize,
            answer: (extent.turn + extent.results) as usize,
        };
        let pieces = composed.body.pieces;
        let read = InParts::read(pieces, shared, own, own, &Nothing, Attribution::Counted);
        let forwarded = Forwarded::InParts(read.unwrap().0);
        let parameters = arrival.parameters.clone();
        let accepted = AcceptedRequest {
            trace: Arc::new(Trace::with(&arrival, forwarded, composed.breakpoints, parameters)),
            resumes: false,
            outcome: Outcome::default(),
            conversation: Conversation::new(None, true),
            pins: Pins::default(),
            hint: None,
            spelling: None,
            layers: Vec::new(),
            faded: None,
        };
        tenant.look(|state| state.remember(accepted, None));
        first = if number == 0 { store.bytes() } else { first };
    }
    ((store.bytes() - first) / (children - 1), store.bytes())
}

fn fan_out(forks: &mut FanOuts<()>, parent: &Remembered, number: usize) {
    fan_out_to(forks, parent, number, CHILDREN);
}

fn fan_out_to(
    forks: &mut FanOuts<()>,
    parent: &Remembered,
    number: usize,
    children: usize,
) -> Arc<ForkPoint> {
    let calls: Vec<_> = (0..children)
        .map(|child| {
            let (id, prompt) = (format!("toolu_{number}_{child}"), directive(number, child));
            serde_json::json!({"type": "tool_use", "id": id, "name": "Agent", "input": {"prompt": prompt}})
        })
        .collect();
    let message = serde_json::json!({"id": format!("msg_{number}"), "type": "message", "role": "assistant",
        "stop_reason": "tool_use", "content": calls, "usage": {"input_tokens": 1, "output_tokens": 1}});
    let turn = Turn::from_json(message.to_string().as_bytes(), LIMITS);
    let request = Arc::new(parent.clone());
    let parent = Parent::new(request, Who::default());
    let mut draft = Draft::begin(parent, false);
    for block in turn.blocks.clone() {
        if draft.push(block, &Rules::default()) {
            forks.pending(turn.id.as_deref().unwrap(), &mut draft, Moment(0)).unwrap();
        }
    }
    forks.seal(draft.end(&turn, &Rules::default()), Moment(0)).unwrap()
}
