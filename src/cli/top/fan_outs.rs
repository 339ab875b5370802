//! Fan-outs: the list with the selected one below it, and one in full.

use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::app::App;
use super::model::{Exchange, FanOut, Row};
use super::view::{NAME_CHARS_MAX, Paint, both_ends, cut, fit, hits, saving, short_model, wrapped};
use crate::engine::words::clauses::{GATE, REASONS, clause};
use crate::report::cause;
use crate::report::figures::{duration, grouped, harmless, usd};

/// What the bars of a timeline mean.
pub const LEGEND: [&str; 3] = [
    "· held          until it was sent",
    "░ waiting       for the first byte",
    "█ answering     until its end",
];

/// The least rows of the list, and of the selected fan-out below it.
const LIST_ROWS_MIN: usize = 4;
const PANEL_ROWS_MIN: usize = 6;
/// The columns from which on a request and what was done with it are one line.
const WIDE_COLUMNS: usize = 118;
/// The columns of a row's name, and of the figures behind its timeline.
const LABEL_COLUMNS: usize = 16;
const FIGURES_COLUMNS: usize = 38;

/// The list, newest first, and the selected fan-out below it.
pub fn list(app: &App, paint: Paint, now_ms: u64, width: usize, height: usize) -> Vec<Line<'static>> {
    let all = app.model.fan_outs();
    let Some(shown) = app.shown() else {
        return vec![
            Line::raw(" No fan-out was seen yet."),
            Line::raw(""),
            Line::raw(" Send requests through the proxy port; sub-agents appear here as they start."),
        ];
    };
    let panel = panel(app, shown, paint, now_ms, width);
    let has_room = height >= LIST_ROWS_MIN + PANEL_ROWS_MIN;
    let below = if has_room { panel.len().min(height - LIST_ROWS_MIN) } else { 0 };
    let room = height - below;
    let place = all.iter().position(|fan_out| fan_out.id == shown.id).unwrap_or(0);
    let first = (place + 1).saturating_sub(room);
    let rows = all.iter().enumerate().skip(first).take(room);
    let mut lines: Vec<Line<'static>> =
        rows.map(|(index, fan_out)| list_row(app, fan_out, paint, now_ms, index == place, width)).collect();
    lines.resize(room, Line::raw(""));
    lines.extend(panel.into_iter().take(below));
    lines
}

/// The tool of a fan-out, and how many it started.
fn title(fan_out: &FanOut) -> String {
    let tool = fan_out.tool().map_or_else(|| "Fan-out".to_owned(), |tool| harmless(tool, NAME_CHARS_MAX));
    format!("{tool} × {}", grouped(fan_out.size() as u64))
}

fn list_row(
    app: &App,
    fan_out: &FanOut,
    paint: Paint,
    now_ms: u64,
    is_selected: bool,
    width: usize,
) -> Line<'static> {
    let sums = fan_out.sums();
    let state = match fan_out.running() {
        0 => done(fan_out),
        running => format!("{running} running"),
    };
    let hits = hits(&sums).map(|share| format!("hits {share}")).unwrap_or_default();
    let mark = if is_selected { "▸" } else { " " };
    let left = format!(
        "{mark}{} {} {} {}",
        app.moment(fan_out.time_ms, now_ms),
        fit(&title(fan_out), width.saturating_sub(58).clamp(10, 40)),
        fit(&state, 14),
        fit(&hits, 9),
    );
    let mut right = if sums.compared == 0 && fan_out.running() > 0 {
        vec![Span::styled("running", paint.notice())]
    } else {
        saving(&sums, paint)
    };
    right.push(Span::raw(" "));
    let line = both_ends(vec![Span::raw(left)], right, width);
    if is_selected { line.style(paint.selected()) } else { line }
}

/// What was done to the children, in a word or two.
fn done(fan_out: &FanOut) -> String {
    let mut plans: Vec<&str> =
        fan_out.decided().iter().map(|exchange| plan_in_words(&exchange.record.plan)).collect();
    plans.sort_unstable();
    plans.dedup();
    match plans[..] {
        [] => "no child".to_owned(),
        [one] => harmless(one, NAME_CHARS_MAX),
        _ => "differently".to_owned(),
    }
}

fn plan_in_words(plan: &str) -> &str {
    match plan {
        "passthrough" => "left alone",
        plan => plan,
    }
}

