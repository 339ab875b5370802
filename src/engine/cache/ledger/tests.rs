use proptest::prelude::*;

use super::*;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::entry::LOOKBACK_POSITIONS;

const MINUTE: u64 = 60_000;

/// A prompt whose every piece is 100 bytes and 100 tokens; `markers` come in the order of the cache.
#[derive(Clone, Debug)]
struct Prompt {
    keys: Vec<EntryKey>,
    markers: Vec<(usize, Ttl)>,
}

impl Prompt {
    /// The pieces are letters; a key stands for all letters up to one.
    fn of(letters: &str, markers: &[(usize, Ttl)]) -> Prompt {
        let keys = (1..=letters.len()).map(|end| prefix_key(&letters[..end])).collect();
        Prompt { keys, markers: markers.to_vec() }
    }

    fn marked(letters: &str, pieces: &[usize]) -> Prompt {
        let markers: Vec<_> = pieces.iter().map(|piece| (*piece, Ttl::FiveMinutes)).collect();
        Prompt::of(letters, &markers)
    }

    fn probes(&self) -> Vec<Probe> {
        let windows = self.markers.iter().flat_map(|(at, _)| (0..=*at).rev().take(LOOKBACK_POSITIONS));
        let mut pieces: Vec<usize> = windows.collect();
        pieces.sort_unstable();
        pieces.dedup();
        let marker = |piece| self.markers.iter().find(|(at, _)| *at == piece).map(|(_, ttl)| *ttl);
        let probe = |piece| Probe { piece, bytes: 100 * (piece as u64 + 1), marker: marker(piece) };
        pieces.into_iter().rev().map(probe).collect()
    }

    fn predict(&self, ledger: &CacheLedger, now: Moment) -> Prediction {
        ledger.predict(self.probes(), |piece| self.keys.get(piece).copied(), None, now)
    }
}

/// A bill of so many tokens.
fn bill(read: u64, written: u64) -> LedgerBill {
    let usage = Usage { cache_read: read, cache_write_5m: written, ..Usage::default() };
    LedgerBill { usage, minimum_tokens: Some(1), has_payload: false }
}

/// Sends, begins and bills a request at one moment, as an upstream would that reads what is predicted.
fn exchange(ledger: &mut CacheLedger, ticket: Ticket, prompt: &Prompt, now: Moment) -> Prediction {
    let prediction = prompt.predict(ledger, now);
    ledger.begin(ticket, &prediction, true, now);
    ledger.readable(ticket, now, None);
    let read = prediction.read.map_or(0, |read| read.bytes);
    let last = prediction.breakpoints.first().map_or(0, |point| point.bytes);
    ledger.settle(ticket, &bill(read, last - read), now);
    prediction
}

#[test]
fn what_others_were_writing_is_known_once_it_is_billed() {
    let mut ledger = CacheLedger::default();
    let (first, second) = (Prompt::marked("abc", &[1, 2]), Prompt::marked("abd", &[1, 2]));
    ledger.begin(Ticket(1), &first.predict(&ledger, Moment(0)), true, Moment(0));
    let early = second.predict(&ledger, Moment(1));
    ledger.begin(Ticket(2), &early, true, Moment(1));
    assert_eq!(ledger.missed(&early), None, "nobody knows yet");
    ledger.readable(Ticket(1), Moment(2), None);
    ledger.settle(Ticket(1), &bill(0, 300), Moment(3));
    let missed = ledger.missed(&early).unwrap();
    assert_eq!((missed.piece, missed.tokens), (1, 200));
    assert!((1..200).contains(&missed.tokens_min), "an estimate by bytes may be off: {missed:?}");
    let late = second.predict(&ledger, Moment(4));
    assert_eq!(ledger.missed(&late), None, "it is warm by now");
}

fn read_piece(prompt: &Prompt, ledger: &CacheLedger, now: Moment) -> Option<usize> {
    prompt.predict(ledger, now).read.map(|read| read.piece)
}

