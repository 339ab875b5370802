//! Spans in the JSON format of OTLP.

use std::fmt::Display;

use serde_json::{Value, json};

use super::context::{SpanId, TraceId};

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Internal = 1,
    Server = 2,
    Client = 3,
}

pub struct Span {
    trace: TraceId,
    id: SpanId,
    parent: Option<SpanId>,
    name: String,
    kind: Kind,
    from_ns: u64,
    to_ns: u64,
    attributes: Vec<Value>,
    failed: bool,
}

impl Span {
    pub fn new(
        trace: TraceId,
        id: SpanId,
        parent: Option<SpanId>,
        name: String,
        kind: Kind,
        from_ns: u64,
        to_ns: u64,
    ) -> Span {
        Span { trace, id, parent, name, kind, from_ns, to_ns, attributes: Vec::new(), failed: false }
    }

    pub fn text(&mut self, key: &str, value: Option<impl Display>) {
        self.add(key, value.map(|value| json!({"stringValue": value.to_string()})));
    }

    pub fn number(&mut self, key: &str, value: Option<u64>) {
        // The format writes 64-bit numbers as strings.
        self.add(key, value.map(|value| json!({"intValue": value.to_string()})));
    }

    /// Adds a list with one text.
    pub fn texts(&mut self, key: &str, value: Option<&str>) {
        self.add(key, value.map(|value| json!({"arrayValue": {"values": [{"stringValue": value}]}})));
    }

    fn add(&mut self, key: &str, value: Option<Value>) {
        self.attributes.extend(value.map(|value| json!({"key": key, "value": value})));
    }

    pub fn failed(&mut self, why: Option<&str>) {
        self.failed |= why.is_some();
        self.text("error.type", why);
    }

    pub fn json(&self) -> Value {
        json!({
            "traceId": self.trace.to_string(),
            "spanId": self.id.to_string(),
            "parentSpanId": self.parent.map(|parent| parent.to_string()).unwrap_or_default(),
            "name": self.name,
            "kind": self.kind as u8,
            "startTimeUnixNano": self.from_ns.to_string(),
            "endTimeUnixNano": self.to_ns.to_string(),
            "attributes": self.attributes,
            "status": {"code": if self.failed { 2 } else { 0 }},
        })
    }
}

/// Who sends the spans, as attributes of a resource.
#[derive(Clone, Debug)]
pub struct Resource(Vec<Value>);

impl Resource {
    /// Returns the resource with these `name=value` attributes, and those that it has if they are not among them.
    pub fn new(attributes: &[String]) -> Resource {
        let given: Vec<(&str, &str)> =
            attributes.iter().filter_map(|attribute| attribute.split_once('=')).collect();
        let own = [("service.name", "forkpoint"), ("service.version", env!("CARGO_PKG_VERSION"))];
        let own = own.into_iter().filter(|(name, _)| given.iter().all(|(other, _)| other != name));
        let all = own.chain(given.iter().copied());
        Resource(all.map(|(key, value)| json!({"key": key, "value": {"stringValue": value}})).collect())
    }
}

/// Returns the body that is posted to a collector.
pub fn request(resource: &Resource, spans: Vec<Value>) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    json!({"resourceSpans": [{
        "resource": {"attributes": resource.0},
        "scopeSpans": [{"scope": {"name": "forkpoint", "version": version}, "spans": spans}],
    }]})
}
