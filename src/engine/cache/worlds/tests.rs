//! Requests in the worlds where they go out otherwise.

use super::*;
use crate::engine::cache::ledger::{EntryTokens, LEDGER_ENTRIES_MAX, TokenSource, WarmEntry};
use crate::engine::words::Ticket;

const MODEL: &str = "m";
const TTL: Moment = Moment(5 * 60 * 1_000);

/// A prompt with an entry at each of these token counts, at four bytes to a token, the deepest first.
fn prompt(entries: &[(u64, u64)], marked: &[u64], all: u64) -> Arc<WorldPrompt> {
    let sizes = |tokens: u64| Sizes([0.0, tokens as f64 * 4.0, 0.0, 0.0]);
    let position = |(piece, (key, tokens)): (usize, &(u64, u64))| Position {
        key: EntryKey::numbered(*key),
        piece,
        bytes: tokens * 4,
        sizes: sizes(*tokens),
        marker: marked.contains(key).then_some(Ttl::FiveMinutes),
    };
    let mut positions: Vec<Position> = entries.iter().enumerate().map(position).collect();
    positions.reverse();
    Arc::new(WorldPrompt { positions, sizes: sizes(all) })
}

struct Scene {
    worlds: Worlds,
    gate: Option<WorldGate>,
    is_forked: bool,
    lead: Lead,
    /// As told by the last bill.
    segments: Vec<Segment>,
}

impl Scene {
    fn new() -> Scene {
        let gate = Some(WorldGate { min_tokens: 1_024, max_hold_ms: 5_000 });
        Scene {
            worlds: Worlds::default(),
            gate,
            is_forked: false,
            lead: Lead::default(),
            segments: Vec::new(),
        }
    }

    /// A request that came and was sent at `at`, whose answer took a second to begin.
    fn play(&mut self, prompts: &WorldPrompts, read: u64, usage: Usage, at: u64) -> Played {
        let tokens = EntryTokens { count: read, source: TokenSource::Billed };
        let found = prompts.billed.positions.iter().find(|position| position.bytes == read * 4);
        let warm =
            |found: &Position| WarmEntry { key: found.key, piece: found.piece, bytes: found.bytes, tokens };
        let prediction = Prediction { read: found.map(warm), ..Prediction::default() };
        let play = Play {
            prompts,
            model: MODEL,
            prediction: &prediction,
            usage,
            is_forked: self.is_forked,
            came_at: Moment(at),
            lead: self.lead,
            sent_at: Moment(at),
            begun_at: Moment(at + 1_000),
            streams: true,
            gate: self.gate,
            minimum_tokens: 1_024,
            weights: Weights::default(),
            is_harmless_read: false,
        };
        self.segments = self.worlds.learn(&play);
        self.worlds.play(&play)
    }
}

fn usage(uncached: u64, cache_read: u64, cache_write_5m: u64) -> Usage {
    Usage { uncached, cache_read, cache_write_5m, ..Usage::default() }
}

fn alike(prompt: Arc<WorldPrompt>) -> WorldPrompts {
    WorldPrompts { billed: Arc::clone(&prompt), sent: Arc::clone(&prompt), aligned: prompt }
}

#[test]
fn a_request_that_goes_out_alike_costs_the_same_in_every_world() {
    let mut scene = Scene::new();
    let prompts = alike(prompt(&[(1, 10_000), (2, 12_000)], &[1, 2], 12_500));
    let cold = usage(500, 0, 12_000);
    assert_eq!(
        scene.play(&prompts, 0, cold, 0).bills,
        OtherBills { sent: Some(cold), aligned: Some(cold), billed: cold }
    );
    let warm = usage(500, 12_000, 0);
    let bills = scene.play(&prompts, 12_000, warm, 2_000).bills;
    assert_eq!(bills, OtherBills { sent: Some(warm), aligned: Some(warm), billed: warm });
    // The upstream lost the entry: so it did there.
    let bills = scene.play(&prompts, 12_000, cold, 4_000).bills;
    assert_eq!(bills, OtherBills { sent: Some(cold), aligned: Some(cold), billed: cold });
}

#[test]
fn markers_that_were_added_read_and_write_in_the_aligned_world_alone() {
    let mut scene = Scene::new();
    let marked = prompt(&[(1, 10_000), (2, 12_000)], &[1, 2], 12_500);
    let plain = prompt(&[], &[], 12_500);
    let prompts = WorldPrompts { billed: Arc::clone(&marked), sent: plain, aligned: marked };
    let cold = usage(500, 0, 12_000);
    let uncached = usage(12_500, 0, 0);
    assert_eq!(scene.play(&prompts, 0, cold, 0).bills.sent, Some(uncached));
    let warm = usage(500, 12_000, 0);
    let bills = scene.play(&prompts, 12_000, warm, 2_000).bills;
    assert_eq!(bills, OtherBills { sent: Some(uncached), aligned: Some(warm), billed: warm });
    assert!(scene.worlds.sent.is_empty() && scene.worlds.aligned.len() == 2);
}

