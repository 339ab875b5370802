use std::collections::BTreeSet;

use super::*;
use crate::engine::family::fanout::ForkId;
use crate::engine::words::{Refusal, Spawning};

/// Someone who wants to be forked.
struct Candidate {
    parent: Value,
    calls: Vec<Value>,
    child: Value,
    rank: Rank,
    call: Option<usize>,
    agent: Option<u8>,
    session: Option<u8>,
    policy: ForkPolicy,
    streaming: bool,
    spawning: Option<Spawning>,
}

impl Candidate {
    fn new() -> Candidate {
        Candidate {
            parent: parent_body(),
            calls: two_calls(),
            child: child_body("a"),
            rank: Rank::Whole,
            call: Some(0),
            agent: None,
            session: None,
            policy: ForkPolicy::default(),
            streaming: false,
            spawning: None,
        }
    }

    fn judge(&self) -> Result<(), Refusal> {
        let fork = match self.streaming {
            true => pending(&self.parent.to_string(), &self.calls),
            false => fan_out(&self.parent.to_string(), &self.calls),
        };
        let mut fork = (*fork).clone();
        if let Some(spawning) = self.spawning {
            fork.calls.iter_mut().for_each(|call| call.spawning = spawning);
        }
        self.judge_on(Arc::new(fork), &self.child.to_string())
    }

    fn judge_on(&self, fork: Arc<ForkPoint>, child: &str) -> Result<(), Refusal> {
        let request = read(child);
        let who = who(&request, self.session, self.agent);
        let child = Child { fork, call: self.call, rank: self.rank };
        eligible(&request, &child, &who, &self.policy, &Rules::default())
    }
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Candidate)) -> &'static str {
    let mut candidate = Candidate::new();
    change(&mut candidate);
    candidate.judge().map_or_else(Refusal::as_str, |()| "eligible")
}

#[test]
fn a_plain_worker_is_eligible() {
    assert_eq!(refused(|_| {}), "eligible");
    assert_eq!(refused(|it| it.child["tools"] = parent_body()["tools"].clone()), "eligible");
}

#[test]
fn every_refusal_has_its_own_spelling() {
    let spellings: std::collections::HashSet<_> =
        Refusal::ALL.iter().map(|refusal| refusal.as_str()).collect();
    assert_eq!(spellings.len(), Refusal::ALL.len());
}

