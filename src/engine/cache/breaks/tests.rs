use super::*;
use crate::engine::cache::entry::EntryKey;
use crate::engine::cache::ledger::{CacheLedger, LedgerBill};
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::prefix::{Attribution, Chain};
use crate::engine::words::{Carrier, Origin, TenantId, Ticket, Ttl};

const MINUTE: u64 = 60_000;

/// A request with everything that is known of it, and a conversation to change.
struct Request {
    body: Vec<u8>,
    anatomy: Anatomy,
    chain: Chain,
    parameters: Parameters,
    breakpoints: Vec<Breakpoint>,
    at: Moment,
}

impl Request {
    fn new(body: &str, betas: &[&str], breakpoints: &[usize], at: u64) -> Request {
        let body = body.as_bytes().to_vec();
        let anatomy = Anatomy::read(&body).unwrap();
        let chain = Chain::of(&body, &anatomy, Attribution::Counted);
        let parameters = Parameters::read(TenantId([0; 32]), &body, &anatomy, betas.iter().copied());
        let point = |piece| Breakpoint {
            piece,
            ttl: Ttl::FiveMinutes,
            origin: Origin::Client,
            carrier: Carrier::Block,
        };
        let breakpoints = breakpoints.iter().copied().map(point).collect();
        Request { body, anatomy, chain, parameters, breakpoints, at: Moment(at) }
    }

    fn sent(&self) -> Sent<'_> {
        let subject = Subject { body: &self.body, anatomy: &self.anatomy, chain: &self.chain };
        Sent { subject, parameters: &self.parameters, breakpoints: &self.breakpoints, at: self.at }
    }

    fn predict(&self, ledger: &CacheLedger) -> Prediction {
        let scope = self.parameters.scope();
        let key = |piece| EntryKey::of(scope, &self.chain, piece, self.anatomy.layer(piece));
        ledger.predict(Probes::of(&self.anatomy, &self.chain, &self.breakpoints), key, None, self.at)
    }
}

fn usage(read: u64, written: u64) -> Usage {
    Usage { cache_read: read, cache_write_5m: written, uncached: 300, ..Usage::default() }
}

const HEAD: &str =
    r#""tools":[{"name":"t","input_schema":{"a":1,"b":2}}],"system":[{"type":"text","text":"s"}]"#;

/// Two turns; pieces: tool, system, question, answer, and then `more`.
fn body(members: &str, more: &str) -> String {
    format!(
        r#"{{"model":"m",{members}{HEAD},"messages":[{{"role":"user","content":[{{"type":"text","text":"q"}}]}},{{"role":"assistant","content":[{{"type":"text","text":"a"}}]}}{more}]}}"#
    )
}