/// The selected fan-out below the list: whose it is, what was done and why, and a timeline per child.
fn panel(app: &App, fan_out: &FanOut, paint: Paint, now_ms: u64, width: usize) -> Vec<Line<'static>> {
    let mut lines = heading(app, fan_out, paint, width);
    lines.extend(timelines(app, fan_out, paint, now_ms, width));
    lines
}

fn heading(app: &App, fan_out: &FanOut, paint: Paint, width: usize) -> Vec<Line<'static>> {
    let title = format!("─ {} ", title(fan_out));
    let whose = format!("{} ", whose(app, fan_out));
    let used = Span::raw(&title).width() + Span::raw(&whose).width();
    let mut lines = vec![Line::from(vec![
        Span::styled(cut(&title, width), paint.bold()),
        Span::styled(whose, paint.dim()),
        Span::styled("─".repeat(width.saturating_sub(used)), paint.dim()),
    ])];
    let words = wrapped(&sentence(fan_out), width.saturating_sub(2));
    lines.extend(words.into_iter().map(|text| Line::raw(format!(" {text}"))));
    lines
}

/// The model, client and tenant of a fan-out.
fn whose(app: &App, fan_out: &FanOut) -> String {
    let Some(one) = fan_out.turns().next().or_else(|| fan_out.all().next()) else { return String::new() };
    let record = &one.record;
    let mut parts = vec![short_model(&record.model)];
    parts.extend(record.client.as_deref().map(|client| harmless(client, NAME_CHARS_MAX)));
    let tenant = record.tenant.as_deref().map(|tenant| app.model.tenant(tenant));
    parts.extend(tenant.map(|tenant| harmless(tenant, NAME_CHARS_MAX)));
    parts.join(" · ")
}

/// What was done to the children and why.
fn sentence(fan_out: &FanOut) -> String {
    let decided = fan_out.decided();
    if decided.is_empty() {
        let waiting = "Its children wait: nothing is decided yet.";
        let none = "None of its children was seen.";
        return if fan_out.running() > 0 { waiting } else { none }.to_owned();
    }
    let mut groups: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for exchange in &decided {
        *groups.entry((&exchange.record.plan, &exchange.record.reason)).or_default() += 1;
    }
    let parts: Vec<String> = groups
        .iter()
        .map(|((plan, reason), number)| {
            let plan = harmless(plan_in_words(plan), NAME_CHARS_MAX);
            let why = clause(REASONS, reason).map(|why| format!(": {why}")).unwrap_or_default();
            if *number == 1 && decided.len() > 1 {
                format!("one {plan}{why}")
            } else if decided.len() == *number {
                format!("{}{plan}{why}", if *number > 1 { "all " } else { "" })
            } else {
                format!("{number} {plan}{why}")
            }
        })
        .collect();
    let reread: u64 = fan_out.turns().filter_map(|exchange| exchange.record.reread_tokens).sum();
    let reread = match reread {
        0 => String::new(),
        tokens => format!(" Its children read again {} tokens that their parent had read.", grouped(tokens)),
    };
    let left_out = match fan_out.left_out {
        0 => String::new(),
        1 => " 1 request of it is no longer kept.".to_owned(),
        number => format!(" {} requests of it are no longer kept.", grouped(number as u64)),
    };
    let text = parts.join("; ");
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.{}{reread}{left_out}", letters.as_str(), would_fork(&decided))
}

/// The number of children that would have been forked, where the mode does not let them.
fn would_fork(decided: &[&Exchange]) -> String {
    let words: Vec<&str> =
        decided.iter().filter_map(|exchange| exchange.record.would_fork.as_deref()).collect();
    let forked = words.iter().filter(|word| **word == "none").count();
    match (words.len(), forked) {
        (0, _) => String::new(),
        (all, forked) if all == forked => " In mode fork they would be forked.".to_owned(),
        (all, 0) => match words.iter().all(|word| *word == words[0]).then(|| clause(REASONS, words[0])) {
            Some(Some(why)) => format!(" In mode fork they would not be forked either: {why}."),
            _ => format!(" In mode fork none of {all} would be forked."),
        },
        (all, forked) => format!(" In mode fork {forked} of {all} would be forked."),
    }
}

/// The time that timelines show: from the first arrival to the last end, or to now.
fn span(fan_out: &FanOut, now_ms: u64) -> [u64; 2] {
    let of = |exchange: &Exchange| [exchange.record.time_ms, end_ms(exchange, now_ms)];
    let children = fan_out.all().filter(|exchange| exchange.record.fork.as_deref() == Some(&fan_out.id));
    let times: Vec<[u64; 2]> = children.map(of).collect();
    let times = if times.is_empty() { fan_out.all().map(of).collect() } else { times };
    let from = times.iter().map(|[from, _]| *from).min().unwrap_or(0);
    let to = times.iter().map(|[_, to]| *to).max().unwrap_or(0);
    [from, to.max(from + 1)]
}

