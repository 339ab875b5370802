//! The table of faults names tests that are there.

use super::{read, root};

/// The sources in which such tests stand.
fn sources(folder: &str) -> String {
    let mut all = String::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    all
}

#[test]
fn every_fault_has_the_test_that_makes_it_happen() {
    let text = read("tests/README.md");
    let (_, rest) = text.split_once("## When something fails").expect("the table of faults");
    let (table, _) = rest.split_once("\n## ").expect("its end");
    let sources = sources("tests/it") + &sources("src/store");
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| ") && line.contains('`')).collect();
    let faults = ["slow", "stalled", "cut", "reset", "garbage", "half-closed", "overloaded", "read-only"];
    for fault in faults {
        assert!(rows.iter().any(|row| row.starts_with(&format!("| {fault} |"))), "{fault}");
    }
    for fault in faults.iter().filter(|fault| **fault != "half-closed") {
        let of_store = format!("| {fault} | store");
        assert!(rows.iter().any(|row| row.starts_with(&of_store)), "{of_store}");
    }
    for row in rows {
        let tests = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for name in tests.split(", ").map(|name| name.trim_matches('`')) {
            assert!(sources.contains(&format!("fn {name}()")), "{name} of {row}");
        }
    }
}
