//! The forwarded body as pieces of shared bytes.

use bytes::Bytes;

use crate::engine::request::json::Span;

/// A stretch of the received body, and the bytes that are forwarded instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    pub span: Span,
    /// Shared with the table, with the received body, or constant: nothing is copied.
    pub with: Vec<Bytes>,
}

/// The body with its replacements made; their lengths add up to the exact length. Replacements come by
/// position; one that overlaps an earlier one or leaves the body is not made.
pub fn splice(body: &Bytes, replacements: &[Replacement]) -> Vec<Bytes> {
    if replacements.is_empty() {
        return vec![body.clone()];
    }
    let mut pieces = Vec::with_capacity(3 * replacements.len() + 1);
    let mut at = 0;
    for Replacement { span, with } in replacements {
        if span.start < at || span.end < span.start || span.end > body.len() {
            continue;
        }
        pieces.push(body.slice(at..span.start));
        pieces.extend(with.iter().cloned());
        at = span.end;
    }
    pieces.push(body.slice(at..));
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replacement(span: Span, with: &'static str) -> Replacement {
        Replacement { span, with: vec![Bytes::from(with)] }
    }

    #[test]
    fn nothing_to_replace_is_the_body_itself() {
        let body = Bytes::from("abc");
        let pieces = splice(&body, &[]);
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn stretches_are_replaced_and_the_rest_is_shared() {
        let body = Bytes::from("0123456789");
        let pieces = splice(&body, &[replacement(0..2, "x"), replacement(2..2, "y"), replacement(8..10, "")]);
        assert_eq!(pieces.concat(), b"xy234567");
        assert_eq!(pieces[2].as_ptr(), body[2..].as_ptr());
    }

    #[test]
    fn what_overlaps_or_leaves_the_body_is_not_made() {
        let body = Bytes::from("0123");
        let pieces = splice(&body, &[replacement(1..3, "x"), replacement(2..4, "y"), replacement(3..9, "z")]);
        assert_eq!(pieces.concat(), b"0x3");
    }
}