#[test]
fn an_entry_is_warm_from_the_beginning_of_its_writers_answer() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abc", &[2]);
    let first = prompt.predict(&ledger, Moment(0));
    assert_eq!((first.read, first.writes().len(), first.underway.len()), (None, 1, 0));
    ledger.begin(Ticket(7), &first, true, Moment(0));
    let second = prompt.predict(&ledger, Moment(1));
    assert_eq!(second.read, None);
    assert_eq!(
        (second.underway[0].ticket, second.underway[0].since, second.underway[0].piece),
        (Ticket(7), Moment(0), 2)
    );
    ledger.readable(Ticket(7), Moment(2), None);
    let third = prompt.predict(&ledger, Moment(2));
    assert_eq!((third.read.unwrap().piece, third.writes().len(), third.underway.len()), (2, 0, 0));
    assert_eq!(read_piece(&prompt, &ledger, Moment(1)), None, "not before it began");
}

#[test]
fn a_lifetime_counts_from_the_start_of_the_request() {
    for (ttl, lifetime) in [(Ttl::FiveMinutes, 5 * MINUTE), (Ttl::OneHour, 60 * MINUTE)] {
        let mut ledger = CacheLedger::default();
        let prompt = Prompt::of("abc", &[(2, ttl)]);
        ledger.begin(Ticket(1), &prompt.predict(&ledger, Moment(1_000)), true, Moment(1_000));
        ledger.readable(Ticket(1), Moment(200_000), None);
        ledger.settle(Ticket(1), &bill(0, 300), Moment(250_000));
        assert_eq!(read_piece(&prompt, &ledger, Moment(1_000 + lifetime - 1)), Some(2));
        assert_eq!(read_piece(&prompt, &ledger, Moment(1_000 + lifetime)), None);
    }
}

#[test]
fn an_answer_that_begins_after_the_lifetime_leaves_nothing_warm() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abc", &[2]);
    ledger.begin(Ticket(1), &prompt.predict(&ledger, Moment(0)), true, Moment(0));
    ledger.readable(Ticket(1), Moment(6 * MINUTE), None);
    assert_eq!(read_piece(&prompt, &ledger, Moment(6 * MINUTE)), None);
}

#[test]
fn a_read_renews_the_entry_and_the_breakpoints_before_it() {
    let mut ledger = CacheLedger::default();
    let (short, long) = (Prompt::marked("abc", &[0, 2]), Prompt::marked("abcd", &[0, 2, 3]));
    exchange(&mut ledger, Ticket(1), &short, Moment(0));
    assert_eq!(exchange(&mut ledger, Ticket(2), &long, Moment(4 * MINUTE)).read.unwrap().piece, 2);
    assert_eq!(read_piece(&short, &ledger, Moment(8 * MINUTE)), Some(2));
    assert_eq!(read_piece(&Prompt::marked("ax", &[0, 1]), &ledger, Moment(8 * MINUTE)), Some(0));
    assert_eq!(read_piece(&long, &ledger, Moment(9 * MINUTE)), None);
}

#[test]
fn a_failed_request_leaves_nothing_unless_its_answer_had_begun() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abc", &[2]);
    ledger.begin(Ticket(1), &prompt.predict(&ledger, Moment(0)), true, Moment(0));
    ledger.abandon(Ticket(1));
    assert_eq!(prompt.predict(&ledger, Moment(0)).underway, []);
    ledger.readable(Ticket(1), Moment(1), None);
    assert_eq!(read_piece(&prompt, &ledger, Moment(1)), None, "it is gone for good");
    ledger.begin(Ticket(2), &prompt.predict(&ledger, Moment(2)), true, Moment(2));
    ledger.readable(Ticket(2), Moment(3), None);
    ledger.abandon(Ticket(2));
    assert_eq!(read_piece(&prompt, &ledger, Moment(4)), Some(2));
}

#[test]
fn what_a_failed_request_was_writing_is_the_next_writers() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abc", &[2]);
    for ticket in [1, 2] {
        ledger.begin(Ticket(ticket), &prompt.predict(&ledger, Moment(ticket)), true, Moment(ticket));
    }
    let writer =
        |ledger: &CacheLedger| prompt.predict(ledger, Moment(3)).underway.first().map(|it| it.ticket);
    assert_eq!(writer(&ledger), Some(Ticket(1)));
    ledger.abandon(Ticket(1));
    assert_eq!(writer(&ledger), Some(Ticket(2)));
    ledger.abandon(Ticket(2));
    assert_eq!(writer(&ledger), None);
    assert!(ledger.is_empty());
}

