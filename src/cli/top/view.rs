//! Draws the screen: the money line above, a page, and what keys do below.
//!
//! ```text
//!  forkpoint 0.1.0 · mode fork · up 3 min                       live · 127.0.0.1:8788
//!  saved 82 % $0.8471 since start · 79 % $0.4310 in the last 10 min
//!  billed $0.1906 · as sent $1.0377 · aligned $0.2165 · hits 93 % · 17 requests
//! ─ Fan-outs 3 ─ Cache breaks 0 ──────────────────────────────────────────────────────
//! ```

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::app::{App, KEYS, Page};
use super::fan_outs;
use super::model::{CacheBreak, Exchange};
use crate::engine::words::clauses::{CAUSES, clause};
use crate::report::events::Sums;
use crate::report::figures::{duration, grouped, harmless, percent, usd};

/// The minutes of the second part of the money line.
const RECENT_MINUTES: u64 = 10;
/// The most characters of a name that somebody else chose.
pub const NAME_CHARS_MAX: usize = 40;
/// The rows above the page, and below it.
const HEAD_ROWS: u16 = 4;
const FOOT_ROWS: u16 = 1;

/// Styles; without colours only bold, dim and reversed are left.
#[derive(Clone, Copy)]
pub struct Paint {
    has_colours: bool,
}

impl Paint {
    fn colour(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub fn good(self) -> Style {
        self.colour(Color::Green)
    }

    pub fn bad(self) -> Style {
        self.colour(Color::Red)
    }

    pub fn notice(self) -> Style {
        self.colour(Color::Yellow)
    }

    pub fn name(self) -> Style {
        self.colour(Color::Cyan)
    }

    pub fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// Draws everything as it is at this time.
pub fn draw(frame: &mut Frame<'_>, app: &App, now_ms: u64) {
    let paint = Paint { has_colours: app.has_colours };
    let area = frame.area();
    let width = usize::from(area.width);
    let rows = |y: u16, height: u16| {
        let y = area.y + y.min(area.height);
        Rect { y, height: height.min(area.bottom().saturating_sub(y)), ..area }
    };
    frame.render_widget(Paragraph::new(head(app, paint, now_ms, width)), rows(0, HEAD_ROWS));
    let body = rows(HEAD_ROWS, area.height.saturating_sub(HEAD_ROWS + FOOT_ROWS));
    let height = usize::from(body.height);
    let lines = match app.page {
        _ if !app.model.has_data => vec![Line::raw(" Waiting for the first snapshot.")],
        Page::FanOuts => fan_outs::list(app, paint, now_ms, width, height),
        Page::FanOut => fan_outs::in_full(app, paint, width, height),
        Page::Breaks => breaks(app, paint, now_ms, width, height),
    };
    frame.render_widget(Paragraph::new(lines), body);
    let foot = rows(area.height.saturating_sub(FOOT_ROWS), FOOT_ROWS);
    frame.render_widget(Paragraph::new(footer(app, paint)), foot);
    if app.shows_help {
        help(frame, area);
    }
}

fn head(app: &App, paint: Paint, now_ms: u64, width: usize) -> Vec<Line<'static>> {
    let settings = &app.model.settings;
    let up = app.model.now_ms(now_ms).saturating_sub(settings.started_ms);
    let name = |text: &str| harmless(text, NAME_CHARS_MAX);
    let mut left = vec![Span::styled(" forkpoint", paint.bold())];
    if app.model.has_data {
        let about = format!(" {} · mode {} · up {}", name(&settings.version), name(&settings.mode), age(up));
        left.push(Span::raw(about));
    }
    let address = harmless(app.url.trim_start_matches("http://"), NAME_CHARS_MAX);
    let state = match &app.lost {
        Some(_) => Span::styled("connection lost, trying again", paint.bad()),
        None => Span::styled("live", paint.good()),
    };
    let right = vec![state, Span::styled(format!(" · {address} "), paint.dim())];
    let total = app.model.history.total;
    let recent = app.model.recent(RECENT_MINUTES, now_ms);
    let mut saved = vec![Span::raw(" ")];
    saved.extend(saving(&total, paint));
    saved.push(Span::raw(" since start · "));
    saved.extend(saving(&recent, paint));
    saved.push(Span::raw(format!(" in the last {RECENT_MINUTES} min")));
    vec![
        both_ends(left, right, width),
        Line::from(saved),
        Line::raw(format!(" {}", bills(&total))),
        tabs(app, paint, width),
    ]
}

/// `saved 34 % $0.0123`, or what is known instead.
pub fn saving(sums: &Sums, paint: Paint) -> Vec<Span<'static>> {
    if sums.compared == 0 {
        let words = if sums.requests == 0 { "saved nothing yet" } else { "saving unknown" };
        return vec![Span::raw(words)];
    }
    let saved = sums.as_sent_usd - sums.compared_usd;
    let (word, style) = if saved < 0.0 { ("lost", paint.bad()) } else { ("saved", paint.good()) };
    let share = percent(saved.abs(), sums.as_sent_usd).map(|share| format!("{share} ")).unwrap_or_default();
    let text = format!("{word} {share}{}", usd(saved.abs()));
    vec![Span::styled(text, style.patch(paint.bold()))]
}

