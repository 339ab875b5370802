//! A recording as a play: who asks when, what follows what, and what is answered.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::engine::answer::usage::Usage;
use crate::engine::request::meaning::Meaning;
use crate::report::ExchangeRecord;

use super::super::{Failure, recorded};

/// More would not fit into memory beside what three runs need.
const BODY_BYTES_MAX: usize = 2 * 1024 * 1024 * 1024;

/// One exchange to be played again.
pub struct Part {
    pub record: ExchangeRecord,
    /// As the body names it; the record may say less.
    pub model: String,
    /// Milliseconds after the first one.
    pub at_ms: u64,
    /// The exchange that it follows, if any.
    pub after: Option<Cause>,
    /// From going out to the first content, and from there to the end.
    pub to_begin_ms: u64,
    pub to_end_ms: u64,
    /// The blocks that were answered.
    pub content: Vec<Value>,
}

/// The event that a request follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    pub exchange: usize,
    pub at: Stage,
    /// How long after that it came.
    pub gap_ms: u64,
}

/// A point in an exchange that others follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The first content of its answer: some clients start children before the last.
    Begun,
    Ended,
}

/// All of them, in the order they came.
#[derive(Default)]
pub struct Script {
    pub parts: Vec<Part>,
    /// Exchanges that cannot be played, by why.
    pub no_body: usize,
    pub failed: usize,
    /// The number of lines that could not be read, and the place of the first.
    pub broken: usize,
    pub first_broken: Option<String>,
    /// Lines of exchanges that another line has already, such as those of `FILE.match`.
    pub repeated: usize,
    /// Files with older lines of the same recordings, which were not named.
    pub unread: Vec<PathBuf>,
}

impl Script {
    /// Reads recordings, and calls `step` for each record.
    pub fn read(paths: &[PathBuf], mut step: impl FnMut()) -> Result<Script, Failure> {
        let mut script = Script::default();
        let mut records: Vec<ExchangeRecord> = Vec::new();
        let (mut read, mut bytes) = (0, 0);
        for path in paths {
            let counts = recorded::for_each(path, |record| {
                step();
                bytes += record.request.as_ref().map_or(0, String::len);
                bytes += record.answer.as_ref().map_or(0, String::len);
                if !record.status.is_some_and(|status| (200..300).contains(&status)) {
                    script.failed += 1;
                } else if record.request.is_none() || record.tenant.is_none() {
                    script.no_body += 1;
                } else if bytes <= BODY_BYTES_MAX {
                    records.push(ExchangeRecord { forwarded: None, refused: None, ..record });
                }
            })?;
            read += counts.lines;
            script.broken += counts.broken;
            script.first_broken = script.first_broken.take().or(counts.first_broken);
            let older = recorded::suffixed(path, "1");
            if older.exists() && !paths.contains(&older) {
                script.unread.push(older);
            }
        }
        if bytes > BODY_BYTES_MAX {
            return Err(Failure::new(format!(
                "the recording has {bytes} bytes of bodies; at most {BODY_BYTES_MAX} can be replayed"
            ))
            .hint("replay one of its files (FILE, FILE.1, …) at a time"));
        }
        if records.is_empty() {
            return Err(script.nothing(paths, read));
        }
        records.sort_by_key(|record| (record.time_ms, record.id));
        script.repeated = records.len();
        records.dedup_by(|one, other| {
            (one.time_ms, one.id, &one.tenant) == (other.time_ms, other.id, &other.tenant)
        });
        script.repeated -= records.len();
        let start = records.first().map_or(0, |record| record.time_ms);
        let links = links(&records);
        script.parts =
            records.into_iter().zip(links).map(|(record, link)| Part::new(record, link, start)).collect();
        Ok(script)
    }

