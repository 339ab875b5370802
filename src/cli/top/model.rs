//! What is known of the proxy: sums, fan-outs and their requests, cache breaks. All of it is bounded.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::Deserialize;

use crate::report::ExchangeRecord;
use crate::report::events::{History, Sums};

/// The most fan-outs that are kept; the oldest goes first.
const FAN_OUTS_MAX: usize = 1000;
/// The most requests of all fan-outs; the oldest fan-out goes first.
const REQUESTS_MAX: usize = 20_000;
/// The most children of one fan-out; later ones are left out.
const CHILDREN_MAX: usize = 200;
/// The most turns of one child, and the most requests that bring results back.
const TURNS_MAX: usize = 200;
/// The most cache breaks.
const BREAKS_MAX: usize = 500;
const MINUTE_MS: u64 = 60_000;

/// A request that goes on, or an exchange that has ended, as an event says it. Names are those of the log line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Exchange {
    /// Its number while it went on.
    n: Option<u64>,
    /// Its number among the calls of its fan-out, from 1.
    pub child: Option<usize>,
    pub waited_ms: Option<u64>,
    /// The reason for which forkpoint answered itself.
    pub fault: Option<String>,
    #[serde(rename = "break")]
    pub cache_break: Option<CacheBreak>,
    #[serde(flatten)]
    pub record: ExchangeRecord,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CacheBreak {
    pub cause: String,
    pub layer: String,
    pub at: Option<String>,
    pub offset: Option<usize>,
    pub tokens: u64,
    pub cost_usd: Option<f64>,
}

/// The settings of the proxy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Settings {
    pub mode: String,
    pub version: String,
    pub started_ms: u64,
    /// Names of tenants by the digits that exchanges show.
    pub tenants: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Snapshot {
    now_ms: u64,
    #[serde(flatten)]
    settings: Settings,
    #[serde(flatten)]
    history: History,
    underway: Vec<Exchange>,
    exchanges: Vec<Exchange>,
}

#[derive(Deserialize)]
struct Configured {
    mode: String,
    #[serde(default)]
    tenants: BTreeMap<String, String>,
}

/// What tells the children of a fan-out apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ChildKey {
    Number(usize),
    Agent(String),
    Prefix(String),
    /// A request of which nothing else is known.
    Request(u64),
}

/// One fan-out: the request whose answer it was, its children, and the requests that brought results back.
#[derive(Debug, Default)]
pub struct FanOut {
    pub id: String,
    pub time_ms: u64,
    pub parent: Option<Exchange>,
    /// The number of its requests that are no longer kept.
    pub left_out: usize,
    returns: VecDeque<Exchange>,
    children: BTreeMap<ChildKey, VecDeque<Exchange>>,
    underway: BTreeMap<u64, Exchange>,
}

/// The requests of one row: of the parent, of a child, or those that brought results back.
pub struct Row<'a> {
    pub label: String,
    pub is_child: bool,
    /// In order of arrival; those that go on come last.
    pub requests: Vec<&'a Exchange>,
}

#[derive(Debug, Default)]
pub struct Model {
    pub settings: Settings,
    pub history: History,
    fan_outs: HashMap<String, FanOut>,
    pub breaks: VecDeque<Exchange>,
    /// The fan-outs of requests that go on, by their number.
    running: HashMap<u64, String>,
    /// The proxy's clock less ours, in milliseconds.
    skew_ms: i64,
    /// True once a snapshot has come.
    pub has_data: bool,
}

impl Model {
    /// Takes an event. Returns `true` for a snapshot of another process than before.
    pub fn apply(&mut self, event: &str, data: &str, now_ms: u64) -> Result<bool, serde_json::Error> {
        match event {
            "snapshot" => return Ok(self.reset(serde_json::from_str(data)?, now_ms)),
            "configured" => {
                let Configured { mode, tenants } = serde_json::from_str(data)?;
                self.settings = Settings { mode, tenants, ..std::mem::take(&mut self.settings) };
            }
            "underway" => self.goes_on(serde_json::from_str(data)?),
            "exchange" => {
                let exchange: Exchange = serde_json::from_str(data)?;
                self.history.add(&exchange.record);
                self.has_ended(exchange);
            }
            // A later version may say more.
            _ => {}
        }
        Ok(false)
    }

