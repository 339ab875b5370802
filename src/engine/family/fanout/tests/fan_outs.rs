//! One account for all that is held, and no more reading than a lookup needs.

use super::*;

const MIB: usize = 1 << 20;

fn large(name: &str) -> Value {
    request(&["Agent"], &[user(json!(format!("{name} {}", "x".repeat(100 << 10))))])
}

fn agents(name: &str) -> [Value; 2] {
    ["a", "b"].map(|topic| call(&format!("{name}_{topic}"), "Agent", json!({"p": directive(topic)})))
}

/// A child that was put on this fork point, or keeps its own prompt.
fn bind(scene: &mut Scene, point: Option<&Arc<ForkPoint>>) -> Binding {
    let request = read(&child(&directive("a")));
    let tools = Toolset::of(&request, |spelt| scene.forks.children().toolset(spelt));
    let who = who(&request, BARE);
    let child = Bindable { tools, who, value: (), bytes: 100, point: point.cloned() };
    scene.forks.bind(child, scene.now)
}

#[test]
fn a_parents_request_counts_once_and_as_long_as_one_holds_it() {
    let mut scene = Scene::new();
    let mut draft = Draft::begin(parent(&large("m"), BARE), false);
    let turn = answer("m", "tool_use", &agents("m"));
    let rules = Arc::clone(scene.forks.points().rules());
    let snapshot = draft.snapshot(&turn, &rules).unwrap();
    scene.forks.record(&mut draft, snapshot, None, scene.now).unwrap();
    draft.push(turn.blocks[0].clone(), &rules);
    scene.forks.pending("m", &mut draft, scene.now).unwrap();
    let fork = scene.seal(draft, &turn).unwrap();
    let children = [bind(&mut scene, Some(&fork)), bind(&mut scene, Some(&fork)), bind(&mut scene, None)];
    let once = fork.memory_bytes()..fork.memory_bytes() + (10 << 10);
    assert!(once.contains(&scene.forks.bytes()), "{} of {once:?}", scene.forks.bytes());
    drop(fork);
    // Fork point and snapshot go; a child that holds the request keeps it.
    scene.forks.expire(scene.now.after(3_600_001));
    assert!(scene.forks.forget_oldest_point() && !scene.forks.forget_oldest_point());
    for (forgotten, binding) in children.into_iter().enumerate() {
        assert_eq!(scene.forks.bytes() > 100 << 10, forgotten < 2, "{}", scene.forks.bytes());
        scene.forks.release(binding);
    }
    assert_eq!(scene.forks.bytes(), 0);
}

#[test]
fn what_no_child_holds_goes_first_and_children_that_work_stay() {
    let mut scene = Scene::new();
    scene.forks = FanOuts::new(TENANT, Rules { bytes: MIB / 2, ..Rules::default() });
    let [resting, working] = ["resting", "working"].map(|name| {
        let fork = scene.fan_out(&large(name), BARE, name, &agents(name));
        bind(&mut scene, Some(&fork))
    });
    scene.fan_out(&large("free"), BARE, "free", &agents("free"));
    bind(&mut scene, None);
    let is_known = |scene: &Scene, name: &str| scene.forks.points().by_message(name).is_some();
    assert!(scene.forks.has_forked_children() && is_known(&scene, "free"));
    assert!(scene.forks.make_room(250 << 10));
    assert!(!is_known(&scene, "free") && is_known(&scene, "resting") && is_known(&scene, "working"));
    assert!(!scene.forks.make_room(350 << 10), "both may come again");
    scene.forks.rest(resting, Some("tool_use"));
    assert!(!scene.forks.make_room(350 << 10), "it has a call to answer");
    scene.forks.rest(resting, Some("end_turn"));
    assert!(scene.forks.make_room(350 << 10));
    assert!(!is_known(&scene, "resting") && is_known(&scene, "working"));
    assert_eq!(scene.forks.children().len(), 2);
    assert!(!scene.forks.make_room(MIB / 2));
    scene.forks.release(working);
    assert!(!scene.forks.has_forked_children());
    assert!(scene.forks.make_room(MIB / 2 - (10 << 10)) && scene.forks.points().is_empty());
}

#[test]
fn a_turn_that_took_the_place_of_the_one_searched_has_no_child() {
    let mut scene = Scene::new();
    let body = request(&["spawn_agent"], &[user(json!("survey"))]);
    let calls = |topics: [&str; 2]| topics.map(|id| call(id, "spawn_agent", json!({"t": directive(id)})));
    scene.fan_out(&body, BARE, "m", &calls(["a", "b"]));
    let request = read(&child(&directive("a")));
    let newcomer = Newcomer { request: &request, who: who(&request, BARE), explicit: None };
    let mut asked = 0;
    let recognised = recognise(&newcomer, |sought| {
        asked += 1;
        if asked == 2 {
            scene.fan_out(&body, BARE, "m", &calls(["c", "d"]));
        }
        scene.forks.recognise(sought, scene.now)
    });
    assert_eq!((say(&recognised), asked), ("coverage", 2));
}

#[test]
fn a_request_is_read_only_as_far_as_it_takes_to_recognise_it() {
    let mut scene = Scene::new();
    let asked = |scene: &mut Scene, body: &Value| {
        let request = read(body);
        let newcomer = Newcomer { request: &request, who: who(&request, BARE), explicit: None };
        let mut asked = 0;
        let recognised = recognise(&newcomer, |sought| {
            asked += 1;
            scene.forks.recognise(sought, scene.now)
        });
        (say(&recognised), asked)
    };
    let told = child(&directive("a"));
    let later = request(&["get_fact"], &[user(json!("x")), assistant(&[text("y")]), user(json!("z"))]);
    assert_eq!(asked(&mut scene, &told), ("no_fork_point", 1));
    two_agents(&mut scene, BARE, "m");
    assert_eq!(asked(&mut scene, &later), ("later_turn", 1));
    assert_eq!(asked(&mut scene, &child("Nothing of that kind.")), ("no_directive", 2));
    assert_eq!(asked(&mut scene, &told), ("child", 3));
}

#[test]
fn marks_are_read_only_as_far_as_it_takes_to_find_a_child() {
    let mut scene = Scene::new();
    let asked = |scene: &mut Scene, body: &Value| {
        let request = read(body);
        let who = who(&request, BARE);
        let mut unread = Vec::new();
        let found = find_child(&request, |marks| {
            scene.forks.find(marks, &who, scene.now).inspect_err(|mark| unread.push(*mark))
        });
        (found, unread)
    };
    let turns = |tools: &[&str], id: &str| {
        let call = assistant(&[call(id, "get_fact", json!({}))]);
        request(tools, &[user(json!(directive("a"))), call, user(json!([result(id, json!("r"))]))])
    };
    assert_eq!(asked(&mut scene, &turns(&["get_fact"], "c1")), (None, vec![]));
    let binding = bind(&mut scene, None);
    scene.forks.called(binding, "c1");
    assert_eq!(asked(&mut scene, &child(&directive("a"))), (None, vec![]));
    assert_eq!(asked(&mut scene, &turns(&["get_fact"], "c1")), (Some(binding), vec![UnreadMark::Calls]));
    let respelt = asked(&mut scene, &turns(&["get_fact", "more"], "c1"));
    assert_eq!(respelt, (None, vec![UnreadMark::Calls, UnreadMark::Tools]));
    let strange = asked(&mut scene, &turns(&["get_fact"], "c2"));
    assert_eq!(strange, (None, vec![UnreadMark::Calls, UnreadMark::Start]));
}
