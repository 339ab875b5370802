//! Shows how one recorded request was changed: piece by piece, what stayed, moved, was respelt, added or left out.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::engine::request::anatomy::Form;
use crate::engine::request::meaning::Meaning;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::{json, marker};
use crate::engine::words::Layer;
use crate::report::ExchangeRecord;
use crate::report::figures::{NAME_CHARS_MAX, harmless};

use super::super::demo::grouped;
use super::super::style::Style;
use super::super::{Failure, recorded};
use super::report;
use super::{Args, Exhibit, source};

/// How much of a piece is shown, in characters.
const EXCERPT_CHARS: usize = 60;
/// More changes than a reader follows; the rest is counted.
const CHANGES_SHOWN: usize = 40;

/// A change to one piece.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    what: What,
    /// None of a top-level member that is no layer.
    layer: Option<Layer>,
    /// Where it stood as it came, and where it stands as it went out.
    from: Option<String>,
    to: Option<String>,
    bytes: usize,
    excerpt: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Added,
    LeftOut,
    Moved,
    /// Other bytes with the same meaning.
    Respelt,
    /// A top-level member with another meaning.
    Changed,
    Breakpoint,
    /// A breakpoint that the client had set is gone.
    Unmarked,
    /// It says something else, such as another lifetime.
    Remarked,
}

impl What {
    fn as_str(self) -> &'static str {
        match self {
            What::Added => "added",
            What::LeftOut => "left_out",
            What::Moved => "moved",
            What::Respelt => "respelt",
            What::Changed => "changed",
            What::Breakpoint => "breakpoint",
            What::Unmarked => "unmarked",
            What::Remarked => "remarked",
        }
    }

    fn sign(self) -> &'static str {
        match self {
            What::Added => "+ added",
            What::LeftOut => "- left out",
            What::Moved => "> moved",
            What::Respelt => "~ respelt",
            What::Changed => "~ changed",
            What::Breakpoint => "* breakpoint",
            What::Unmarked => "- breakpoint",
            What::Remarked => "~ breakpoint",
        }
    }
}

pub fn run(id: u64, args: &Args, attribution: Attribution, style: Style) -> Result<(), Failure> {
    let path = match &args.recording {
        Some(path) => path.clone(),
        None => source::configured()?,
    };
    let (record, others) = recorded::find(&path, id)?;
    let Some(came) = &record.request else {
        return Err(source::without_body(id));
    };
    let read = |name: &str, body: &str| Exhibit::of(name.to_owned(), body.as_bytes().to_vec(), attribution);
    let first = read("as it came", came)?;
    let second = record.forwarded.as_deref().map(|body| read("as it went out", body)).transpose()?;
    let changes = second.as_ref().map_or_else(Vec::new, |second| changes(&first, second));
    if args.json {
        println!("{:#}", json_of(&record, &first, second.as_ref(), &changes));
        return Ok(());
    }
    print!("{}", text_of(&record, others, &first, second.as_ref(), &changes, style));
    Ok(())
}

/// The piece of the first request that each piece of the second is, and which pieces of the first are among them.
struct Origins {
    of: Vec<Option<(usize, What)>>,
    used: Vec<bool>,
}

/// Finds them: first by bytes in the same place and layer, then by meaning, then anywhere.
fn origins(firsts: &[Sample], seconds: &[Sample]) -> Origins {
    let mut origin: Vec<Option<(usize, What)>> = vec![None; seconds.len()];
    let mut used = vec![false; firsts.len()];
    let rounds: [fn(&Sample, &Sample) -> bool; 4] = [
        |one, two| one.path == two.path && one.bytes == two.bytes,
        |one, two| one.layer == two.layer && one.bytes == two.bytes,
        |one, two| one.layer == two.layer && one.meaning.is_some() && one.meaning == two.meaning,
        |one, two| one.meaning.is_some() && one.meaning == two.meaning,
    ];
    for is_same in rounds {
        for (place, sample) in
            seconds.iter().enumerate().filter(|(place, _)| origin[*place].is_none()).collect::<Vec<_>>()
        {
            let same = firsts.iter().enumerate().find(|(piece, one)| !used[*piece] && is_same(one, sample));
            if let Some((piece, one)) = same {
                used[piece] = true;
                let what = if one.path == sample.path { What::Respelt } else { What::Moved };
                origin[place] = Some((piece, what));
            }
        }
    }
    Origins { of: origin, used }
}

