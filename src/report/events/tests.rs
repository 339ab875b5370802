use super::*;
use crate::engine::words::Ending;
use crate::report::Details;

fn record(fork: Option<&str>, cost: Option<f64>, sent: Option<f64>) -> ExchangeRecord {
    ExchangeRecord {
        fork: fork.map(str::to_owned),
        status: Some(200),
        cost_usd: cost,
        as_sent_usd: sent,
        aligned_usd: sent,
        uncached: Some(1),
        cache_read: Some(2),
        cache_write_5m: Some(3),
        cache_write_1h: Some(4),
        output: Some(5),
        details: Details { is_messages: true, ..Details::default() },
        ..ExchangeRecord::default()
    }
}

fn underway() -> Underway<'static> {
    Underway {
        time_ms: 1,
        role: "child",
        fork: "f".to_owned(),
        child: Some(2),
        child_turn: None,
        tool: Some("Agent"),
        model: "m".to_owned(),
        client: None,
        tenant: None,
        agent: None,
        plan: None,
        reason: None,
        gate: None,
        waited_ms: Some(0),
        sent_ms: None,
        first_byte_ms: None,
    }
}

/// The events of a batch: id, name, data.
fn read(batch: &Bytes) -> Vec<(String, String, serde_json::Value)> {
    let text = std::str::from_utf8(batch).unwrap();
    let event = |event: &str| {
        let field = |name: &str| {
            let line = event.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{event} has no {name}")).to_owned()
        };
        (field("id: "), field("event: "), serde_json::from_str(&field("data: ")).unwrap())
    };
    text.split_terminator("\n\n").map(event).collect()
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_comes_first_and_then_what_happens() {
    let events = Arc::new(Events::default());
    events.configured(Configured { mode: "align", config: 1, ..Configured::default() });
    events.feed().end(&record(None, Some(1.0), Some(3.0)));
    let mut waiting = events.feed();
    waiting.show(&underway());
    let mut reader = events.subscribe(None);
    let snapshot = read(&reader.next().await);
    let [(_, name, data)] = &snapshot[..] else { panic!("{snapshot:?}") };
    assert_eq!(name, "snapshot");
    assert_eq!((&data["mode"], data["exchanges"].as_array().unwrap().len()), (&"align".into(), 1));
    assert_eq!(data["underway"][0]["tool"], "Agent");
    assert_eq!((&data["total"]["as_sent_usd"], &data["total"]["cache_write"]), (&3.0.into(), &7.into()));
    assert_eq!(data["minutes"][0]["requests"], 1);

    waiting.end(&record(Some("f"), None, None));
    events.configured(Configured { mode: "fork", config: 2, ..Configured::default() });
    let batch = read(&reader.next().await);
    let names: Vec<_> = batch.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(names, ["exchange", "configured"]);
    assert_eq!((&batch[0].2["n"], &batch[0].2["fork"]), (&1.into(), &"f".into()));

    // Whoever comes back with an id goes on behind it.
    let (first, second) = (&batch[0].0, &batch[1].0);
    assert_eq!(read(&events.subscribe(Some(first)).next().await)[0].0, *second);
    for unknown in ["", "x", "0-1", &first.replace('-', "0-"), &format!("{first}9")] {
        assert_eq!(read(&events.subscribe(Some(unknown)).next().await)[0].1, "snapshot", "{unknown}");
    }
    let again = read(&events.subscribe(None).next().await);
    assert_eq!(again[0].2["underway"], serde_json::json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_too_slow_gets_a_snapshot_instead_of_a_queue() {
    let events = Arc::new(Events::default());
    let mut reader = events.subscribe(None);
    reader.next().await;
    let one = read(&{
        events.feed().end(&record(Some("f"), None, None));
        reader.next().await
    });
    let bytes = serde_json::to_string(&one[0].2).unwrap().len();
    for _ in 0..=2 * FAMILY_BYTES_MAX / bytes {
        events.feed().end(&record(Some("f"), Some(1.0), None));
    }
    let batch = reader.next().await;
    let [(_, name, data)] = &read(&batch)[..] else { panic!("more than one event") };
    assert_eq!(name, "snapshot");
    assert!(batch.len() < FAMILY_BYTES_MAX + OTHER_BYTES_MAX, "{}", batch.len());
    let total = &data["total"];
    assert_eq!((&total["compared"], &total["uncompared"]), (&0.into(), &total["requests"]));
    assert!(data["exchanges"].as_array().unwrap().len() < total["requests"].as_u64().unwrap() as usize);
}

#[test]
fn what_is_no_messages_call_is_not_shown() {
    let events = Arc::new(Events::default());
    events.feed().end(&ExchangeRecord::default());
    assert_eq!(events.state().number, 0);
}

#[test]
fn a_failure_is_shown_and_summed_as_one_with_its_cause() {
    let broken = ExchangeRecord {
        ending: Ending::Complete.as_str().into(),
        error: Some("overloaded_error".into()),
        ..record(Some("f"), None, None)
    };
    let left = ExchangeRecord {
        status: None,
        ending: Ending::ClientLeft.as_str().into(),
        ..record(None, None, None)
    };
    let well = ExchangeRecord { ending: Ending::Complete.as_str().into(), ..record(None, None, None) };
    let mut refused =
        ExchangeRecord { status: Some(502), ending: Ending::Refused.as_str().into(), ..well.clone() };
    refused.details.fault = Some("upstream_silent");
    let shown = |record: &ExchangeRecord| serde_json::to_value(view::Shown::of(record, None)).unwrap();
    assert_eq!(
        (&shown(&broken)["failed"], &shown(&broken)["error"]),
        (&true.into(), &"overloaded_error".into())
    );
    assert_eq!(
        (&shown(&refused)["failed"], &shown(&refused)["fault"]),
        (&true.into(), &"upstream_silent".into())
    );
    assert!(shown(&left)["failed"].is_null() && shown(&well)["failed"].is_null());
    let mut sums = Sums::default();
    [broken, left, well, refused].iter().for_each(|record| sums.add(record));
    assert_eq!((sums.requests, sums.failed), (4, 2));
}

#[test]
fn a_name_that_a_client_chose_is_cut() {
    let mut long = record(None, None, None);
    long.tool = Some("é".repeat(10_000));
    let data = json(&view::Shown::of(&long, None));
    assert!(data.contains(&format!("\"{}…\"", "é".repeat(120))), "{data}");
}
