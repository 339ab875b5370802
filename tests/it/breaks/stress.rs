//! Conversations at random: whatever a client does, a break has a reason that can be named.

use std::time::Duration;

use forkpoint::config::Config;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config as Runs, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

use super::{ALIGN, OBSERVE, Stage, cached, marked, read, text, turn};
use crate::workload::{Letter, prose, tool};

const CONVERSATIONS: usize = 3;
const STEPS: usize = 60;
const PLAYS: usize = 8;

/// A client's next step in one of its conversations.
#[derive(Clone, Debug)]
enum Step {
    Extend(usize),
    Again,
    Rewind(usize),
    Branch,
    Think,
    Choose,
    Beta,
    Model,
    System,
    Tools,
    Pause(u64),
}

fn any_step() -> impl Strategy<Value = (usize, Step)> {
    let step = prop_oneof![
        20 => (1_usize..30).prop_map(Step::Extend),
        4 => Just(Step::Again),
        2 => (0_usize..4).prop_map(Step::Rewind),
        2 => Just(Step::Branch),
        1 => Just(Step::Think),
        1 => Just(Step::Choose),
        1 => Just(Step::Beta),
        1 => Just(Step::Model),
        1 => Just(Step::System),
        1 => Just(Step::Tools),
        3 => (1_u64..400).prop_map(Step::Pause),
    ];
    (0..CONVERSATIONS, step)
}

#[derive(Clone, Debug)]
struct Talk {
    name: usize,
    messages: Vec<Value>,
    thinks: bool,
    chooses: bool,
    beta: bool,
    model: usize,
    system: usize,
    tools: usize,
    said: usize,
    /// By its last request.
    cached: Option<u64>,
}

impl Talk {
    /// The first two open alike.
    fn new(name: usize) -> Talk {
        let messages = turn(1)["messages"].as_array().unwrap().clone();
        let mut talk = Talk {
            name,
            messages,
            thinks: false,
            chooses: false,
            beta: false,
            model: 0,
            system: 0,
            tools: 0,
            said: 0,
            cached: None,
        };
        talk.messages[0]["content"] = json!([text(prose(&format!("Opening {}.", name / 2), 300))]);
        talk
    }

    fn step(&mut self, step: &Step) {
        self.said += 1;
        let tag = format!("{}.{}", self.name, self.said);
        match step {
            Step::Extend(blocks) => {
                let answer = json!({"role": "assistant", "content": [text(format!("Answer {tag}."))]});
                let blocks: Vec<_> =
                    (0..*blocks).map(|n| text(prose(&format!("Block {tag}.{n}."), 30))).collect();
                self.messages.extend([answer, json!({"role": "user", "content": blocks})]);
            }
            Step::Again | Step::Pause(_) => {}
            Step::Rewind(turns) => self
                .messages
                .truncate((self.messages.len() - 2 * turns.min(&(self.messages.len() / 2))).max(1)),
            Step::Branch => {
                let last = self.messages.last_mut().unwrap();
                last["content"] = json!([text(prose(&format!("Instead {tag}."), 40))]);
            }
            Step::Think => self.thinks = !self.thinks,
            Step::Choose => self.chooses = !self.chooses,
            Step::Beta => self.beta = !self.beta,
            Step::Model => self.model = 1 - self.model,
            Step::System => self.system += 1,
            Step::Tools => self.tools = 1 - self.tools,
        }
    }

    fn letter(&self, marks: bool) -> Letter {
        let mut messages = self.messages.clone();
        let mut system = text(prose(&format!("System {}.", self.system), 1_500));
        if marks {
            let blocks = messages.last_mut().unwrap()["content"].as_array_mut().unwrap();
            let last = blocks.pop().unwrap();
            blocks.push(marked(last));
            system = marked(system);
        }
        let model = ["claude-opus-4-8", "claude-sonnet-4-6"][self.model];
        let mut body = json!({
            "model": model,
            "max_tokens": 1_000,
            "stream": self.said.is_multiple_of(2),
            "tools": [tool("search"), tool(["run", "walk"][self.tools])],
            "system": [system],
            "messages": messages,
        });
        if self.thinks {
            body["thinking"] = json!({"type": "adaptive"});
        }
        if self.chooses {
            body["tool_choice"] = json!({"type": "auto", "disable_parallel_tool_use": true});
        }
        let letter = Letter::alone(&body);
        if self.beta { letter.with("anthropic-beta", "context-management-2025-06-27") } else { letter }
    }
}

/// Plays the steps, and answers how often the cache broke.
async fn play(configure: fn(&mut Config), marks: bool, steps: &[(usize, Step)]) -> usize {
    let stage = Stage::with(configure).await;
    let line = stage.line();
    let mut talks: Vec<Talk> = (0..CONVERSATIONS).map(Talk::new).collect();
    let mut history: Vec<String> = Vec::new();
    for (talk, step) in steps {
        if let Step::Pause(seconds) = step {
            stage.pass(Duration::from_secs(*seconds));
        }
        let talk = &mut talks[*talk];
        talk.step(step);
        let (exchange, record) = stage.send_on(&line, &talk.letter(marks)).await;
        let said = ["drift", "break_cause", "break_tokens"].map(|field| record[field].to_string());
        history.push(format!("{} {step:?}: {:?} {}", talk.name, exchange.usage.unwrap(), said.join(" ")));
        let history = history.join("\n");
        assert_ne!(record["break_cause"], "unknown", "{history}");
        // A request that goes on is to read what the one before had cached.
        let lost =
            talk.cached.replace(cached(&exchange)).map(|before| before.saturating_sub(read(&exchange)));
        if let (Step::Extend(_), Some(lost)) = (step, lost) {
            assert_eq!(record["break_tokens"].as_u64().unwrap_or_default(), lost, "{history}");
        }
        stage.pass(Duration::from_secs(5));
    }
    stage.breaks(&[]) as usize
}

#[tokio::test]
async fn every_break_of_a_faithful_cache_has_a_cause() {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Runs::default(), rng);
    let steps = prop::collection::vec(any_step(), STEPS);
    let mut broke = 0;
    for round in 0..PLAYS {
        let steps = steps.new_tree(&mut runner).unwrap().current();
        let configure = if round % 2 == 0 { ALIGN } else { OBSERVE };
        broke += play(configure, round % 4 < 3, &steps).await;
    }
    assert!(broke > PLAYS, "a weak test: {broke} breaks");
}
