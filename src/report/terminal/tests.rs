use super::super::Details;
use super::*;
use crate::engine::words::{BreakCause, Reason, Refusal, Skip};

fn answered() -> ExchangeRecord {
    ExchangeRecord {
        endpoint: "messages".into(),
        role: "plain".into(),
        plan: "aligned".into(),
        reason: "not_a_child".into(),
        status: Some(200),
        ending: "complete".into(),
        model: "claude-opus-5-5".into(),
        uncached: Some(12),
        cache_read: Some(9_167),
        cache_write_5m: Some(901),
        cache_write_1h: Some(0),
        output: Some(310),
        cost_usd: Some(0.0066),
        as_sent_usd: Some(0.0372),
        duration_ms: 640,
        details: Details { is_messages: true, ..Details::default() },
        ..ExchangeRecord::default()
    }
}

fn child(turn: u64) -> ExchangeRecord {
    let details =
        Details { is_messages: true, child_number: Some(2), children: Some(3), ..Details::default() };
    ExchangeRecord { role: "child".into(), child_turn: Some(turn), details, ..answered() }
}

fn unanswered(status: Option<u16>, ending: &str, fault: Option<&'static str>) -> ExchangeRecord {
    let details = Details { is_messages: true, fault, ..Details::default() };
    ExchangeRecord {
        status,
        ending: ending.into(),
        reason: fault.unwrap_or("not_a_child").into(),
        uncached: None,
        cost_usd: None,
        as_sent_usd: None,
        details,
        ..answered()
    }
}

/// One exchange of each kind, and one for every reason why something was left alone.
fn exchanges() -> Vec<ExchangeRecord> {
    let text = |text: &str| Some(text.to_owned());
    let mut all = vec![
        answered(),
        ExchangeRecord { fanned_out_children: Some(3), ..answered() },
        ExchangeRecord { plan: "forked".into(), reason: "none".into(), ..child(1) },
        ExchangeRecord { plan: "forked".into(), reason: "none".into(), held_ms: 412, ..child(12) },
        ExchangeRecord { role: "parent".into(), as_sent_usd: Some(0.0021), ..answered() },
        ExchangeRecord { cost_usd: None, as_sent_usd: None, ..answered() },
        ExchangeRecord {
            cache_read: Some(0),
            cache_write_5m: Some(0),
            model: "a-model-whose-name-is-longer-than-anybody-would-read".into(),
            ..answered()
        },
        ExchangeRecord { ending: "client_left".into(), ..answered() },
        unanswered(None, "client_left", None),
        ExchangeRecord { error: text("overloaded_error"), ..unanswered(Some(529), "complete", None) },
        ExchangeRecord { error: text("overloaded_error"), ..unanswered(Some(200), "complete", None) },
        unanswered(Some(500), "complete", None),
        unanswered(Some(200), "upstream_broke", None),
        unanswered(Some(502), "refused", Some("upstream_unreachable")),
        ExchangeRecord {
            endpoint: "models".into(),
            plan: "passthrough".into(),
            reason: "endpoint".into(),
            model: "none".into(),
            details: Details::default(),
            ..unanswered(Some(200), "complete", None)
        },
    ];
    let broke = |cause: BreakCause| ExchangeRecord {
        break_cause: text(cause.as_str()),
        break_tokens: Some(48_120),
        ..answered()
    };
    let left_alone = |reason: Reason| ExchangeRecord {
        plan: "passthrough".into(),
        reason: reason.as_str().into(),
        ..answered()
    };
    all.extend(BreakCause::ALL.map(broke));
    all.extend(Reason::ALL.map(left_alone));
    all.extend(Skip::ALL.map(|skip| ExchangeRecord { reason: skip.as_str().into(), ..answered() }));
    all.extend(Refusal::ALL.map(|refusal| ExchangeRecord { reason: refusal.as_str().into(), ..child(1) }));
    all
}

fn lines(columns: usize, is_coloured: bool) -> String {
    let line = |record: &ExchangeRecord| {
        let line = TerminalLine(record);
        let line = if is_coloured { format!("{line:#columns$}") } else { format!("{line:columns$}") };
        format!("17:07:20 {line}\n")
    };
    exchanges().iter().map(line).collect()
}

/// Compares with a file in `tests/golden`, or writes it with `UPDATE=1`.
fn assert_golden(name: &str, actual: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/terminal").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} differs; run again with UPDATE=1 and look at the change:\n{actual}");
}

#[test]
fn lines_fit_a_terminal_of_80_columns() {
    assert_golden("log-80.txt", &lines(80, false));
    assert!(lines(80, false).lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn lines_are_never_longer_than_120_columns() {
    assert_golden("log-120.txt", &lines(120, false));
    assert_eq!(lines(300, false), lines(120, false));
    assert!(lines(300, false).lines().all(|line| line.chars().count() <= 120));
}

#[test]
fn every_line_says_why_a_request_was_left_alone_or_a_child_not_forked() {
    let refused = Refusal::ALL.map(|refusal| ExchangeRecord { reason: refusal.as_str().into(), ..child(1) });
    let left_alone = Reason::ALL.map(|reason| ExchangeRecord {
        plan: "passthrough".into(),
        reason: reason.as_str().into(),
        ..answered()
    });
    for record in refused.iter().chain(&left_alone) {
        let why = clause(REASONS, &record.reason).unwrap();
        let wide = format!("{:120}", TerminalLine(record));
        assert!(wide.ends_with(&format!(" · {why}")), "{}: {wide}", record.reason);
        let narrow = format!("{:80}", TerminalLine(record));
        assert!(narrow.ends_with(&format!(" · {why}")), "{}: {narrow}", record.reason);
    }
}

#[test]
fn no_clause_is_cut_on_a_terminal_of_80_columns() {
    let long_names = lines(80, false).replace("a-model-whose-name-is-l…", "");
    let cut: Vec<_> = long_names.lines().filter(|line| line.contains('…')).collect();
    assert!(cut.is_empty(), "{cut:#?}");
}

#[test]
fn colours_change_no_other_character() {
    for columns in [80, 120] {
        let coloured = lines(columns, true);
        assert_golden(&format!("log-{columns}-colour.txt"), &coloured);
        let mut plain = String::new();
        for part in coloured.split('\u{1b}') {
            plain += part.strip_prefix('[').map_or(part, |code| code.split_once('m').unwrap().1);
        }
        assert_eq!(plain, lines(columns, false));
    }
}

#[test]
fn a_narrow_terminal_still_shows_whose_request_it_is() {
    for columns in [0, 10, 30] {
        let text = lines(columns, false);
        assert!(text.lines().all(|line| line.chars().count() <= columns.max(TIME_COLUMNS) + 1), "{text}");
    }
}

#[test]
fn failures_are_those_that_somebody_should_look_at() {
    assert!(!answered().is_failure());
    assert!(!unanswered(None, "client_left", None).is_failure(), "nobody waits for it any more");
    assert!(unanswered(None, "upstream_broke", None).is_failure());
    assert!(unanswered(Some(200), "upstream_broke", None).is_failure());
    assert!(unanswered(Some(404), "complete", None).is_failure());
    assert!((ExchangeRecord { error: Some("api_error".into()), ..answered() }).is_failure());
}
