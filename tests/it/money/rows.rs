//! Fan-outs that forking once made dearer than they are sent directly.

use super::figures::Bill;
use super::player::{Arm, Pace, play};
use super::point::{Client, Marks, Personas, Point, Shape, Tier};
use super::script::Writer;
use forkpoint::config::Mode;

/// One on which a table of earlier figures was made, and the one that the price table marks as current.
const MODELS: [&str; 2] = ["claude-opus-4-8", "claude-opus-5-5"];
const PREMIUM: f64 = 0.25;
/// What the children may cost, in multiples of what they cost directly.
const RATIO_MAX: f64 = 1.0;
/// How far the saving that is shown may be off, as a part of the direct bill.
const SAVED_SLACK: f64 = 0.05;

/// A careful client whose children have so many tokens under a parent of so many.
fn careful(child_tokens: usize, parent_tokens: usize, shape: Shape) -> Client {
    const INSTRUCTIONS: usize = 2_000;
    let tool_tokens = child_tokens - INSTRUCTIONS;
    Client {
        shape,
        marks: Marks::SystemAndLast,
        tier: Tier::Minutes,
        child_tier: Tier::Minutes,
        personas: Personas::Shared,
        string_system: false,
        streams: true,
        has_session: true,
        children_spawn: false,
        repeats_directives: false,
        tools_reversed: false,
        rereads: false,
        is_refused: false,
        leaves: false,
        tool_tokens,
        parent_tokens: INSTRUCTIONS,
        persona_tokens: INSTRUCTIONS,
        context_tokens: parent_tokens - tool_tokens - INSTRUCTIONS,
        directive_tokens: 200,
        result_tokens: 500,
        image_at: None,
        start_ms: 0,
        arrival_ms: 20,
        pause_ms: 1_000,
        long_pause_at: None,
        long_pause_ms: 0,
        row_pause_ms: 20_000,
    }
}

fn fan_outs(rows: usize, children: usize, turns: usize) -> Shape {
    Shape::FanOuts { rows, children, turns, concurrent: true, fresh_parents: false, eager: false }
}

/// Plays a client directly and in default `fork`: its children cost no more, and the saving that is shown is true.
async fn check(client: Client) {
    let each = |model| [Personas::Shared, Personas::Own].map(|personas| (model, personas));
    for (model, personas) in MODELS.into_iter().flat_map(each) {
        let clients = vec![Client { personas, ..client.clone() }];
        let point = Point { seed: 0, model, clients, to_begin_ms: 1_000, per_token_us: 50 };
        let parts = Writer::write(&point);
        let pace = Pace { base_ms: point.to_begin_ms, per_token_us: point.per_token_us };
        let direct = play(&parts, pace, Arm::Direct).await;
        let forked = play(&parts, pace, Arm::Through(Mode::Fork, PREMIUM)).await;
        let bill = Bill::new(model);
        let children = |bills: &[_]| -> f64 {
            let children = parts.iter().zip(bills).filter(|(part, _)| part.is_child);
            children.map(|(_, usage)| bill.of(usage)).sum()
        };
        let ratio = children(&forked.bills) / children(&direct.bills);
        let all = bill.sum(&direct.bills);
        let truth = (all - bill.sum(&forked.bills)) / all;
        let shown = forked.metric("forkpoint_saved_usd", &[]) / all;
        let count = forked.lines.iter().filter(|line| line.record.plan == "forked").count();
        let figures = format!(
            "{model}, {personas:?}: children {ratio:.3} of direct, {count} forked; saved {truth:.3}, shown {shown:.3}"
        );
        println!("{figures}");
        assert!(ratio <= RATIO_MAX, "{figures}");
        assert!((shown - truth).abs() <= SAVED_SLACK, "{figures}");
    }
}

#[tokio::test]
async fn five_fan_outs_in_a_row_of_three_children() {
    check(careful(14_000, 34_000, fan_outs(5, 3, 2))).await;
}

#[tokio::test]
async fn five_fan_outs_in_a_row_of_five_children_of_four_turns() {
    check(careful(25_000, 53_000, fan_outs(5, 5, 4))).await;
}

#[tokio::test]
async fn eight_children_one_after_another_whose_markers_last_an_hour() {
    let shape = Shape::FanOuts {
        rows: 1,
        children: 8,
        turns: 2,
        concurrent: false,
        fresh_parents: false,
        eager: false,
    };
    check(Client { child_tier: Tier::Hour, ..careful(25_000, 53_000, shape) }).await;
}

#[tokio::test]
async fn a_pair_with_an_image_in_a_later_turn() {
    check(Client { image_at: Some(1), ..careful(22_000, 48_000, fan_outs(1, 2, 3)) }).await;
}

#[tokio::test]
async fn children_that_pause_for_longer_than_entries_live() {
    let client = careful(22_000, 48_000, fan_outs(1, 3, 3));
    check(Client { long_pause_at: Some(1), long_pause_ms: 400_000, ..client.clone() }).await;
    check(Client { pause_ms: 400_000, ..client }).await;
}

#[tokio::test]
async fn a_client_that_keeps_an_order_of_its_own() {
    let one = careful(
        8_000,
        12_000,
        Shape::Conversations { count: 1, turns: 2, longest: 2, one_after_another: false },
    );
    let other = Client {
        tools_reversed: true,
        shape: Shape::Conversations { count: 2, turns: 5, longest: 5, one_after_another: true },
        start_ms: 10_000,
        ..one.clone()
    };
    for (model, marks) in [
        (MODELS[0], Marks::SystemAndLast),
        (MODELS[0], Marks::LastToolAndThreeMessages),
        (MODELS[1], Marks::LastToolAndThreeMessages),
    ] {
        let clients = vec![one.clone(), Client { marks, ..other.clone() }];
        let point = Point { seed: 0, model, clients, to_begin_ms: 1_000, per_token_us: 50 };
        let (parts, pace) = (Writer::write(&point), Pace { base_ms: 1_000, per_token_us: 50 });
        let bill = Bill::new(model);
        let direct = bill.sum(&play(&parts, pace, Arm::Direct).await.bills);
        let aligned = play(&parts, pace, Arm::Through(Mode::Align, PREMIUM)).await;
        let ratio = bill.sum(&aligned.bills) / direct;
        let shown = aligned.metric("forkpoint_saved_usd", &[]) / direct;
        let figures =
            format!("{model}, {marks:?}: {ratio:.3} of direct; saved {:.3}, shown {shown:.3}", 1.0 - ratio);
        println!("{figures}");
        assert!(ratio <= RATIO_MAX, "{figures}");
        assert!((shown - (1.0 - ratio)).abs() <= SAVED_SLACK, "{figures}");
    }
}