fn changes(first: &Exhibit, second: &Exhibit) -> Vec<Change> {
    let mut changes = members(first, second);
    let samples = |exhibit: &Exhibit| -> Vec<Sample> {
        (0..exhibit.anatomy.pieces.len()).map(|piece| Sample::of(exhibit, piece)).collect()
    };
    let (firsts, seconds) = (samples(first), samples(second));
    let origins = origins(&firsts, &seconds);
    for (sample, origin) in seconds.iter().zip(&origins.of) {
        let change = |what, from: Option<&Sample>| Change {
            what,
            layer: Some(sample.layer),
            from: from.map(|from| from.path.clone()),
            to: Some(sample.path.clone()),
            bytes: sample.bytes.len(),
            excerpt: excerpt(&sample.bytes),
        };
        let from = origin.map(|(piece, _)| &firsts[piece]);
        match (origin, from) {
            (Some((_, What::Respelt)), Some(from)) if from.bytes == sample.bytes => {}
            (Some((_, what)), from) => changes.push(change(*what, from)),
            (None, _) => changes.push(change(What::Added, None)),
        }
        let marked = |what, marker: &[u8]| Change { excerpt: excerpt(marker), ..change(what, None) };
        match (from.and_then(|from| from.marker.as_deref()), sample.marker.as_deref()) {
            (None, Some(marker)) => changes.push(marked(What::Breakpoint, marker)),
            (Some(marker), None) => changes.push(marked(What::Unmarked, marker)),
            (Some(before), Some(now)) if Meaning::of(before) != Meaning::of(now) => {
                changes.push(marked(What::Remarked, &[before, " → ".as_bytes(), now].concat()));
            }
            _ => {}
        }
    }
    for (sample, _) in firsts.iter().zip(&origins.used).filter(|(_, used)| !**used) {
        changes.push(Change {
            what: What::LeftOut,
            layer: Some(sample.layer),
            from: Some(sample.path.clone()),
            to: None,
            bytes: sample.bytes.len(),
            excerpt: excerpt(&sample.bytes),
        });
    }
    changes.sort_by_key(|change| change.layer);
    changes
}

/// Returns the changes to top-level members that are no layers.
fn members(first: &Exhibit, second: &Exhibit) -> Vec<Change> {
    let named = |exhibit: &Exhibit| -> Vec<(String, Vec<u8>)> {
        let members = exhibit.anatomy.members.iter().filter_map(|member| {
            let name = json::text(&exhibit.body, &member.key)?.into_owned();
            Some((name, exhibit.body[member.value.clone()].to_vec()))
        });
        members.filter(|(name, _)| !["tools", "system", "messages"].contains(&name.as_str())).collect()
    };
    let (came, went) = (named(first), named(second));
    let find = |list: &[(String, Vec<u8>)], name: &str| {
        list.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    };
    let mut names: Vec<&String> = came.iter().chain(&went).map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    let change = |name: &String| {
        let (before, now) = (find(&came, name), find(&went, name));
        let (what, shown) = match (&before, &now) {
            (Some(before), Some(now)) if before == now => return None,
            (Some(before), Some(now))
                if Meaning::of(before).is_some_and(|of| Some(of) == Meaning::of(now)) =>
            {
                (What::Respelt, now.clone())
            }
            (Some(before), Some(now)) => (What::Changed, [before, " → ".as_bytes(), now].concat()),
            (None, Some(now)) => (What::Added, now.clone()),
            (Some(before), None) => (What::LeftOut, before.clone()),
            (None, None) => return None,
        };
        // A breakpoint that stands for the last block.
        let what = match what {
            What::Added if name == marker::NAME => What::Breakpoint,
            What::LeftOut if name == marker::NAME => What::Unmarked,
            What::Changed if name == marker::NAME => What::Remarked,
            _ => what,
        };
        let (from, to) = (before.is_some().then(|| name.clone()), now.is_some().then(|| name.clone()));
        let bytes = now.or(before).map_or(0, |value| value.len());
        Some(Change { what, layer: None, from, to, bytes, excerpt: excerpt(&shown) })
    };
    names.into_iter().filter_map(change).collect()
}

/// A piece without its marker.
struct Sample {
    layer: Layer,
    path: String,
    bytes: Vec<u8>,
    meaning: Option<Meaning>,
    /// The marker that it has.
    marker: Option<Vec<u8>>,
}

