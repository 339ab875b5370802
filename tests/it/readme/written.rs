//! Lines of children that no simulated model would start: their parents' answers are written here.

use std::time::Duration;

use forkpoint::config::{Config, Mode};
use forkpoint::engine::fork::Late;
use forkpoint::proxy::panic_injection::Step;
use serde_json::{Value, json};

use crate::fork::children::seal::Slow;
use crate::fork::scene::sibling;
use crate::fork::talk::{
    Call, Talk, assistant, directive, events, newcomer, parent, prompt_tokens, streamed, text, tool_use, user,
};
use crate::harness::{Log, until};

/// How a fan-out of two goes, and its first child.
struct Scene {
    parent: fn(Call) -> Call,
    /// What the calls are told beside the directive.
    input: Value,
    child: fn(Call) -> Call,
    /// The child's body as it is sent.
    spelt: fn(String) -> String,
    /// Before the child comes.
    meanwhile: fn(&Talk),
}

impl Default for Scene {
    fn default() -> Scene {
        let same: fn(Call) -> Call = |call| call;
        Scene { parent: same, input: json!({}), child: same, spelt: |body| body, meanwhile: |_| () }
    }
}

impl Scene {
    /// The child's line.
    async fn line(self) -> Value {
        let log = Log::start();
        let talk = Talk::with(|config| config.server.mode = Mode::Fork).await;
        let told = ["the north", "the south"].map(directive);
        let call = |(number, told): (usize, &String)| {
            let mut input = self.input.clone();
            input["prompt"] = json!(told);
            tool_use(&format!("toolu_{number}"), "Agent", input)
        };
        let calls: Vec<Value> = told.iter().enumerate().map(call).collect();
        let first = (self.parent)(parent("Survey it."));
        assert_eq!(talk.say(&first, "msg_parent", &calls).await.reply.status(), 200);
        until("the parent's line", || log.count() == 1).await;
        (self.meanwhile)(&talk);
        let child = (self.child)(newcomer(told[0].clone()));
        let answer = streamed(&events("msg_child", prompt_tokens(&child.body), &[text("It is empty.")]));
        let body = (self.spelt)(child.body.to_string());
        let told = talk.answered_as_spelt(&child.headers, body.as_bytes(), answer).await;
        assert_eq!((told.reply.status(), told.role().as_str()), (200, "child"));
        until("the child's line", || log.count() == 2).await;
        log.records().remove(1)
    }
}

/// Every line of a child that was started like that.
pub async fn lines() -> Vec<Value> {
    let mut lines = Vec::new();
    let scenes = [
        Scene { input: json!({"team_name": "surveyors"}), ..Scene::default() },
        Scene { input: json!({"isolation": "remote"}), ..Scene::default() },
        // The parent's client has put the first words into the model's mouth.
        Scene { parent: |call| call.then(assistant(&[text("I will send two:")])), ..Scene::default() },
        // A message with a member that no other place could take.
        Scene {
            child: |mut call| {
                call.body["messages"][0]["name"] = json!("worker");
                call
            },
            ..Scene::default()
        },
        // The last message of a forked child without what stands before it.
        Scene {
            child: |call| {
                let told = call.body["messages"][0]["content"].clone();
                let result = json!({"type": "tool_result", "tool_use_id": "toolu_1",
                    "content": "Fork started -- processing in background"});
                let tagged = text("<forkpoint-child>You are the fork.</forkpoint-child>");
                let content = json!([result, tagged, {"type": "text", "text": told}]);
                call.and("messages", json!([user(content)]))
            },
            ..Scene::default()
        },
        Scene { child: |call| call.and("max_tokens", json!(1_000_000)), ..Scene::default() },
        // A model that nobody has a price for, nor what its cache costs.
        Scene {
            parent: |call| call.and("model", json!("claude-unheard-of")),
            child: |call| call.and("model", json!("claude-unheard-of")),
            ..Scene::default()
        },
        Scene { spelt: |body| body.replacen('{', "{\"note\":1,\"note\":2,", 1), ..Scene::default() },
        // No child can ask for a bug of ours, so that one is ordered.
        Scene { meanwhile: |talk| talk.forkpoint.proxy.panics().inject(Step::Fork), ..Scene::default() },
    ];
    for scene in scenes {
        lines.push(scene.line().await);
    }
    lines.push(early(|config| config.fork.policy.late = Late::Passthrough, sibling("", 0)).await);
    // One that names its parent, and none of the calls that are known so far.
    lines.push(early(|_| (), newcomer("Sum it up.").with("x-forkpoint-parent", "msg_parent")).await);
    lines
}

/// The line of a child that comes before its parent's last byte, and that nobody makes wait for it.
async fn early(configure: impl FnOnce(&mut Config), child: Call) -> Value {
    let log = Log::start();
    let at_once = |config: &mut Config| {
        config.fork.await_parent = Duration::ZERO;
        configure(config);
    };
    let mut slow = Slow::begins(2, at_once).await;
    slow.finishes(1).await;
    slow.answered(&mut slow.ask(&child).await).await;
    until("the child's line", || log.count() == 1).await;
    slow.ends().await;
    until("the parent's line", || log.count() == 2).await;
    log.records().remove(0)
}