#[test]
fn those_that_stream_are_waited_for_first_then_whoever_went_first() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abc", &[2]);
    let prediction = prompt.predict(&ledger, Moment(0));
    for (ticket, streams, sent) in [(1, false, 0), (2, false, 0), (3, true, 2), (4, true, 1), (5, true, 1)] {
        ledger.begin(Ticket(ticket), &prediction, streams, Moment(sent));
    }
    let mut order = Vec::new();
    while let Some(leader) = ledger.leader(&prompt.keys[2]).copied() {
        order.push((leader.ticket.0, leader.streams, leader.since.0));
        assert_eq!(ledger.abandon(leader.ticket), [prompt.keys[2]]);
    }
    assert_eq!(order, [(4, true, 1), (5, true, 1), (3, true, 2), (1, false, 0), (2, false, 0)]);
    assert!(ledger.is_empty());
}

#[test]
fn what_is_claimed_for_a_request_is_its_own_until_it_is_sent() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abcd", &[1, 2, 3]);
    let cold = prompt.predict(&ledger, Moment(0));
    ledger.begin(Ticket(1), &Prompt::marked("abc", &[2]).predict(&ledger, Moment(0)), false, Moment(0));
    let claimed: Vec<_> = cold.writes().iter().copied().filter(|write| write.piece != 2).collect();
    ledger.claim(Ticket(2), claimed, vec![prompt.keys[2]], true, Moment(5));
    let leaders =
        |ledger: &CacheLedger| [1, 2, 3].map(|at| ledger.leader(&prompt.keys[at]).map(|it| it.ticket.0));
    assert_eq!(leaders(&ledger), [Some(2), Some(1), Some(2)]);
    let own = ledger.predict(prompt.probes(), |at| prompt.keys.get(at).copied(), Some(Ticket(2)), Moment(6));
    let underway = |found: &Prediction| found.underway.iter().map(|it| it.piece).collect::<Vec<_>>();
    assert_eq!((underway(&own), underway(&prompt.predict(&ledger, Moment(6)))), (vec![2], vec![3, 2, 1]));
    ledger.begin(Ticket(2), &own, true, Moment(6));
    assert_eq!(leaders(&ledger), [Some(2), Some(1), Some(2)], "what it is presumed to read stays another's");
    assert_eq!(ledger.leader(&prompt.keys[3]).unwrap().since, Moment(5), "it went when it was let go");
    ledger.readable(Ticket(2), Moment(7), None);
    assert_eq!(leaders(&ledger), [None; 3]);
    assert!(ledger.abandon(Ticket(2)).is_empty(), "it has written it all");
    assert_eq!(ledger.abandon(Ticket(1)), [prompt.keys[2]]);
    assert_eq!(read_piece(&prompt, &ledger, Moment(8)), Some(3));
}

#[test]
fn the_last_breakpoint_counts_as_billed_and_earlier_ones_by_bytes() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abcdefghij", &[1, 4, 9]);
    let prediction = prompt.predict(&ledger, Moment(0));
    ledger.begin(Ticket(1), &prediction, true, Moment(0));
    ledger.readable(Ticket(1), Moment(0), None);
    assert_eq!(prompt.predict(&ledger, Moment(0)).read.unwrap().tokens, EntryTokens::guessed(250.0));
    ledger.settle(Ticket(1), &bill(0, 4_000), Moment(0));
    let read =
        |letters, piece| Prompt::marked(letters, &[piece]).predict(&ledger, Moment(1)).read.unwrap().tokens;
    assert_eq!(read("abcdefghij", 9), EntryTokens::billed(4_000));
    assert_eq!(read("abcde", 4), EntryTokens::estimated(2_000.0));
    assert_eq!(read("ab", 1), EntryTokens::estimated(800.0));
}

#[test]
fn an_estimate_becomes_exact_when_its_entry_is_read() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abcdefghij", &[4, 9]);
    exchange(&mut ledger, Ticket(1), &prompt, Moment(0));
    let other = Prompt::marked("abcdexyzzz", &[4, 6, 9]);
    let prediction = other.predict(&ledger, Moment(1));
    assert_eq!(prediction.read.unwrap().tokens, EntryTokens::estimated(500.0));
    assert_eq!((prediction.tokens(), prediction.tokens_min()), (500, 334));
    ledger.begin(Ticket(2), &prediction, true, Moment(1));
    ledger.readable(Ticket(2), Moment(1), None);
    ledger.settle(Ticket(2), &bill(430, 1_000), Moment(1));
    let read =
        |letters, piece| Prompt::marked(letters, &[piece]).predict(&ledger, Moment(2)).read.unwrap().tokens;
    assert_eq!(read("abcde", 4), EntryTokens::billed(430));
    assert_eq!(read("abcdexyzzz", 9), EntryTokens::billed(1_430));
    assert_eq!(
        read("abcdexy", 6),
        EntryTokens::estimated(830.0),
        "between what was read and the last breakpoint"
    );
}