impl Sample {
    fn of(exhibit: &Exhibit, piece: usize) -> Sample {
        let Exhibit { body, anatomy, .. } = exhibit;
        let found = &anatomy.pieces[piece];
        let (before, after) = found.unmarked(body);
        let bytes = [before, after].concat();
        Sample {
            layer: anatomy.layer(piece),
            path: anatomy.path(piece),
            meaning: match found.form {
                Form::Block => Meaning::of_block(&bytes),
                Form::Text => Meaning::of_text(&bytes),
                Form::Other => Meaning::of(&bytes),
            },
            bytes,
            marker: found.marker().map(|marker| body[marker.value].to_vec()),
        }
    }
}

fn excerpt(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes), EXCERPT_CHARS)
}

fn text_of(
    record: &ExchangeRecord,
    others: usize,
    first: &Exhibit,
    second: Option<&Exhibit>,
    changes: &[Change],
    style: Style,
) -> String {
    let shown = |text: &str| harmless(text, NAME_CHARS_MAX);
    let known = |value: &Option<String>| value.as_deref().map_or_else(|| "none".to_owned(), shown);
    let mut out = format!(
        "request {}: {} {} ({}), status {}, {}, tenant {}, fork {}\n",
        record.id,
        shown(&record.role),
        style.bold(&shown(&record.plan)),
        shown(&record.reason),
        record.status.map_or_else(|| "none".to_owned(), |status| status.to_string()),
        known(&record.client),
        known(&record.tenant),
        known(&record.fork),
    );
    if others > 0 {
        let _ = writeln!(
            out,
            "the newest of {} with this number, which begins anew with each process",
            others + 1
        );
    }
    if record.bodies == "redacted" {
        out += "its words are filler: the recording is redacted\n";
    }
    out += &bill(record);
    let _ = write!(out, "\n{}", report::layers(first, None, style));
    let Some(second) = second else {
        let again = match record.refused {
            Some(_) => ", after it had gone out changed and was refused",
            None => "",
        };
        return out + &format!("\nit went out as it came, byte for byte{again}\n");
    };
    let _ = write!(out, "\n{}\n", report::layers(second, None, style));
    let _ = writeln!(out, "what was made of it: {}\n", summary(record, changes));
    if !record.forwarded_betas.is_empty() {
        let listed = |betas: &[String]| match betas {
            [] => "none".to_owned(),
            betas => betas.iter().map(|beta| shown(beta)).collect::<Vec<_>>().join(", "),
        };
        let (came, went) = (listed(&record.betas), listed(&record.forwarded_betas));
        let _ = writeln!(out, "  {:<12}  {came} → {went}", "~ betas");
    }
    for change in changes.iter().take(CHANGES_SHOWN) {
        let place = match (&change.from, &change.to) {
            (Some(from), Some(to)) if from != to => format!("{} → {}", shown(from), shown(to)),
            (from, to) => to.as_deref().or(from.as_deref()).map(shown).unwrap_or_default(),
        };
        let size = format!("{} bytes", grouped(change.bytes as u64));
        let _ = writeln!(out, "  {:<12}  {place:<28}  {size:>14}  {}", change.what.sign(), change.excerpt);
    }
    if changes.is_empty() && record.forwarded_betas.is_empty() {
        out += "  nothing that the model reads: white space or the order of members\n";
    }
    if let Some(more) = changes.len().checked_sub(CHANGES_SHOWN).filter(|more| *more > 0) {
        let _ = writeln!(out, "  and {more} more; --json shows all");
    }
    out
}

/// Describes the cost, as far as that is known.
fn bill(record: &ExchangeRecord) -> String {
    let Some(usage) = record.usage() else { return "nothing was billed\n".to_owned() };
    let tokens =
        usage.kinds().map(|(kind, tokens)| format!("{} {}", kind.replace('_', " "), grouped(tokens)));
    let usd = [(record.cost_usd, "$"), (record.as_sent_usd, "as sent $"), (record.aligned_usd, "aligned $")];
    let usd = usd.into_iter().filter_map(|(usd, what)| Some(format!("{what}{:.6}", usd?)));
    let mut out = format!("billed: {}\n", tokens.into_iter().chain(usd).collect::<Vec<_>>().join(" · "));
    if let (Some(cause), Some(layer)) = (&record.break_cause, &record.break_layer) {
        let [cause, layer, at] = [cause, layer, record.break_at.as_deref().unwrap_or_default()]
            .map(|text| harmless(text, NAME_CHARS_MAX));
        let tokens = grouped(record.break_tokens.unwrap_or_default());
        let _ = writeln!(out, "cache break: {cause}, in {layer} at {at}, {tokens} tokens");
    }
    out
}

