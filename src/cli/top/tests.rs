//! The screen for a series of events, as goldens in `tests/golden/terminal`, and what keys do.
#![cfg(feature = "top")]

use jiff::tz::TimeZone;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};
use serde_json::{Value, json};

use super::super::golden::assert_golden;
use super::app::{App, Page};
use super::stream::News;
use super::view;

const URL: &str = "http://127.0.0.1:8788";
/// 2026-11-18 17:07:00 UTC.
const START: u64 = 1_795_021_620_000;

fn app() -> App {
    App::new(URL.to_owned(), false, TimeZone::UTC)
}

fn say(app: &mut App, event: &str, data: Value, now_ms: u64) {
    app.take(News::Event { event: event.to_owned(), data: data.to_string() }, now_ms);
}

fn snapshot(started_ms: u64, exchanges: Value) -> Value {
    json!({
        "version": "0.1.0", "mode": "fork", "config": 1, "tenants": {"81f9b6d4": "checkout"},
        "started_ms": started_ms, "now_ms": START, "total": sums(), "minutes": [],
        "underway": [], "exchanges": exchanges,
    })
}

fn sums() -> Value {
    json!({
        "requests": 0, "failed": 0, "uncached": 0, "cache_read": 0, "cache_write": 0, "output": 0, "billed_usd": 0.0,
        "compared": 0, "compared_usd": 0.0, "as_sent_usd": 0.0, "aligned_usd": 0.0, "uncompared": 0,
    })
}

fn exchange(id: u64, time_ms: u64, more: Value) -> Value {
    let mut exchange = json!({
        "id": id, "time_ms": time_ms, "role": "plain", "plan": "aligned", "reason": "not_a_child", "status": 200,
        "ending": "complete", "model": "claude-opus-5-5", "client": "claude-cli/2.1", "tenant": "81f9b6d4",
        "held_ms": 0, "sent_ms": 1, "first_byte_ms": 300, "duration_ms": 900, "shared_bytes": 0,
        "uncached": 12, "cache_read": 0, "cache_write_5m": 48_000, "cache_write_1h": 0, "output": 310,
        "cost_usd": 0.24, "as_sent_usd": 0.24, "aligned_usd": 0.24,
    });
    let fields = more.as_object().unwrap().clone();
    exchange.as_object_mut().unwrap().extend(fields);
    exchange
}

fn child(id: u64, number: u64, time_ms: u64, more: Value) -> Value {
    let mut fields = json!({
        "n": number, "role": "child", "plan": "forked", "reason": "none", "fork": "f00dcafe", "child": number,
        "child_turn": 1, "tool": "Agent", "cache_read": 48_000, "cache_write_5m": 901, "cost_usd": 0.0142,
        "as_sent_usd": 0.0792, "aligned_usd": 0.0402, "gate": if number == 1 { "led" } else { "released" },
    });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    exchange(id, time_ms, fields)
}

fn underway(number: u64, time_ms: u64, more: Value) -> Value {
    let mut request = json!({
        "n": number, "time_ms": time_ms, "role": "child", "fork": "f00dcafe", "child": number, "tool": "Agent",
        "model": "claude-opus-5-5", "client": "claude-cli/2.1", "tenant": "81f9b6d4",
    });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// A parent with three children, the last of which still runs, and a cache break.
fn story() -> App {
    let mut app = app();
    say(&mut app, "snapshot", snapshot(START - 200_000, json!([])), START);
    let earlier = exchange(
        1,
        START - 60_000,
        json!({
            "fanned_out": "0ddba115", "fanned_out_children": 2,
            "break": {"cause": "system", "layer": "system", "at": "system[1]", "offset": 812, "tokens": 48_120, "cost_usd": 0.2},
        }),
    );
    say(&mut app, "exchange", earlier, START);
    for number in 1..=2 {
        let aligned = json!({
            "n": 40 + number, "fork": "0ddba115", "plan": "aligned", "reason": "unlearned", "tool": "Explore",
            "cost_usd": 0.05, "as_sent_usd": 0.04, "reread_tokens": 9_200,
        });
        say(&mut app, "exchange", child(1 + number, number, START - 50_000, aligned), START);
    }
    let parent = json!({"fanned_out": "f00dcafe", "fanned_out_children": 3});
    say(&mut app, "exchange", exchange(4, START, parent), START);
    say(&mut app, "underway", underway(1, START + 900, json!({})), START);
    say(
        &mut app,
        "underway",
        underway(1, START + 900, json!({"plan": "forked", "reason": "none", "gate": "led", "sent_ms": 1})),
        START,
    );
    say(&mut app, "underway", underway(2, START + 950, json!({"waited_ms": 1})), START);
    say(&mut app, "exchange", child(5, 1, START + 900, json!({"duration_ms": 2_400})), START);
    let held = json!({"held_ms": 420, "sent_ms": 421, "first_byte_ms": 800, "duration_ms": 2_900});
    say(&mut app, "exchange", child(6, 2, START + 950, held), START);
    let sent = json!({"plan": "forked", "reason": "none", "sent_ms": 500, "first_byte_ms": 1_300});
    say(&mut app, "underway", underway(3, START + 960, sent), START);
    app
}

fn screen(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, app, START + 4_500)).unwrap();
    terminal.backend().to_string()
}

