//! What is shown: the model, the page, what is selected, and what keys do.

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{FanOut, Model};
use super::stream::News;

/// The rows that Page Up and Page Down go.
const PAGE_ROWS: usize = 10;

/// The keys, for the help.
pub const KEYS: &[(&str, &str)] = &[
    ("↑ ↓  k j", "select, or scroll"),
    ("PgUp PgDn", "ten rows at once"),
    ("Home End  g G", "the newest, the oldest"),
    ("Enter → l", "all requests of a fan-out"),
    ("Esc ← h", "back"),
    ("Tab b", "fan-outs, cache breaks"),
    ("?", "this help"),
    ("q Ctrl-C", "quit"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    FanOuts,
    /// One fan-out in full: the selected one.
    FanOut,
    Breaks,
}

pub struct App {
    pub url: String,
    pub has_colours: bool,
    pub model: Model,
    pub page: Page,
    pub shows_help: bool,
    /// The fan-out that is selected; the newest if none is.
    selected: Option<String>,
    /// The break that is selected, counted from the newest.
    pub selected_break: usize,
    /// The rows of a fan-out in full that are above the screen.
    pub scrolled: usize,
    /// Why the connection is lost, while it is.
    pub lost: Option<String>,
    /// Said until the next key: that another process answers now.
    pub notice: Option<String>,
    zone: TimeZone,
    has_quit: bool,
}

impl App {
    pub fn new(url: String, has_colours: bool, zone: TimeZone) -> App {
        App {
            url,
            has_colours,
            model: Model::default(),
            page: Page::FanOuts,
            shows_help: false,
            selected: None,
            selected_break: 0,
            scrolled: 0,
            lost: None,
            notice: None,
            zone,
            has_quit: false,
        }
    }

    pub fn has_quit(&self) -> bool {
        self.has_quit
    }

    /// Takes what the stream says.
    pub fn take(&mut self, news: News, now_ms: u64) {
        match news {
            News::Live => self.lost = None,
            News::Lost(why) => self.lost = Some(why),
            News::Event { event, data } => match self.model.apply(&event, &data, now_ms) {
                Ok(true) => {
                    let time = self.time(self.model.settings.started_ms);
                    self.notice = Some(format!("the proxy was started anew at {time}; figures begin there"));
                }
                Ok(false) => {}
                Err(error) => self.notice = Some(format!("an event cannot be read: {error}")),
            },
        }
    }

    /// Does what a key says.
    pub fn press(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        self.notice = None;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => self.has_quit = true,
            _ if is_control => {}
            KeyCode::Char('q') => self.has_quit = true,
            // Any key closes the help.
            _ if self.shows_help => self.shows_help = false,
            KeyCode::Char('?') | KeyCode::F(1) => self.shows_help = true,
            KeyCode::Up | KeyCode::Char('k') => self.go(|row| row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(|row| row + 1),
            KeyCode::PageUp => self.go(|row| row.saturating_sub(PAGE_ROWS)),
            KeyCode::PageDown => self.go(|row| row + PAGE_ROWS),
            KeyCode::Home | KeyCode::Char('g') => self.go(|_| 0),
            KeyCode::End | KeyCode::Char('G') => self.go(|_| usize::MAX),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.open(),
            KeyCode::Esc | KeyCode::Left | KeyCode::Char('h') => self.page = Page::FanOuts,
            KeyCode::Tab | KeyCode::BackTab | KeyCode::Char('b') => self.turn(),
            _ => {}
        }
    }

    fn open(&mut self) {
        if self.page != Page::FanOuts {
            return;
        }
        // What is looked at stays, whatever comes.
        if let Some(id) = self.shown().map(|fan_out| fan_out.id.clone()) {
            self.selected = Some(id);
            self.scrolled = 0;
            self.page = Page::FanOut;
        }
    }

    fn turn(&mut self) {
        self.page = if self.page == Page::Breaks { Page::FanOuts } else { Page::Breaks };
    }

    /// Moves the selection, or what is scrolled.
    fn go(&mut self, to: impl Fn(usize) -> usize) {
        match self.page {
            Page::FanOuts => {
                let all = self.model.fan_outs();
                let place = all.iter().position(|fan_out| Some(&fan_out.id) == self.selected.as_ref());
                let next = to(place.unwrap_or(0)).min(all.len().saturating_sub(1));
                // At the top one follows what is newest.
                let id = if next > 0 { all.get(next).map(|fan_out| fan_out.id.clone()) } else { None };
                self.selected = id;
            }
            Page::FanOut => {
                let rows = self.shown().map_or(0, |fan_out| fan_out.all().count());
                self.scrolled = to(self.scrolled).min(rows.saturating_sub(1));
            }
            Page::Breaks => {
                let last = self.model.breaks.len().saturating_sub(1);
                self.selected_break = to(self.selected_break).min(last);
            }
        }
    }

    /// The fan-out that is selected.
    pub fn shown(&self) -> Option<&FanOut> {
        let selected = self.selected.as_ref().and_then(|id| self.model.find(id));
        selected.or_else(|| self.model.fan_outs().first().copied())
    }

    /// A time of the proxy as the time of day here.
    pub fn time(&self, ms: u64) -> String {
        self.zoned(ms).strftime("%H:%M:%S").to_string()
    }

    /// The same in as many columns; where it was on another day than now, that day.
    pub fn moment(&self, ms: u64, now_ms: u64) -> String {
        let (time, now) = (self.zoned(ms), self.zoned(self.model.now_ms(now_ms)));
        if time.date() == now.date() { self.time(ms) } else { time.strftime("%e %b  ").to_string() }
    }

    fn zoned(&self, ms: u64) -> Zoned {
        let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        time.unwrap_or_default().to_zoned(self.zone.clone())
    }
}