/// A request that goes on ends now.
fn end_ms(exchange: &Exchange, now_ms: u64) -> u64 {
    let record = &exchange.record;
    if is_running(exchange) { now_ms.max(record.time_ms) } else { record.time_ms + record.duration_ms }
}

fn is_running(exchange: &Exchange) -> bool {
    exchange.record.ending.is_empty()
}

fn timelines(app: &App, fan_out: &FanOut, paint: Paint, now_ms: u64, width: usize) -> Vec<Line<'static>> {
    let now_ms = app.model.now_ms(now_ms);
    let time = span(fan_out, now_ms);
    let columns = width.saturating_sub(LABEL_COLUMNS + FIGURES_COLUMNS + 3).max(8);
    let children = fan_out.rows().into_iter().filter(|row| row.is_child);
    let mut lines: Vec<Line<'static>> = children
        .map(|row| {
            let leads = row.requests.first().is_some_and(|first| first.leads());
            let label = format!("{}{}", row.label, if leads { " leads" } else { "" });
            let bar: String = bar(&row, time, columns, now_ms);
            Line::from(vec![
                Span::raw(format!(" {} ", fit(&label, LABEL_COLUMNS))),
                Span::styled(bar, paint.name()),
                Span::raw(format!(" {}", cut(&figures(&row), FIGURES_COLUMNS))),
            ])
        })
        .collect();
    let took = duration(Duration::from_millis(time[1] - time[0]));
    let axis = format!("0{took:>width$}", width = columns.saturating_sub(1));
    lines.push(Line::styled(format!(" {} {axis}", fit("", LABEL_COLUMNS)), paint.dim()));
    lines
}

/// The requests of a row on the time that is shown.
fn bar(row: &Row<'_>, [from, to]: [u64; 2], columns: usize, now_ms: u64) -> String {
    let mut bar = vec![' '; columns];
    let place = |ms: u64| (ms.clamp(from, to) - from) as usize * columns / (to - from) as usize;
    for exchange in &row.requests {
        let record = &exchange.record;
        let (start, end) = (record.time_ms, end_ms(exchange, now_ms));
        let sent = record.sent_ms.map_or(end, |ms| start + ms);
        let first = record.first_byte_ms.map_or(end, |ms| start + ms);
        for (char, since, until) in [('·', start, sent), ('░', sent, first), ('█', first, end)] {
            let since = place(since).min(columns.saturating_sub(1));
            let until = place(until.min(end)).min(columns);
            // What happened takes a column, however short it was.
            let until = if char == '█' { until.max(since + 1).min(columns) } else { until };
            bar.iter_mut().take(until).skip(since).for_each(|column| *column = char);
        }
    }
    bar.into_iter().collect()
}

/// The newest bill of a row, or what it does.
fn figures(row: &Row<'_>) -> String {
    let Some(last) = row.requests.last() else { return String::new() };
    if is_running(last) {
        return doing(last).to_owned();
    }
    if last.record.is_failure() {
        return failure(last);
    }
    let Some(usage) = last.record.usage() else { return failure(last) };
    let written = usage.cache_write_5m + usage.cache_write_1h;
    let cost = last.record.cost_usd.map(|cost| format!(" {}", usd(cost))).unwrap_or_default();
    format!("read {} write {}{cost}", grouped(usage.cache_read), grouped(written))
}

/// The stage of a request that goes on.
fn doing(exchange: &Exchange) -> &'static str {
    match (exchange.record.sent_ms, exchange.record.first_byte_ms) {
        (None, _) => "is held",
        (Some(_), None) => "waiting for the first byte",
        (Some(_), Some(_)) => "answering",
    }
}

/// The cause of a failure, as the log has it, or that the client left.
fn failure(exchange: &Exchange) -> String {
    cause(&exchange.record, exchange.fault.as_deref())
}