#[test]
fn the_bytes_of_an_image_say_nothing_about_the_entries_before_it() {
    let mut ledger = CacheLedger::default();
    let shown = Prompt::marked("abcdefghij", &[4, 9]);
    ledger.begin(Ticket(1), &shown.predict(&ledger, Moment(0)), true, Moment(0));
    ledger.readable(Ticket(1), Moment(0), None);
    ledger.settle(Ticket(1), &LedgerBill { has_payload: true, ..bill(0, 10_000) }, Moment(0));
    let other = Prompt::marked("abcdexy", &[4, 6]);
    let prediction = other.predict(&ledger, Moment(1));
    ledger.begin(Ticket(2), &prediction, true, Moment(1));
    ledger.readable(Ticket(2), Moment(1), None);
    ledger.settle(Ticket(2), &bill(500, 200), Moment(1));
    let read = Prompt::marked("abcde", &[4]).predict(&ledger, Moment(2)).read;
    assert_eq!(read.map(|read| read.tokens), Some(EntryTokens::billed(500)), "and not lost");
}

#[test]
fn what_the_upstream_does_not_bill_does_not_exist() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abc", &[0, 2]);
    ledger.begin(Ticket(1), &prompt.predict(&ledger, Moment(0)), true, Moment(0));
    ledger.readable(Ticket(1), Moment(0), None);
    ledger.settle(Ticket(1), &bill(0, 0), Moment(1));
    assert_eq!(read_piece(&prompt, &ledger, Moment(2)), None);
    assert!(ledger.is_empty());
}

#[test]
fn a_breakpoint_below_the_minimum_is_no_entry() {
    let mut ledger = CacheLedger::default();
    let prompt = Prompt::marked("abcdefghij", &[1, 9]);
    ledger.begin(Ticket(1), &prompt.predict(&ledger, Moment(0)), true, Moment(0));
    ledger.readable(Ticket(1), Moment(0), None);
    ledger.settle(Ticket(1), &LedgerBill { minimum_tokens: Some(512), ..bill(0, 1_000) }, Moment(0));
    assert_eq!(read_piece(&prompt, &ledger, Moment(1)), Some(9));
    assert_eq!(read_piece(&Prompt::marked("ab", &[1]), &ledger, Moment(1)), None);
}

#[test]
fn an_entry_that_was_not_read_as_predicted_is_gone() {
    let mut ledger = CacheLedger::default();
    let short = Prompt::marked("abc", &[2]);
    exchange(&mut ledger, Ticket(1), &short, Moment(0));
    let long = Prompt::marked("abcd", &[3]);
    ledger.begin(Ticket(2), &long.predict(&ledger, Moment(1)), true, Moment(1));
    ledger.readable(Ticket(2), Moment(1), None);
    ledger.settle(Ticket(2), &bill(0, 400), Moment(1));
    assert_eq!(read_piece(&short, &ledger, Moment(2)), None);
    assert_eq!(read_piece(&long, &ledger, Moment(2)), Some(3));
}

#[test]
fn of_two_writers_the_longer_promise_stands() {
    let mut ledger = CacheLedger::default();
    let prompts = [Prompt::of("abc", &[(2, Ttl::OneHour)]), Prompt::of("abc", &[(2, Ttl::FiveMinutes)])];
    let predictions: Vec<_> = prompts.iter().map(|prompt| prompt.predict(&ledger, Moment(0))).collect();
    for (ticket, prediction) in (1..).zip(&predictions) {
        ledger.begin(Ticket(ticket), prediction, true, Moment(ticket));
    }
    for ticket in [1, 2] {
        ledger.readable(Ticket(ticket), Moment(10), None);
        ledger.settle(Ticket(ticket), &bill(0, 300), Moment(10));
    }
    assert_eq!(read_piece(&prompts[1], &ledger, Moment(50 * MINUTE)), Some(2));
}