#[test]
fn siblings_that_come_together_write_alike_as_sent_and_wait_for_each_other_aligned() {
    let mut scene = Scene::new();
    scene.is_forked = true;
    let own = prompt(&[(1, 10_000), (2, 12_000)], &[1, 2], 12_000);
    let forked = prompt(&[(7, 40_000)], &[7], 40_500);
    let prompts = WorldPrompts { billed: forked, sent: Arc::clone(&own), aligned: own };
    let billed = usage(500, 40_000, 0);
    let first = scene.play(&prompts, 40_000, billed, 0).bills;
    assert_eq!(first.sent.unwrap().cache_write_5m, 12_000);
    let second = scene.play(&prompts, 40_000, billed, 10).bills;
    assert_eq!(second.sent.unwrap().cache_read, 0, "the first one has not begun");
    assert_eq!(second.aligned.unwrap().cache_read, 12_000, "the gate of that world holds it");
    scene.gate = None;
    let third = scene.play(&prompts, 40_000, billed, 20).bills;
    assert_eq!(third.aligned.unwrap().cache_read, 0);
    let late = scene.play(&prompts, 40_000, billed, 30_000).bills;
    assert_eq!(late.sent.unwrap().cache_read, 12_000, "it came when the others had begun");
}

#[test]
fn an_entry_lives_from_the_start_of_the_request_that_wrote_or_read_it() {
    let mut scene = Scene::new();
    let own = alike(prompt(&[(1, 10_000)], &[1], 10_000));
    scene.play(&own, 0, usage(0, 0, 10_000), 0);
    scene.play(&own, 10_000, usage(0, 10_000, 0), TTL.0 - 1);
    let reach =
        |scene: &Scene, at: u64| scene.worlds.sent.reach([EntryKey::numbered(1)].into_iter(), Moment(at));
    assert_eq!(reach(&scene, 2 * TTL.0 - 2).now, Some(0));
    assert_eq!(reach(&scene, 2 * TTL.0).now, None);
}

#[test]
fn an_answer_that_ended_can_be_read_by_then() {
    let mut scene = Scene::new();
    scene.is_forked = true;
    let own = prompt(&[(1, 400_000)], &[1], 400_000);
    let forked = prompt(&[(7, 4_000)], &[7], 4_000);
    let prompts = WorldPrompts { billed: forked, sent: Arc::clone(&own), aligned: own };
    // It read nearly all of its prompt; as sent it would have read nothing, and begun much later.
    let played = scene.play(&prompts, 4_000, usage(0, 4_000, 0), 0);
    let now = |scene: &Scene| scene.worlds.sent.reach([EntryKey::numbered(1)].into_iter(), Moment(2_000)).now;
    assert_eq!(now(&scene), None);
    scene.worlds.ended(&played, Moment(1_500));
    assert_eq!(now(&scene), Some(0));
}

#[test]
fn a_read_that_nobody_here_has_written_is_in_every_world_and_makes_forks_unknown() {
    let mut scene = Scene::new();
    let prompts = alike(prompt(&[(1, 10_000), (2, 12_000)], &[2], 12_000));
    let bills = scene.play(&prompts, 0, usage(0, 10_000, 2_000), 0).bills;
    assert_eq!(bills.sent, Some(usage(0, 10_000, 2_000)), "it was there as sent, too");
    for ledger in [&scene.worlds.billed, &scene.worlds.sent, &scene.worlds.aligned] {
        assert!(ledger.holds(&EntryKey::numbered(1), Moment(10)));
    }
    scene.is_forked = true;
    let other = alike(prompt(&[(9, 10_000)], &[9], 10_000));
    let billed = usage(0, 0, 10_000);
    let bills = scene.play(&other, 0, billed, 10).bills;
    assert_eq!(bills, OtherBills { billed, ..OtherBills::default() });
    assert!(scene.play(&other, 0, usage(0, 0, 10_000), TTL.0 + 10).bills.sent.is_some());
}