/// One fan-out in full: every request with its times, tokens and bills.
pub fn in_full(app: &App, paint: Paint, width: usize, height: usize) -> Vec<Line<'static>> {
    let Some(fan_out) = app.shown() else { return vec![Line::raw(" This fan-out is no longer kept.")] };
    let mut lines = heading(app, fan_out, paint, width);
    let sums = fan_out.sums();
    let mut money = vec![Span::raw(" ")];
    money.extend(saving(&sums, paint));
    let is_wide = width >= WIDE_COLUMNS;
    if sums.compared > 0 {
        money.push(Span::raw(format!(
            " · children{} {} · as sent {} · aligned {}",
            if is_wide { ": billed" } else { "" },
            usd(sums.compared_usd),
            usd(sums.as_sent_usd),
            usd(sums.aligned_usd)
        )));
    }
    if is_wide {
        money.push(Span::styled(format!(" · fan-out {}", harmless(&fan_out.id, 16)), paint.dim()));
    }
    lines.push(Line::from(money));
    let table = Table { has_words: is_wide, width };
    lines.push(Line::styled(table.heads(), paint.bold()));
    let rows = fan_out.rows();
    let requests = rows.iter().flat_map(|row| row.requests.iter().map(move |one| (row, *one)));
    let room = height.saturating_sub(lines.len());
    for (row, exchange) in requests.skip(app.scrolled).take(room / table.lines()) {
        let is_failed = !is_running(exchange) && exchange.record.is_failure();
        let style = if is_failed { paint.bad() } else { Style::new() };
        table.rows(row, exchange).into_iter().for_each(|text| lines.push(Line::styled(text, style)));
    }
    lines
}

/// The table of requests. What was done follows in words: in a column, or on a line of its own where that is too narrow.
struct Table {
    has_words: bool,
    width: usize,
}

impl Table {
    const HEADS: [&'static str; 8] =
        ["held", "done", "read", "written", "billed", "as sent", "aligned", "uncached"];

    fn heads(&self) -> String {
        let mut text = format!(" {}", fit("request", 19));
        Table::HEADS.iter().take(self.figures()).for_each(|head| text += &format!("{head:>9}"));
        if self.has_words {
            text += " what was done";
        }
        text
    }

    /// The columns of figures for which there is room.
    fn figures(&self) -> usize {
        if self.has_words { 7 } else { (self.width.saturating_sub(20) / 9).min(Table::HEADS.len()) }
    }

    fn rows(&self, row: &Row<'_>, exchange: &Exchange) -> Vec<String> {
        let record = &exchange.record;
        let turn = record.child_turn.map(|turn| format!(" turn {turn}")).unwrap_or_default();
        let mut text = format!(" {}", fit(&format!("{}{turn}", row.label), 19));
        let tokens = |count: Option<u64>| count.map(grouped).unwrap_or_default();
        let dollars = |sum: Option<f64>| sum.map(usd).unwrap_or_default();
        let written = record.usage().map(|usage| usage.cache_write_5m + usage.cache_write_1h);
        let seconds = |ms: u64| format!("{:.1} s", Duration::from_millis(ms).as_secs_f64());
        let held = if record.held_ms == 0 { "0".to_owned() } else { seconds(record.held_ms) };
        let ended = if is_running(exchange) { "running".to_owned() } else { seconds(record.duration_ms) };
        let figures = [
            held,
            ended,
            tokens(record.cache_read),
            tokens(written),
            dollars(record.cost_usd),
            dollars(record.as_sent_usd),
            dollars(record.aligned_usd),
            tokens(record.uncached),
        ];
        figures.iter().take(self.figures()).for_each(|figure| text += &format!("{figure:>9}"));
        let words = what_was_done(exchange);
        if self.has_words {
            return vec![cut(&format!("{text} {words}"), self.width)];
        }
        vec![cut(&text, self.width), cut(&format!("   {words}"), self.width)]
    }

    /// The lines of each request.
    fn lines(&self) -> usize {
        if self.has_words { 1 } else { 2 }
    }
}

fn what_was_done(exchange: &Exchange) -> String {
    let record = &exchange.record;
    if is_running(exchange) && record.plan.is_empty() {
        return doing(exchange).to_owned();
    }
    let plan = harmless(plan_in_words(&record.plan), NAME_CHARS_MAX);
    let why = if exchange.fault.is_some() { None } else { clause(REASONS, &record.reason) };
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    // A later turn of a child has no siblings that wait.
    let has_siblings = record.child_turn.is_none_or(|turn| turn == 1);
    let gate = if has_siblings { record.gate.as_deref() } else { None };
    let gate = gate.and_then(|gate| clause(GATE, gate));
    let ended = (!is_running(exchange)).then(|| failure(exchange)).filter(|text| !text.is_empty());
    let others: Vec<String> = ended.into_iter().chain(gate.map(str::to_owned)).collect();
    let others: String = others.iter().map(|text| format!("; {text}")).collect();
    format!("{plan}{why}{others}")
}
