//! Whatever a request says, aligning it changes the order of its tools, spelling and markers, and nothing else.
//!
//! Each body is aligned by a tenant that knows nothing, and by one that saw the same body in another spelling.

#![no_main]

use bytes::Bytes;
use forkpoint::engine::align::{self, Facts, Habits, Marked, Rules, Spelt};
use forkpoint::engine::cache::breakpoints::{self, Profile, StaticEnds};
use forkpoint::engine::cache::entry::Parameters;
use forkpoint::engine::family::arrival::Arrival;
use forkpoint::engine::request::anatomy::Anatomy;
use forkpoint::engine::request::prefix::Attribution;
use forkpoint::engine::request::recall::{Nothing, Remembered};
use forkpoint::engine::respell::canonical::{Limits, Order, Table};
use forkpoint::engine::respell::system_block::SystemForm;
use forkpoint::engine::words::{Reason, TenantId};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use serde_json::value::RawValue;

#[path = "../values.rs"]
mod values;
use values::{elements, respelt, sort_tools, tools};

/// More than the upstream accepts are never made of fewer.
const MARKERS_MAX: usize = 4;

fuzz_target!(|body: &[u8]| {
    let value = serde_json::from_slice::<Value>(body).ok();
    for order in [Order::FirstSeen, Order::Sorted] {
        for bound_thinking in [false, true] {
            let tenant = Tenant { order, bound_thinking };
            tenant.sees(body, value.as_ref(), &Table::new(Limits::TENANT));
            tenant.sees(body, value.as_ref(), &tenant.that_saw(value.as_ref()));
        }
    }
});

#[derive(Clone, Copy)]
struct Tenant {
    order: Order,
    bound_thinking: bool,
}

impl Tenant {
    /// Spells and marks a body, as the proxy does; none if it cannot be read.
    fn align(self, body: &[u8], table: &Table) -> Option<Result<(Spelt, Marked), Reason>> {
        let body = Bytes::copy_from_slice(body);
        let received = Remembered::read(body, &Nothing, Attribution::Stripped).ok()?;
        let parameters =
            Parameters::read(TenantId::NOBODY, received.body(), received.anatomy(), std::iter::empty());
        let arrival = Arrival::alone(received, parameters);
        let rules = Rules {
            order: self.order,
            profile: Profile::Anthropic,
            attribution: Attribution::Stripped,
            system: SystemForm::Auto,
            diagnose: false,
        };
        let facts = Facts { bound_thinking: self.bound_thinking, ..Facts::default() };
        let habits = Habits { read_by_others: StaticEnds::BOTH, ..Habits::default() };
        Some(align::spell(&arrival, table, &Nothing, rules, &facts).map(|spelt| {
            let marked = align::mark(&arrival, &spelt, rules, &facts, &habits);
            (spelt, marked)
        }))
    }

    /// The table after the same request came with its members and tools the other way round.
    fn that_saw(self, value: Option<&Value>) -> Table {
        let mut table = Table::new(Limits::TENANT);
        if let Some(mut value) = value.map(respelt) {
            tools(&mut value).reverse();
            if let Some(Ok((spelt, _))) = self.align(value.to_string().as_bytes(), &table) {
                table.remember(spelt.interns);
            }
        }
        table
    }

    fn sees(self, body: &[u8], value: Option<&Value>, table: &Table) {
        let marked = match self.align(body, table) {
            Some(Ok((_, marked))) => marked,
            Some(Err(reason)) => return assert_eq!(reason, Reason::Ambiguous),
            None => return,
        };
        let forwarded = marked.body.pieces.concat();
        assert_eq!(forwarded.len(), marked.body.length);
        let is_json = |body| serde_json::from_slice::<&RawValue>(body).is_ok();
        assert_eq!(is_json(&forwarded), is_json(body), "{:?}", String::from_utf8_lossy(&forwarded));
        if let Some(value) = value {
            let found = serde_json::from_slice(&forwarded).expect("what was JSON is JSON");
            same_request(value.clone(), found);
        }
        let markers_are_legal =
            |body: &[u8]| !breakpoints::are_illegal(body, &Anatomy::read(body).expect("read"));
        assert!(markers_are_legal(&forwarded) || !markers_are_legal(body), "markers that will be refused");
        let (_, again) = self.align(&forwarded, table).expect("aligned once").expect("aligned once");
        assert_eq!(again.body.pieces.concat(), forwarded, "not idempotent");
    }
}

fn same_request(mut received: Value, mut forwarded: Value) {
    let (before, after) = (take_markers(&mut received), take_markers(&mut forwarded));
    assert!(before <= after && after <= before.max(MARKERS_MAX), "{before} markers became {after}");
    assert_eq!(sort_tools(received), sort_tools(forwarded));
}

/// Takes the markers off every place that can carry one, and counts them.
fn take_markers(request: &mut Value) -> usize {
    let take = |carrier: &mut Value| {
        usize::from(carrier.as_object_mut().is_some_and(|members| members.remove("cache_control").is_some()))
    };
    let mut taken = take(request);
    for layer in ["tools", "system"] {
        taken += elements(request, layer).iter_mut().map(take).sum::<usize>();
    }
    for message in elements(request, "messages") {
        taken += elements(message, "content").iter_mut().map(take).sum::<usize>();
    }
    taken
}
