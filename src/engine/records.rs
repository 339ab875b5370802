//! Records: the form in which what is known of a tenant outlives the process.
//!
//! A record is a small JSON text with a version, and blobs: the prompts that it depends on. Stores keep them without
//! looking inside.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::words::{MOMENT_MEMBER, Moment, RecordKind, TenantId, digits};

/// The version of the form that is written. Versions up to this one are read.
const VERSION: u32 = 1;

/// The longest name of a record.
pub const NAME_CHARS_MAX: usize = 64;

/// The largest body of a record. What is larger belongs into a blob.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// The most blobs of one record.
pub const BLOBS_MAX: usize = 64;

/// The most bytes of the blobs of one record: more than two of the largest prompts, and what was answered.
pub const BLOBS_BYTES_MAX: usize = 128 << 20;

/// More than anything is counted, and later than any time.
const COUNT_MAX: u64 = 1 << 53;
const FIGURE_MAX: f64 = 1e15;

/// The name of a record among those of its tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    pub kind: RecordKind,
    /// A digest in hex digits or an id: at most [`NAME_CHARS_MAX`] of `[0-9a-f-]`.
    pub name: String,
}

impl RecordKey {
    /// None if the name is not one of a record.
    pub fn new(kind: RecordKind, name: &str) -> Option<RecordKey> {
        let fits = (1..=NAME_CHARS_MAX).contains(&name.len());
        let is_name = name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'));
        (fits && is_name).then(|| RecordKey { kind, name: name.to_owned() })
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The fork point that it belongs to. A store on many machines may keep each group on another.
    pub group: Option<String>,
    /// A JSON object whose member `v` is the version of the record's form.
    pub body: Bytes,
    /// Prompts. The store keeps each once per tenant, by content.
    pub blobs: Vec<Bytes>,
    /// Its lifetime in milliseconds: after this write or, when it is read, from now on.
    pub ttl_ms: u64,
}

impl Record {
    /// Returns true if it is within its bounds.
    pub fn fits(&self) -> bool {
        let bytes = self.blobs.iter().map(Bytes::len).sum::<usize>();
        self.body.len() <= BODY_BYTES_MAX && self.blobs.len() <= BLOBS_MAX && bytes <= BLOBS_BYTES_MAX
    }
}

/// A record that was written, or taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(RecordKey, Record),
    Delete(RecordKey),
}

impl Change {
    pub fn key(&self) -> &RecordKey {
        match self {
            Change::Put(key, _) | Change::Delete(key) => key,
        }
    }
}

/// One moment by the clock of this process and by the calendar's. Records have the calendar's milliseconds, since they
/// outlive the process and its clock.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub now: Moment,
    pub unix_ms: u64,
}

impl Times {
    /// Returns a moment of this process in milliseconds of the calendar.
    pub fn unix(self, moment: Moment) -> u64 {
        moved(moment.0, self.now.0, self.unix_ms)
    }

    /// Returns a time of the calendar as a moment of this process; the first one if it was before that.
    pub fn moment(self, unix_ms: u64) -> Moment {
        Moment(moved(unix_ms, self.unix_ms, self.now.0))
    }
}

fn moved(at: u64, from: u64, to: u64) -> u64 {
    if at >= from { to.saturating_add(at - from) } else { to.saturating_sub(from - at) }
}

/// The process that writes records, so that two of them never write under one name. No two processes, whether they run
/// at the same time or not, have the same. In a record it is digits: no number there may be so large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Writer(#[serde(with = "digits")] pub [u8; 8]);

/// The text of a record.
#[derive(Serialize, Deserialize)]
struct RecordText {
    v: u32,
    /// Whose it is: a store that mixes tenants up is not believed.
    tenant: String,
    data: Value,
}

/// Writes the body of a record; none if it cannot be written, or is too large.
pub fn write<T: Serialize>(tenant: TenantId, data: &T, times: Times) -> Option<Bytes> {
    let mut data = serde_json::to_value(data).ok()?;
    move_moments(&mut data, &|ms| times.unix(Moment(ms)));
    let text = RecordText { v: VERSION, tenant: mark(tenant), data };
    let body = serde_json::to_vec(&text).ok()?;
    (body.len() <= BODY_BYTES_MAX).then(|| body.into())
}

