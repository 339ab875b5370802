//! One spelling for what a client says again and again: the bytes first seen in a request.
//!
//! The prompt cache compares bytes, and clients respell: shuffled tools, random key order, another escape.
//! Sorting would give one spelling too, but the order of properties in a schema steers the model. So a value
//! that means what an earlier one of the tenant meant is forwarded as the earlier one was. Three grains:
//! the list of tools or system blocks (its white space, and the order of the tools), each element of them,
//! and the input of each call by its id. A stable client is forwarded as it came.
//!
//! Markers are neither part of a meaning nor of a spelling: the client's stay in the places it chose. Tools keep the
//! client's order where a marker among them would stand behind others than before; at the end it never does. What
//! readers could understand differently (a key twice, half a surrogate pair) stays as it is, and so does the
//! attribution line. A string equals only strings and a list only lists.
//!
//! ```
//! use bytes::Bytes;
//! use forkpoint::engine::request::anatomy::Anatomy;
//! use forkpoint::engine::respell::canonical::{Limits, Order, Table, Thinking, canonicalize, splice};
//! let mut table = Table::new(Limits::TENANT);
//! let mut forward = |body: &'static str| {
//!     let body = Bytes::from(body);
//!     let anatomy = Anatomy::read(&body).unwrap();
//!     let canonical = canonicalize(&body, &anatomy, Order::FirstSeen, Thinking::Free, &table);
//!     table.remember(canonical.interns);
//!     splice(&body, &canonical.replacements).concat()
//! };
//! let first = forward(r#"{"tools":[{"name":"a"},{"name":"b","strict":true}]}"#);
//! assert_eq!(forward(r#"{"tools":[ {"strict":true, "name":"b"}, {"name":"a"}]}"#), first);
//! ```

use bytes::Bytes;

use crate::engine::request::anatomy::{Anatomy, Form};
use crate::engine::request::prefix::Leaf;
use crate::engine::request::recall::{Remembered, SharedParts};
use crate::engine::words::shown_enums;

mod splice;
mod table;
mod respeller;
mod list;
mod aged;
mod input;
mod saved;
#[cfg(test)]
mod tests;

pub use input::is_call;
pub use saved::{FirstSpellings, SavedSpellings};
pub use splice::{Replacement, splice};
pub use table::{Choice, Limits, News, Pins, Table};

use respeller::Respeller;

shown_enums! {
    /// Which spelling is the one: `canonical.order`.
    pub enum Order {
        /// The first of the tenant's requests decides, at all three grains.
        FirstSeen = "first-seen",
        /// Tools by name, and everything inside as it came. Needs no memory, so that replicas without a common
        /// store agree; it repairs shuffled tools and nothing else.
        Sorted = "sorted",
        /// As it came.
        Off = "off",
    }
}

/// The way in which a model ties its thinking to the prompt that it was produced under.
#[derive(Clone, Copy, Debug)]
pub enum Thinking<'a> {
    /// The prefix may be respelt at any turn; it costs a cache miss at most.
    Free,
    /// A respelt prefix would void the conversation's thinking, or be refused.
    Bound(Conversation<'a>),
}

/// The state of a conversation whose thinking is bound.
#[derive(Clone, Copy, Debug)]
pub enum Conversation<'a> {
    /// This is its first request: the spelling is chosen now, for its life.
    Started,
    /// A later one. Without a choice its start was not seen, and it keeps its own spelling. With one, what
    /// was spelt before is spelt the same; what is new keeps its own spelling, and is pinned from here on.
    Continued { choice: Option<&'a Choice> },
}

/// The replacements for one request, and what is to be kept of it.
#[derive(Debug, Default)]
pub struct Canonical {
    /// By position, without overlap; none for a stable client.
    pub replacements: Vec<Replacement>,
    /// For [`Table::remember`], when the tenant may be remembered. Empty if the request brought nothing new and used
    /// nothing old.
    pub interns: News,
    /// For [`Choice::pin`]; empty unless thinking is bound.
    pub pins: Pins,
}