/// Sums up the changes in a sentence.
fn summary(record: &ExchangeRecord, changes: &[Change]) -> String {
    let count = |what: What| changes.iter().filter(|change| change.what == what).count();
    if record.plan == "forked" {
        return "it was put on its parent's prompt. Added are the parent's tools, system, history and turn, a \
                placeholder per call and the note to the child; its own words follow, the directive last"
            .to_owned();
    }
    let counted = [
        (What::Breakpoint, "breakpoints set"),
        (What::Remarked, "breakpoints changed"),
        (What::Unmarked, "breakpoints taken away"),
        (What::Moved, "pieces moved to where they stood before"),
        (What::Respelt, "pieces spelt as before"),
        (What::Added, "added"),
        (What::LeftOut, "left out"),
        (What::Changed, "changed"),
    ];
    let told = counted.into_iter().filter(|(what, _)| count(*what) > 0);
    let told: Vec<_> = told.map(|(what, words)| format!("{} {words}", count(what))).collect();
    let same = [What::Added, What::LeftOut, What::Changed].into_iter().all(|what| count(what) == 0);
    let told = Some(told.join(", ")).filter(|told| !told.is_empty());
    let claim = same.then(|| "it says the same as before".to_owned());
    claim.into_iter().chain(told).collect::<Vec<_>>().join("; ")
}

fn json_of(record: &ExchangeRecord, first: &Exhibit, second: Option<&Exhibit>, changes: &[Change]) -> Value {
    let bare = ExchangeRecord { request: None, forwarded: None, answer: None, ..record.clone() };
    json!({
        "exchange": bare,
        "requests": std::iter::once(first).chain(second).map(|one| report::request(one, &report::plan_alone(one))).collect::<Vec<_>>(),
        "changes": changes.iter().map(|change| json!({
            "change": change.what.as_str(),
            "layer": change.layer.map(Layer::as_str),
            "from": change.from,
            "to": change.to,
            "bytes": change.bytes,
            "excerpt": change.excerpt,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(before: Value, after: Value) -> Vec<(What, String)> {
        let read = |body: Value| {
            Exhibit::of("a body".into(), body.to_string().into_bytes(), Attribution::Counted).unwrap()
        };
        let place = |change: Change| (change.what, change.to.or(change.from).unwrap());
        changes(&read(before), &read(after)).into_iter().map(place).collect()
    }

    fn body(change: impl FnOnce(&mut Value)) -> Value {
        let mut body = json!({
            "model": "m", "thinking": {"type": "adaptive"}, "cache_control": {"type": "ephemeral"},
            "diagnostics": {"previous_message_id": null},
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": "hello"}],
        });
        change(&mut body);
        body
    }

    #[test]
    fn members_and_markers_that_go_or_change_are_told() {
        assert_eq!(told(body(|_| ()), body(|_| ())), []);
        for (member, gone, new) in [
            ("thinking", What::LeftOut, What::Added),
            ("cache_control", What::Unmarked, What::Breakpoint),
            ("diagnostics", What::LeftOut, What::Added),
        ] {
            let without = || body(|body| drop(body.as_object_mut().unwrap().remove(member)));
            assert_eq!(told(body(|_| ()), without()), [(gone, member.to_owned())]);
            assert_eq!(told(without(), body(|_| ())), [(new, member.to_owned())]);
        }
        let disabled = body(|body| body["thinking"]["type"] = json!("disabled"));
        assert_eq!(told(body(|_| ()), disabled), [(What::Changed, "thinking".to_owned())]);
        let bare = || body(|body| drop(body["system"][0].as_object_mut().unwrap().remove("cache_control")));
        let hour = body(|body| body["system"][0]["cache_control"]["ttl"] = json!("1h"));
        let system = || "system[0]".to_owned();
        assert_eq!(told(body(|_| ()), bare()), [(What::Unmarked, system())]);
        assert_eq!(told(bare(), body(|_| ())), [(What::Breakpoint, system())]);
        assert_eq!(told(body(|_| ()), hour), [(What::Remarked, system())]);
    }

    #[test]
    fn a_string_that_became_a_block_is_the_same_text() {
        let blocks = body(|body| body["messages"][0]["content"] = json!([{"type": "text", "text": "hello"}]));
        let told = told(body(|_| ()), blocks);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(matches!(told[0].0, What::Moved | What::Respelt), "{told:?}");
    }
}