fn bills(sums: &Sums) -> String {
    // All three are sums over the same requests.
    let mut parts = Vec::new();
    if sums.compared == 0 {
        parts.push(format!("billed {}", usd(sums.billed_usd)));
    } else {
        parts.push(format!("billed {}", usd(sums.compared_usd)));
        parts.push(format!("as sent {}", usd(sums.as_sent_usd)));
        parts.push(format!("aligned {}", usd(sums.aligned_usd)));
    }
    parts.extend(hits(sums).map(|share| format!("hits {share}")));
    let plural = if sums.requests == 1 { "" } else { "s" };
    parts.push(format!("{} request{plural}", grouped(sums.requests)));
    if sums.failed > 0 {
        parts.push(format!("{} failed", grouped(sums.failed)));
    }
    if sums.uncompared > 0 {
        let left = usd(sums.billed_usd - sums.compared_usd);
        parts.push(format!("{} not compared ({left} billed)", grouped(sums.uncompared)));
    }
    parts.join(" · ")
}

/// The share of the prompts that was read from the cache.
pub fn hits(sums: &Sums) -> Option<String> {
    let all = sums.cache_read + sums.cache_write + sums.uncached;
    percent(sums.cache_read as f64, all as f64)
}

fn tabs(app: &App, paint: Paint, width: usize) -> Line<'static> {
    let fan_outs = format!("Fan-outs {}", grouped(app.model.fan_outs().len() as u64));
    let breaks = format!("Cache breaks {}", grouped(app.model.breaks.len() as u64));
    let style = |is_here: bool| if is_here { paint.bold().patch(paint.name()) } else { Style::new() };
    let is_breaks = app.page == Page::Breaks;
    let mut spans = vec![
        Span::styled("─ ", paint.dim()),
        Span::styled(fan_outs, style(!is_breaks)),
        Span::styled(" ─ ", paint.dim()),
        Span::styled(breaks, style(is_breaks)),
        Span::raw(" "),
    ];
    let used: usize = spans.iter().map(Span::width).sum();
    spans.push(Span::styled("─".repeat(width.saturating_sub(used)), paint.dim()));
    Line::from(spans)
}

fn footer(app: &App, paint: Paint) -> Line<'static> {
    if let Some(why) = &app.lost {
        return Line::styled(format!(" trying again: {}", harmless(why, 200)), paint.bad());
    }
    if let Some(notice) = &app.notice {
        return Line::styled(format!(" {}", harmless(notice, 200)), paint.notice());
    }
    let keys = match app.page {
        Page::FanOuts => " ↑↓ select · Enter all requests · Tab cache breaks · ? help · q quit",
        Page::FanOut => " ↑↓ scroll · Esc back · Tab cache breaks · ? help · q quit",
        Page::Breaks => " ↑↓ select · Tab fan-outs · ? help · q quit",
    };
    Line::styled(keys, paint.dim())
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let mut lines: Vec<Line<'_>> =
        KEYS.iter().map(|(keys, what)| Line::raw(format!(" {keys:<14} {what}"))).collect();
    lines.push(Line::raw(""));
    lines.extend(fan_outs::LEGEND.map(|text| Line::raw(format!(" {text}"))));
    let longest = lines.iter().map(Line::width).max().unwrap_or(0);
    let (width, height) = (longest as u16 + 3, lines.len() as u16 + 2);
    let (width, height) = (width.min(area.width), height.min(area.height));
    let x = area.x + (area.width - width) / 2;
    let y = area.y + (area.height - height) / 2;
    let middle = Rect { x, y, width, height };
    frame.render_widget(Clear, middle);
    let block = Block::bordered().title(" Keys ").title_alignment(Alignment::Center);
    frame.render_widget(Paragraph::new(lines).block(block), middle);
}

