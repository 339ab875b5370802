//! The promises of interning, on requests as clients send them and on the oddest that JSON allows.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::engine::request::anatomy::Piece;
use crate::engine::request::meaning::Meaning;
use crate::engine::request::prefix::{Attribution, Chain, PrefixHash};
use crate::engine::words::Layer;

mod cases;
mod request;

use request::{Request, Style, any_request, any_value};

/// A proxy of one tenant: its table, and what it forwarded.
pub(super) struct Tenant {
    table: Table,
    order: Order,
}

impl Tenant {
    pub fn new() -> Tenant {
        Tenant { table: Table::new(Limits::TENANT), order: Order::FirstSeen }
    }

    pub fn canonical(&self, body: &str) -> Canonical {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let anatomy = Anatomy::read(&body).unwrap();
        canonicalize(&body, &anatomy, self.order, Thinking::Free, &self.table)
    }

    pub fn forward(&mut self, body: &str) -> String {
        let canonical = self.canonical(body);
        self.table.remember(canonical.interns);
        spliced(body, &canonical.replacements)
    }
}

pub(super) fn spliced(body: &str, replacements: &[Replacement]) -> String {
    let body = Bytes::copy_from_slice(body.as_bytes());
    String::from_utf8(splice(&body, replacements).concat()).unwrap()
}

/// The attribution line, which goes out as it came.
fn attribution<'a>(body: &'a str, anatomy: &Anatomy) -> Option<&'a str> {
    let line = anatomy.pieces[anatomy.tools..].first().map(|piece| &body[piece.span.clone()])?;
    (anatomy.system > 0 && line.contains("x-anthropic-billing-header")).then_some(line)
}

/// A layer less its markers and the attribution line.
fn layer(body: &str, name: &str) -> String {
    let anatomy = Anatomy::read(body.as_bytes()).unwrap();
    let Some(value) = anatomy.member(body.as_bytes(), name).cloned() else { return String::new() };
    let mut out = String::new();
    let mut at = value.start;
    for piece in anatomy.pieces.iter().filter(|piece| value.contains(&piece.span.start)) {
        if let Some(marker) = piece.marker() {
            out.push_str(&body[at..marker.cut.start]);
            at = marker.cut.end;
        }
    }
    out.push_str(&body[at..value.end]);
    attribution(body, &anatomy).map_or(out.clone(), |line| out.replacen(line, "", 1))
}

/// The prefix hash at the end of the system layer.
fn prefix(body: &str) -> PrefixHash {
    let anatomy = Anatomy::read(body.as_bytes()).unwrap();
    Chain::of(body.as_bytes(), &anatomy, Attribution::Stripped).layer(&anatomy, Layer::System)
}

/// What a piece says; what has no meaning says its bytes.
fn says(body: &str, piece: &Piece) -> Result<Meaning, String> {
    let bytes = &body.as_bytes()[piece.span.clone()];
    let meaning = if piece.form == Form::Block { Meaning::of_block(bytes) } else { Meaning::of(bytes) };
    meaning.ok_or_else(|| body[piece.span.clone()].to_owned())
}

/// The marker of each piece, in its place.
fn markers(body: &str, anatomy: &Anatomy) -> Vec<Option<String>> {
    let marker = |piece: &Piece| piece.marker().map(|marker| body[marker.value].to_owned());
    anatomy.pieces.iter().map(marker).collect()
}

/// Returns true if a marker stands among the tools, which may keep their order for it.
fn leans(body: &str) -> bool {
    let anatomy = Anatomy::read(body.as_bytes()).unwrap();
    let tools = anatomy.pieces[..anatomy.tools].split_last();
    tools.is_some_and(|(_, others)| others.iter().any(Piece::is_marked))
}

/// Everything but tools, system and inputs, as one text.
fn rest(body: &str) -> String {
    let anatomy = Anatomy::read(body.as_bytes()).unwrap();
    let mut cuts: Vec<_> = ["tools", "system"]
        .iter()
        .filter_map(|name| anatomy.member(body.as_bytes(), name).cloned())
        .collect();
    let messages = &anatomy.pieces[anatomy.tools + anatomy.system..];
    cuts.extend(messages.iter().filter_map(|piece| piece.input()));
    cuts.sort_by_key(|cut| cut.start);
    let mut out = String::new();
    let mut at = 0;
    for cut in cuts {
        out.push_str(&body[at..cut.start]);
        at = cut.end;
    }
    out + &body[at..]
}