/// Reads the body of a record; none if it is damaged, of another tenant, or of a later version.
pub fn read<T: DeserializeOwned>(tenant: TenantId, body: &[u8], times: Times) -> Option<T> {
    if body.len() > BODY_BYTES_MAX {
        return None;
    }
    let text: RecordText = serde_json::from_slice(body).ok()?;
    if !(1..=VERSION).contains(&text.v) || text.tenant != mark(tenant) {
        return None;
    }
    let mut data = text.data;
    if !is_sane(&data) {
        return None;
    }
    move_moments(&mut data, &|unix_ms| times.moment(unix_ms).0);
    serde_json::from_value(data).ok()
}

/// Returns true if a later version has written the body of a record: who reads it is a newer process of a rolling upgrade.
pub fn is_later(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let read: Option<Version> =
        (body.len() <= BODY_BYTES_MAX).then(|| serde_json::from_slice(body).ok()).flatten();
    read.is_some_and(|Version { v }| v > VERSION)
}

/// Whose a record is, without saying who that is.
fn mark(tenant: TenantId) -> String {
    digits::of(&blake3::derive_key("forkpoint record tenant v1", &tenant.0)[..16])
}

/// Returns true if no number is beyond all reason, so that nothing overflows that is counted on from it.
fn is_sane(value: &Value) -> bool {
    match value {
        Value::Number(number) => match number.as_u64() {
            Some(count) => count <= COUNT_MAX,
            None => number.as_f64().is_some_and(|figure| figure.abs() <= FIGURE_MAX),
        },
        Value::Array(items) => items.iter().all(is_sane),
        Value::Object(members) => members.values().all(is_sane),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

/// Moves every moment of a value to another clock.
fn move_moments(value: &mut Value, to: &impl Fn(u64) -> u64) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| move_moments(item, to)),
        Value::Object(members) => match members.get(MOMENT_MEMBER).and_then(Value::as_u64) {
            Some(ms) if members.len() == 1 => {
                members.insert(MOMENT_MEMBER.to_owned(), to(ms).into());
            }
            _ => members.values_mut().for_each(|member| move_moments(member, to)),
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { now: Moment(1_000), unix_ms: 1_700_000_000_000 };

    #[test]
    fn moments_are_read_by_another_clock() {
        let body = write(TenantId([1; 32]), &(Moment(400), "@", 7), TIMES).unwrap();
        let later = Times { now: Moment(50_000), unix_ms: TIMES.unix_ms + 10_000 };
        let read_back = read::<(Moment, String, u64)>(TenantId([1; 32]), &body, later).unwrap();
        assert_eq!(read_back, (Moment(39_400), "@".to_owned(), 7));
        let before = Times { now: Moment(100), ..later };
        assert_eq!(before.moment(TIMES.unix_ms), Moment(0), "no clock shows what was before it");
    }

    #[test]
    fn what_is_not_ours_or_not_known_yet_says_nothing() {
        let body = write(TenantId([1; 32]), &7, TIMES).unwrap();
        assert_eq!(read::<u64>(TenantId([1; 32]), &body, TIMES), Some(7));
        assert_eq!(read::<u64>(TenantId([2; 32]), &body, TIMES), None);
        let text = String::from_utf8(body.to_vec()).unwrap();
        for other in
            [text.replace(r#""v":1"#, r#""v":2"#), text.replace(r#""v":1"#, r#""v":0"#), text[1..].to_owned()]
        {
            assert_eq!(read::<u64>(TenantId([1; 32]), other.as_bytes(), TIMES), None, "{other}");
            assert_eq!(is_later(other.as_bytes()), other.contains(r#""v":2"#), "{other}");
        }
        for wild in ["18446744073709551615", "1e300", "-1e300"] {
            let wild = text.replace(r#""data":7"#, &format!(r#""data":{wild}"#));
            assert_eq!(read::<f64>(TenantId([1; 32]), wild.as_bytes(), TIMES), None, "{wild}");
        }
        let more = text.replace(r#""v":1"#, r#""v":1,"later":[]"#);
        assert_eq!(
            read::<u64>(TenantId([1; 32]), more.as_bytes(), TIMES),
            Some(7),
            "a member that is not known"
        );
    }

    #[test]
    fn a_name_is_short_and_made_of_hex_digits_and_dashes() {
        assert!(RecordKey::new(RecordKind::Child, "0af3-9").is_some());
        for bad in ["", "A0", "../x", "g", &"0".repeat(65)] {
            assert_eq!(RecordKey::new(RecordKind::Child, bad), None, "{bad}");
        }
    }
}
