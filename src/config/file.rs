//! Reads the TOML file into values, each with its line.
//!
//! Rule: the file is walked once, from the top. A known key becomes a [`LayerValue`](super::LayerValue). An unknown
//! section is one problem, not one per key. A syntax error is the only problem of a file, because what comes after it
//! cannot be trusted.

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use toml_edit::{Document, Item, TableLike, Value};

use super::LoadedLayers;
use super::hint;
use super::keys::SECTIONS;
use super::kind::Given;
use super::later;
use super::problem::{Complaint, Problem, ValueOrigin, named};

/// The most bytes of a file: far above any real configuration, and little to hold if a wrong path names a disk image.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Reads the file into `found`; `named_by` says who asked for it.
pub(super) fn read(path: &Path, named_by: &ValueOrigin, found: &mut LoadedLayers) {
    let shown = named(&path.to_string_lossy());
    match read_bytes(path) {
        Ok(bytes) => parse(&bytes, &shown, found),
        Err(complaint) => {
            found.unread = true;
            found.problems.push(complaint.at(named_by.clone(), shown));
        }
    }
}

/// Reads the text of a file, which messages call `name`.
pub(super) fn parse(bytes: &[u8], name: &str, found: &mut LoadedLayers) {
    match document(bytes, name) {
        Ok(document) => {
            let text = document.raw();
            Walk { name, text, found }.sections(document.as_table());
        }
        Err(problem) => {
            found.unread = true;
            found.problems.push(problem);
        }
    }
}

/// Parses TOML, or returns the first problem.
pub(super) fn document<'a>(bytes: &'a [u8], name: &str) -> Result<Document<&'a str>, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let complaint = Complaint::new("not UTF-8", "TOML files are UTF-8; convert the file");
        refuse_file(name, bytes, error.valid_up_to(), complaint)
    })?;
    Document::parse(text).map_err(|error| {
        // The message quotes only the parser: the line may hold a secret.
        let complaint = Complaint::new(
            format!("not valid TOML: {}", error.message()),
            "correct the syntax first; the rest of the file is checked after that",
        );
        let at = error.span().map_or(bytes.len(), |span| span.start);
        refuse_file(name, bytes, at, complaint)
    })
}

pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, Complaint> {
    let unreadable = |error: std::io::Error| {
        Complaint::new(
            format!("the file cannot be read: {error}"),
            "name a readable TOML file, or none to run with the defaults",
        )
    };
    if path.as_os_str().is_empty() {
        return Err(Complaint::new("names no file", "name a TOML file, or leave it out"));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Complaint::new(
            "the file is larger than 1 MiB",
            "name a configuration file; none needs more than a few KiB",
        ));
    }
    Ok(bytes)
}

/// Reads a text file, such as the boilerplate for forked children.
pub(super) fn read_text(path: &Path, bytes_max: usize) -> Result<String, Complaint> {
    let bytes = read_bytes(path)
        .map_err(|complaint| Complaint { hint: "name a readable text file, or none".into(), ..complaint })?;
    let text =
        String::from_utf8(bytes).ok().filter(|text| text.len() <= bytes_max && !text.trim().is_empty());
    text.ok_or_else(|| {
        Complaint::new(
            format!("the file is not a text of 1 to {bytes_max} bytes in UTF-8"),
            "write a few sentences",
        )
    })
}

fn refuse_file(name: &str, bytes: &[u8], at: usize, complaint: Complaint) -> Problem {
    let before = &bytes[..at.min(bytes.len())];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let column = String::from_utf8_lossy(&before[line_start..]).chars().count() + 1;
    let origin =
        ValueOrigin::File { path: name.to_owned(), line: line_number(bytes, at), column: Some(column) };
    complaint.at(origin, "")
}

struct Walk<'a> {
    name: &'a str,
    text: &'a str,
    found: &'a mut LoadedLayers,
}

