//! The text of a source file, as far as it ships: without comments, the inside of strings, and tests.

use std::fs;
use std::path::{Path, PathBuf};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the `.rs` files below a folder.
pub fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns true for a file of unit tests.
pub fn is_test(path: &Path) -> bool {
    let inside = path.strip_prefix(root()).unwrap();
    inside.ends_with("tests.rs") || inside.components().any(|part| part.as_os_str() == "tests")
}

/// Returns the text of a file without its tests, and the same with comments and strings blanked out.
pub fn shipped(path: &Path) -> Shipped {
    Shipped::of(&fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// A file without its tests. Both texts have the same lines.
pub struct Shipped {
    pub text: String,
    /// Comments and the inside of strings are spaces.
    pub code: String,
}

impl Shipped {
    pub fn of(text: &str) -> Shipped {
        let (mut text, mut code) = (text.to_owned(), masked(text));
        while let Some(start) = test_attribute(&code) {
            let end = item_end(&code, start);
            text.replace_range(start..end, "");
            code.replace_range(start..end, "");
        }
        Shipped { text, code }
    }
}

/// Returns where the first attribute is that leaves an item out of what ships.
fn test_attribute(code: &str) -> Option<usize> {
    ["#[cfg(test)]", "#[cfg(all(test"].iter().filter_map(|attribute| code.find(attribute)).min()
}

/// Returns where the item ends whose first attribute starts here: at its closing brace, or at its semicolon.
fn item_end(code: &str, start: usize) -> usize {
    let after = start + code[start..].find(']').unwrap();
    let brace = code[after..].find('{').map(|at| after + at);
    let semicolon = code[after..].find(';').map(|at| after + at);
    match (brace, semicolon) {
        (Some(brace), Some(semicolon)) if semicolon < brace => semicolon + 1,
        (Some(brace), _) => close(code, brace) + 1,
        (None, Some(semicolon)) => semicolon + 1,
        (None, None) => code.len(),
    }
}

/// Returns where the brace closes that opens here.
pub fn close(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    panic!("a brace is not closed: {}", &code[open..code.len().min(open + 200)]);
}

/// Blanks out comments and the inside of strings; every other byte stays where it is.
fn masked(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let inside = if rest.starts_with(b"//") {
            0..find(rest, b"\n", 0)
        } else if rest.starts_with(b"/*") {
            0..find(rest, b"*/", 0) + 2
        } else if let Some(hashes) = raw_string(bytes, at) {
            let open = rest.iter().position(|byte| *byte == b'"').unwrap() + 1;
            let end = [&b"\""[..], &b"#".repeat(hashes)].concat();
            open..find(rest, &end, open)
        } else if rest[0] == b'"' {
            1..string_end(rest)
        } else if let Some(end) = character(rest) {
            1..end
        } else {
            at += 1;
            continue;
        };
        for byte in &mut out[at + inside.start..bytes.len().min(at + inside.end)] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at += inside.end.max(1) + usize::from(rest[0] != b'/');
    }
    String::from_utf8(out).unwrap()
}

fn find(bytes: &[u8], wanted: &[u8], from: usize) -> usize {
    bytes[from..]
        .windows(wanted.len())
        .position(|window| window == wanted)
        .map_or(bytes.len(), |at| from + at)
}

/// Returns the number of hashes if a raw string starts here.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if at > 0 && is_name(bytes[at - 1]) {
        return None;
    }
    let rest = bytes[at..].strip_prefix(b"b").unwrap_or(&bytes[at..]).strip_prefix(b"r")?;
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    (rest.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// Returns where the string that starts here ends: the place of its closing quote.
fn string_end(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at
}

/// Returns where the character literal that starts here ends; none for a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    let inside = rest.strip_prefix(b"'")?;
    if inside.starts_with(b"\\") {
        return Some(find(rest, b"'", 3));
    }
    let length = std::str::from_utf8(&inside[..inside.len().min(4)])
        .unwrap_or_else(|error| std::str::from_utf8(&inside[..error.valid_up_to()]).unwrap());
    let first = length.chars().next()?.len_utf8();
    (inside.get(first) == Some(&b'\'')).then_some(first + 1)
}

#[test]
fn tests_comments_and_strings_are_left_out_of_what_ships() {
    let text = r##"//! crate::engine is "here"
use crate::store; // and crate::proxy
#[cfg(test)]
use crate::sim;
const TEXT: &str = "a \" crate::cli { "; const RAW: &[u8] = br#"" { "#;
impl Thing<'_> {
    #[cfg(test)]
    pub fn numbered() -> Thing { Thing { number: 1 } }
    fn brace() -> [char; 3] { ['{', '\'', '\u{7b}'] }
}
#[cfg(test)]
mod tests { fn one() {} }
fn last() {}
"##;
    let Shipped { text: kept, code } = Shipped::of(text);
    assert_eq!(code.matches("crate::").count(), 1, "{code}");
    assert_eq!(code.lines().count(), kept.lines().count());
    for gone in ["sim", "numbered", "mod tests", "cfg"] {
        assert!(!kept.contains(gone) && !code.contains(gone), "{gone} in {kept}");
    }
    assert!(code.contains("fn last() {}") && code.contains("fn brace()"), "{code}");
    assert!(kept.contains("crate::proxy") && kept.contains(r#""a \" crate::cli { ""#), "{kept}");
    assert_eq!(code.matches('{').count(), code.matches('}').count(), "{code}");
}