fn press(app: &mut App, keys: &[KeyCode]) {
    keys.iter().for_each(|key| app.press(KeyEvent::new(*key, KeyModifiers::NONE)));
}

#[test]
fn every_page_fits_a_small_terminal_and_a_large_one() {
    for (width, height) in [(80, 24), (120, 40)] {
        let mut app = story();
        let shows = |page: &str, app: &App| {
            assert_golden(&format!("top-{page}-{width}x{height}.txt"), &screen(app, width, height));
        };
        shows("list", &app);
        press(&mut app, &[KeyCode::Enter]);
        shows("fan-out", &app);
        press(&mut app, &[KeyCode::Tab]);
        shows("breaks", &app);
        press(&mut app, &[KeyCode::Char('?')]);
        shows("help", &app);
    }
}

#[test]
fn nothing_is_drawn_outside_of_any_terminal() {
    let mut app = story();
    for keys in [&[][..], &[KeyCode::Enter], &[KeyCode::Tab], &[KeyCode::Char('?')]] {
        press(&mut app, keys);
        for width in [1, 7, 20, 79, 300] {
            for height in [1, 3, 5, 12, 100] {
                screen(&app, width, height);
            }
        }
    }
}

#[test]
fn sums_are_those_of_the_exchanges_that_were_told() {
    let app = story();
    let total = app.model.history.total;
    assert_eq!((total.requests, total.compared), (6, 6));
    assert!((total.billed_usd - (0.24 * 2.0 + 0.05 * 2.0 + 0.0142 * 2.0)).abs() < 1e-9, "{total:?}");
    let shown = app.shown().unwrap();
    assert_eq!((shown.running(), shown.size()), (1, 3));
    assert!((shown.sums().as_sent_usd - 2.0 * 0.0792).abs() < 1e-9);
}

#[test]
fn bills_are_of_the_requests_whose_other_bills_are_known() {
    let mut app = story();
    let unknown = json!({"cost_usd": 5.0, "as_sent_usd": null, "aligned_usd": null});
    say(&mut app, "exchange", exchange(9, START, unknown), START);
    let screen = screen(&app, 120, 24);
    assert!(screen.contains("billed $0.6084 · as sent $0.7184 · aligned $0.6408"), "{screen}");
    assert!(screen.contains("1 not compared ($5.0000 billed)"), "{screen}");
}

#[test]
fn the_selection_stays_on_its_fan_out_when_others_come() {
    let mut app = story();
    assert_eq!(app.shown().unwrap().id, "f00dcafe", "the newest");
    press(&mut app, &[KeyCode::Down]);
    assert_eq!(app.shown().unwrap().id, "0ddba115");
    let newer = json!({"fanned_out": "abad1dea", "fanned_out_children": 2});
    say(&mut app, "exchange", exchange(9, START + 60_000, newer), START);
    assert_eq!(app.shown().unwrap().id, "0ddba115");
    press(&mut app, &[KeyCode::End, KeyCode::Home]);
    assert_eq!(app.shown().unwrap().id, "abad1dea");
    press(&mut app, &[KeyCode::Enter]);
    assert_eq!(app.page, Page::FanOut);
    press(&mut app, &[KeyCode::Esc, KeyCode::Char('q')]);
    assert!(app.page == Page::FanOuts && app.has_quit());
}

#[test]
fn control_c_quits_from_everywhere_and_other_keys_with_control_do_nothing() {
    let mut app = story();
    press(&mut app, &[KeyCode::Char('?')]);
    app.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::CONTROL));
    assert!(!app.has_quit());
    app.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(app.has_quit());
}

