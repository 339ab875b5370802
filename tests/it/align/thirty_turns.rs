//! Thirty turns of each client, aligned, beside the same bytes sent directly.

use forkpoint::sim::SimRules;
use forkpoint::sim::settings::{KeyOrder, Mismatch};

use crate::workload::{Behaviour, Bill, Client, Exchange, Line, Row, Shape, play, resend, table};

use super::{Stage, as_forwarded, as_sent, markers_added, reading, simulator};

const TURNS: usize = 30;
/// Of what a perfect client would read.
const SHARE_MIN: f64 = 0.95;

/// One client on three lines: aligned, the bytes it sent directly, and the bytes that arrived directly.
struct Run {
    name: String,
    aligned: Vec<Exchange>,
    direct: Vec<Exchange>,
    mirror: Vec<Exchange>,
}

impl Run {
    async fn of(mut client: Client, name: String, rules: impl Fn(&mut SimRules)) -> Run {
        let stage = Stage::aligned_under(&rules).await;
        let aligned = play(&mut client, &stage.line(), TURNS).await;
        let (direct, mirror) = (simulator(&rules).await, simulator(&rules).await);
        let direct = resend(as_sent(&aligned), &Line::direct(&direct)).await;
        let mirror = resend(as_forwarded(&aligned), &Line::direct(&mirror)).await;
        Run { name, aligned, direct, mirror }
    }

    fn row(&self) -> Row {
        Row { name: self.name.clone(), direct: Bill::of(&self.direct), aligned: Bill::of(&self.aligned) }
    }

    /// Checks everything that holds for every client, whatever it sends.
    fn check_laws(&self) {
        let pairs = self.aligned.iter().zip(&self.direct).zip(&self.mirror);
        for (turn, ((aligned, direct), mirror)) in pairs.enumerate() {
            let at = format!("{}, turn {}", self.name, turn + 1);
            if direct.status == 200 {
                let answer = String::from_utf8_lossy(&aligned.answer);
                assert_eq!(aligned.status, 200, "{at}: refused what is accepted directly: {answer}");
            }
            assert_eq!(reading(&aligned.sent.body), reading(&aligned.forwarded), "{at}: another meaning");
            // A refusal carries the number of its request, which a fallback moves on.
            let same = aligned.answer == mirror.answer || (aligned.status != 200 && mirror.status != 200);
            assert!(same, "{at}: the answer was altered");
        }
    }

    fn check_complete(&self) {
        let refused = self.aligned.iter().find(|exchange| exchange.status != 200);
        let answer = refused.map(|exchange| String::from_utf8_lossy(&exchange.answer));
        assert_eq!(answer, None, "{}: refused", self.name);
        assert_eq!(self.aligned.len(), TURNS, "{}", self.name);
    }

    fn check_cost(&self) {
        let Row { direct, aligned, .. } = self.row();
        assert_eq!(direct.refused, 0, "{}: nothing to compare with", self.name);
        assert!(aligned.units <= direct.units, "{}: dearer, {aligned:?} {direct:?}", self.name);
    }

    fn check_share(&self) {
        let aligned = Bill::of(&self.aligned);
        assert!(aligned.share() >= SHARE_MIN, "{}: read {:.3} of {aligned:?}", self.name, aligned.share());
    }

    fn check_stable(&self) {
        for (turn, exchange) in self.aligned.iter().enumerate() {
            let added = markers_added(&exchange.sent.body, &exchange.forwarded);
            assert!(added.is_some(), "{}, turn {}: more than markers changed", self.name, turn + 1);
        }
    }

    fn check_headers(&self) {
        for (turn, exchange) in self.aligned.iter().enumerate() {
            let at = format!("{}, turn {}", self.name, turn + 1);
            assert_eq!(exchange.said("role"), Some("plain"), "{at}");
            let prefix = exchange.said("prefix").unwrap_or_default();
            let hex = prefix.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(prefix.len() == 16 && hex, "{at}: prefix {prefix:?}");
            if !exchange.is_untouched() {
                assert_eq!(exchange.said("plan"), Some("aligned"), "{at}: {:?}", exchange.said("reason"));
            }
        }
    }
}

async fn thirty_turns(shape: Shape) {
    let mut rows = Vec::new();
    for behaviour in Behaviour::ALL {
        let name = format!("{}, {}", shape.as_str(), behaviour.as_str());
        let run = Run::of(Client::new(shape, behaviour, 7), name, |_| ()).await;
        run.check_laws();
        run.check_complete();
        run.check_headers();
        run.check_share();
        // A shuffled prompt loses its bound thinking, so directly there is no conversation to compare with.
        if (shape, behaviour) != (Shape::Media, Behaviour::Shuffling) {
            run.check_cost();
        }
        if behaviour != Behaviour::Shuffling {
            run.check_stable();
        }
        rows.push(run.row());
    }
    println!("{}", table(&rows));
}

#[tokio::test]
async fn plain_chat() {
    thirty_turns(Shape::Chat).await;
}

#[tokio::test]
async fn tool_loops() {
    thirty_turns(Shape::Tools).await;
}

#[tokio::test]
async fn a_coding_agent() {
    thirty_turns(Shape::Coder).await;
}

#[tokio::test]
async fn an_agent_framework() {
    thirty_turns(Shape::Framework).await;
}

#[tokio::test]
async fn long_tool_turns() {
    thirty_turns(Shape::LongTurns).await;
}

#[tokio::test]
async fn media_and_bound_thinking() {
    thirty_turns(Shape::Media).await;
}

#[tokio::test]
async fn bound_thinking_that_shuffling_loses_directly_is_kept() {
    let client = || Client::new(Shape::Media, Behaviour::Shuffling, 7);
    let run = Run::of(client(), "refused directly".to_owned(), |_| ()).await;
    run.check_complete();
    assert!(run.direct.iter().skip(1).all(|exchange| exchange.status == 400), "the shuffling did no harm");
    // An older account loses the thinking in silence, and pays for the rest.
    let older = |rules: &mut SimRules| rules.mismatch = Mismatch::DropSilently;
    let run = Run::of(client(), "dropped directly".to_owned(), older).await;
    run.check_laws();
    run.check_share();
    run.check_cost();
}

#[tokio::test]
async fn blocks_that_are_spelt_anew() {
    let mut rows = Vec::new();
    for shape in Shape::ALL {
        let client = Client::new(shape, Behaviour::Scrambling, 11);
        let rules = |rules: &mut SimRules| rules.key_order = KeyOrder::InsideValues;
        let run = Run::of(client, format!("{}, scrambling", shape.as_str()), rules).await;
        run.check_laws();
        run.check_complete();
        let row = run.row();
        // Nothing says whether the upstream reads escapes as we do, so there is no entry to build a bridge to.
        if shape != Shape::LongTurns {
            run.check_share();
            assert!(row.direct.refused > 0 || row.aligned.units <= row.direct.units, "{row:?}");
        }
        rows.push(row);
    }
    println!("{}", table(&rows));
}

/// On this model a string and a lone block are two prefixes, so a message that turns into a string is lost with
/// all that follows; nothing may be turned back.
#[tokio::test]
async fn a_coding_agent_whose_messages_change_their_form() {
    for behaviour in Behaviour::ALL {
        let client = Client::new(Shape::Coder, behaviour, 7).on("claude-opus-5-5");
        let name = format!("coding agent, {}, forms count", behaviour.as_str());
        let run = Run::of(client, name, |_| ()).await;
        run.check_laws();
        run.check_complete();
        if behaviour != Behaviour::Shuffling {
            run.check_cost();
            run.check_stable();
        }
        println!("{}", table(&[run.row()]));
    }
}