#[test]
fn what_readers_could_see_differently_is_refused() {
    let fork = fan_out(&parent_body().to_string(), &two_calls());
    let twice = child_body("a").to_string().replacen('{', r#"{"model":"claude-x","#, 1);
    assert_eq!(Candidate::new().judge_on(fork, &twice), Err(Refusal::Ambiguous));
}

#[test]
fn forks_do_not_fork() {
    let scene = Scene::new();
    let (_, forked) = scene.first(&child_body("a").to_string(), 0);
    let judged = Candidate::new().judge_on(Arc::clone(&scene.fork), &bytes(&forked));
    assert_eq!(judged, Err(Refusal::Nested));
    let mut nested = (*scene.fork).clone();
    nested.is_nested = true;
    let judged = Candidate::new().judge_on(Arc::new(nested), &child_body("a").to_string());
    assert_eq!(judged, Err(Refusal::Nested));
    // Quoting the tag is no sign.
    let quoting = |it: &mut Candidate| it.child["system"] = json!(format!("{CHILD_TAG} {PLACEHOLDER}"));
    assert_eq!(refused(quoting), "eligible");
}

#[test]
fn the_tool_that_started_it_must_be_known_unless_the_parent_is_named() {
    assert_eq!(refused(|it| it.spawning = Some(Spawning::Unknown)), "unknown_tool");
    assert_eq!(refused(|it| it.spawning = Some(Spawning::Learned)), "eligible");
    assert_eq!(
        refused(|it| {
            it.spawning = Some(Spawning::Unknown);
            it.rank = Rank::Explicit;
        }),
        "eligible"
    );
}

#[test]
fn holdout_refuses_whole_fan_outs() {
    assert_eq!(refused(|it| it.policy.share = 0.0), "holdout");
    let held = |share: f64| -> BTreeSet<u32> {
        let policy = ForkPolicy { share, ..ForkPolicy::default() };
        let holds_out = |n: &u32| policy.holds_out(ForkId::of(TENANT, &n.to_string()));
        (0..1000).filter(holds_out).collect()
    };
    assert_eq!((held(1.0).len(), held(0.0).len()), (0, 1000));
    assert!((650..850).contains(&held(0.25).len()), "{}", held(0.25).len());
    // Whoever is forked stays so when the share grows.
    for shares in [0.0, 0.01, 0.25, 0.5, 0.99, 1.0].windows(2) {
        assert!(held(shares[1]).is_subset(&held(shares[0])), "{shares:?}");
    }
}

#[test]
fn before_the_seal_the_policy_decides() {
    let streaming = |it: &mut Candidate| it.streaming = true;
    assert_eq!(refused(streaming), "eligible");
    assert_eq!(
        refused(|it| {
            streaming(it);
            it.policy.late = Late::Passthrough;
        }),
        "late"
    );
    assert_eq!(
        refused(|it| {
            streaming(it);
            it.rank = Rank::Explicit;
            it.call = None;
        }),
        "unsealed"
    );
}

#[test]
fn histories_and_first_messages_of_odd_shape_are_refused() {
    let prefill = json!({"role": "assistant", "content": "So:"});
    assert_eq!(refused(|it| it.parent["messages"].as_array_mut().unwrap().push(prefill)), "prefill");
    assert_eq!(refused(|it| it.child["messages"][0]["output_config"] = json!({})), "shape");
    assert_eq!(refused(|it| it.child["messages"][0]["role"] = json!("system")), "shape");
    let image = json!([{"type": "image", "source": {}}]);
    assert_eq!(refused(|it| it.child["messages"][0]["content"] = image), "shape");
}

#[test]
fn the_model_must_be_the_parents() {
    assert_eq!(refused(|it| it.child["model"] = json!("claude-y")), "model");
}

#[test]
fn tools_must_be_the_parents_and_fewer_only_where_somebody_enforces_it() {
    assert_eq!(refused(|it| it.child["tools"] = json!([])), "no_tools");
    assert_eq!(refused(|it| it.child["tools"] = json!([tool("Read"), tool("Write")])), "tools_differ");
    assert_eq!(refused(|it| it.child["tools"][0]["description"] = json!("other")), "tools_differ");
    let respelt = json!([{"input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"},
        "description": "d", "name": "Read"}]);
    assert_eq!(refused(|it| it.child["tools"] = respelt), "eligible");
    let fewer = |it: &mut Candidate| {
        it.parent["tools"] = json!([tool("Agent"), tool("Read"), tool("Write")]);
    };
    assert_eq!(refused(fewer), "tools_subset");
    assert_eq!(
        refused(|it| {
            fewer(it);
            it.agent = Some(1);
        }),
        "eligible"
    );
    assert_eq!(
        refused(|it| {
            fewer(it);
            it.policy.tools_policy = ToolsPolicy::Subset;
        }),
        "eligible"
    );
    assert_eq!(
        refused(|it| {
            it.rank = Rank::Explicit;
            it.child["tools"] = json!([]);
        }),
        "eligible",
        "it has named its parent"
    );
}

#[test]
fn a_tool_that_only_the_child_has_is_not_taken_from_it_whatever_its_name_is() {
    let status = tool("get_agent_status");
    assert_eq!(refused(|it| it.child["tools"] = json!([tool("Read"), status])), "tools_differ");
    assert_eq!(
        refused(|it| {
            it.parent["tools"] = json!([tool("Agent"), tool("Read"), status]);
            it.child["tools"] = json!([tool("Read"), status]);
        }),
        "eligible"
    );
    // What starts agents may be described otherwise: the child is told not to use it.
    let mut agent = tool("Agent");
    agent["description"] = json!("Starts other kinds of agents.");
    assert_eq!(refused(|it| it.child["tools"] = json!([tool("Read"), agent])), "eligible");
}

