//! The texts of tools and system that changed between two requests. They are shown: it is the user's own file.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::engine::cache::breakpoints;
use crate::engine::cache::volatile::{Volatile, volatile};
use crate::engine::request::json::Span;
use crate::report::figures::harmless;

use super::super::demo::grouped;
use super::Exhibit;
use super::cost::BYTES_PER_TOKEN;

/// How much of a text is shown, in characters.
const EXCERPT_CHARS: usize = 40;

/// For a person; nothing if nothing changed.
pub fn text(first: &Exhibit, second: &Exhibit) -> String {
    let rows: Vec<[String; 4]> = found(first, second)
        .iter()
        .map(|it| {
            let [one, two] =
                texts(first, second, it).map(|text| text.unwrap_or_else(|| "nothing".to_owned()));
            [it.kind.as_str().to_owned(), it.path.clone(), format!("{one} → {two}"), grouped(it.tokens)]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [0, 1, 2, 3].map(width);
    let mut out = String::new();
    if !rows.is_empty() {
        out += "\n  what changed before the messages, and what is roughly paid again for it:\n";
    }
    for [kind, path, texts, tokens] in &rows {
        let _ = writeln!(
            out,
            "    {kind:<0$}  {path:<1$}  {texts:<2$}  {tokens:>3$} tokens",
            widths[0], widths[1], widths[2], widths[3],
        );
    }
    out
}

pub fn json(first: &Exhibit, second: &Exhibit) -> Value {
    let found = found(first, second);
    let change = |it: &Volatile| {
        json!({
            "kind": it.kind.as_str(),
            "layer": it.layer.as_str(),
            "path": it.path,
            "texts": texts(first, second, it),
            "tokens_estimate": it.tokens,
        })
    };
    found.iter().map(change).collect()
}

fn found(first: &Exhibit, second: &Exhibit) -> Vec<Volatile> {
    let marked = breakpoints::of_client(&second.body, &second.anatomy);
    let cached_to = marked.last().map_or(usize::MAX, |point| point.piece);
    volatile(&first.subject(), &second.subject(), None, cached_to, 1.0 / BYTES_PER_TOKEN as f64)
}

/// Both versions of a text, where there is one.
fn texts(first: &Exhibit, second: &Exhibit, it: &Volatile) -> [Option<String>; 2] {
    let [one, two] = &it.spans;
    [excerpt(&first.body, one), excerpt(&second.body, two)]
}

fn excerpt(body: &[u8], span: &Span) -> Option<String> {
    let text = String::from_utf8_lossy(body.get(span.clone())?);
    (!text.is_empty()).then(|| harmless(&text, EXCERPT_CHARS))
}