    /// The time of the proxy.
    pub fn now_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add_signed(self.skew_ms)
    }

    fn reset(&mut self, snapshot: Snapshot, now_ms: u64) -> bool {
        let Snapshot { now_ms: theirs, settings, history, underway, mut exchanges } = snapshot;
        let is_another = self.has_data && settings.started_ms != self.settings.started_ms;
        let skew_ms = theirs.cast_signed() - now_ms.cast_signed();
        *self = Model { settings, history, skew_ms, has_data: true, ..Model::default() };
        exchanges.sort_by_key(|exchange| (exchange.record.time_ms, exchange.record.id));
        exchanges.into_iter().for_each(|exchange| self.has_ended(exchange));
        underway.into_iter().for_each(|exchange| self.goes_on(exchange));
        is_another
    }

    fn goes_on(&mut self, exchange: Exchange) {
        let (Some(number), Some(fork)) = (exchange.n, exchange.record.fork.clone()) else { return };
        self.running.insert(number, fork.clone());
        self.fan_out(fork, exchange.record.time_ms).underway.insert(number, exchange);
    }

    fn has_ended(&mut self, exchange: Exchange) {
        if let Some(number) = exchange.n
            && let Some(fork) = self.running.remove(&number)
            && let Some(fan_out) = self.fan_outs.get_mut(&fork)
        {
            fan_out.underway.remove(&number);
        }
        if exchange.cache_break.is_some() {
            push(&mut self.breaks, exchange.clone(), BREAKS_MAX);
        }
        let record = &exchange.record;
        let time_ms = record.time_ms;
        if let Some(id) = record.fanned_out.clone() {
            self.fan_out(id, time_ms).parent = Some(exchange.clone());
        }
        if let Some(id) = record.fork.clone() {
            self.fan_out(id, time_ms).add(exchange);
            self.make_room();
        }
    }

    fn make_room(&mut self) {
        let mut kept: usize = self.fan_outs.values().map(FanOut::kept).sum();
        while kept > REQUESTS_MAX && self.fan_outs.len() > 1 {
            kept -= self.forget_oldest();
        }
    }

    /// Forgets the oldest fan-out, and returns the number of its requests.
    fn forget_oldest(&mut self) -> usize {
        let oldest = self.fan_outs.values().min_by_key(|fan_out| fan_out.time_ms);
        let Some(oldest) = oldest.map(|fan_out| fan_out.id.clone()) else { return 0 };
        self.running.retain(|_, fork| *fork != oldest);
        self.fan_outs.remove(&oldest).map_or(0, |fan_out| fan_out.kept())
    }

    fn fan_out(&mut self, id: String, time_ms: u64) -> &mut FanOut {
        if !self.fan_outs.contains_key(&id) && self.fan_outs.len() >= FAN_OUTS_MAX {
            self.forget_oldest();
        }
        let new = || FanOut { id: id.clone(), time_ms, ..FanOut::default() };
        let fan_out = self.fan_outs.entry(id.clone()).or_insert_with(new);
        fan_out.time_ms = fan_out.time_ms.min(time_ms);
        fan_out
    }

    pub fn find(&self, id: &str) -> Option<&FanOut> {
        self.fan_outs.get(id)
    }

    /// All fan-outs, newest first.
    pub fn fan_outs(&self) -> Vec<&FanOut> {
        let mut all: Vec<&FanOut> = self.fan_outs.values().collect();
        all.sort_by(|a, b| b.time_ms.cmp(&a.time_ms).then_with(|| a.id.cmp(&b.id)));
        all
    }

    /// The sums of the last minutes, of which the last is the one that runs.
    pub fn recent(&self, minutes: u64, now_ms: u64) -> Sums {
        let this_minute = self.now_ms(now_ms) / MINUTE_MS * MINUTE_MS;
        let since = this_minute.saturating_sub((minutes - 1) * MINUTE_MS);
        let recent = self.history.minutes.iter().filter(|minute| minute.time_ms >= since);
        recent.fold(Sums::default(), |sums, minute| sums.plus(&minute.sums))
    }

    pub fn tenant<'a>(&'a self, digest: &'a str) -> &'a str {
        self.settings.tenants.get(digest).map_or(digest, String::as_str)
    }
}

impl Exchange {
    pub fn is_child(&self) -> bool {
        self.record.role == "child"
    }

    /// True for the first request of a child if its siblings wait for what that writes.
    pub fn leads(&self) -> bool {
        // The number of a turn is known when it is answered.
        let is_first = self.record.child_turn.is_none_or(|turn| turn == 1);
        is_first && matches!(self.record.gate.as_deref(), Some("led" | "overtook" | "succeeded"))
    }