/// What may never change, whatever was known: meaning, markers, all other bytes, and the count of places.
fn assert_kept(received: &str, forwarded: &str) {
    let read = |body: &str| {
        let anatomy = Anatomy::read(body.as_bytes()).unwrap();
        let said: Vec<_> = anatomy.pieces.iter().map(|piece| says(body, piece)).collect();
        let mut tools = BTreeMap::<String, usize>::new();
        for tool in &said[..anatomy.tools] {
            *tools.entry(format!("{tool:?}")).or_default() += 1;
        }
        let line = attribution(body, &anatomy).map(str::to_owned);
        let markers = markers(body, &anatomy);
        (tools, said[anatomy.tools..].to_vec(), anatomy.system, line, markers)
    };
    assert_eq!(read(received), read(forwarded), "{received}\n{forwarded}");
    assert_eq!(rest(received), rest(forwarded));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_respelling_is_forwarded_as_the_first(
        request in any_request(),
        seeds in prop::collection::vec(any::<u64>(), 1..4),
    ) {
        let mut tenant = Tenant::new();
        let first = tenant.forward(&request.write(&mut Style::plain()));
        for seed in seeds {
            let body = request.write(&mut Style::respelling(seed));
            let forwarded = tenant.forward(&body);
            assert_kept(&body, &forwarded);
            if !leans(&body) {
                prop_assert_eq!(layer(&forwarded, "tools"), layer(&first, "tools"));
                prop_assert_eq!(prefix(&forwarded), prefix(&first));
            }
            prop_assert_eq!(layer(&forwarded, "system"), layer(&first, "system"));
            prop_assert_eq!(inputs(&forwarded), inputs(&first));
            prop_assert_eq!(tenant.forward(&forwarded), forwarded);
        }
    }

    /// The first spelling need not be a tidy one, and the table may know other requests before.
    #[test]
    fn forwarding_twice_changes_nothing(
        requests in prop::collection::vec((any_request(), any::<u64>()), 1..4),
        again in any::<u64>(),
    ) {
        let mut tenant = Tenant::new();
        for (request, seed) in &requests {
            tenant.forward(&request.write(&mut Style::respelling(*seed)));
        }
        for (request, _) in &requests {
            let body = request.write(&mut Style::respelling(again));
            let canonical = tenant.canonical(&body);
            let forwarded = spliced(&body, &canonical.replacements);
            assert_kept(&body, &forwarded);
            // Nothing in between was remembered, and it holds all the same.
            prop_assert_eq!(tenant.canonical(&forwarded).replacements, vec![]);
            tenant.table.remember(canonical.interns);
            prop_assert_eq!(tenant.canonical(&forwarded).replacements, vec![]);
        }
    }

    #[test]
    fn a_stable_client_is_forwarded_as_it_came(request in any_request(), seed in any::<u64>(), spaced in any::<bool>()) {
        let mut tenant = Tenant::new();
        for turn in 0..=request.turns() {
            let style = if spaced { Style::spaced() } else { Style::plain() };
            let body = request.write(&mut style.with_markers(seed ^ turn as u64).until(turn));
            let canonical = tenant.canonical(&body);
            prop_assert_eq!(&canonical.replacements, &vec![], "turn {}", turn);
            tenant.table.remember(canonical.interns);
            let again = tenant.canonical(&body);
            prop_assert!(again.replacements.is_empty() && again.interns.is_empty());
        }
    }

    #[test]
    fn any_json_survives(
        layers in prop::collection::vec((any_value(), any_value(), any_value()), 1..4),
        seeds in prop::collection::vec(any::<u64>(), 4),
    ) {
        let mut tenant = Tenant::new();
        for seed in seeds {
            for (tools, system, input) in &layers {
                let body = Request::odd(tools, system, input, &mut Style::respelling(seed));
                let forwarded = tenant.forward(&body);
                match Anatomy::read(body.as_bytes()).unwrap().ambiguous {
                    true => prop_assert_eq!(&forwarded, &body),
                    false => assert_kept(&body, &forwarded),
                }
                prop_assert_eq!(tenant.forward(&forwarded), forwarded);
            }
        }
    }

    #[test]
    fn sorting_gives_every_shuffle_one_order_without_memory(request in any_request(), seeds in any::<[u64; 2]>()) {
        let forward = |seed| {
            let body = request.write(&mut Style::plain().with_markers(seed).shuffling_tools(seed));
            let forwarded = Tenant { order: Order::Sorted, ..Tenant::new() }.forward(&body);
            assert_kept(&body, &forwarded);
            assert_eq!(Tenant { order: Order::Sorted, ..Tenant::new() }.forward(&forwarded), forwarded);
            (forwarded, leans(&body))
        };
        let [(one, one_leans), (two, two_leans)] = seeds.map(forward);
        if !one_leans && !two_leans {
            prop_assert_eq!(layer(&one, "tools"), layer(&two, "tools"));
            prop_assert_eq!(prefix(&one), prefix(&two));
        }
    }

    #[test]
    fn bound_thinking_keeps_the_choice_whatever_the_tenant_learns_later(
        request in any_request(),
        seeds in prop::collection::vec(any::<u64>(), 3),
    ) {
        let mut tenant = Tenant::new();
        tenant.forward(&request.write(&mut Style::respelling(seeds[0]).until(0)));
        let mut choice = Choice::new(Order::FirstSeen, Limits::CONVERSATION);
        let mut forwarded = Vec::new();
        for turn in 0..=request.turns() {
            let body = Bytes::from(request.write(&mut Style::respelling(seeds[1] ^ turn as u64).until(turn)));
            let anatomy = Anatomy::read(&body).unwrap();
            let conversation = match turn {
                0 => Conversation::Started,
                _ => Conversation::Continued { choice: Some(&choice) },
            };
            let canonical =
                canonicalize(&body, &anatomy, Order::FirstSeen, Thinking::Bound(conversation), &tenant.table);
            forwarded.push(String::from_utf8(splice(&body, &canonical.replacements).concat()).unwrap());
            choice.pin(canonical.pins);
            // The tenant forgets, and learns another spelling.
            tenant = Tenant::new();
            tenant.forward(&request.write(&mut Style::respelling(seeds[2]).until(turn)));
        }
        for pair in forwarded.windows(2) {
            prop_assert_eq!(layer(&pair[0], "tools"), layer(&pair[1], "tools"));
            prop_assert_eq!(layer(&pair[0], "system"), layer(&pair[1], "system"));
            let (before, after) = (inputs(&pair[0]), inputs(&pair[1]));
            prop_assert_eq!(&before[..], &after[..before.len()]);
        }
    }
}

fn inputs(body: &str) -> Vec<String> {
    let anatomy = Anatomy::read(body.as_bytes()).unwrap();
    let inputs = anatomy.pieces.iter().filter_map(|piece| piece.input());
    inputs.map(|input| body[input].to_owned()).collect()
}