impl Walk<'_> {
    fn sections(&mut self, root: &dyn TableLike) {
        for (name, item) in root.iter() {
            let origin = self.origin(root, name, item);
            let known = SECTIONS.iter().any(|section| section.name == name);
            if let Some(later) = later::later(name) {
                let header =
                    if item.is_array_of_tables() { format!("[[{name}]]") } else { format!("[{name}]") };
                self.found.problems.push(later.complaint().at(origin, header));
            } else if !known && item.is_table_like() | item.is_array_of_tables() {
                let complaint = Complaint::new("unknown section", hint::for_unknown_section(name));
                self.found.problems.push(complaint.at(origin, format!("[{}]", named(name))));
            } else if !known {
                let complaint = Complaint::new("unknown key", hint::for_unknown_key(name));
                self.found.problems.push(complaint.at(origin, named(name)));
            } else if let Some(table) = item.as_table_like() {
                self.keys(name, table);
            } else {
                let complaint = Complaint::new(
                    format!("a section, but {} was given", given(item).description()),
                    format!("write [{name}] on a line of its own and its keys below it"),
                );
                self.found.problems.push(complaint.at(origin, name));
            }
        }
    }

    fn keys(&mut self, section: &str, table: &dyn TableLike) {
        for (name, item) in table.iter() {
            let origin = self.origin(table, name, item);
            self.found.give(&format!("{section}.{name}"), given(item), origin);
        }
    }

    fn origin(&self, table: &dyn TableLike, name: &str, item: &Item) -> ValueOrigin {
        origin(self.name, self.text, table, name, item)
    }
}

/// Returns the line of the key, or that of its value if the parser kept no place for the key.
pub(super) fn origin(file: &str, text: &str, table: &dyn TableLike, name: &str, item: &Item) -> ValueOrigin {
    let key_span = table.get_key_value(name).and_then(|(key, _)| key.span());
    let Range { start, .. } = key_span.or_else(|| item.span()).unwrap_or_default();
    ValueOrigin::File { path: file.to_owned(), line: line_number(text.as_bytes(), start), column: None }
}

fn line_number(bytes: &[u8], at: usize) -> usize {
    bytes[..at.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

pub(super) fn given(item: &Item) -> Given {
    match item {
        Item::Value(value) => given_value(value),
        Item::Table(_) => Given::Other("a section"),
        Item::ArrayOfTables(_) => Given::Other("a list of sections"),
        Item::None => Given::Other("nothing"),
    }
}

fn given_value(value: &Value) -> Given {
    match value {
        Value::String(text) => Given::Text(text.value().clone()),
        Value::Integer(number) => Given::Integer(*number.value()),
        Value::Boolean(switch) => Given::Switch(*switch.value()),
        Value::Array(array) => Given::List(array.iter().map(given_value).collect()),
        Value::Float(number) => Given::Fraction(*number.value()),
        Value::Datetime(_) => Given::Other("a date"),
        Value::InlineTable(_) => Given::Other("a table"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(&'static str, String)> {
        let mut found = LoadedLayers::default();
        parse(text.as_bytes(), "f", &mut found);
        assert!(found.problems.is_empty(), "{:?}", found.problems);
        found.entries.iter().map(|entry| (entry.key.path, entry.origin.to_string())).collect()
    }

    #[test]
    fn every_spelling_of_a_key_has_its_line() {
        let text = "log.level = 'info'\n[server]\n\nmode = 'observe'\n[drain]\ndelay_ms = 1\n";
        let expected = [("log.level", "f:1"), ("server.mode", "f:4"), ("drain.delay_ms", "f:6")];
        let expected: Vec<_> = expected.map(|(path, place)| (path, place.to_owned())).into();
        assert_eq!(lines(text), expected);
        assert_eq!(lines(&text.replace('\n', "\r\n")), expected);
        assert_eq!(lines(&format!("\u{feff}{text}")), expected);
        assert_eq!(lines("\nserver = {\n mode = 'observe' }"), [("server.mode", "f:3".to_owned())]);
    }

    #[test]
    fn a_syntax_error_has_line_and_column_in_characters() {
        for (text, place) in
            [("a = 1\n'é' = =", "f:2:7"), ("[", "f:1:2"), ("a = 1\nb", "f:2:2"), ("a = 1\na = 2", "f:2:1")]
        {
            let mut found = LoadedLayers::default();
            parse(text.as_bytes(), "f", &mut found);
            let places: Vec<_> = found.problems.iter().map(|problem| problem.origin.to_string()).collect();
            assert_eq!(places, [place], "{text}");
            assert!(found.unread);
        }
    }
}
