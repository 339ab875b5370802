//! The findings, for a person or for a machine.

use std::fmt::Write as _;
use std::ops::Range;

use serde_json::{Value, json};

use crate::engine::cache::breakpoints::{self, Breakpoint, Plan, Profile, Situation, StaticEnds};
use crate::engine::cache::divergence::Divergence;
use crate::engine::cache::prices::MINIMUM_TOKENS;
use crate::engine::cache::prices::Prices;
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::meaning::Meaning;
use crate::engine::request::{json, marker};
use crate::engine::words::{Carrier, DivergenceKind, Layer, Origin, Ttl};
use crate::report::figures::{NAME_CHARS_MAX, harmless};

use super::super::demo::grouped;
use super::super::style::Style;
use super::cost::{self, Estimate};
use super::{Comparison, Exhibit, moving};

const LAYERS: [Layer; 4] = [Layer::Model, Layer::Tools, Layer::System, Layer::Messages];
/// How much of each spelling is shown around the first difference.
const EXCERPT_BEFORE: usize = 24;
const EXCERPT_AFTER: usize = 48;
/// The most characters of a place in a body; it may hold names of members.
const PATH_CHARS_MAX: usize = 200;

pub fn text(first: &Exhibit, comparison: Comparison<'_>, prices: &Prices, style: Style) -> String {
    let plan = plan_of(first, None, prices);
    let mut out = layers(first, Some(&plan), style);
    if let Some((second, parted)) = comparison {
        let next = plan_of(second, Some((first, &plan)), prices);
        let _ = write!(out, "\n{}\n", layers(second, Some(&next), style));
        out += &match parted {
            None => extended(first, second, style),
            Some(parted) => {
                let cost = price_of(first, second, parted, prices);
                diverged(first, second, parted, style) + &cost + &moving::text(first, second)
            }
        };
    }
    out
}

pub fn json(first: &Exhibit, comparison: Comparison<'_>, prices: &Prices) -> Value {
    let plan = plan_of(first, None, prices);
    let mut report = json!({ "requests": [request(first, &plan)] });
    if let Some((second, parted)) = comparison {
        let next = plan_of(second, Some((first, &plan)), prices);
        report["requests"] = json!([request(first, &plan), request(second, &next)]);
        let shared = parted.as_ref().map_or(first.chain.pieces.len(), |parted| parted.piece);
        report["shared_pieces"] = json!(shared);
        report["shared_bytes"] = json!(bytes_of(second, 0..shared.min(second.anatomy.pieces.len())));
        report["volatile"] = moving::json(first, second);
        report["divergence"] = parted.as_ref().map_or(Value::Null, |parted| {
            json!({
                "layer": parted.layer.as_str(),
                "path": parted.path,
                "kind": parted.kind.as_str(),
                "tools_reordered": is_reordering(first, second, parted),
                "at_byte": parted.at,
                "spellings": spellings(first, second, parted),
                "lost_bytes": lost(first, parted),
                "lost_tokens_estimate": cost::tokens(lost(first, parted)),
                "cost_estimate": estimate(first, second, parted, prices).map(|estimate| json!({
                    "model": estimate.model,
                    "prices_as_of": estimate.as_of,
                    "ttl": estimate.ttl.as_str(),
                    "read_usd": estimate.read.as_f64(),
                    "write_usd": estimate.write.as_f64(),
                    "extra_usd": estimate.extra().as_f64(),
                })),
            })
        });
    }
    report
}

