//! The findings about a child, written for a person or for a machine.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::engine::fork::{Forecast, PromptSizes};
use crate::engine::words::CostUnit;
use crate::report::figures::{NAME_CHARS_MAX, harmless};

use super::super::demo::grouped;
use super::super::style::Style;
use super::child::{Finding, Layout};

pub fn text(finding: &Finding, style: Style) -> String {
    let [parent, answer, child] = &finding.names;
    let verdict = match finding.declined {
        None => style.good("forked"),
        Some(reason) => style.bad(&format!("not forked: {reason}")),
    };
    let mut out = format!("{} under {parent} and {answer}: {verdict}\n", style.bold(child));
    let Some(it) = &finding.recognised else {
        out += "\n  it is no child of this answer, and would be aligned like any other request\n";
        return out;
    };
    let by = match (&it.tool, &it.call) {
        (Some(tool), Some(call)) => {
            format!(" of {} ({})", harmless(tool, NAME_CHARS_MAX), harmless(call, NAME_CHARS_MAX))
        }
        _ => String::new(),
    };
    let _ =
        writeln!(out, "\n  recognised by its directive{by}: {}; one of {} siblings", it.rank, it.siblings);
    if let Some(layout) = &finding.layout {
        out += &laid_out(layout, finding.billed);
    }
    match &finding.forecast {
        Some(forecast) => out += &foreseen(forecast, finding),
        None => out += "\n  what it would cost cannot be told: the model's multipliers are not known\n",
    }
    out
}

/// The parts of what would be sent, in the order of the cache.
fn laid_out(layout: &Layout, billed: bool) -> String {
    let mut out = format!("\n  {:<38} {:>10}  {:>10}\n", "layout", "bytes", "tokens");
    for (part, bytes, tokens) in parts(layout) {
        let tokens = tokens.map_or_else(|| "unknown".to_owned(), grouped);
        let _ = writeln!(out, "  {part:<38} {:>10}  {tokens:>10}", grouped(bytes));
    }
    let (body, shared) = (layout.composed.body.length as u64, layout.composed.shared as u64);
    let _ =
        writeln!(out, "\n  body {} bytes, {} of them shared by all siblings", grouped(body), grouped(shared));
    let marked: Vec<_> = layout.marked.iter().map(|(path, ttl)| format!("{path} {}", ttl.as_str())).collect();
    let _ = writeln!(out, "  breakpoints: {}", marked.join(", "));
    let notes: Vec<_> = layout.notes.iter().map(|note| note.as_str()).collect();
    if !notes.is_empty() {
        let _ = writeln!(out, "  beside the prefix: {}", notes.join(", "));
    }
    let source = if billed {
        "tokens: from what the answer's usage says of the parent, the rest by bytes"
    } else {
        "tokens: roughly, at 4 bytes each; an answer with its usage tells better"
    };
    let _ = writeln!(out, "  {source}");
    out
}

type Part = (&'static str, u64, Option<u64>);

fn parts(layout: &Layout) -> [Part; 3] {
    let (parent_prefix, own) = (layout.parent_prefix, layout.composed.extent);
    let tokens = |of: fn(&PromptSizes) -> u64| layout.sizes.as_ref().map(of);
    let shared = parent_prefix.parent + parent_prefix.turn + parent_prefix.results;
    [
        ("the parent, its answer, placeholders", shared, tokens(|sizes| sizes.shared)),
        ("the child's note and instructions", own.instructions, tokens(|sizes| sizes.instructions)),
        ("its directive", own.rest, tokens(|sizes| sizes.rest)),
    ]
}

fn foreseen(forecast: &Forecast, finding: &Finding) -> String {
    let Forecast { unit, turns, forked, as_sent, aligned, limits, .. } = *forecast;
    let amount = |figure: f64| match unit {
        CostUnit::Dollars => format!("${figure:.4}"),
        CostUnit::Tokens => format!("{} units", grouped(figure.round() as u64)),
    };
    let mut out = format!("\n  foreseen for one child over {turns} turns\n");
    for (plan, figure) in [("forked", forked), ("as sent", as_sent), ("aligned", aligned)] {
        let _ = writeln!(out, "    {plan:<8} {:>14}", amount(figure));
    }
    let policy = &finding.policy;
    let _ = writeln!(
        out,
        "  forked is {:.2} of as sent, where fork.max_cost_ratio allows {:.2}, and {:.2} of aligned,\n  where fork.context_premium allows {:.2}",
        ratio(forked, as_sent),
        policy.max_cost_ratio,
        ratio(forked, aligned),
        1.0 + policy.context_premium,
    );
    let _ = writeln!(
        out,
        "  of what a fork may cost: {:.2} beside as sent, {:.2} beside aligned, {:.2} over two fan-outs",
        limits.sent, limits.aligned, limits.twice,
    );
    if let Some(unknown) = limits.unknown {
        let _ = writeln!(
            out,
            "  {unknown:.2} at the worst, since nothing is known yet of how its children live and come"
        );
    }
    out
}

fn ratio(forked: f64, other: f64) -> f64 {
    forked / other.max(f64::MIN_POSITIVE)
}

pub fn json(finding: &Finding) -> Value {
    let layout = finding.layout.as_ref().map(|layout| {
        let parts: Vec<Value> = parts(layout)
            .into_iter()
            .map(|(part, bytes, tokens)| json!({"part": part, "bytes": bytes, "tokens": tokens}))
            .collect();
        let marked: Vec<Value> =
            layout.marked.iter().map(|(path, ttl)| json!({"path": path, "ttl": ttl.as_str()})).collect();
        json!({
            "parts": parts,
            "body_bytes": layout.composed.body.length,
            "bytes_shared": layout.composed.shared,
            "pieces": layout.composed.body.pieces.len(),
            "breakpoints": marked,
            "notes": layout.notes.iter().map(|note| note.as_str()).collect::<Vec<_>>(),
        })
    });
    json!({
        "plan": if finding.declined.is_none() { "forked" } else { "aligned" },
        "reason": finding.declined.unwrap_or("none"),
        "recognised": finding.recognised.as_ref().map(|it| json!({
            "rank": it.rank,
            "tool": it.tool,
            "tool_use": it.call,
            "siblings": it.siblings,
        })),
        "layout": layout,
        "tokens_from": if finding.billed { "usage" } else { "bytes" },
        "forecast": finding.forecast.as_ref().map(|forecast| json!({
            "unit": forecast.unit.as_str(),
            "turns": forecast.turns,
            "forked": forecast.forked,
            "as_sent": forecast.as_sent,
            "aligned": forecast.aligned,
            "ratio": ratio(forecast.forked, forecast.as_sent),
            "max_ratio": finding.policy.max_cost_ratio,
            "aligned_ratio": ratio(forecast.forked, forecast.aligned),
            "max_aligned_ratio": 1.0 + finding.policy.context_premium,
            "limits": {
                "sent": forecast.limits.sent,
                "aligned": forecast.limits.aligned,
                "twice": forecast.limits.twice,
                "unknown": forecast.limits.unknown,
            },
        })),
    })
}
