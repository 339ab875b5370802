//! The pure core of forking against the simulator and against what real clients send: what is laid out is accepted,
//! read from the cache, and stays the same for a child's life.

mod live;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use forkpoint::engine::answer::turn::{Turn as Answer, TurnLimits};
use forkpoint::engine::cache::breakpoints::{self, Breakpoint, Profile, Situation};
use forkpoint::engine::family::fanout::{
    Bindable, Binding, Child, Draft, FanOuts, ForkId, ForkPoint, Newcomer, Parent, Recognised, Rules,
    StartMeaning, Toolset, Who, find_child, recognise,
};
use forkpoint::engine::fork::{ChildPrefix, Composed, ForkPolicy, ParentPrefix, Turn, eligible};
use forkpoint::engine::request::anatomy::Anatomy;
use forkpoint::engine::request::edit;
use forkpoint::engine::request::identify::Session;
use forkpoint::engine::request::prefix::Attribution;
use forkpoint::engine::request::recall::{Nothing, Remembered};
use forkpoint::engine::words::{IdDigest, Moment, Refusal, TenantId};
use serde_json::{Value, json};

const LIMITS: TurnLimits = TurnLimits { bytes: 16 << 20, tool_uses: 256 };
const NOW: Moment = Moment(1_000);

/// One tenant whose children are forked by hand.
struct House {
    fan_outs: FanOuts<ChildPrefix>,
    rules: Rules,
    policy: ForkPolicy,
    parent_prefixes: HashMap<ForkId, Arc<ParentPrefix>>,
    /// Where each child wrote last.
    tails: HashMap<Binding, usize>,
}

/// The headers by which a client names itself.
#[derive(Clone, Copy, Debug, Default)]
struct Hints<'a> {
    session: Option<&'a str>,
    agent: Option<&'a str>,
}

/// The outcome of a request.
enum Fate {
    Forked(Composed, Binding),
    Refused(Refusal),
    /// No child, or one that its client has forked.
    Other,
}

impl House {
    fn new() -> House {
        let rules = Rules::default();
        House {
            fan_outs: FanOuts::new(TenantId([1; 32]), rules.clone()),
            rules,
            policy: ForkPolicy::default(),
            parent_prefixes: HashMap::new(),
            tails: HashMap::new(),
        }
    }

    fn handle(&mut self, body: &[u8], hints: Hints<'_>) -> Fate {
        let request = read(body);
        let who = who(&request, hints);
        let found = find_child(&request, |marks| self.fan_outs.find(marks, &who, NOW));
        if let Some(binding) = found {
            let turn = Turn::Later(self.tails.get(&binding).copied());
            let prefix = self.fan_outs.children().get(binding).unwrap();
            let composed = prefix.compose(&request, turn, Profile::Anthropic);
            return self.sent(composed, binding);
        }
        let newcomer = Newcomer { request: &request, who, explicit: None };
        let Recognised::Child(child, _) = self.recognise(&newcomer) else { return Fate::Other };
        if let Err(refusal) = eligible(&request, &child, &who, &self.policy, &self.rules) {
            return Fate::Refused(refusal);
        }
        let (prefix, _) =
            ChildPrefix::of(&self.parent_prefix(&child), &request, &child, &self.policy).unwrap();
        let composed = prefix.compose(&request, Turn::First, Profile::Anthropic);
        let bytes = prefix.memory_bytes();
        let tools = Toolset::of(&request, |spelt| self.fan_outs.children().toolset(spelt));
        let child = Bindable { tools, who, value: prefix, bytes, point: Some(child.fork) };
        let binding = self.fan_outs.bind(child, NOW);
        self.sent(composed, binding)
    }

    fn recognise(&mut self, newcomer: &Newcomer<'_>) -> Recognised {
        recognise(newcomer, |sought| self.fan_outs.recognise(sought, NOW))
    }

    fn sent(&mut self, composed: Composed, binding: Binding) -> Fate {
        check(&composed);
        self.tails.insert(binding, composed.breakpoints.last().unwrap().piece);
        Fate::Forked(composed, binding)
    }

