//! The blocks inside a block, less their markers.

use super::leaf::{CONTENT_KEY, push_compact};
use crate::engine::request::json::{self, value_end};
use crate::engine::request::marker;

/// The greatest depth of a block in others at which the upstream takes a marker on it.
const DEPTH_MAX: usize = 8;

/// Writes the list of blocks at `start` as it would be without its markers, compactly.
pub(super) fn push_blocks(out: &mut Vec<u8>, body: &[u8], start: usize) {
    push_list(out, body, start, DEPTH_MAX);
}

fn push_list(out: &mut Vec<u8>, body: &[u8], start: usize, depth: usize) {
    out.push(b'[');
    let mut is_first = true;
    let _ = json::walk_array(body, start, |start| {
        let end = value_end(body, start)?;
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        match body.get(start) {
            Some(b'{') => push_block(out, body, start, depth),
            _ => push_compact(out, &body[start..end]),
        }
        Ok(end)
    });
    out.push(b']');
}

fn push_block(out: &mut Vec<u8>, body: &[u8], start: usize, depth: usize) {
    out.push(b'{');
    let mut is_first = true;
    let _ = json::walk_object(body, start, |key, start| {
        let end = value_end(body, start)?;
        let name = &body[key];
        if name == marker::KEY {
            return Ok(end);
        }
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        out.extend_from_slice(name);
        out.push(b':');
        match body.get(start) {
            Some(b'[') if depth > 0 && name == CONTENT_KEY => push_list(out, body, start, depth - 1),
            _ => push_compact(out, &body[start..end]),
        }
        Ok(end)
    });
    out.push(b'}');
}