/// Returns the one spelling of a request, as the tenant's table knows it.
pub fn canonicalize(
    body: &Bytes,
    anatomy: &Anatomy,
    order: Order,
    thinking: Thinking<'_>,
    table: &Table,
) -> Canonical {
    let request =
        RespellRequest { anatomy, leaves: &Leaf::all(body, anatomy), settled: SharedParts::default() };
    respell(body, &request, order, thinking, table)
}

/// Returns the one spelling of a request that was read. What is `settled` stays as it came.
pub fn respell_read(
    read: &Remembered,
    settled: SharedParts,
    order: Order,
    thinking: Thinking<'_>,
    table: &Table,
) -> Canonical {
    let request = RespellRequest { anatomy: read.anatomy(), leaves: read.leaves(), settled };
    respell(read.body(), &request, order, thinking, table)
}

/// A request whose pieces were digested.
struct RespellRequest<'a> {
    pub anatomy: &'a Anatomy,
    pub leaves: &'a [Leaf],
    /// The parts that are, byte for byte, as the continued request was forwarded. They have their spelling already.
    pub settled: SharedParts,
}

/// Returns the one spelling of a request whose pieces were digested.
fn respell(
    body: &Bytes,
    request: &RespellRequest<'_>,
    order: Order,
    thinking: Thinking<'_>,
    table: &Table,
) -> Canonical {
    let anatomy = request.anatomy;
    let (order, choice) = match thinking {
        _ if anatomy.ambiguous => return Canonical::default(),
        Thinking::Bound(Conversation::Continued { choice: None }) => return Canonical::default(),
        Thinking::Bound(Conversation::Continued { choice: Some(choice) }) => (choice.order(), Some(choice)),
        Thinking::Bound(Conversation::Started) | Thinking::Free => (order, None),
    };
    let mut canonical = match order {
        Order::Off => Canonical::default(),
        Order::Sorted => {
            let bond = if let Thinking::Free = thinking { list::Bond::Free } else { list::Bond::Bound };
            Canonical { replacements: list::sorted(body, anatomy, bond), ..Canonical::default() }
        }
        Order::FirstSeen => {
            let mut respeller = respeller(body, thinking, choice, table);
            respeller.request(request);
            respeller.finish()
        }
    };
    // The body may have its layers in any order.
    canonical.replacements.sort_by_key(|replacement| replacement.span.start);
    canonical
}

fn respeller<'a>(
    body: &'a Bytes,
    thinking: Thinking<'_>,
    choice: Option<&'a Choice>,
    table: &'a Table,
) -> Respeller<'a> {
    match (thinking, choice) {
        (Thinking::Free, _) => Respeller::interning(body, table),
        (Thinking::Bound(_), None) => Respeller::choosing(body, table),
        (Thinking::Bound(_), Some(choice)) => Respeller::bound(body, table, choice),
    }
}

impl Respeller<'_> {
    fn request(&mut self, request: &RespellRequest<'_>) {
        let RespellRequest { anatomy, leaves, settled } = *request;
        let body = self.body;
        let (tools, rest) = anatomy.pieces.split_at(anatomy.tools);
        let (system, messages) = rest.split_at(anatomy.system);
        let (tool_leaves, rest) = leaves.split_at(tools.len().min(leaves.len()));
        let system_leaves = rest.get(..system.len()).unwrap_or_default();
        if !settled.tools
            && let Some(value) = anatomy.member(body, "tools")
        {
            self.list(list::ListKind::Tools, value, tools, tool_leaves);
        }
        if !settled.system
            && let Some(value) = anatomy.member(body, "system")
        {
            match (system, system_leaves) {
                ([text], [leaf]) if text.form == Form::Text => self.text(text, leaf),
                (blocks, leaves) => self.list(list::ListKind::System, value, blocks, leaves),
            }
        }
        let said = anatomy.messages[..settled.messages].last();
        let said = said.map_or(0, |last| last.pieces.end - anatomy.tools - anatomy.system);
        self.inputs(&messages[said..]);
    }
}
