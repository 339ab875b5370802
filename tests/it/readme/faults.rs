//! The table of faults has a row for whoever may fail and each way of failing, and names tests that are there.

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

/// The faults that anybody may have, and the one that only a store has.
const FAULTS: [&str; 7] = ["slow", "stalled", "cut", "reset", "garbage", "half-closed", "overloaded"];
const OF_STORES: &str = "read-only";
const WHO: [&str; 4] = ["client", "forkpoint", "upstream", "store"];

/// The phases of an exchange in which a fault differs from the same fault in another phase.
const PHASES: [(&str, &str, &[&str]); 7] = [
    ("slow", "client", &["headers", "body", "reading"]),
    ("stalled", "client", &["silent", "body", "reading"]),
    ("cut", "client", &["within its body", "before the answer", "within the answer"]),
    ("half-closed", "client", &["after its request", "within its body", "within the answer"]),
    ("slow", "upstream", &["reading", "answering"]),
    ("stalled", "upstream", &["connecting", "answering"]),
    ("cut", "upstream", &["before its answer", "at each byte"]),
];

/// A row of the table.
struct Row<'t> {
    fault: &'t str,
    who: &'t str,
    outcome: &'t str,
    tests: &'t str,
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = rows.filter_map(|row| {
        let columns: Vec<&str> = row.splitn(4, " | ").collect();
        let &[fault, who, outcome, tests] = &columns[..] else { return None };
        Some(Row { fault, who, outcome, tests })
    });
    rows.filter(|row| row.fault != "fault").collect()
}

#[test]
fn every_fault_has_the_test_that_makes_it_happen_or_a_reason_why_there_is_none() {
    let text = read("tests/README.md");
    let (_, rest) = text.split_once("## When something fails").expect("the table of faults");
    let (table, _) = rest.split_once("\n## ").expect("its end");
    let sources = sources("tests/it") + &sources("src/store");
    let rows = rows(table);
    for fault in FAULTS {
        for who in WHO {
            let is_of = |row: &&Row<'_>| row.fault == fault && row.who.split(',').next() == Some(who);
            assert!(rows.iter().any(|row| is_of(&row)), "{fault}, {who}");
        }
    }
    for (fault, who, phases) in PHASES {
        for phase in phases {
            let is_of = |row: &Row<'_>| row.fault == fault && row.who.split_once(", ") == Some((who, *phase));
            assert!(rows.iter().any(is_of), "{fault}, {who}, {phase}");
        }
    }
    assert!(rows.iter().any(|row| row.fault == OF_STORES), "{OF_STORES}");
    for Row { fault, who, outcome, tests } in rows {
        assert!(FAULTS.contains(&fault) || (fault, who) == (OF_STORES, "store"), "{fault}, {who}");
        if let Some(why) = outcome.strip_prefix("n/a: ") {
            assert!(why.len() > 20 && tests == "–", "{fault}, {who}: {outcome}");
            continue;
        }
        for name in tests.split(", ").map(|name| name.trim_matches('`')) {
            assert!(sources.contains(&format!("fn {name}()")), "{name} of {fault}, {who}");
        }
    }
}