/// The layers of one request, with sizes, hashes and the breakpoints that it has; and what is planned for it.
pub fn layers(exhibit: &Exhibit, plan: Option<&Plan>, style: Style) -> String {
    let Exhibit { name, body, anatomy, chain } = exhibit;
    let model = harmless(&anatomy.model(body).unwrap_or_default(), NAME_CHARS_MAX);
    let mut out = format!("{}: {model}, {} bytes\n\n", style.bold(name), grouped(body.len() as u64));
    let _ = writeln!(
        out,
        "  {:<9} {:>6}  {:>10}  {:<16}  breakpoints as sent",
        "layer", "pieces", "bytes", "prefix"
    );
    for layer in LAYERS {
        let pieces = pieces_of(anatomy, layer);
        let marked: Vec<_> =
            sent(exhibit, pieces.clone()).map(|(path, ttl)| format!("{path} {ttl}")).collect();
        let line = format!(
            "  {:<9} {:>6}  {:>10}  {:<16}  {}",
            layer.as_str(),
            if layer == Layer::Model { String::new() } else { pieces.len().to_string() },
            grouped(layer_bytes(exhibit, layer) as u64),
            chain.layer(anatomy, layer).to_string(),
            marked.join(", "),
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    if let Some(ttl) = anatomy.member(body, marker::NAME).map(|span| ttl(&body[span.clone()])) {
        let _ = writeln!(out, "\n  top-level cache_control: automatic, {ttl}");
    }
    if let Some(plan) = plan {
        let _ = writeln!(out, "\n  align would add: {}", planned(exhibit, plan));
    }
    if anatomy.ambiguous {
        let _ = writeln!(
            out,
            "\n  ambiguous: a member occurs twice or a layer has an odd shape; forkpoint leaves such requests alone"
        );
    }
    out
}

/// The breakpoints that `align` would add to a request, or why it adds none.
fn planned(exhibit: &Exhibit, plan: &Plan) -> String {
    let Plan { breakpoints, skipped, .. } = plan;
    let added: Vec<_> =
        breakpoints.iter().filter(|at| at.origin == Origin::Added).map(|at| place(exhibit, at)).collect();
    let why: Vec<_> = skipped.iter().map(|(_, skip)| skip.as_str()).collect();
    match (added.is_empty(), why.is_empty()) {
        (false, _) => added.join(", "),
        (true, false) => format!("nothing ({})", why.join(", ")),
        (true, true) => "nothing, the client's own are where they will be read".to_owned(),
    }
}

/// Returns the plan that `serve` would make for a request that comes after another, or first.
fn plan_of(exhibit: &Exhibit, before: Option<(&Exhibit, &Plan)>, prices: &Prices) -> Plan {
    let model = exhibit.anatomy.model(&exhibit.body).unwrap_or_default();
    let stands = |before: &Exhibit, piece: usize| {
        exhibit.chain.pieces.get(piece).is_some_and(|prefix| before.chain.pieces.get(piece) == Some(prefix))
    };
    let last_written = before.and_then(|(before, plan)| {
        let written = plan.breakpoints.iter().map(|point| point.piece);
        written.filter(|piece| stands(before, *piece)).max()
    });
    let situation = Situation {
        minimum_tokens: Some(prices.facts(&model).minimum_tokens.unwrap_or(MINIMUM_TOKENS)),
        tokens_per_byte: Some(1.0 / cost::BYTES_PER_TOKEN as f64),
        last_written,
        read_by_others: if before.is_some() { StaticEnds::BOTH } else { StaticEnds::default() },
        ..Situation::new(Profile::Anthropic)
    };
    breakpoints::plan(&exhibit.body, &exhibit.anatomy, &situation)
}

/// Returns the plan for a request of which nothing else is known, whatever its size.
pub fn plan_alone(exhibit: &Exhibit) -> Plan {
    breakpoints::plan(&exhibit.body, &exhibit.anatomy, &Situation::new(Profile::Anthropic))
}

fn place(exhibit: &Exhibit, breakpoint: &Breakpoint) -> String {
    let path = exhibit.anatomy.path(breakpoint.piece);
    match breakpoint.carrier {
        Carrier::Block => format!("{path} {}", breakpoint.ttl.as_str()),
        Carrier::TopLevel => {
            format!("{path} {} (automatic, as a string carries no marker)", breakpoint.ttl.as_str())
        }
    }
}

fn extended(first: &Exhibit, second: &Exhibit, style: Style) -> String {
    let more = second.anatomy.pieces.len() - first.anatomy.pieces.len();
    format!(
        "{}: all {} pieces of {} are kept, {more} follow\n",
        style.good("extends"),
        first.anatomy.pieces.len(),
        first.name
    )
}

fn diverged(first: &Exhibit, second: &Exhibit, parted: &Divergence, style: Style) -> String {
    let why = match parted.kind {
        _ if is_reordering(first, second, parted) => {
            "the same tools in another order: `align` restores it, as it was seen first"
        }
        DivergenceKind::Spelling => "the same meaning, spelt differently",
        DivergenceKind::Meaning => "different content",
        DivergenceKind::Missing => "it is missing in the second",
        DivergenceKind::Added => "it is new in the second",
    };
    let mut out = format!(
        "{} at {}: {why}\n\n",
        style.bad("diverges"),
        style.bold(&harmless(&parted.path, PATH_CHARS_MAX))
    );
    let shown = spellings(first, second, parted);
    for ((exhibit, spelling), index) in [first, second].iter().zip(&shown).zip(0..) {
        let place = match (spelling, parted.at) {
            (Some(spelling), Some(at)) => format!("byte {:>9}  {spelling}", grouped(at[index] as u64)),
            (Some(spelling), None) => format!("                {spelling}"),
            (None, _) => "                nothing there".to_owned(),
        };
        let _ = writeln!(out, "  {:<20} {place}", exhibit.name);
    }
    let lost = lost(first, parted);
    let _ = writeln!(
        out,
        "\n  kept: {} bytes; lost from here on: {} bytes, roughly {} tokens at {} bytes each",
        grouped(kept(first, parted) as u64),
        grouped(lost as u64),
        grouped(cost::tokens(lost)),
        cost::BYTES_PER_TOKEN,
    );
    out
}

/// Returns true if the requests part in their tools, and both have the same ones: as many of each meaning.
fn is_reordering(first: &Exhibit, second: &Exhibit, parted: &Divergence) -> bool {
    let tools = |exhibit: &Exhibit| -> Option<Vec<Meaning>> {
        let tools = &exhibit.anatomy.pieces[pieces_of(&exhibit.anatomy, Layer::Tools)];
        let mut tools: Vec<Meaning> = tools
            .iter()
            .map(|tool| Meaning::of_block(&exhibit.body[tool.span.clone()]))
            .collect::<Option<_>>()?;
        tools.sort_unstable();
        Some(tools)
    };
    let is_one_spelt_anew = parted.kind == DivergenceKind::Spelling;
    parted.layer == Layer::Tools
        && !is_one_spelt_anew
        && tools(first).is_some_and(|own| Some(own) == tools(second))
}

/// One line on what the loss costs, or why that is not known.
fn price_of(first: &Exhibit, second: &Exhibit, parted: &Divergence, prices: &Prices) -> String {
    let Some(estimate) = estimate(first, second, parted, prices) else {
        return "  estimated cost: not known, the price table does not have this model's prices\n".to_owned();
    };
    let Estimate { model, as_of, ttl, read, write } = &estimate;
    format!(
        "  estimated cost: {} more, as they are written ({write}, {}) and not read ({read}); {model}, prices of {as_of}\n",
        estimate.extra(),
        ttl.as_str(),
    )
}

fn estimate(first: &Exhibit, second: &Exhibit, parted: &Divergence, prices: &Prices) -> Option<Estimate> {
    let name = second.anatomy.model(&second.body)?;
    let after = parted.piece.min(second.anatomy.pieces.len())..second.anatomy.pieces.len();
    let automatic =
        second.anatomy.member(&second.body, marker::NAME).map(|span| ttl(&second.body[span.clone()]));
    let hour =
        sent(second, after).map(|(_, ttl)| ttl).chain(automatic).any(|ttl| ttl == Ttl::OneHour.as_str());
    let ttl = if hour { Ttl::OneHour } else { Ttl::FiveMinutes };
    Estimate::of_loss(prices.model(&name)?, kept(first, parted), lost(first, parted), ttl)
}

/// Returns the text of each body around the first difference.
fn spellings(first: &Exhibit, second: &Exhibit, parted: &Divergence) -> [Option<String>; 2] {
    let excerpt = |exhibit: &Exhibit, index: usize| {
        let span = parted.spans[index].clone()?;
        let at = parted.at.map_or(span.start, |at| at[index]);
        let from = at.saturating_sub(EXCERPT_BEFORE).max(span.start);
        let to = (at + EXCERPT_AFTER).min(span.end);
        let text = String::from_utf8_lossy(&exhibit.body[from..to]).into_owned();
        let before = if from > span.start { "…" } else { "" };
        let after = if to < span.end { "…" } else { "" };
        Some(format!("{before}{}{after}", harmless(&text, usize::MAX)))
    };
    [excerpt(first, 0), excerpt(second, 1)]
}

pub fn request(exhibit: &Exhibit, plan: &Plan) -> Value {
    let Exhibit { name, body, anatomy, chain } = exhibit;
    let layer = |layer: Layer| {
        let pieces = pieces_of(anatomy, layer);
        let marked: Vec<_> =
            sent(exhibit, pieces.clone()).map(|(path, ttl)| json!({"path": path, "ttl": ttl})).collect();
        json!({
            "layer": layer.as_str(),
            "pieces": pieces.len(),
            "bytes": layer_bytes(exhibit, layer),
            "prefix": chain.layer(anatomy, layer).to_string(),
            "breakpoints": marked,
        })
    };
    json!({
        "file": name,
        "model": anatomy.model(body),
        "bytes": body.len(),
        "ambiguous": anatomy.ambiguous,
        "automatic": anatomy.member(body, marker::NAME).map(|span| ttl(&body[span.clone()])),
        "layers": LAYERS.map(layer),
        "planned": plan.breakpoints.iter().map(|at| json!({
            "path": anatomy.path(at.piece),
            "ttl": at.ttl.as_str(),
            "added": at.origin == Origin::Added,
            "automatic": at.carrier == Carrier::TopLevel,
        })).collect::<Vec<_>>(),
    })
}

fn pieces_of(anatomy: &Anatomy, layer: Layer) -> Range<usize> {
    let (tools, system) = (anatomy.tools, anatomy.tools + anatomy.system);
    match layer {
        Layer::Model => 0..0,
        Layer::Tools => 0..tools,
        Layer::System => tools..system,
        Layer::Messages => system..anatomy.pieces.len(),
    }
}

fn layer_bytes(exhibit: &Exhibit, layer: Layer) -> usize {
    match layer {
        Layer::Model => exhibit.anatomy.member(&exhibit.body, "model").map_or(0, |span| span.len()),
        _ => bytes_of(exhibit, pieces_of(&exhibit.anatomy, layer)),
    }
}

fn bytes_of(exhibit: &Exhibit, pieces: Range<usize>) -> usize {
    exhibit.anatomy.pieces[pieces].iter().map(|piece| piece.span.len()).sum()
}

/// Returns the number of bytes of the first request that can still be read from the cache.
fn kept(first: &Exhibit, parted: &Divergence) -> usize {
    bytes_of(first, 0..parted.piece.min(first.anatomy.pieces.len()))
}

/// Returns the number of bytes of the first request that cannot be read from the cache any more.
fn lost(first: &Exhibit, parted: &Divergence) -> usize {
    let from = parted.piece.min(first.anatomy.pieces.len());
    bytes_of(first, from..first.anatomy.pieces.len())
}

fn sent(exhibit: &Exhibit, pieces: Range<usize>) -> impl Iterator<Item = (String, &'static str)> + '_ {
    let marked = pieces.filter_map(|piece| Some((piece, exhibit.anatomy.pieces[piece].marker()?)));
    let live = marked.filter(|(_, marker)| &exhibit.body[marker.value.clone()] != b"null");
    live.map(|(piece, marker)| (exhibit.anatomy.path(piece), ttl(&exhibit.body[marker.value.clone()])))
}

fn ttl(marker: &[u8]) -> &'static str {
    match json::member(marker, 0, "ttl").map(|span| &marker[span]) {
        None | Some(b"\"5m\"") => "5m",
        Some(b"\"1h\"") => "1h",
        Some(_) => "unknown ttl",
    }
}