#[test]
fn a_full_ledger_drops_first_what_ends_first() {
    let mut ledger = CacheLedger::default();
    for n in 0..LEDGER_ENTRIES_MAX + 10 {
        let write = EntryWrite { key: numbered(n), piece: 0, bytes: 100, ttl: Ttl::FiveMinutes };
        let prediction = Prediction { breakpoints: vec![write], ..Prediction::default() };
        let now = Moment(n as u64);
        ledger.begin(Ticket(n as u64), &prediction, true, now);
        ledger.readable(Ticket(n as u64), now, None);
        ledger.settle(Ticket(n as u64), &bill(0, 100), now);
        assert!(ledger.len() <= LEDGER_ENTRIES_MAX);
    }
    let now = Moment(LEDGER_ENTRIES_MAX as u64 + 10);
    let probe = Probe { piece: 0, bytes: 100, marker: None };
    let is_warm = |n: usize| ledger.predict([probe], |_| Some(numbered(n)), None, now).read.is_some();
    let first_kept = (0..LEDGER_ENTRIES_MAX + 10).find(|n| is_warm(*n)).unwrap();
    assert_eq!(first_kept, LEDGER_ENTRIES_MAX / 8);
    assert!((first_kept..LEDGER_ENTRIES_MAX + 10).all(is_warm));
}

#[test]
fn requests_on_their_way_are_bounded_too() {
    let mut ledger = CacheLedger::default();
    for n in 0..IN_FLIGHT_MAX + 5 {
        let write = EntryWrite { key: numbered(n), piece: 0, bytes: 100, ttl: Ttl::FiveMinutes };
        let prediction = Prediction { breakpoints: vec![write], ..Prediction::default() };
        ledger.begin(Ticket(n as u64), &prediction, true, Moment(0));
    }
    assert_eq!((ledger.flights.len(), ledger.len()), (IN_FLIGHT_MAX, IN_FLIGHT_MAX));
}

fn numbered(n: usize) -> EntryKey {
    EntryKey::numbered(n as u64)
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Send { letters: String, markers: Vec<(usize, Ttl)> },
    Begin(prop::sample::Index),
    Bill(prop::sample::Index),
    Fail(prop::sample::Index),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let ttl = any::<bool>().prop_map(|hour| if hour { Ttl::OneHour } else { Ttl::FiveMinutes });
    let send = ("[ab]{1,6}[cd]{0,22}", prop::collection::btree_map(0..28_usize, ttl, 1..4)).prop_map(
        |(letters, markers)| {
            let markers = markers.into_iter().filter(|(at, _)| *at < letters.len()).collect();
            Step::Send { letters, markers }
        },
    );
    prop_oneof![
        4 => send,
        4 => any::<prop::sample::Index>().prop_map(Step::Begin),
        3 => any::<prop::sample::Index>().prop_map(Step::Bill),
        1 => any::<prop::sample::Index>().prop_map(Step::Fail),
        2 => (1..7 * MINUTE).prop_map(Step::Wait),
        1 => (1..70 * MINUTE).prop_map(Step::Wait),
    ]
}

fn prefix_key(prefix: &str) -> EntryKey {
    thread_local! {
        static KEYS: std::cell::RefCell<std::collections::HashMap<String, EntryKey>> = std::cell::RefCell::default();
    }
    KEYS.with_borrow_mut(|keys| {
        let next = keys.len();
        *keys.entry(prefix.to_owned()).or_insert_with(|| numbered(next))
    })
}

/// An upstream of which nothing is hidden: all it has ever written, searched from one end to the other.
#[derive(Default)]
struct Upstream {
    entries: Vec<(EntryKey, Ttl, Moment)>,
}

impl Upstream {
    fn is_live(&self, key: &EntryKey, now: Moment) -> bool {
        self.entries.iter().any(|(known, _, until)| known == key && now < *until)
    }

    fn hit(&self, prompt: &Prompt, now: Moment) -> Option<usize> {
        let windows = prompt.markers.iter().flat_map(|(at, _)| (0..=*at).rev().take(LOOKBACK_POSITIONS));
        windows.filter(|piece| self.is_live(&prompt.keys[*piece], now)).max()
    }