#[test]
fn a_lost_connection_and_a_restart_are_said() {
    let mut app = story();
    app.take(News::Lost("connection refused".to_owned()), START);
    let lost = screen(&app, 80, 24);
    assert!(lost.contains("connection lost, trying again"), "{lost}");
    assert!(lost.contains("trying again: connection refused") && lost.contains("Agent × 3"), "{lost}");
    app.take(News::Live, START);
    say(&mut app, "snapshot", snapshot(START + 1_000, json!([])), START);
    let back = screen(&app, 80, 24);
    assert!(back.contains("the proxy was started anew at 17:07:01; figures begin there"), "{back}");
    assert!(back.contains("No fan-out was seen yet.") && back.contains(" live "), "{back}");
    // A snapshot of the same process is none.
    press(&mut app, &[KeyCode::Up]);
    say(&mut app, "snapshot", snapshot(START + 1_000, json!([])), START);
    assert!(!screen(&app, 80, 24).contains("anew"));
}

#[test]
fn an_event_that_cannot_be_read_is_said_and_a_new_one_is_left_out() {
    let mut app = story();
    say(&mut app, "of a later version", json!(["?"]), START);
    assert!(app.notice.is_none());
    say(&mut app, "exchange", json!({"id": "no number"}), START);
    assert!(screen(&app, 80, 24).contains("an event cannot be read"), "{}", screen(&app, 80, 24));
}

#[test]
fn what_is_of_another_day_has_its_day() {
    let mut app = story();
    let days = 3 * 24 * 3_600_000;
    let older = json!({"fanned_out": "01de5700", "fanned_out_children": 2});
    say(&mut app, "exchange", exchange(90, START - days, older), START);
    let text = screen(&app, 80, 24);
    assert!(text.contains(" 15 Nov   Fan-out × 2") && text.contains("▸17:07:00 Agent × 3"), "{text}");
}

#[test]
fn hostile_names_are_visible_and_move_nothing() {
    let mut app = app();
    let hostile = format!("\u{1b}[2J\u{202e}<b>\u{301}{}", "漢".repeat(200));
    let parent = exchange(
        1,
        START,
        json!({"fanned_out": "f00dcafe", "fanned_out_children": 2, "client": hostile, "model": hostile}),
    );
    let one = child(
        2,
        1,
        START,
        json!({"tool": hostile, "plan": hostile, "model": hostile, "client": hostile, "tenant": hostile,
               "break": {"cause": hostile, "layer": "tools", "at": hostile, "tokens": 1}}),
    );
    let mut said = snapshot(START, json!([parent, one]));
    said["mode"] = json!(hostile);
    said["version"] = json!(hostile);
    say(&mut app, "snapshot", said, START);
    for keys in [&[][..], &[KeyCode::Enter], &[KeyCode::Tab]] {
        press(&mut app, keys);
        for (width, height) in [(80, 24), (120, 40)] {
            let text = screen(&app, width, height);
            let is_foreign =
                |char: char| (char.is_control() && char != '\n') || "\u{202e}\u{301}".contains(char);
            assert!(!text.contains(is_foreign), "{text:?}");
            assert_eq!(text.lines().count(), usize::from(height));
        }
    }
}

/// The screen with its colours, as a terminal is sent them.
fn coloured(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, app, START + 4_500)).unwrap();
    let cells = terminal.backend().buffer().content();
    let mut out = String::new();
    for row in cells.chunks(usize::from(width)) {
        let mut before = String::new();
        for cell in row {
            let colour = match cell.fg {
                Color::Reset => "",
                Color::Red => "31",
                Color::Green => "32",
                Color::Yellow => "33",
                Color::Cyan => "36",
                other => panic!("{other} has no code here"),
            };
            let modifiers = [(Modifier::BOLD, "1"), (Modifier::DIM, "2"), (Modifier::REVERSED, "7")];
            let set = modifiers.iter().filter(|(modifier, _)| cell.modifier.contains(*modifier));
            let codes: Vec<&str> = set.map(|(_, code)| *code).chain(Some(colour)).collect();
            let codes = codes.into_iter().filter(|code| !code.is_empty()).collect::<Vec<_>>().join(";");
            if codes != before {
                out += &format!(
                    "\u{1b}[0m{}",
                    if codes.is_empty() { String::new() } else { format!("\u{1b}[{codes}m") }
                );
                before = codes;
            }
            out += cell.symbol();
        }
        out += "\u{1b}[0m\n";
    }
    out
}

#[test]
fn every_page_has_its_colours() {
    for (width, height) in [(80, 24), (120, 40)] {
        let mut app = story();
        app.has_colours = true;
        let help = &[KeyCode::Char('?')];
        let pages =
            [("list", &[][..]), ("fan-out", &[KeyCode::Enter]), ("breaks", &[KeyCode::Tab]), ("help", help)];
        for (page, keys) in pages {
            press(&mut app, keys);
            assert_golden(&format!("top-{page}-{width}x{height}-colour.txt"), &coloured(&app, width, height));
        }
    }
}