    /// Explains why a number of lines has nothing to replay.
    fn nothing(&self, paths: &[PathBuf], lines: usize) -> Failure {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let names = names.join(", ");
        match (&self.first_broken, self.no_body) {
            _ if lines == 0 => Failure::new(format!("{names}: nothing is recorded there"))
                .hint("name what record.file says; what was rotated away is in FILE.1 and so on"),
            (Some(place), _) if self.broken == lines => {
                Failure::new(format!("{place}: this is no line of a recording"))
                    .hint("name what record.file says: it has one JSON object per line")
            }
            (_, 1..) => Failure::new(format!("{names}: nothing can be replayed, for want of bodies"))
                .hint("record with record.bodies = \"redacted\" (filler instead of words) or \"full\""),
            _ => Failure::new(format!("{names}: no request in there was answered"))
                .hint("record while requests succeed; their status is in the lines"),
        }
    }

    /// From the first request to the last byte.
    pub fn length_ms(&self) -> u64 {
        self.parts.iter().map(|part| part.at_ms + part.record.duration_ms).max().unwrap_or_default()
    }

    /// The bill at the time of the recording.
    pub fn billed(&self) -> Usage {
        let mut sum = Usage::default();
        for billed in self.parts.iter().filter_map(|part| part.record.usage()) {
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
    fn new(record: ExchangeRecord, link: Link, start: u64) -> Part {
        let sent = record.sent_ms.unwrap_or_default();
        let begun = record.begun_ms.or(record.first_byte_ms).unwrap_or(record.duration_ms);
        Part {
            at_ms: record.time_ms - start,
            after: link.after,
            model: link.model,
            to_begin_ms: begun.saturating_sub(sent),
            to_end_ms: record.duration_ms.saturating_sub(begun),
            content: content_of(record.answer.as_deref()),
            record,
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
    after: Option<Cause>,
}

/// Finds what each one follows: the exchange whose answer it names as the one that it goes on from, or whose answer is
/// its last assistant message, by its calls or by its text; for a child's first request, the fan-out; for the results of a
/// fan-out, the last of the children.
fn links(records: &[ExchangeRecord]) -> Vec<Link> {
    let mut answered: HashMap<(Option<&str>, [u8; 32]), usize> = HashMap::new();
    let mut called: HashMap<(Option<&str>, String), usize> = HashMap::new();
    let mut named: HashMap<(Option<&str>, &str), usize> = HashMap::new();
    let mut links = Vec::with_capacity(records.len());
    let families = families(records);
    for (index, record) in records.iter().enumerate() {
        let body: Value =
            record.request.as_deref().and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default();
        let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let last = messages.iter().rev().find(|message| message["role"] == "assistant");
        let tenant = record.tenant.as_deref();
        let by_id = body["thread"]["previous_message_id"].as_str().and_then(|id| named.get(&(tenant, id)));
        let by_content = || {
            let content = &last?["content"];
            let by_call = calls(content).find_map(|id| called.get(&(tenant, id.to_owned())));
            by_call.or_else(|| answered.get(&(tenant, said(content))))
        };
        let before = by_id.or_else(by_content).copied();
        let family = record.fork.as_deref().and_then(|fork| families.get(&(tenant, fork)));
        let kin = family.into_iter().flat_map(|family| match record.role.as_str() {
            "child" if before.is_none() => family.parent.as_slice(),
            "parent" => family.children.as_slice(),
            _ => &[],
        });
        let causes = before.iter().chain(kin).filter(|cause| **cause < index);
        let after =
            causes.filter_map(|cause| follows(record, *cause, &records[*cause])).min_by_key(|c| c.gap_ms);
        links.push(Link { model: body["model"].as_str().unwrap_or(&record.model).to_owned(), after });
        named.extend(record.message_id.as_deref().map(|id| ((tenant, id), index)));
        let answer: Option<Value> =
            record.answer.as_deref().and_then(|answer| serde_json::from_str(answer).ok());
        if let Some(answer) = answer {
            answered.insert((tenant, said(&answer["content"])), index);
            called.extend(calls(&answer["content"]).map(|id| ((tenant, id.to_owned()), index)));
        }
    }
    links
}

/// How a request follows an exchange, if it came late enough for that.
fn follows(record: &ExchangeRecord, exchange: usize, cause: &ExchangeRecord) -> Option<Cause> {
    let since = |at: Stage, after_ms: u64| {
        let gap_ms = record.time_ms.checked_sub(cause.time_ms + after_ms)?;
        Some(Cause { exchange, at, gap_ms })
    };
    let begun = || cause.begun_ms.and_then(|begun| since(Stage::Begun, begun));
    since(Stage::Ended, cause.duration_ms).or_else(begun)
}

/// The exchanges of a fan-out.
#[derive(Default)]
struct RecordedFanOut {
    /// The one that fanned out; the last, if that was tried again.
    parent: Option<usize>,
    children: Vec<usize>,
}

fn families(records: &[ExchangeRecord]) -> HashMap<(Option<&str>, &str), RecordedFanOut> {
    let mut families: HashMap<_, RecordedFanOut> = HashMap::new();
    for (index, record) in records.iter().enumerate() {
        let tenant = record.tenant.as_deref();
        if let Some(fork) = record.fanned_out.as_deref() {
            families.entry((tenant, fork)).or_default().parent = Some(index);
        }
        if record.role == "child"
            && let Some(fork) = record.fork.as_deref()
        {
            families.entry((tenant, fork)).or_default().children.push(index);
        }
    }
    families
}

/// A digest of a content's meaning. Its markers, the form of a single text, the order of keys and members that are
/// null do not count, nor does thinking, which many clients leave out when they repeat an answer.
fn said(content: &Value) -> [u8; 32] {
    let text = || vec![serde_json::json!({"type": "text", "text": content})];
    let blocks = content.as_array().cloned().unwrap_or_else(text);
    let mut hasher = blake3::Hasher::new();
    for mut block in blocks {
        if matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking")) {
            continue;
        }
        if let Some(members) = block.as_object_mut() {
            members.retain(|_, value| !value.is_null());
        }
        let spelt = block.to_string();
        match Meaning::of_block(spelt.as_bytes()) {
            Some(meaning) => hasher.update(meaning.as_bytes()),
            None => hasher.update(spelt.as_bytes()),
        };
    }
    *hasher.finalize().as_bytes()
}

/// The calls in a content; each has an id that no other answer has.
fn calls(content: &Value) -> impl Iterator<Item = &str> {
    let blocks = content.as_array().map_or(&[][..], Vec::as_slice).iter();
    blocks.filter(|block| block["type"] == "tool_use").filter_map(|block| block["id"].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(time_ms: u64, messages: Value, answer: &str) -> ExchangeRecord {
        ExchangeRecord {
            v: 1,
            time_ms,
            duration_ms: 100,
            status: Some(200),
            tenant: Some("t".into()),
            request: Some(json!({"model": "m", "messages": messages}).to_string()),
            answer: Some(
                json!({"role": "assistant", "content": [{"type": "text", "text": answer}]}).to_string(),
            ),
            ..ExchangeRecord::default()
        }
    }

    #[test]
    fn a_turn_follows_the_answer_that_it_carries() {
        let user = json!({"role": "user", "content": "x"});
        let records = [
            record(0, json!([user]), "one"),
            record(50, json!([user]), "two"),
            record(300, json!([user, {"role": "assistant", "content": "one"}, user]), "three"),
            record(
                320,
                json!([user, {"role": "assistant", "content": [{"type": "text", "text": "two",
                "cache_control": {"type": "ephemeral"}}]}, user]),
                "four",
            ),
            record(110, json!([user, {"role": "assistant", "content": "two"}, user]), "too early"),
        ];
        let after: Vec<_> = links(&records).into_iter().map(|link| link.after).collect();
        let ended = |exchange, gap_ms| Some(Cause { exchange, at: Stage::Ended, gap_ms });
        assert_eq!(after, [None, None, ended(0, 200), ended(1, 170), None]);
    }

    #[test]
    fn a_continue_follows_the_answer_that_it_names() {
        let user = json!({"role": "user", "content": "x"});
        let answered = |time_ms, id: &str| ExchangeRecord {
            message_id: Some(id.to_owned()),
            ..record(time_ms, json!([user]), "alike")
        };
        let naming = |time_ms, id: &str| {
            let thread = json!({"type": "continue", "previous_message_id": id});
            let body = json!({"model": "m", "thread": thread, "messages": [user]});
            ExchangeRecord { request: Some(body.to_string()), ..answered(time_ms, "msg_next") }
        };
        let of_another = ExchangeRecord { tenant: Some("other".into()), ..naming(330, "msg_1") };
        let records = [
            answered(0, "msg_1"),
            answered(10, "msg_2"),
            naming(300, "msg_1"),
            of_another,
            naming(340, "msg_0"),
        ];
        let after: Vec<_> = links(&records).into_iter().map(|link| link.after).collect();
        let first = Some(Cause { exchange: 0, at: Stage::Ended, gap_ms: 200 });
        assert_eq!(after, [None, None, first, None, None]);
    }

    #[test]
    fn an_answer_is_known_however_its_client_says_it_again() {
        let user = json!({"role": "user", "content": "x"});
        let answer = json!([{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "A"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": {"b": 1, "c": [2]}, "d": "e"}}]);
        let without_calls = json!([{"type": "text", "text": "A", "citations": null}]);
        let first = |content: &Value| ExchangeRecord {
            answer: Some(json!({"role": "assistant", "content": content}).to_string()),
            ..record(0, json!([user]), "")
        };
        let echo = |body: &str| ExchangeRecord {
            request: Some(format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":"x"}},{{"content":{body},"role":"assistant"}}]}}"#
            )),
            ..record(300, json!([]), "")
        };
        let call = r#"{"input":{"d":"e", "a":{"c":[2],"b":1}},"name":"f","id":"toolu_1","type":"tool_use"}"#;
        for (answer, echoes, expected) in [
            (&answer, format!(r#"[{{"text":"A","type":"text"}},{call}]"#), true),
            (&answer, format!(r#"[{{"text":"shortened","type":"text"}},{call}]"#), true),
            (&answer, format!("[{}]", call.replace("toolu_1", "toolu_2")), false),
            (&without_calls, r#"[{"text":"\u0041","type":"text"}]"#.to_owned(), true),
            (&without_calls, r#""A""#.to_owned(), true),
            (&without_calls, r#"[{"text":"B","type":"text"}]"#.to_owned(), false),
        ] {
            let records = [first(answer), echo(&echoes)];
            assert_eq!(links(&records)[1].after.is_some(), expected, "{echoes}");
        }
    }

    #[test]
    fn a_child_follows_the_fan_out_and_its_results_follow_the_last_child() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let fork = || Some("f".to_owned());
        let child = |time_ms, answer| ExchangeRecord {
            role: "child".into(),
            fork: fork(),
            ..record(time_ms, json!([user(answer)]), answer)
        };
        let results = json!([user("go"), {"role": "assistant", "content": "calls"}, user("results")]);
        let records = [
            ExchangeRecord {
                fanned_out: fork(),
                begun_ms: Some(40),
                ..record(0, json!([user("go")]), "calls")
            },
            child(60, "came before the last byte"),
            child(130, "came after it"),
            ExchangeRecord { role: "parent".into(), fork: fork(), ..record(300, results, "done") },
            ExchangeRecord { tenant: Some("other".into()), ..child(310, "of another tenant") },
        ];
        let after: Vec<_> = links(&records).into_iter().map(|link| link.after).collect();
        let cause = |exchange, at, gap_ms| Some(Cause { exchange, at, gap_ms });
        let expected =
            [None, cause(0, Stage::Begun, 20), cause(0, Stage::Ended, 30), cause(2, Stage::Ended, 70), None];
        assert_eq!(after, expected);
    }
}
