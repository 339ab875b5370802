//! The claims that a request makes about its family in its headers.

use http::{HeaderMap, HeaderName};

use super::fanout::{Explicit, Who};
use crate::engine::request::identify::{SESSION, Sender};
use crate::engine::request::recall::Remembered;

static PARENT: HeaderName = HeaderName::from_static("x-forkpoint-parent");
static PARENT_REQUIRED: HeaderName = HeaderName::from_static("x-forkpoint-parent-required");
static TOOL_USE: HeaderName = HeaderName::from_static("x-forkpoint-tool-use");

/// The claims of a request about its family.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// `x-forkpoint-parent` and `x-forkpoint-tool-use`.
    parent: Option<(String, Option<String>)>,
    /// True if it is not to go out without that parent.
    needs_parent: bool,
    /// True if it names its session as a client does that can put an agent id on the requests of children.
    marks_agents: bool,
}

impl Claims {
    pub fn of(headers: &HeaderMap) -> Claims {
        let text =
            |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(String::from);
        Claims {
            parent: text(&PARENT).map(|parent| (parent, text(&TOOL_USE))),
            needs_parent: text(&PARENT_REQUIRED).is_some_and(|value| value.eq_ignore_ascii_case("true")),
            marks_agents: headers.contains_key(&SESSION),
        }
    }

    /// The sender of a request, as far as its family goes.
    pub fn who(&self, request: &Remembered, sender: &Sender) -> Who {
        Who::of(request, sender.session, sender.agent)
    }

    /// The message and the call that the request names as its origin.
    pub fn parent(&self) -> Option<&(String, Option<String>)> {
        self.parent.as_ref()
    }

    /// Returns true if the request names a parent, and is not to go out unless that is known.
    pub fn needs_parent(&self) -> bool {
        self.needs_parent && self.parent.is_some()
    }

    pub fn marks_agents(&self) -> bool {
        self.marks_agents
    }

    pub fn explicit(&self) -> Option<Explicit<'_>> {
        let (message_id, tool_use) = self.parent.as_ref()?;
        Some(Explicit { message_id, tool_use: tool_use.as_deref() })
    }
}