    fn key(&self) -> ChildKey {
        if let Some(number) = self.child {
            return ChildKey::Number(number);
        }
        match (&self.record.agent, &self.record.prefix) {
            (Some(agent), _) => ChildKey::Agent(agent.clone()),
            (None, Some(prefix)) => ChildKey::Prefix(prefix.clone()),
            (None, None) => ChildKey::Request(self.n.unwrap_or(self.record.id)),
        }
    }
}

impl FanOut {
    fn add(&mut self, exchange: Exchange) {
        let (key, is_full) = (exchange.key(), self.children.len() >= CHILDREN_MAX);
        if !exchange.is_child() {
            self.left_out += push(&mut self.returns, exchange, TURNS_MAX);
            return;
        }
        if is_full && !self.children.contains_key(&key) {
            self.left_out += 1;
            return;
        }
        let turns = self.children.entry(key).or_default();
        self.left_out += push(turns, exchange, TURNS_MAX);
        turns.make_contiguous().sort_by_key(|exchange| exchange.record.time_ms);
    }

    /// The requests of its children, child by child.
    pub fn turns(&self) -> impl Iterator<Item = &Exchange> {
        self.children.values().flatten()
    }

    /// Everything that belongs to it, ended or not.
    pub fn all(&self) -> impl Iterator<Item = &Exchange> {
        self.parent.iter().chain(self.turns()).chain(&self.returns).chain(self.underway.values())
    }

    /// The number of its requests that have ended and are kept.
    fn kept(&self) -> usize {
        self.returns.len() + self.children.values().map(VecDeque::len).sum::<usize>()
    }

    /// The number of its requests that go on.
    pub fn running(&self) -> usize {
        self.underway.len()
    }

    /// The sums of its children's requests.
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.turns().for_each(|exchange| sums.add(&exchange.record));
        sums
    }

    /// How many children it called, or how many were seen.
    pub fn size(&self) -> usize {
        let running = self.underway.values().filter(|exchange| exchange.is_child());
        let unseen = running.filter(|exchange| !self.children.contains_key(&exchange.key())).count();
        let called = self.parent.as_ref().and_then(|parent| parent.record.fanned_out_children);
        called.unwrap_or(0).max(self.children.len() + unseen)
    }

    /// The tool that started its children.
    pub fn tool(&self) -> Option<&str> {
        self.all().filter(|exchange| exchange.is_child()).find_map(|exchange| exchange.record.tool.as_deref())
    }

    /// The first request of each child that was decided.
    pub fn decided(&self) -> Vec<&Exchange> {
        let mut firsts: Vec<&Exchange> = self.children.values().filter_map(VecDeque::front).collect();
        let running = self.underway.values().filter(|exchange| exchange.is_child());
        firsts.extend(running.filter(|exchange| {
            !exchange.record.plan.is_empty() && !self.children.contains_key(&exchange.key())
        }));
        firsts
    }

    /// Its parent, its children in order, and the requests that brought results back.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let mut children: BTreeMap<ChildKey, Vec<&Exchange>> =
            self.children.iter().map(|(key, turns)| (key.clone(), turns.iter().collect())).collect();
        let mut returns: Vec<&Exchange> = self.returns.iter().collect();
        for exchange in self.underway.values() {
            if exchange.is_child() {
                children.entry(exchange.key()).or_default().push(exchange);
            } else {
                returns.push(exchange);
            }
        }
        let row = |label: String, is_child, requests| Row { label, is_child, requests };
        let mut rows: Vec<Row<'_>> =
            self.parent.iter().map(|parent| row("parent".into(), false, vec![parent])).collect();
        let size = self.size();
        for (index, requests) in children.into_values().enumerate() {
            let number = requests.first().and_then(|first| first.child).unwrap_or(index + 1);
            rows.push(row(format!("child {number}/{}", size.max(number)), true, requests));
        }
        if !returns.is_empty() {
            rows.push(row("results".into(), false, returns));
        }
        rows
    }
}

/// Adds an item, and drops the oldest ones that are too many: returns their number.
fn push<T>(items: &mut VecDeque<T>, item: T, most: usize) -> usize {
    items.push_back(item);
    let excess = items.len().saturating_sub(most);
    items.drain(..excess);
    excess
}
