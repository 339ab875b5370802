//! Calls with equal directives: whose child is it?

use super::*;

#[test]
fn of_a_parent_that_was_retried_the_newest_turn_counts() {
    let mut scene = Scene::new();
    let body = request(&["agent"], &[user(json!("go"))]);
    for id in ["msg_1", "msg_2", "msg_3"] {
        let calls =
            ["a", "b"].map(|topic| call(&format!("{id}{topic}"), "agent", json!({"t": directive(topic)})));
        scene.fan_out(&body, BARE, id, &calls);
        scene.wait(1);
    }
    assert_eq!(as_child(scene.ask(&child(&directive("a")), BARE)).0, fork_name("msg_3"));
}

/// A conversation fans out that has done so this often before, with the same directives each time.
fn fan_out_again(scene: &mut Scene, headers: Headers, before: usize) -> Arc<ForkPoint> {
    let calls = |n: usize| {
        ["a", "b"].map(|topic| call(&format!("{n}{topic}"), "agent", json!({"t": directive(topic)})))
    };
    let mut messages = vec![user(json!("go"))];
    for n in 0..before {
        let results = ["a", "b"].map(|topic| result(&format!("{n}{topic}"), json!("done")));
        messages.extend([assistant(&calls(n)), user(json!(results))]);
    }
    let body = request(&["agent"], &messages);
    if before > 0 {
        assert_eq!(say(&scene.ask(&body, headers)), "parent");
    }
    scene.fan_out(&body, headers, &format!("msg_{before}"), &calls(before))
}

#[test]
fn a_later_fan_out_with_the_same_directives_has_its_own_children() {
    for headers in [BARE, Headers { session: Some(1), ..BARE }] {
        let mut scene = Scene::new();
        for n in 0..4 {
            let fork = fan_out_again(&mut scene, headers, n);
            for (number, topic) in ["a", "b"].into_iter().enumerate() {
                let body = child(&directive(topic));
                let found = as_child(scene.ask(&body, headers));
                assert_eq!(found, (fork.id.to_string(), Some(number), Rank::Whole), "{n} {topic}");
                scene.forks.accepted(fork.id, number);
                assert_eq!(as_child(scene.ask(&body, headers)), found, "{n} {topic} again");
            }
        }
    }
}

#[test]
fn of_fan_outs_whose_children_never_came_the_newest_of_a_conversation_counts() {
    let mut scene = Scene::new();
    let forks = [0, 1, 2].map(|n| fan_out_again(&mut scene, BARE, n).id.to_string());
    assert_eq!(as_child(scene.ask(&child(&directive("a")), BARE)).0, forks[2]);
}

#[test]
fn agents_of_one_session_that_were_told_the_same_are_told_apart() {
    let mut scene = Scene::new();
    let body = child(&directive("a"));
    let first = fan_out_again(&mut scene, claude(1, None), 0).id.to_string();
    assert_eq!(as_child(scene.ask(&body, claude(1, Some(1)))).0, first);
    // Its results are back before its agents start: they work in the background.
    let second = fan_out_again(&mut scene, claude(1, None), 1).id.to_string();
    let mut next = request(&["agent"], &[user(json!("go")), assistant(&[text("…")])]);
    next["messages"].as_array_mut().unwrap().push(user(json!([result("1a", json!("started"))])));
    assert_eq!(say(&scene.ask(&next, claude(1, None))), "parent");
    assert_eq!(as_child(scene.ask(&body, claude(1, Some(2)))).0, second);
    assert_eq!(as_child(scene.ask(&body, claude(1, Some(1)))).0, first, "the same agent once more");
    assert_eq!(as_child(scene.ask(&body, claude(1, Some(2)))).0, second);
}

#[test]
fn a_retry_of_the_same_body_is_the_same_claim() {
    let mut scene = Scene::new();
    two_agents(&mut scene, BARE, "msg_1");
    let body = child(&directive("a"));
    let first = as_child(scene.ask(&body, BARE));
    assert_eq!(first, as_child(scene.ask(&body, BARE)));
    scene.wait(400);
    assert_eq!(first, as_child(scene.ask(&body, BARE)));
    assert_eq!(say(&scene.ask(&child(&directive("b")), BARE)), "window");
}
