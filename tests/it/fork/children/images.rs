//! A forked child that is shown an image on a later turn: the messages of the cache are lost, and no more.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{FORKED, FREE, Stage, child, extend, parent, plan, units, usage};
use crate::workload::{Letter, Line};

/// A pixel.
const IMAGE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

/// What a pair of children costs on one line, over so many turns.
#[derive(Debug)]
struct Pair {
    units: f64,
    /// What the turn with the image wrote.
    written: u64,
    /// And read.
    read: u64,
}

/// The turn on which the image comes.
const SHOWN: usize = 2;

impl Pair {
    async fn play(line: &Line<'_>, told: &[String], shows: bool) -> Pair {
        let mut bodies: Vec<Value> = told[..2].iter().map(|told| child(FREE, told)).collect();
        let mut pair = Pair { units: 0.0, written: 0, read: 0 };
        for turn in 0..4 {
            let letters: Vec<Letter> = bodies.iter().map(Letter::alone).collect();
            let answers = join_all(letters.iter().map(|letter| line.send(letter))).await;
            for (body, answer) in bodies.iter_mut().zip(&answers) {
                let bill = usage(answer);
                pair.units += units(bill);
                if turn == SHOWN {
                    pair.written += bill.cache_write();
                    pair.read += bill.cache_read;
                }
                extend(body, answer);
                if shows && turn + 1 == SHOWN {
                    let source = json!({"type": "base64", "media_type": "image/png", "data": IMAGE});
                    let last = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
                    let content = last["content"].as_array_mut().unwrap();
                    content.push(json!({"type": "image", "source": source}));
                }
            }
        }
        pair
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_on_a_later_turn_costs_the_messages_and_not_everything() {
    let script = "[[sim:fan_out n=2 tool=Agent field=prompt | tools turns=5 calls=1 tool=search]]";
    let mut ratios = Vec::new();
    for shows in [false, true] {
        let stage = Stage::new(|config| config.fork.policy.context_premium = 100.0).await;
        let told = stage.fan_out(&parent(FREE, script)).await;
        let forked = Pair::play(&stage.line(), &told, shows).await;
        assert_eq!(plan(&stage.send(&child(FREE, &told[0])).await), FORKED);
        let direct = Stage::new(|_| ()).await;
        let told =
            super::directives(&Line::direct(&direct.sim).send(&Letter::alone(&parent(FREE, script))).await);
        let direct = Pair::play(&Line::direct(&direct.sim), &told, shows).await;
        println!("image {shows}: {:.3} {forked:?} {direct:?}", forked.units / direct.units);
        ratios.push(forked);
    }
    let (without, with) = (&ratios[0], &ratios[1]);
    // Tools and system prompt of the parent, twice.
    assert!(with.read >= 2 * 9_000, "{with:?}");
    let messages = 1.25 * with.written as f64;
    assert!(with.units <= without.units + messages, "{with:?} {without:?}");
}
