//! What may go out as it came before it is read.
//!
//! A client that spells its history the same each turn and moves its marker to the new end needs nothing from us.
//! Whether the next turn of such a conversation is another one like that can be told from its bytes, in a fraction of
//! the time that reading takes:
//!
//! ```text
//! last    everything before │ last message, marked │ everything behind
//! next            =         │   =    without, new messages, marked │   =
//! ```
//!
//! Then nothing would be made of it, so it goes out at once and is read while the upstream is at work. Where that turns
//! out to be wrong, it went out as it would have without us, and the turn after it is read first.

use memchr::memmem;

use super::breakpoints::LOOKBACK;
use super::recall::Remembered;

/// Whether a request goes on where the last one of its conversation ended, and nothing but that has changed.
pub fn goes_on(body: &[u8], last: &Remembered) -> bool {
    new_messages(body, last).is_some_and(|(new, marker)| {
        let count = |name: &[u8]| memmem::find_iter(new, name).count();
        // Every block and every marker has a type, so there are fewer blocks than types.
        new.ends_with(marker) && count(b"\"cache_control\"") == 1 && count(b"\"type\"") <= LOOKBACK
    })
}

/// What stands between the known messages and the end of the list, and how the last known message ended from its marker
/// on. `None` if anything else differs.
fn new_messages<'b>(body: &'b [u8], last: &'b Remembered) -> Option<(&'b [u8], &'b [u8])> {
    let (known, anatomy) = (last.body(), last.anatomy());
    let message = anatomy.messages.last()?;
    let (marked, others) = anatomy.pieces[message.pieces.clone()].split_last()?;
    let marker = marked.marker().filter(|_| others.iter().all(|piece| !piece.is_marked()))?;
    let behind = &known[message.span.end..];
    let new = body
        .strip_suffix(behind)?
        .strip_prefix(&known[..marker.cut.start])?
        .strip_prefix(&known[marker.cut.end..message.span.end])?
        .strip_prefix(b",")?;
    Some((new, &known[marker.cut.start..message.span.end]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::prefix::Attribution;
    use crate::engine::recall::Nothing;

    const MARKER: &str = r#","cache_control":{"type":"ephemeral"}"#;

    fn message(role: &str, words: &str, marker: &str) -> String {
        format!(r#"{{"role":"{role}","content":[{{"type":"text","text":"{words}"{marker}}}]}}"#)
    }

    fn request(messages: &[String]) -> String {
        format!(
            r#"{{"model":"m","messages":[{}],"tools":[{{"name":"a"}}],"stream":true}}"#,
            messages.join(",")
        )
    }

    /// Whether the second goes on from the first.
    fn goes_on_from(last: &str, body: &str) -> bool {
        let last = Remembered::read(last.to_owned().into(), &Nothing, Attribution::Counted).unwrap();
        goes_on(body.as_bytes(), &last)
    }

    #[test]
    fn a_marker_that_moves_to_the_new_end_is_all_that_changes() {
        let last = request(&[message("user", "a", MARKER)]);
        let said = [message("user", "a", ""), message("assistant", "b", "")];
        let next = |new: &[String]| request(&[&said[..], new].concat());
        assert!(goes_on_from(&last, &next(&[message("user", "c", MARKER)])));
        assert!(goes_on_from(&last, &next(&[message("user", r#"\"cache_control\""#, MARKER)])));
        let marked = next(&[message("user", "c", MARKER)]);
        for other in [
            last.clone(),
            next(&[]),
            next(&[message("user", "c", "")]),
            next(&[message("user", "c", MARKER), message("user", "d", "")]),
            next(&[message("user", "c", MARKER), message("user", "d", MARKER)]),
            next(&[message("user", "c", r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#)]),
            marked.replace(r#""a"},"#, r#""z"},"#),
            marked.replace(r#""text":"a""#, r#""text":"x""#),
            marked.replace(r#""model":"m""#, r#""model":"n""#),
            marked.replace("true", "false"),
            marked.replace(r#"[{"name":"a"}]"#, r#"[{"name":"b"}]"#),
        ] {
            assert!(other == marked || !goes_on_from(&last, &other), "{other}");
        }
    }

    #[test]
    fn what_the_lookback_might_miss_is_read_first() {
        let last = request(&[message("user", "a", MARKER)]);
        let next = |blocks: usize| {
            let mut messages = vec![message("user", "a", "")];
            messages.extend((0..blocks).map(|_| message("assistant", "b", "")));
            messages.push(message("user", "c", MARKER));
            request(&messages)
        };
        assert!(goes_on_from(&last, &next(LOOKBACK - 2)) && !goes_on_from(&last, &next(LOOKBACK - 1)));
    }

    #[test]
    fn without_a_marker_at_its_end_nothing_is_known_of_the_next() {
        let (last, next) = (message("user", "a", ""), message("user", "c", MARKER));
        let one = request(std::slice::from_ref(&last));
        assert!(!goes_on_from(&one, &request(&[last, next.clone()])));
        assert!(!goes_on_from(r#"{"messages":[]}"#, &request(&[next])));
    }
}
