//! The scripted clients are what they say they are: without this, what is said about them means nothing.

use forkpoint::sim::settings::KeyOrder;

use crate::workload::{Behaviour, Bill, Client, Line, Shape, play};

use super::{reading, simulator};

const TURNS: usize = 30;

async fn direct(shape: Shape, behaviour: Behaviour) -> Bill {
    let sim = simulator(|_| ()).await;
    let exchanges = play(&mut Client::new(shape, behaviour, 7), &Line::direct(&sim), TURNS).await;
    let bill = Bill::of(&exchanges);
    println!("{} {}: {bill:?} {:.3}", shape.as_str(), behaviour.as_str(), bill.share());
    bill
}

#[tokio::test]
async fn a_naive_client_reads_nothing_and_is_never_refused() {
    for shape in Shape::ALL {
        let bill = direct(shape, Behaviour::Naive).await;
        assert_eq!((bill.requests, bill.refused, bill.read), (TURNS, 0, 0), "{shape:?}");
    }
}

#[tokio::test]
async fn a_well_behaved_client_reads_nearly_all_it_can() {
    for shape in Shape::ALL {
        let bill = direct(shape, Behaviour::WellBehaved).await;
        assert_eq!((bill.requests, bill.refused), (TURNS, 0), "{shape:?}");
        assert!(bill.share() > 0.95, "{shape:?}: {}", bill.share());
    }
}

#[tokio::test]
async fn a_shuffling_client_reads_nothing_and_loses_its_bound_thinking() {
    for shape in Shape::ALL.into_iter().filter(|shape| *shape != Shape::Chat) {
        let bill = direct(shape, Behaviour::Shuffling).await;
        assert_eq!(bill.read, 0, "{shape:?}");
        assert_eq!(bill.refused, usize::from(shape == Shape::Media), "{shape:?}");
    }
}

#[tokio::test]
async fn shuffling_changes_bytes_and_no_meaning() {
    for behaviour in [Behaviour::Shuffling, Behaviour::Scrambling] {
        for shape in Shape::ALL {
            let (mut stable, mut odd) =
                (Client::new(shape, Behaviour::Naive, 1), Client::new(shape, behaviour, 1));
            let (stable, first, second) = (stable.letter().body, odd.letter().body, odd.letter().body);
            assert_ne!(first, second, "{shape:?}");
            assert_eq!(reading(&first), reading(&second), "{shape:?}");
            // Where it marks, a lone text is a block; else the naive client says the very same.
            if shape != Shape::Coder {
                assert_eq!(reading(&first), reading(&stable), "{shape:?}");
            }
        }
    }
}

#[tokio::test]
async fn long_turns_outgrow_the_lookback() {
    let sim = simulator(|_| ()).await;
    let mut client = Client::new(Shape::LongTurns, Behaviour::Naive, 1);
    let exchanges = play(&mut client, &Line::direct(&sim), 3).await;
    let blocks = |body: &[u8]| {
        let body = reading(body);
        let messages = body["messages"].as_array().unwrap().iter();
        messages.filter_map(|message| message["content"].as_array().map(Vec::len)).sum::<usize>()
    };
    let counts: Vec<usize> = exchanges.iter().map(|exchange| blocks(&exchange.forwarded)).collect();
    assert!(counts.windows(2).all(|pair| pair[1] >= pair[0] + 25), "{counts:?}");
}

#[tokio::test]
async fn a_scrambling_client_is_understood_where_only_values_have_an_order() {
    let sim = simulator(|rules| rules.key_order = KeyOrder::InsideValues).await;
    let mut client = Client::new(Shape::Tools, Behaviour::Scrambling, 1);
    let bill = Bill::of(&play(&mut client, &Line::direct(&sim), 6).await);
    assert_eq!((bill.requests, bill.refused, bill.read), (6, 0, 0));
}