#[test]
fn only_who_names_its_parent_may_leave_the_model_out() {
    let unnamed = |it: &mut Candidate| {
        it.child.as_object_mut().unwrap().remove("model");
    };
    assert_eq!(refused(unnamed), "model");
    assert_eq!(
        refused(|it| {
            unnamed(it);
            it.rank = Rank::Explicit;
        }),
        "eligible"
    );
}

#[test]
fn every_field_that_shapes_the_prompt_must_be_the_parents() {
    for (field, name) in [
        ("thinking", "thinking"),
        ("tool_choice", "tool_choice"),
        ("output_config", "output_config"),
        ("output_format", "output_format"),
        ("context_management", "context_management"),
        ("speed", "speed"),
        ("mcp_servers", "mcp_servers"),
        ("container", "container"),
        ("never_heard_of", "unknown_field"),
    ] {
        let one = json!({"type": "a", "x": 1});
        assert_eq!(refused(|it| it.child[field] = one.clone()), name);
        assert_eq!(refused(|it| it.parent[field] = one.clone()), name);
        assert_eq!(refused(|it| it.child[field] = Value::Null), "eligible", "null is none");
        assert_eq!(
            refused(|it| {
                it.child[field] = json!({"x": 1, "type": "a"});
                it.parent[field] = one.clone();
            }),
            "eligible"
        );
        assert_eq!(
            refused(|it| {
                it.child[field] = one.clone();
                it.policy.inherit = vec![field.to_owned()];
            }),
            "eligible"
        );
        assert_eq!(
            refused(|it| {
                it.parent[field] = one.clone();
                it.rank = Rank::Explicit;
            }),
            "eligible",
            "what it leaves out is its parent's"
        );
    }
    for field in ["max_tokens", "temperature", "metadata", "service_tier", "diagnostics"] {
        assert_eq!(refused(|it| it.child[field] = json!(1)), "eligible", "{field}");
    }
    assert_eq!(refused(|it| it.child["cache_control"] = json!({"type": "ephemeral"})), "eligible");
}

#[test]
fn nothing_comes_before_a_summary() {
    let summary = json!({"type": "compaction", "content": "So far.", "signature": "s"});
    let begins = |it: &mut Candidate| {
        it.child["messages"][0]["content"] = json!([summary.clone(), text(&directive("a"))]);
    };
    assert_eq!(refused(begins), "compaction");
    assert_eq!(refused(|it| it.child["compaction"] = json!({"type": "summarize"})), "compaction");
    assert_eq!(refused(|it| it.child["compaction"] = Value::Null), "eligible");
    // A parent that begins with one gives it to its children.
    let parents = |it: &mut Candidate| {
        let first = json!({"role": "assistant", "content": [summary.clone()]});
        it.parent["messages"].as_array_mut().unwrap().insert(0, first);
    };
    assert_eq!(refused(parents), "eligible");
}

#[test]
fn what_is_left_of_a_budget_is_nobody_elses() {
    let budget =
        |remaining: Value| json!({"task_budget": {"type": "tokens", "total": 9, "remaining": remaining}});
    let inherits = |it: &mut Candidate| it.policy.inherit = vec!["output_config".to_owned()];
    for (parents, expected) in [(budget(json!(5)), "output_config"), (budget(Value::Null), "eligible")] {
        for change in [&inherits as &dyn Fn(&mut Candidate), &|it| it.rank = Rank::Explicit] {
            let refusal = refused(|it| {
                it.parent["output_config"] = parents.clone();
                change(it);
            });
            assert_eq!(refusal, expected, "{parents}");
        }
    }
    assert_eq!(
        refused(|it| {
            it.parent["output_config"] = budget(json!(5));
            it.child["output_config"] = budget(json!(4));
            inherits(it);
        }),
        "output_config"
    );
}