fn turn(text: &str) -> String {
    format!(r#",{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#)
}

/// The first request, sent at 0 and marked at its last piece, begun and billed with 1,000 tokens written.
fn first() -> Request {
    Request::new(&body("", ""), &[], &[3], 0)
}

struct Scene {
    first: Request,
    begun: Option<u64>,
    billed: Usage,
    minimum: Option<u64>,
    missed: Option<Missed>,
}

impl Default for Scene {
    fn default() -> Scene {
        Scene { first: first(), begun: Some(10), billed: usage(0, 1_000), minimum: Some(512), missed: None }
    }
}

impl Scene {
    fn judge(&self, second: &Request, read: Usage, prediction: &Prediction) -> Option<Break> {
        let begun = self.begun.map(Moment);
        let last = Answered { sent: self.first.sent(), begun, usage: self.billed };
        let drift = Drift::of(&last.sent.subject, &second.sent().subject);
        let (last, now) = (Some((&last, &drift)), &second.sent());
        Case { last, now, usage: &read, prediction, missed: self.missed, minimum_tokens: self.minimum }
            .judge()
    }

    /// The verdict on a second request that reads nothing, without a ledger.
    fn lost(&self, second: &Request) -> Break {
        self.judge(second, usage(0, 900), &Prediction::default()).unwrap()
    }
}

fn extended(at: u64) -> Request {
    Request::new(&body("", &turn("next")), &[], &[3, 4], at)
}

#[test]
fn what_is_read_as_expected_is_no_break() {
    let scene = Scene::default();
    let none = Prediction::default();
    assert_eq!(scene.judge(&extended(1_000), usage(1_000, 50), &none), None);
    assert_eq!(scene.judge(&extended(1_000), usage(1_001, 0), &none), None);
    let partly = scene.judge(&extended(1_000), usage(999, 51), &none).unwrap();
    assert_eq!((partly.cause, partly.tokens_lost), (BreakCause::Unknown, 1));
    let alone = extended(0);
    let (now, usage) = (&alone.sent(), &usage(0, 0));
    let case = Case { last: None, now, usage, prediction: &none, missed: None, minimum_tokens: None };
    assert_eq!(case.judge(), None, "nothing was expected");
}

#[test]
fn each_layer_that_changed_is_its_own_cause() {
    let long = body("", &turn("next"));
    let changed = |from: &str, to: &str| {
        let second = Request::new(&long.replace(from, to), &[], &[3, 4], 1_000);
        let found = Scene::default().lost(&second);
        assert_eq!(found.tokens_lost, 1_000);
        assert!(found.offset.is_some());
        (found.layer, found.cause, found.path)
    };
    assert_eq!(changed(r#""m""#, r#""n""#), (Layer::Model, BreakCause::Model, "model".into()));
    assert_eq!(
        changed(r#""name":"t""#, r#""name":"u""#),
        (Layer::Tools, BreakCause::Tools, "tools[0]".into())
    );
    assert_eq!(
        changed(r#""text":"s""#, r#""text":"S""#),
        (Layer::System, BreakCause::System, "system[0]".into())
    );
    let messages = (Layer::Messages, BreakCause::Messages, "messages[0].content[0]".into());
    assert_eq!(changed(r#""text":"q""#, r#""text":"Q""#), messages);
    let spelling = (Layer::Tools, BreakCause::Spelling, "tools[0]".into());
    assert_eq!(changed(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#), spelling);
}

#[test]
fn a_change_behind_the_last_breakpoint_loses_nothing() {
    let scene = Scene { first: Request::new(&body("", ""), &[], &[1], 0), ..Scene::default() };
    let reworded = Request::new(&body("", "").replace(r#""text":"q""#, r#""text":"Q""#), &[], &[1], 1_000);
    assert_eq!(scene.lost(&reworded).cause, BreakCause::Unknown);
    let other = Request::new(&body(r#""thinking":{},"#, ""), &[], &[1], 1_000);
    assert_eq!(
        scene.lost(&other).cause,
        BreakCause::Unknown,
        "the entry of a system block knows no thinking"
    );
}

#[test]
fn each_parameter_that_changed_has_its_cause() {
    let changed = |members: &str, betas: &[&str]| {
        let second = Request::new(&body(members, &turn("next")), betas, &[3, 4], 1_000);
        let found = Scene::default().lost(&second);
        (found.layer, found.cause, found.path, found.offset.is_some())
    };
    let at = |layer, cause, path: &str, place| (layer, cause, path.to_owned(), place);
    let messages = Layer::Messages;
    assert_eq!(changed(r#""speed":"fast","#, &[]), at(Layer::System, BreakCause::System, "speed", true));
    assert_eq!(changed(r#""thinking":{},"#, &[]), at(messages, BreakCause::Thinking, "thinking", true));
    assert_eq!(
        changed(r#""output_config":{},"#, &[]),
        at(messages, BreakCause::Thinking, "output_config", true)
    );
    assert_eq!(
        changed(r#""tool_choice":{},"#, &[]),
        at(messages, BreakCause::ToolChoice, "tool_choice", true)
    );
    let edits = at(messages, BreakCause::Messages, "context_management", true);
    assert_eq!(changed(r#""context_management":{},"#, &[]), edits);
    assert_eq!(changed("", &["b"]), at(messages, BreakCause::Betas, "anthropic-beta", false));
}

#[test]
fn an_image_that_comes_or_goes_is_a_change_of_messages() {
    let picture = r#",{"role":"user","content":[{"type":"image","source":{}}]}"#;
    let with = Request::new(&body("", picture), &[], &[3, 4], 0);
    let found = Scene::default().lost(&with);
    assert_eq!((found.cause, found.path.as_str()), (BreakCause::Messages, "messages[2].content[0]"));
    let scene = Scene { first: Request::new(&body("", picture), &[], &[3], 0), ..Scene::default() };
    let found = scene.lost(&extended(1_000));
    assert_eq!(
        (found.layer, found.cause, found.path.as_str()),
        (Layer::Messages, BreakCause::Messages, "image")
    );
}

#[test]
fn an_entry_that_outlived_its_time_has_expired() {
    let scene = Scene::default();
    let found = scene.lost(&extended(5 * MINUTE));
    assert_eq!((found.layer, found.cause), (Layer::Messages, BreakCause::TtlExpired));
    assert_eq!(found.path, "messages[1].content[0]");
    assert_eq!(scene.lost(&extended(5 * MINUTE - 1)).cause, BreakCause::Unknown);
}

#[test]
fn an_entry_that_no_breakpoint_looks_at_is_lost_to_the_lookback() {
    let many: String = (0..25).map(|n| turn(&n.to_string())).collect();
    let second = |points: &[usize]| Request::new(&body("", &many), &[], points, 1_000);
    let cause = |points: &[usize]| Scene::default().lost(&second(points)).cause;
    assert_eq!(cause(&[23]), BreakCause::Lookback);
    assert_eq!(cause(&[22]), BreakCause::Unknown, "nineteen positions after the entry");
    assert_eq!(cause(&[1, 10, 28]), BreakCause::Unknown);
    assert_eq!(cause(&[1, 28]), BreakCause::Lookback);
    assert_eq!(cause(&[]), BreakCause::Lookback, "without any marker nothing is looked for");
}

#[test]
fn an_entry_whose_writer_had_not_begun_was_not_yet_visible() {
    for begun in [None, Some(1_001)] {
        let scene = Scene { begun, ..Scene::default() };
        assert_eq!(scene.lost(&extended(1_000)).cause, BreakCause::NotYetVisible);
    }
    let scene = Scene { begun: Some(1_000), ..Scene::default() };
    assert_eq!(scene.lost(&extended(1_000)).cause, BreakCause::Unknown);
}

#[test]
fn an_entry_that_others_were_writing_was_not_yet_visible() {
    let missed = |tokens_min| Some(Missed { piece: 4, tokens: 1_500, tokens_min });
    let judge = |missed, read| {
        let scene = Scene { missed, ..Scene::default() };
        scene.judge(&extended(1_000), usage(read, 0), &Prediction::default())
    };
    let found = judge(missed(1_200), 1_100).unwrap();
    assert_eq!(
        (found.layer, found.cause, found.tokens_lost),
        (Layer::Messages, BreakCause::NotYetVisible, 400)
    );
    assert_eq!(found.path, "messages[2].content[0]");
    assert_eq!(judge(missed(1_200), 1_200), None, "it was read, as far as can be told");
    assert_eq!(judge(missed(1_200), 900).unwrap().cause, BreakCause::Unknown, "more than that was lost");
}

#[test]
fn a_loss_costs_what_reading_it_would_have_saved() {
    use crate::engine::cache::prices::{Multiplier, Multipliers, Rate, Rates};
    let rates = Rates { input: Rate::per_million(10.0), output: None };
    let [read, write_5m, write_1h] = [0.1, 1.25, 2.0].map(|factor| Some(Multiplier::new(factor)));
    let price = |write_1h| {
        let multipliers = Multipliers { read, write_5m, write_1h };
        Price { rates, multipliers, tiers: Vec::new() }
    };
    let found = Break { tokens_lost: 1_000, ..Scene::default().lost(&extended(1_000)) };
    let billed = Usage { cache_write_5m: 600, uncached: 900, output: 7, ..Usage::default() };
    let cost = found.cost(&billed, &price(write_1h)).map(|usd| (usd.as_f64() * 1e6).round());
    assert_eq!(cost, Some(600.0 * 11.5 + 400.0 * 9.0));
    let hour = Usage { cache_write_1h: 1_000, ..Usage::default() };
    let cost = |write_1h| found.cost(&hour, &price(write_1h)).map(|usd| (usd.as_f64() * 1e6).round());
    assert_eq!((cost(write_1h), cost(None)), (Some(19_000.0), None));
}

#[test]
fn a_prompt_that_is_never_cached_is_below_the_minimum() {
    let scene = Scene { billed: usage(0, 0), ..Scene::default() };
    let none = Prediction::default();
    let found = scene.judge(&extended(1_000), usage(0, 0), &none).unwrap();
    assert_eq!(
        (found.layer, found.cause, found.tokens_lost),
        (Layer::Messages, BreakCause::BelowMinimum, 300)
    );
    assert_eq!(scene.judge(&extended(5 * MINUTE), usage(0, 0), &none), None, "it would have expired");
    assert_eq!(scene.judge(&extended(1_000), usage(5, 0), &none), None, "it was cached after all");
    let other = Request::new(&body(r#""thinking":{},"#, &turn("next")), &[], &[3, 4], 1_000);
    assert_eq!(scene.judge(&other, usage(0, 0), &none), None, "it could not be read anyway");
    let large = Scene { minimum: Some(200), billed: usage(0, 0), ..Scene::default() };
    assert_eq!(large.judge(&extended(1_000), usage(0, 0), &none), None, "it is large enough");
    let unmarked =
        Scene { first: Request::new(&body("", ""), &[], &[], 0), billed: usage(0, 0), ..Scene::default() };
    assert_eq!(unmarked.judge(&extended(1_000), usage(0, 0), &none), None, "nothing was to be cached");
}

#[test]
fn an_expectation_below_the_minimum_is_named_so() {
    let scene = Scene { billed: usage(0, 400), ..Scene::default() };
    let found = scene.lost(&extended(1_000));
    assert_eq!((found.cause, found.tokens_lost), (BreakCause::BelowMinimum, 400));
}

/// A ledger in which the first request is warm with so many tokens.
fn warm(request: &Request, tokens: u64) -> CacheLedger {
    let mut ledger = CacheLedger::default();
    ledger.begin(Ticket(1), &request.predict(&ledger), true, request.at);
    ledger.readable(Ticket(1), request.at, None);
    ledger.settle(
        Ticket(1),
        &LedgerBill { usage: usage(0, tokens), minimum_tokens: None, has_payload: false },
        request.at,
    );
    ledger
}

#[test]
fn what_the_ledger_knows_to_be_warm_is_expected_of_any_request() {
    let ledger = warm(&first(), 2_000);
    let second = extended(1_000);
    let prediction = second.predict(&ledger);
    let judge = |read| {
        let (now, usage, prediction) = (&second.sent(), &usage(read, 0), &prediction);
        Case { last: None, now, usage, prediction, missed: None, minimum_tokens: None }.judge()
    };
    assert_eq!(judge(2_000), None);
    let found = judge(500).unwrap();
    assert_eq!((found.layer, found.cause, found.tokens_lost), (Layer::Messages, BreakCause::Unknown, 1_500));
    assert_eq!(found.path, "messages[1].content[0]");
}

#[test]
fn no_change_explains_the_loss_of_what_the_ledger_knows_to_be_warm() {
    let changed = Request::new(&body(r#""thinking":{},"#, &turn("next")), &[], &[3, 4], 1_000);
    let ledger = warm(&changed, 1_000);
    let later = Request { at: Moment(2_000), ..changed };
    let prediction = later.predict(&ledger);
    let found = Scene::default().judge(&later, usage(0, 900), &prediction).unwrap();
    assert_eq!(found.cause, BreakCause::Unknown, "another request had written it with the same thinking");
}

#[test]
fn drift_is_extended_or_names_its_place() {
    let (first, second) = (first(), extended(0));
    let drift = Drift::of(&first.sent().subject, &second.sent().subject);
    assert_eq!((&drift, drift.as_str()), (&Drift::Extended, "extended"));
    let drift = Drift::of(&second.sent().subject, &first.sent().subject);
    let Drift::Drifted(divergence) = &drift else { panic!("{drift:?}") };
    assert_eq!((drift.as_str(), divergence.path.as_str()), ("drifted", "messages[2].content[0]"));
    assert_eq!(divergence.layer, Layer::Messages);
}

#[test]
fn the_causes_are_spelt_as_promised() {
    let spellings: Vec<_> = BreakCause::ALL.iter().map(|cause| cause.as_str()).collect();
    let promised = "tools system model thinking tool_choice betas messages spelling ttl_expired below_minimum \
                    lookback not_yet_visible unknown";
    assert_eq!(spellings.join(" "), promised);
}