    /// One parent prefix for all children of a fork point; one for each that comes before the seal.
    fn parent_prefix(&mut self, child: &Child) -> Arc<ParentPrefix> {
        if !child.fork.is_sealed() {
            let written = written(&child.fork.parent.request);
            return Arc::new(
                ParentPrefix::of(&child.fork, child.call, written, Attribution::Stripped, &self.policy)
                    .unwrap(),
            );
        }
        let parent_prefix = self.parent_prefixes.entry(child.fork.id).or_insert_with(|| {
            let written = written(&child.fork.parent.request);
            Arc::new(
                ParentPrefix::of(&child.fork, None, written, Attribution::Stripped, &self.policy).unwrap(),
            )
        });
        Arc::clone(parent_prefix)
    }

    /// A plain request was answered: it may have fanned out.
    fn answered(&mut self, body: &[u8], hints: Hints<'_>, answer: &Value) -> Option<Arc<ForkPoint>> {
        let request = read(body);
        let who = who(&request, hints);
        let draft = Draft::begin(Parent::new(Arc::new(request), who), false);
        let answer = Answer::from_json(answer.to_string().as_bytes(), LIMITS);
        self.fan_outs.seal(draft.end(&answer, &self.rules), NOW).ok()
    }

    /// The same while the answer streams: so many of its blocks are finished.
    fn streams(&mut self, body: &[u8], answer: &Value, blocks: usize) {
        let request = read(body);
        let who = who(&request, Hints::default());
        let parent = Parent::new(Arc::new(request), who);
        let mut draft = Draft::begin(parent, false);
        let answer = Answer::from_json(answer.to_string().as_bytes(), LIMITS);
        for block in answer.blocks.into_iter().take(blocks) {
            draft.push(block, &self.rules);
        }
        self.fan_outs.pending(&answer.id.unwrap(), &mut draft, NOW).unwrap();
    }

    /// A child was answered.
    fn child_answered(&mut self, binding: Binding, body: &[u8], content: &Value) {
        for block in content.as_array().unwrap() {
            if let Some(id) = block["id"].as_str() {
                self.fan_outs.called(binding, id);
            }
        }
        let message = json!({"role": "assistant", "content": content}).to_string();
        let request = read(body);
        if self.fan_outs.children().needs_start(binding, &request) {
            self.fan_outs.answered(binding, StartMeaning::of_answered(&request, message.as_bytes()));
        }
    }
}

fn read(body: &[u8]) -> Remembered {
    Remembered::read(Bytes::copy_from_slice(body), &Nothing, Attribution::Stripped).unwrap()
}

fn who(request: &Remembered, hints: Hints<'_>) -> Who {
    let digest = |id: &str| IdDigest(forkpoint::engine::words::first(blake3::hash(id.as_bytes()).as_bytes()));
    let session = hints.session.map(digest).map(|digest| Session { shown: digest, hints: digest });
    Who::of(request, session, hints.agent.map(digest))
}

/// Where an aligned request writes its last entry.
fn written(request: &Remembered) -> Option<Breakpoint> {
    breakpoints::plan(request.body(), request.anatomy(), &Situation::new(Profile::Anthropic))
        .breakpoints
        .pop()
}

/// The request with the markers that it gets.
fn aligned(body: &[u8]) -> Vec<u8> {
    let request = read(body);
    let plan = breakpoints::plan(request.body(), request.anatomy(), &Situation::new(Profile::Anthropic));
    edit::apply(request.body(), &plan.edits).pieces.concat()
}

/// What is told about a body is true.
fn check(composed: &Composed) {
    let body = composed.body.pieces.concat();
    assert_eq!(body.len(), composed.body.length);
    let anatomy = Anatomy::read(&body).unwrap();
    let marked = anatomy.pieces.iter().enumerate().filter(|(_, piece)| piece.is_marked());
    let told = composed.breakpoints.iter().map(|point| point.piece);
    assert!(marked.map(|(piece, _)| piece).eq(told), "{}", String::from_utf8_lossy(&body));
    assert!(composed.breakpoints.len() <= 4);
}
