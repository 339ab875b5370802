//! A recording as a play: who asks when, what follows what, and what is answered.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::proxy::recording::{Billed, Line};

use super::super::{Failure, tape};

/// More would not fit into memory beside what three runs need.
const BODY_BYTES_MAX: usize = 2 * 1024 * 1024 * 1024;

/// One exchange to be played again.
pub struct Part {
    pub line: Line,
    /// As the body names it; the line may say less.
    pub model: String,
    /// Milliseconds after the first one.
    pub at_ms: u64,
    /// The exchange whose answer it carries on, and how long after its end it came.
    pub after: Option<(usize, u64)>,
    /// From going out to the first content, and from there to the end.
    pub to_begin_ms: u64,
    pub to_end_ms: u64,
    /// The blocks that were answered.
    pub content: Vec<Value>,
}

/// All of them, in the order they came.
pub struct Script {
    pub parts: Vec<Part>,
    /// Exchanges that cannot be played, by why.
    pub no_body: usize,
    pub failed: usize,
    /// Lines that are none.
    pub broken: usize,
}

impl Script {
    pub fn read(paths: &[PathBuf]) -> Result<Script, Failure> {
        let mut script = Script { parts: Vec::new(), no_body: 0, failed: 0, broken: 0 };
        let mut lines: Vec<Line> = Vec::new();
        let mut bytes = 0;
        for path in paths {
            script.broken += tape::each(path, |line| {
                bytes += line.request.as_ref().map_or(0, String::len);
                match () {
                    _ if !line.status.is_some_and(|status| (200..300).contains(&status)) => {
                        script.failed += 1
                    }
                    _ if line.request.is_none() || line.tenant.is_none() => script.no_body += 1,
                    _ if bytes > BODY_BYTES_MAX => {}
                    _ => lines.push(Line { forwarded: None, ..line }),
                }
            })?;
        }
        if bytes > BODY_BYTES_MAX {
            return Err(Failure::new(format!(
                "the recording has {bytes} bytes of bodies; at most {BODY_BYTES_MAX} can be replayed"
            ))
            .hint("replay one of its files (FILE, FILE.1, …) at a time"));
        }
        if lines.is_empty() {
            return Err(Failure::new("the recording has no exchange that can be replayed")
                .hint("record with record.bodies = \"redacted\" (filler instead of words) or \"full\""));
        }
        lines.sort_by_key(|line| (line.time_ms, line.id));
        let start = lines.first().map_or(0, |line| line.time_ms);
        let links = links(&lines);
        script.parts =
            lines.into_iter().zip(links).map(|(line, link)| Part::new(line, link, start)).collect();
        Ok(script)
    }

    /// From the first request to the last byte.
    pub fn length_ms(&self) -> u64 {
        self.parts.iter().map(|part| part.at_ms + part.line.duration_ms).max().unwrap_or_default()
    }

    /// What was billed when it was recorded.
    pub fn billed(&self) -> Billed {
        let mut sum = Billed::default();
        for billed in self.parts.iter().filter_map(|part| part.line.usage) {
            sum.uncached += billed.uncached;
            sum.cache_read += billed.cache_read;
            sum.cache_write_5m += billed.cache_write_5m;
            sum.cache_write_1h += billed.cache_write_1h;
            sum.output += billed.output;
        }
        sum
    }
}

impl Part {
    fn new(line: Line, link: Link, start: u64) -> Part {
        let sent = line.sent_ms.unwrap_or_default();
        let begun = line.begun_ms.or(line.first_byte_ms).unwrap_or(line.duration_ms);
        Part {
            at_ms: line.time_ms - start,
            after: link.after,
            model: link.model,
            to_begin_ms: begun.saturating_sub(sent),
            to_end_ms: line.duration_ms.saturating_sub(begun),
            content: content_of(line.answer.as_deref()),
            line,
        }
    }
}

fn content_of(message: Option<&str>) -> Vec<Value> {
    let message: Option<Value> = message.and_then(|message| serde_json::from_str(message).ok());
    message.and_then(|mut message| message["content"].as_array_mut().map(std::mem::take)).unwrap_or_default()
}

#[derive(Default)]
struct Link {
    model: String,
    after: Option<(usize, u64)>,
}

/// Which exchange each one carries on: the one whose answer is its last assistant message.
fn links(lines: &[Line]) -> Vec<Link> {
    let mut answered: HashMap<(Option<&str>, Vec<u8>), usize> = HashMap::new();
    let mut links = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        let body: Value =
            line.request.as_deref().and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default();
        let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let last = messages.iter().rev().find(|message| message["role"] == "assistant");
        let tenant = line.tenant.as_deref();
        let before = last.and_then(|last| answered.get(&(tenant, said(&last["content"]))));
        let after = before.and_then(|before| {
            let ended = lines[*before].time_ms + lines[*before].duration_ms;
            Some((*before, line.time_ms.checked_sub(ended)?))
        });
        links.push(Link { model: body["model"].as_str().unwrap_or(&line.model).to_owned(), after });
        let answer: Option<Value> =
            line.answer.as_deref().and_then(|answer| serde_json::from_str(answer).ok());
        if let Some(answer) = answer {
            answered.insert((tenant, said(&answer["content"])), index);
        }
    }
    links
}

/// What a content says, markers and the form of a single text aside.
fn said(content: &Value) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    let blocks = match content {
        Value::String(text) => vec![serde_json::json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks.clone(),
        _ => Vec::new(),
    };
    for mut block in blocks {
        if let Some(members) = block.as_object_mut() {
            members.shift_remove("cache_control");
        }
        hasher.update(block.to_string().as_bytes());
    }
    hasher.finalize().as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(time_ms: u64, messages: Value, answer: &str) -> Line {
        Line {
            v: 1,
            time_ms,
            duration_ms: 100,
            status: Some(200),
            tenant: Some("t".into()),
            request: Some(json!({"model": "m", "messages": messages}).to_string()),
            answer: Some(
                json!({"role": "assistant", "content": [{"type": "text", "text": answer}]}).to_string(),
            ),
            ..Line::default()
        }
    }

    #[test]
    fn a_turn_follows_the_answer_that_it_carries() {
        let user = json!({"role": "user", "content": "x"});
        let lines = [
            line(0, json!([user]), "one"),
            line(50, json!([user]), "two"),
            line(300, json!([user, {"role": "assistant", "content": "one"}, user]), "three"),
            line(
                320,
                json!([user, {"role": "assistant", "content": [{"type": "text", "text": "two",
                "cache_control": {"type": "ephemeral"}}]}, user]),
                "four",
            ),
            line(110, json!([user, {"role": "assistant", "content": "two"}, user]), "too early"),
        ];
        let after: Vec<_> = links(&lines).into_iter().map(|link| link.after).collect();
        assert_eq!(after, [None, None, Some((0, 200)), Some((1, 170)), None]);
    }
}
