//! The places where `cache_control` is allowed: at most four, on blocks that can carry it, long lifetimes before short ones.

use serde_json::Value;

use super::super::body::{Body, Content, is_thinking, kind, text};
use super::super::cache::EntryTtl;
use super::super::error::ApiError;
use super::super::prompt::RequestedBreakpoint;
use super::super::render::{BlockPlace, is_deferred};
use super::super::settings::{NestedMarkers, SimRules};

/// The breakpoints of a request in the order of the cache, the automatic one included.
pub fn check(body: &Body<'_>, rules: &SimRules) -> Result<Vec<RequestedBreakpoint>, ApiError> {
    let mut found = MarkerScan { markers: Vec::new(), count: 0, nested: rules.nested_markers };
    for (index, tool) in body.tools.iter().enumerate() {
        found.tool(index, tool)?;
    }
    for (index, block) in body.system.map_or(&[][..], Content::blocks).iter().enumerate() {
        found.block(BlockPlace::System(index), block)?;
    }
    for (message_index, message) in body.messages.iter().enumerate() {
        for (index, block) in message.content.blocks().iter().enumerate() {
            found.block(BlockPlace::Message(message_index, index), block)?;
        }
    }
    let automatic = match body.member("cache_control") {
        None => None,
        Some(control) => automatic(body, read_ttl(control, "cache_control")?, &found.markers)?,
    };
    let count = found.count + usize::from(automatic.is_some());
    if count > rules.breakpoints {
        let most = rules.breakpoints;
        return Err(ApiError::invalid(format!(
            "A maximum of {most} blocks with cache_control may be provided. Found {count}."
        )));
    }
    if let Some(marker) = automatic {
        let index = found.markers.partition_point(|known| known.place < marker.place);
        found.markers.insert(index, marker);
    }
    check_order(&found.markers)?;
    Ok(found.markers)
}

struct MarkerScan {
    markers: Vec<RequestedBreakpoint>,
    /// Nested ones count too, though they may mark nothing.
    count: usize,
    nested: NestedMarkers,
}

impl MarkerScan {
    fn tool(&mut self, index: usize, tool: &Value) -> Result<(), ApiError> {
        let Some(control) = control_of(tool) else { return Ok(()) };
        if is_deferred(tool) {
            let name = text(tool, "name").unwrap_or_default();
            return Err(ApiError::invalid(format!(
                "Tool '{name}' cannot have both defer_loading=true and cache_control set. \
                 Tools with defer_loading cannot use prompt caching."
            )));
        }
        self.add(BlockPlace::Tool(index), control)
    }

    fn block(&mut self, place: BlockPlace, block: &Value) -> Result<(), ApiError> {
        if let Some(control) = control_of(block) {
            let (path, kind) = (place.path(), kind(block));
            if is_thinking(block) || kind == "fallback" {
                return Err(ApiError::invalid(format!(
                    "{path}.{kind}.cache_control: Extra inputs are not permitted"
                )));
            }
            if is_empty_text(block) {
                return Err(ApiError::invalid(format!(
                    "{path}.text: cache_control cannot be set for empty text blocks"
                )));
            }
            self.add(place, control)?;
        }
        if kind(block) != "tool_result" {
            return Ok(());
        }
        let nested = block.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for control in nested.iter().filter_map(control_of) {
            self.count += 1;
            let ttl = read_ttl(control, &place.path())?;
            let is_marked = self.markers.last().is_some_and(|marker| marker.place == place);
            if self.nested == NestedMarkers::MarkOuter && !is_marked {
                self.markers.push(RequestedBreakpoint { place, ttl });
            }
        }
        Ok(())
    }

    fn add(&mut self, place: BlockPlace, control: &Value) -> Result<(), ApiError> {
        self.count += 1;
        let ttl = read_ttl(control, &format!("{}.cache_control", place.path()))?;
        self.markers.push(RequestedBreakpoint { place, ttl });
        Ok(())
    }
}

fn control_of(block: &Value) -> Option<&Value> {
    block.get("cache_control").filter(|control| !control.is_null())
}

fn is_empty_text(block: &Value) -> bool {
    kind(block) == "text" && text(block, "text").is_some_and(str::is_empty)
}

fn read_ttl(control: &Value, path: &str) -> Result<EntryTtl, ApiError> {
    if text(control, "type") != Some("ephemeral") {
        return Err(ApiError::invalid(format!("{path}.type: Input should be 'ephemeral'")));
    }
    match control.get("ttl") {
        None | Some(Value::Null) => Ok(EntryTtl::FiveMinutes),
        Some(ttl) => match ttl.as_str() {
            Some("5m") => Ok(EntryTtl::FiveMinutes),
            Some("1h") => Ok(EntryTtl::OneHour),
            _ => Err(ApiError::invalid(format!("{path}.ephemeral.ttl: Input should be '5m' or '1h'"))),
        },
    }
}

/// Top-level `cache_control` marks the last block that can be marked. Nothing to mark: nothing happens.
fn automatic(
    body: &Body<'_>,
    ttl: EntryTtl,
    explicit: &[RequestedBreakpoint],
) -> Result<Option<RequestedBreakpoint>, ApiError> {
    let Some(place) = last_cacheable(body) else { return Ok(None) };
    match explicit.iter().find(|marker| marker.place == place) {
        None => Ok(Some(RequestedBreakpoint { place, ttl })),
        Some(marker) if marker.ttl == ttl => Ok(None),
        Some(marker) => Err(ApiError::invalid(format!(
            "Top-level cache_control has ttl='{}' but the target block already has cache_control with ttl='{}'",
            ttl.as_str(),
            marker.ttl.as_str()
        ))),
    }
}

fn last_cacheable(body: &Body<'_>) -> Option<BlockPlace> {
    let can_carry = |block: &Value| !is_thinking(block) && kind(block) != "fallback" && !is_empty_text(block);
    let last_in = |content: Content<'_>| match content {
        Content::Text(text) => (!text.is_empty()).then_some(0),
        Content::Blocks(blocks) => blocks.iter().rposition(can_carry),
    };
    let messages = body.messages.iter().enumerate().rev();
    let in_messages = messages
        .filter_map(|(index, message)| Some(BlockPlace::Message(index, last_in(message.content)?)))
        .next();
    let in_system = || body.system.and_then(last_in).map(BlockPlace::System);
    let in_tools = || body.tools.iter().rposition(|tool| !is_deferred(tool)).map(BlockPlace::Tool);
    in_messages.or_else(in_system).or_else(in_tools)
}

fn check_order(markers: &[RequestedBreakpoint]) -> Result<(), ApiError> {
    let first_short = markers.iter().position(|marker| marker.ttl == EntryTtl::FiveMinutes);
    let after = first_short.map_or(&[][..], |first| &markers[first..]);
    match after.iter().find(|marker| marker.ttl == EntryTtl::OneHour) {
        None => Ok(()),
        Some(marker) => Err(ApiError::invalid(format!(
            "{}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control \
             block. Note that blocks are processed in the following order: `tools`, `system`, `messages`.",
            marker.place.path()
        ))),
    }
}