#[test]
fn colours_are_left_out_where_nobody_wants_them() {
    let colours = |has_colours: bool| {
        let mut app = story();
        app.has_colours = has_colours;
        let mut terminal = Terminal::new(TestBackend::new(120, 40)).unwrap();
        terminal.draw(|frame| view::draw(frame, &app, START + 4_500)).unwrap();
        let cells = terminal.backend().buffer().content().to_vec();
        let coloured = cells.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count();
        (coloured, terminal.backend().to_string())
    };
    let ((some, with), (none, without)) = (colours(true), colours(false));
    assert!(some > 100 && none == 0, "{some} {none}");
    assert_eq!(with, without);
}

#[test]
fn a_leader_is_marked_while_it_runs_and_a_later_turn_is_none() {
    let mut app = app();
    say(&mut app, "snapshot", snapshot(START, json!([])), START);
    let sent = json!({"plan": "aligned", "reason": "align", "sent_ms": 1, "gate": "led"});
    say(&mut app, "underway", underway(1, START, sent), START);
    say(&mut app, "underway", underway(2, START, json!({"waited_ms": 1})), START);
    let marked = |app: &App| {
        let text = screen(app, 80, 24);
        text.lines()
            .filter(|line| line.contains(" leads "))
            .map(|line| line[2..11].to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(marked(&app), ["child 1/2"]);
    say(&mut app, "exchange", child(1, 1, START, json!({})), START);
    say(&mut app, "exchange", child(2, 2, START, json!({})), START);
    let again = json!({"n": 9, "child_turn": 2, "gate": "led"});
    say(&mut app, "exchange", child(3, 2, START + 3_000, again), START);
    assert_eq!(marked(&app), ["child 1/2"]);
}

#[test]
fn a_failure_says_its_cause_and_what_mode_fork_would_do_is_said() {
    let mut app = app();
    let failed = json!({"status": 200, "error": "overloaded_error", "failed": true, "would_fork": "none",
                        "plan": "passthrough", "reason": "observe"});
    let silent = json!({"status": 502, "ending": "refused", "fault": "upstream_silent", "reason": "upstream_silent",
                        "plan": "passthrough", "would_fork": "model", "uncached": null, "cost_usd": null});
    say(
        &mut app,
        "snapshot",
        snapshot(START, json!([child(1, 1, START, failed), child(2, 2, START, silent)])),
        START,
    );
    let list = screen(&app, 80, 24);
    for words in ["overloaded_error", "the upstream stayed silent", "In mode fork 1 of 2 would be forked."] {
        assert!(list.contains(words), "{words}: {list}");
    }
    press(&mut app, &[KeyCode::Enter]);
    let full = screen(&app, 80, 24);
    assert!(full.contains("left alone: the mode is observe; overloaded_error; leads"), "{full}");
    assert!(full.contains("left alone; the upstream stayed silent; waited"), "{full}");
}

#[test]
fn what_is_kept_is_bounded() {
    let mut app = app();
    say(&mut app, "snapshot", snapshot(START, json!([])), START);
    for number in 0..1_200 {
        let more = json!({
            "fanned_out": format!("{number:08x}"), "fanned_out_children": 2,
            "break": {"cause": "tools", "layer": "tools", "tokens": 1},
        });
        say(&mut app, "exchange", exchange(number, START + number, more), START);
    }
    assert_eq!((app.model.fan_outs().len(), app.model.breaks.len()), (1_000, 500));
    assert!(app.model.find("00000000").is_none() && app.model.find("000004af").is_some());

    let many = |app: &mut App, fork: String, time_ms: u64, turns: u64| {
        for turn in 1..=turns {
            let more = json!({"fork": fork, "child_turn": turn});
            say(app, "exchange", child(turn, 1 + turn % 250, time_ms + turn, more), START);
        }
    };
    many(&mut app, "f00dcafe".to_owned(), START + 10_000, 250);
    assert_eq!(app.model.find("f00dcafe").unwrap().turns().count(), 200);
    assert!(screen(&app, 80, 24).contains("50 requests of it are no longer kept."));
    for number in 0..101 {
        many(&mut app, format!("a{number:07x}"), START + 20_000, 200);
    }
    let kept: usize = app.model.fan_outs().iter().map(|fan_out| fan_out.turns().count()).sum();
    assert!(kept <= 20_000 && app.model.find("f00dcafe").is_none(), "{kept}");
}