#[test]
fn a_read_of_what_was_written_meanwhile_is_no_strangers() {
    let mut scene = Scene::new();
    let marked = prompt(&[(1, 10_000), (2, 12_000)], &[1, 2], 12_500);
    let plain = prompt(&[(1, 10_000), (2, 12_000)], &[2], 12_500);
    let aligned = || WorldPrompts {
        billed: Arc::clone(&marked),
        sent: Arc::clone(&plain),
        aligned: Arc::clone(&marked),
    };
    scene.play(&aligned(), 0, usage(500, 0, 12_000), 0);
    // Nothing was known of the first one when this one was sent.
    let other = prompt(&[(1, 10_000), (3, 13_000)], &[1, 3], 13_500);
    let sent = prompt(&[(1, 10_000), (3, 13_000)], &[3], 13_500);
    let prompts = WorldPrompts { billed: Arc::clone(&other), sent, aligned: other };
    let bills = scene.play(&prompts, 0, usage(500, 10_000, 3_000), 2_000).bills;
    assert_eq!(bills.sent, Some(usage(500, 0, 13_000)), "nobody marked it as sent");
    assert!(scene.worlds.is_complete(Moment(2_000)));
}

#[test]
fn what_was_forgotten_for_want_of_room_is_unknown_and_no_saving() {
    let mut scene = Scene::new();
    let marked = |key: u64| prompt(&[(key, 10_000)], &[key], 10_500);
    let cold = usage(500, 0, 10_000);
    for key in 0..=LEDGER_ENTRIES_MAX as u64 {
        let bills = scene.play(&alike(marked(key)), 0, cold, 10).bills;
        assert_eq!(bills.sent, Some(cold), "it went out as it was sent");
    }
    assert!(scene.worlds.sent.len() <= LEDGER_ENTRIES_MAX);
    let plain = prompt(&[], &[], 10_500);
    let added = WorldPrompts { billed: marked(0), sent: Arc::clone(&plain), aligned: marked(0) };
    assert_eq!(scene.play(&added, 0, cold, 20).bills.sent, None, "nobody knows what it would have read");
    scene.is_forked = true;
    let forked = WorldPrompts { billed: plain, sent: marked(0), aligned: marked(0) };
    let bills = scene.play(&forked, 0, cold, 20).bills;
    assert_eq!(bills, OtherBills { billed: cold, ..OtherBills::default() });
    let later = 20 + Ttl::OneHour.ms();
    assert!(scene.play(&forked, 0, cold, later).bills.sent.is_some(), "whatever was forgotten has ended");
}

#[test]
fn what_is_below_the_minimum_is_not_cached() {
    let mut scene = Scene::new();
    scene.is_forked = true;
    let own = prompt(&[(1, 1_000), (2, 1_100)], &[1, 2], 1_200);
    let forked = prompt(&[(7, 4_000)], &[7], 4_000);
    let prompts = WorldPrompts { billed: forked, sent: Arc::clone(&own), aligned: own };
    let bills = scene.play(&prompts, 0, usage(0, 0, 4_000), 0).bills;
    assert_eq!(bills.sent, Some(usage(100, 0, 1_100)));
    assert_eq!(scene.worlds.sent.len(), 1);
    assert!(scene.worlds.sent.writes(Ticket(1)).is_empty(), "nothing is on its way there");
}

#[test]
fn tokens_of_an_own_prompt_are_learned_from_the_bills_of_others() {
    let mut scene = Scene::new();
    let prompts = alike(prompt(&[(1, 10_000)], &[1], 12_000));
    // Twice as many tokens as four bytes to one.
    scene.play(&prompts, 0, usage(4_000, 0, 20_000), 0);
    let mut weights = TokenWeights::default();
    weights.learn(MODEL, &scene.segments);
    assert_eq!(weights.of(MODEL).tokens(Sizes([0.0, 4_000.0, 0.0, 0.0])).round(), 2_000.0);
    // A prompt that shares the counted prefix counts on from there.
    scene.is_forked = true;
    let own = prompt(&[(1, 10_000), (2, 11_000)], &[1, 2], 11_000);
    let forked = prompt(&[(7, 4_000)], &[7], 4_000);
    let prompts = WorldPrompts { billed: forked, sent: Arc::clone(&own), aligned: own };
    let bills = scene.play(&prompts, 0, usage(0, 0, 4_000), 60_000).bills;
    assert_eq!(bills.sent, Some(usage(0, 20_000, 1_000)));
}

#[test]
fn what_follows_a_held_request_comes_sooner_where_nothing_is_held() {
    let mut scene = Scene::new();
    let prompts = alike(prompt(&[(1, 10_000)], &[1], 10_000));
    scene.play(&prompts, 0, usage(0, 0, 10_000), 0);
    scene.lead = Lead { sent: 2_000, aligned: 0 };
    let Played { bills, lead, .. } = scene.play(&prompts, 0, usage(0, 0, 10_000), TTL.0 + 1_000);
    assert_eq!(bills.sent, Some(usage(0, 10_000, 0)), "within the life of the entry");
    assert_eq!(bills.aligned, Some(usage(0, 0, 10_000)));
    // What it reads makes its answer begin sooner still.
    assert!((2_299..=2_301).contains(&lead.sent) && lead.aligned == 0, "{lead:?}");
}