    /// Renews what is read, as far as the ledger may rely on: the entry and the breakpoints before it.
    fn read(&mut self, prompt: &Prompt, hit: usize, now: Moment) {
        let renewed: Vec<_> =
            prompt.markers.iter().map(|(at, _)| *at).filter(|at| *at < hit).chain([hit]).collect();
        for (key, ttl, until) in &mut self.entries {
            if *until > now && renewed.iter().any(|piece| prompt.keys[*piece] == *key) {
                *until = (*until).max(now.after(ttl.ms()));
            }
        }
    }
}

struct OnItsWay {
    ticket: Ticket,
    prompt: Prompt,
    sent: Moment,
    hit: Option<usize>,
    begun: bool,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// The law: what the ledger calls warm, an upstream has, and nothing expired or failed is among it. And when
    /// every request was billed, the ledger knows all that the upstream has.
    #[test]
    fn the_ledger_predicts_what_an_upstream_reads(steps in prop::collection::vec(any_step(), 1..60)) {
        let (mut ledger, mut upstream) = (CacheLedger::default(), Upstream::default());
        let (mut now, mut tickets, mut all_billed) = (Moment(1), 0, true);
        let mut flights: Vec<OnItsWay> = Vec::new();
        for step in steps {
            match step {
                Step::Wait(ms) => now = now.after(ms),
                Step::Send { letters, markers } => {
                    let prompt = Prompt::of(&letters, &markers);
                    let prediction = prompt.predict(&ledger, now);
                    let hit = upstream.hit(&prompt, now);
                    let predicted = prediction.read.map(|read| read.piece);
                    prop_assert!(predicted <= hit, "{:?} of {:?}", predicted, hit);
                    if flights.is_empty() && all_billed {
                        prop_assert_eq!(predicted, hit);
                    }
                    let others = |key: &EntryKey| flights.iter().any(|flight| !flight.begun && flight.prompt.keys.contains(key));
                    prop_assert!(prediction.underway.iter().all(|it| others(&it.key)));
                    if let Some(hit) = hit {
                        upstream.read(&prompt, hit, now);
                    }
                    tickets += 1;
                    ledger.begin(Ticket(tickets), &prediction, true, now);
                    flights.push(OnItsWay { ticket: Ticket(tickets), prompt, sent: now, hit, begun: false });
                }
                Step::Begin(index) if !flights.is_empty() => {
                    let index = index.index(flights.len());
                    begin(&mut flights[index], &mut upstream, &mut ledger, now);
                }
                Step::Bill(index) if !flights.is_empty() => {
                    let mut flight = flights.remove(index.index(flights.len()));
                    begin(&mut flight, &mut upstream, &mut ledger, now);
                    let read = flight.hit.map_or(0, |hit| 100 * (hit as u64 + 1));
                    let last = flight.prompt.markers.last().map_or(0, |(at, _)| 100 * (*at as u64 + 1));
                    ledger.settle(flight.ticket, &bill(read, last.max(read) - read), now);
                }
                Step::Fail(index) if !flights.is_empty() => {
                    let flight = flights.remove(index.index(flights.len()));
                    ledger.abandon(flight.ticket);
                    all_billed = false;
                }
                _ => {}
            }
        }
    }
}

fn begin(flight: &mut OnItsWay, upstream: &mut Upstream, ledger: &mut CacheLedger, now: Moment) {
    if std::mem::replace(&mut flight.begun, true) {
        return;
    }
    for (at, ttl) in &flight.prompt.markers {
        if flight.hit.is_none_or(|hit| *at > hit) {
            upstream.entries.push((flight.prompt.keys[*at], *ttl, flight.sent.after(ttl.ms())));
        }
    }
    ledger.readable(flight.ticket, now, None);
}

#[test]
fn what_is_not_billed_yet_is_estimated_by_the_learned_ratio() {
    let prompt = Prompt::marked("abcdefghij", &[9]);
    for (ratio, tokens) in [(None, EntryTokens::guessed(250.0)), (Some(0.5), EntryTokens::estimated(500.0))] {
        let mut ledger = CacheLedger::default();
        ledger.begin(Ticket(1), &prompt.predict(&ledger, Moment(0)), true, Moment(0));
        ledger.readable(Ticket(1), Moment(0), ratio);
        assert_eq!(prompt.predict(&ledger, Moment(0)).read.unwrap().tokens, tokens);
    }
}