#[test]
fn cited_instructions_are_not_moved_into_a_user_message() {
    let cited = |citations: Value| {
        refused(|it| {
            it.child["system"] = json!([{"type": "text", "text": "You work.", "citations": citations}])
        })
    };
    assert_eq!(cited(json!([{"type": "char_location"}])), "shape");
    assert_eq!(cited(Value::Null), "eligible");
}

#[test]
fn sets_of_tools_have_no_name_and_count_as_often_as_they_come() {
    let set = |configs: Value| json!({"type": "browser_toolset_20260801", "configs": configs});
    let (one, two) = (set(json!({"a": {}})), set(json!({"b": {}})));
    let tools = |parents: &[&Value], own: &[&Value]| {
        refused(|it| {
            let all = |sets: &[&Value], named: &[&str]| {
                let named = named.iter().map(|name| tool(name));
                Value::Array(named.chain(sets.iter().map(|set| (*set).clone())).collect())
            };
            it.parent["tools"] = all(parents, &["Agent", "Read"]);
            it.child["tools"] = all(own, &["Read"]);
        })
    };
    assert_eq!(tools(&[&one], &[&one]), "eligible");
    assert_eq!(tools(&[&one, &two], &[&two, &one]), "eligible", "in any order");
    assert_eq!(tools(&[&one], &[&two]), "tools_differ");
    assert_eq!(tools(&[], &[&one]), "tools_differ");
    assert_eq!(tools(&[&one], &[&one, &one]), "tools_differ", "one of them is not its parent's");
    assert_eq!(tools(&[&one, &one], &[&one]), "tools_subset");
}

#[test]
fn images_and_documents_must_be_the_parents_too() {
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}});
    let nested =
        json!({"type": "search_result", "source": "s", "title": "t", "content": [{"type": "document"}]});
    for block in [image, nested] {
        let shown = |it: &mut Candidate| {
            it.child["messages"][0]["content"] = json!([block.clone(), text(&directive("a"))]);
        };
        assert_eq!(refused(shown), "media");
        assert_eq!(
            refused(|it| {
                shown(it);
                it.parent["messages"][0]["content"] = json!([text("Look."), block.clone()]);
            }),
            "eligible"
        );
    }
    assert_eq!(refused(|it| it.child["system"] = json!("Speak of the \"image\".")), "eligible");
}

#[test]
fn what_the_call_asks_for_is_respected() {
    let asks = |name: &str, value: Value| refused(|it| it.calls[0]["input"][name] = value);
    assert_eq!(asks("subagent_type", json!("Explore")), "specialist");
    assert_eq!(asks("agent_type", json!({"name": "x"})), "specialist");
    assert_eq!(asks("subagent_type", json!("general-purpose")), "eligible");
    assert_eq!(asks("subagent_type", Value::Null), "eligible");
    assert_eq!(asks("team_name", json!("red")), "teammate");
    assert_eq!(asks("team_name", json!("")), "eligible");
    assert_eq!(asks("isolation", json!("remote")), "isolation");
    assert_eq!(asks("isolation", json!("worktree")), "eligible");
    assert_eq!(
        refused(|it| {
            it.calls[0]["input"]["role"] = json!("critic");
            it.policy.specialist_fields = vec!["role".into()];
        }),
        "specialist"
    );
}

#[test]
fn excluded_sessions_are_known_by_id_or_by_what_logs_show() {
    let digest = IdDigest([3; 16]);
    assert_eq!(
        refused(|it| {
            it.session = Some(3);
            it.policy.exclude_sessions = vec![digest.to_string()];
        }),
        "coordinator"
    );
    let session = crate::engine::words::first(blake3::hash(b"my-session").as_bytes());
    let policy = ForkPolicy { exclude_sessions: vec!["my-session".into()], ..ForkPolicy::default() };
    assert!(policy.excludes(IdDigest(session)) && !policy.excludes(digest));
}
