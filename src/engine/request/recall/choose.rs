//! Choosing the known request and layers that a request is compared with. A wrong choice costs time, never correctness.

use std::sync::Arc;

use super::found::FoundPieces;
use super::reader::Reader;
use super::{FirstAnswer, Known, LayerSource, Opening, Remembered, Seen};
use crate::engine::request::json::skip_space;
use crate::engine::words::Layer;

/// The number of known things that are compared with a request: a few conversations may start alike, and a tenant has a
/// few tool sets and system prompts, but comparing must stay far below the cost of reading.
pub const CANDIDATES_MAX: usize = 8;

/// Returns the known value that a layer, at the start of `rest`, is most like, and whether `rest` starts with
/// all of it.
pub(super) fn layer(
    known: &dyn Known,
    layer: Layer,
    predecessor: Option<&Arc<Remembered>>,
    rest: &[u8],
) -> Option<(LayerSource, bool)> {
    let mut best = None;
    let mut best_shared = 0;
    if let Some(request) = predecessor
        && let Some((value, _)) = request.seen(layer)
    {
        if rest.starts_with(value) {
            return Some((LayerSource::Request(Arc::clone(request)), true));
        }
        best_shared = shared(value, rest);
        best = Some((LayerSource::Request(Arc::clone(request)), false));
    }
    for candidate in known.layers(layer).into_iter().take(CANDIDATES_MAX) {
        let shared = shared(&candidate.value, rest);
        let whole = shared == candidate.value.len();
        if candidate.layer == layer && (best.is_none() || shared > best_shared) {
            best_shared = shared;
            best = Some((LayerSource::Layer(candidate), whole));
            if whole {
                break;
            }
        }
    }
    best
}

/// The request that this one continues: of those that open like it, the one whose later messages stay equal
/// for longest. `rest` starts at the second message; `answer` reads what the model said first.
pub(super) fn predecessor(
    known: &dyn Known,
    hinted: Option<Arc<Remembered>>,
    opening: Opening,
    rest: &[u8],
    answer: impl FnOnce() -> Option<FirstAnswer>,
) -> Option<Arc<Remembered>> {
    let mut opened = known.opened(opening);
    if opened.len() >= CANDIDATES_MAX {
        // Of many agents that were started with the same words, the right one may not be among the newest.
        opened.truncate(CANDIDATES_MAX);
        opened.extend(known.answered(opening, answer()).into_iter().take(CANDIDATES_MAX));
    }
    // The hinted one has another first message. It comes last: on a tie, the candidate with the same first message wins.
    let mut candidates = opened.into_iter().chain(hinted).filter(|candidate| candidate.is_usable());
    let mut best = candidates.next()?;
    let mut best_fit = None;
    for candidate in candidates {
        // A lone candidate needs no comparison, and most are alone.
        let most = best_fit.get_or_insert_with(|| Fit::of(&best, rest));
        let fit = Fit::of(&candidate, rest);
        if fit > *most {
            (best, best_fit) = (candidate, Some(fit));
        }
    }
    Some(best)
}

/// The extent to which a candidate agrees with a request; the first difference between two of these decides.
///
/// Bytes alone would prefer another conversation, whose answer begins with the same words, to the shorter one that
/// the request continues.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    messages: usize,
    to_the_end: bool,
    bytes: usize,
}

impl Fit {
    fn of(candidate: &Remembered, rest: &[u8]) -> Fit {
        let bytes = shared(candidate.later_messages(), rest);
        let later = candidate.anatomy.messages.get(1..).unwrap_or_default();
        let start = later.first().map_or(0, |message| message.span.start);
        let whole = later.partition_point(|message| message.span.end - start <= bytes);
        // The last message had a marker that may be gone by now.
        let to_the_end = whole + 1 >= later.len();
        Fit { messages: if to_the_end { later.len() } else { whole }, to_the_end, bytes }
    }
}

/// Returns the number of leading bytes that two stretches share; compared in steps that the memory comparison is fast
/// at. The step that differs is looked at again in smaller ones.
pub(super) fn shared(one: &[u8], two: &[u8]) -> usize {
    let len = one.len().min(two.len());
    let mut at = 0;
    for step in [4_096, 64, 8, 1] {
        while at < len && one[at..len.min(at + step)] == two[at..len.min(at + step)] {
            at = len.min(at + step);
        }
    }
    at
}

/// Returns the key of the first answer among the messages from `start` on. It is looked for in the next few, since
/// nobody puts more before it.
pub(super) fn first_answer(body: &[u8], start: usize) -> Option<FirstAnswer> {
    const MESSAGES_MAX: usize = 4;
    let mut start = start;
    for _ in 0..MESSAGES_MAX {
        if body.get(start) != Some(&b'{') {
            return None;
        }
        let mut found = FoundPieces::default();
        let message = Reader::of_spans(body).message(start, None, &mut found).ok()?;
        if message.has_role(body, "assistant") {
            return Some(FirstAnswer::of(&Seen { body, pieces: &found.pieces, leaves: &[] }));
        }
        start = body.len() - after(body, message.span.end).len();
    }
    None
}

/// The rest of the body from the next element of a list on, if there is one.
pub(super) fn after(body: &[u8], end: usize) -> &[u8] {
    let comma = skip_space(body, end);
    match body.get(comma) {
        Some(b',') => &body[skip_space(body, comma + 1)..],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::shared;

    #[test]
    fn shared_bytes_are_counted_exactly_across_steps() {
        let one: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
        for at in [0, 1, 4_095, 4_096, 4_097, 12_288, 19_999] {
            let mut two = one.clone();
            two[at] ^= 1;
            assert_eq!(shared(&one, &two), at);
            assert_eq!(shared(&one, &two[..at]), at);
        }
        assert_eq!(shared(&one, &one), one.len());
    }
}
