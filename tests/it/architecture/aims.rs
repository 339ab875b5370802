//! Figures that would creep: names that mean two things, idioms nobody else uses, long functions, vague openings.

use std::collections::BTreeMap;

use super::source::{Shipped, close, is_test, root, shipped, sources};

/// The share of types that have their name in common with another.
const SHARED_NAMES_MAX: f64 = 0.20;
/// Of each of these idioms: `.filter(|_| …)` for `if`, `match` on a condition or on nothing, and an option of an option.
const IDIOM_MAX: usize = 6;
/// A function that is longer than a screen.
const LONG_FUNCTION: usize = 60;
const LONG_FUNCTIONS_MAX: usize = 12;
/// Doc comments that open with a question in place of a statement.
const VAGUE_OPENINGS_MAX: usize = 199;

/// Every source that ships, by its path below `src`.
fn all() -> Vec<(String, Shipped)> {
    let src = root().join("src");
    let paths = sources(&src).into_iter().filter(|path| !is_test(path));
    let all: Vec<_> =
        paths.map(|path| (path.strip_prefix(&src).unwrap().display().to_string(), shipped(&path))).collect();
    assert!(all.len() > 300, "only {} files found: the scan is broken", all.len());
    all
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the type that a line of code declares. Associated types are indented.
fn declared_type(line: &str) -> Option<&str> {
    let declaration = line.trim_start();
    let declaration = match declaration.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => declaration,
    };
    let (kind, rest) = declaration.split_once(' ')?;
    let is_type = match kind {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (is_type && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

#[test]
fn few_types_share_their_name_with_another() {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, shipped) in all() {
        for name in shipped.code.lines().filter_map(declared_type) {
            types.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    let count: usize = types.values().map(Vec::len).sum();
    assert!(count > 800, "only {count} types found: the scan is broken");
    types.retain(|_, paths| paths.len() > 1);
    let shared: usize = types.values().map(Vec::len).sum();
    let share = shared as f64 / count as f64;
    assert!(share <= SHARED_NAMES_MAX, "{shared} of {count} types: {types:#?}");
}

/// Returns the lengths of the functions of a file that have a body, with the line and the name of each.
fn functions(code: &str) -> Vec<(usize, usize, &str)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if at > 0 && is_name(code.as_bytes()[at - 1]) {
            continue;
        }
        let name = code[at + 3..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
        let mut nested = 0;
        let end = code[at..].bytes().position(|byte| {
            match byte {
                b'(' | b'[' => nested += 1,
                b')' | b']' => nested -= 1,
                _ => {}
            }
            nested == 0 && matches!(byte, b'{' | b';')
        });
        let Some(end) = end.map(|end| at + end).filter(|end| code.as_bytes()[*end] == b'{') else { continue };
        if !name.is_empty() {
            let lines = code[at..close(code, end)].matches('\n').count() + 1;
            found.push((lines, code[..at].matches('\n').count() + 1, name));
        }
    }
    found
}

#[test]
fn few_functions_are_longer_than_a_screen() {
    let (mut count, mut long) = (0, Vec::new());
    for (path, shipped) in all() {
        let functions = functions(&shipped.code);
        count += functions.len();
        let is_long = |(lines, ..): &&(usize, usize, &str)| *lines > LONG_FUNCTION;
        let shown = |(lines, at, name): &(usize, usize, &str)| format!("{path}:{at} {name}: {lines} lines");
        long.extend(functions.iter().filter(is_long).map(shown));
    }
    assert!(count > 3_000, "only {count} functions found: the scan is broken");
    assert!(long.len() <= LONG_FUNCTIONS_MAX, "{long:#?}");
}

/// Returns true if the method whose call ends here yields an iterator.
fn is_iterator(code: &str, closing: usize) -> bool {
    let mut depth = 0;
    let open = code[..=closing].bytes().rposition(|byte| {
        match byte {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let before = &code[..open.unwrap()];
    let method = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
    ["iter", "into_iter", "iter_mut", "values", "flatten"].contains(&method)
}

/// Returns how often each idiom occurs in a piece of code.
fn idioms(code: &str) -> [(&'static str, usize); 4] {
    let options = code.match_indices(").flatten()").filter(|(at, _)| !is_iterator(code, *at)).count();
    let (mut conditions, mut nothings) = (0, 0);
    for (at, _) in code.match_indices("match ") {
        if at > 0 && is_name(code.as_bytes()[at - 1]) {
            continue;
        }
        let Some((matched, arms)) = code[at + 6..].split_once('{') else { continue };
        let pattern = arms.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
        conditions += usize::from(matches!(pattern, "true" | "false"));
        nothings += usize::from(matched.trim() == "()");
    }
    [
        (".filter(|_| …)", code.matches(".filter(|_|").count()),
        ("match on a condition", conditions),
        ("match ()", nothings),
        ("an option of an option, flattened", options),
    ]
}

#[test]
fn idioms_that_nobody_else_uses_are_rare() {
    let mut counts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, shipped) in all() {
        for (idiom, count) in idioms(&shipped.code) {
            counts.entry(idiom).or_default().extend(std::iter::repeat_n(path.clone(), count));
        }
    }
    assert_eq!(counts.len(), 4);
    for (idiom, paths) in counts {
        assert!(paths.len() <= IDIOM_MAX, "{idiom}: {paths:#?}");
    }
}

#[test]
fn each_idiom_is_found_where_it_is() {
    let code = "a.filter(|_| b); match a > b { true => 1, false => 2 }; match () { _ => 3 }; c.then(|| d()).flatten();
        list.iter().flatten(); is_match (true); match a { Some(true) => 1 }";
    assert_eq!(idioms(code).map(|(_, count)| count), [1, 1, 1, 1]);
    let code = "fn a(b: [u8; 2]) -> u8 {\n    1\n}\ntrait T { fn c(); }\nlet f: fn (u8) = g;\n";
    assert_eq!(functions(code), [(3, 1, "a")]);
    let lines = ["pub(super) struct A<T> {", "enum B {", "    type C = D;", "type D = u8;", "pub use E;"];
    assert_eq!(lines.map(declared_type), [Some("A"), Some("B"), None, Some("D"), None]);
}

#[test]
fn doc_comments_say_what_a_thing_is() {
    let mut vague = Vec::new();
    for (path, shipped) in all() {
        let mut before = "";
        for line in shipped.text.lines().map(str::trim) {
            if let Some(opening) = line.strip_prefix("/// ").filter(|_| !before.starts_with("///")) {
                let is_vague = |word: &&str| {
                    opening.strip_prefix(*word).is_some_and(|rest| rest.starts_with([' ', ',', ':']))
                };
                if ["What", "Whether", "The same"].iter().any(is_vague) {
                    vague.push(format!("{path}: {opening}"));
                }
            }
            before = line;
        }
    }
    assert!(vague.len() <= VAGUE_OPENINGS_MAX, "{}: {vague:#?}", vague.len());
}
