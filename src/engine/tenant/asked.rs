//! Clients that were asked for a whole conversation, since one that is not known here may be held otherwise than its
//! client knows it.
//!
//! Nothing is known of such a conversation but the request that goes on with it. By what that brings, the whole one is
//! known when it comes: it ends with the same message.

use std::collections::VecDeque;

use bytes::Bytes;

use super::TenantState;
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::strip;
use crate::engine::request::thread::ThreadField;
use crate::engine::words::BodyDigest;

/// Conversations that are remembered: far more than are met before the first of them is forgotten upstream.
const ASKED_MAX: usize = 256;

/// Longer than any id of a message.
const MESSAGE_ID_CHARS_MAX: usize = 256;

/// A request that goes on from an answer which is not known.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownContinue {
    message_id: String,
    /// Names the last message that it brings; none if it brings nothing.
    last: Option<BodyDigest>,
}

/// The conversations that clients were asked for; the newest.
#[derive(Debug, Default)]
pub(super) struct AskedWhole(VecDeque<UnknownContinue>);

impl UnknownContinue {
    /// Reads a request; none if it does not go on from an answer.
    pub fn read(body: &Bytes) -> Option<UnknownContinue> {
        let anatomy = Anatomy::read(body).ok()?;
        let ThreadField::Continue(id) = ThreadField::read(body, &anatomy)? else { return None };
        let message_id = id.chars().take(MESSAGE_ID_CHARS_MAX).collect();
        Some(UnknownContinue { message_id, last: last_message(body, &anatomy) })
    }
}

impl TenantState {
    /// Returns true if the client that goes on from an unknown answer may be asked for the whole conversation: once.
    pub fn ask_whole(&mut self, unknown: UnknownContinue) -> bool {
        let AskedWhole(asked) = &mut self.asked_whole;
        if asked.iter().any(|known| known.message_id == unknown.message_id) {
            return false;
        }
        if asked.len() >= ASKED_MAX {
            asked.pop_front();
        }
        asked.push_back(unknown);
        true
    }

    /// Returns true if any client was asked for a conversation that is not known.
    pub(super) fn has_asked_whole(&self) -> bool {
        !self.asked_whole.0.is_empty()
    }

    /// Returns true if a whole conversation that ends with this message was asked for.
    pub(super) fn has_asked_for(&self, last: BodyDigest) -> bool {
        self.asked_whole.0.iter().any(|asked| asked.last == Some(last))
    }
}

/// Names the last message of a request, less its markers.
pub(super) fn last_message(body: &Bytes, anatomy: &Anatomy) -> Option<BodyDigest> {
    let message = anatomy.messages.last()?;
    let mut said = Vec::new();
    strip::append_unmarked(&mut said, body, message.span.clone(), &strip::cuts(body, anatomy));
    Some(BodyDigest::of_pieces(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(id: &str, messages: &str) -> UnknownContinue {
        let body = format!(
            r#"{{"messages":{messages},"thread":{{"type":"continue","previous_message_id":"{id}"}}}}"#
        );
        UnknownContinue::read(&body.into()).unwrap()
    }

    #[test]
    fn the_whole_conversation_ends_with_what_went_on_with_it() {
        const MARKER: &str = r#","cache_control":{"type":"ephemeral"}"#;
        let said = |marker: &str| {
            format!(r#"{{"role":"user","content":[{{"type":"text","text":"Go on."{marker}}}]}}"#)
        };
        let went_on = unknown("msg_1", &format!("[{}]", said(MARKER)));
        let whole = Bytes::from(format!(
            r#"{{"messages":[{{"role":"user","content":"Hi"}},{{"role":"assistant","content":"Hello"}},{}]}}"#,
            said("")
        ));
        let anatomy = Anatomy::read(&whole).unwrap();
        assert!(went_on.last.is_some());
        assert_eq!(last_message(&whole, &anatomy), went_on.last);
        assert_ne!(unknown("msg_1", r#"[{"role":"user","content":"Hi"}]"#).last, went_on.last);
        assert_eq!(unknown("msg_1", "[]").last, None);
    }

    #[test]
    fn requests_that_go_on_from_nothing_are_not_asked_for() {
        for body in [r#"{"messages":[]}"#, r#"{"messages":[],"thread":{"type":"create"}}"#, "{"] {
            assert_eq!(UnknownContinue::read(&Bytes::from_static(body.as_bytes())), None, "{body}");
        }
    }
}
