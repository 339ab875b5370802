//! Requests as values, for targets that ask if two say the same.

use serde_json::{Map, Value};

/// The tools of a request.
pub fn tools(request: &mut Value) -> &mut [Value] {
    elements(request, "tools")
}

/// The elements of a list in an object; empty without such a list.
pub fn elements<'a>(object: &'a mut Value, name: &str) -> &'a mut [Value] {
    object.get_mut(name).and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// Returns the value with the members of every object the other way round.
pub fn respelt(value: &Value) -> Value {
    with_members(value, &|members| members.reverse())
}

/// Returns the request with its tools in an order that depends on nothing but the tools.
pub fn sort_tools(mut request: Value) -> Value {
    tools(&mut request).sort_by_cached_key(|tool| sorted(tool).to_string());
    request
}

fn sorted(value: &Value) -> Value {
    with_members(value, &|members| members.sort_by(|one, two| one.0.cmp(&two.0)))
}

fn with_members(value: &Value, arrange: &dyn Fn(&mut Vec<(String, Value)>)) -> Value {
    match value {
        Value::Array(elements) => elements.iter().map(|element| with_members(element, arrange)).collect(),
        Value::Object(members) => {
            let mut members: Vec<_> =
                members.iter().map(|(name, value)| (name.clone(), with_members(value, arrange))).collect();
            arrange(&mut members);
            Value::Object(Map::from_iter(members))
        }
        other => other.clone(),
    }
}