/// Cache breaks, newest first: one line each, and the selected one as a sentence.
fn breaks(app: &App, paint: Paint, now_ms: u64, width: usize, height: usize) -> Vec<Line<'static>> {
    let all = &app.model.breaks;
    if all.is_empty() {
        return vec![Line::raw(" No cache break was seen: what was cached has been read.")];
    }
    let sentence = |exchange: &Exchange| {
        let lost = exchange.cache_break.as_ref();
        lost.map(|lost| break_in_words(exchange, lost)).unwrap_or_default()
    };
    let selected = all.iter().rev().nth(app.selected_break);
    let words = wrapped(&selected.map(sentence).unwrap_or_default(), width.saturating_sub(2));
    let room = height.saturating_sub(words.len() + 1).max(1);
    let first = (app.selected_break + 1).saturating_sub(room);
    let shown = all.iter().rev().enumerate().skip(first).take(room);
    let mut lines: Vec<Line<'static>> = shown
        .map(|(index, exchange)| {
            let is_selected = index == app.selected_break;
            let mark = if is_selected { "▸" } else { " " };
            let text =
                format!("{mark}{} {}", app.moment(exchange.record.time_ms, now_ms), sentence(exchange));
            let style = if is_selected { paint.selected() } else { Style::new() };
            Line::styled(fit(&text, width), style)
        })
        .collect();
    lines.resize(room, Line::raw(""));
    lines.push(Line::styled("─".repeat(width), paint.dim()));
    lines.extend(words.into_iter().map(|text| Line::raw(format!(" {text}"))));
    lines
}

fn break_in_words(exchange: &Exchange, lost: &CacheBreak) -> String {
    let why =
        clause(CAUSES, &lost.cause).map_or_else(|| harmless(&lost.cause, NAME_CHARS_MAX), str::to_owned);
    let mut text = format!("{} tokens were not read again", grouped(lost.tokens));
    if let Some(cost) = lost.cost_usd {
        text += &format!(", which cost {}", usd(cost));
    }
    text += &format!(": {why} ({})", harmless(&lost.layer, NAME_CHARS_MAX));
    if let Some(at) = &lost.at {
        text += &format!(", first at {}", harmless(at, NAME_CHARS_MAX));
    }
    if let Some(offset) = lost.offset {
        text += &format!(" byte {}", grouped(offset as u64));
    }
    format!("{text} ({} {})", exchange.record.role, short_model(&exchange.record.model))
}

/// A model's name without its family's first word.
pub fn short_model(model: &str) -> String {
    harmless(model.strip_prefix("claude-").unwrap_or(model), NAME_CHARS_MAX)
}

/// A duration in whole seconds or more, of things that last.
pub fn age(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds => duration(Duration::from_secs(seconds)),
    }
}

/// Texts at both ends of a line; the left one gives way.
pub fn both_ends(left: Vec<Span<'static>>, right: Vec<Span<'static>>, width: usize) -> Line<'static> {
    let ends = right.iter().map(Span::width).sum::<usize>();
    let mut room = width.saturating_sub(ends);
    let mut spans = Vec::new();
    for span in left {
        let text = cut(&span.content, room);
        room -= Span::raw(&text).width();
        spans.push(Span::styled(text, span.style));
    }
    spans.push(Span::raw(" ".repeat(room)));
    spans.extend(right);
    Line::from(spans)
}

/// A text of exactly so many columns.
pub fn fit(text: &str, columns: usize) -> String {
    let mut text = cut(text, columns);
    let used = Span::raw(&text).width();
    text.push_str(&" ".repeat(columns.saturating_sub(used)));
    text
}

/// A text of at most so many columns; one that is cut ends in `…`.
pub fn cut(text: &str, columns: usize) -> String {
    if Span::raw(text).width() <= columns {
        return text.to_owned();
    }
    let mut shown = text.to_owned();
    while !shown.is_empty() && Span::raw(&shown).width() + 1 > columns {
        shown.pop();
    }
    if columns > 0 {
        shown.push('…');
    }
    shown
}

/// The lines of a text, each of at most so many columns.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if Span::raw(&*line).width() + 1 + Span::raw(word).width() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(cut(word, columns)),
        }
    }
    lines
}
