//! The rules of this code base that a compiler does not know.

use std::fs;
use std::path::{Path, PathBuf};

/// From left to right: a module may use those further right, and itself. Modules of one entry do not
/// know each other.
const ARROWS: [&[&str]; 6] =
    [&["cli"], &["admin"], &["proxy"], &["report"], &["config", "metrics", "store"], &["engine"]];

/// Crates and modules that the engine must not know: the outside world, and time.
const IMPURE: [&str; 14] = [
    "tokio",
    "axum",
    "hyper",
    "hyper_util",
    "reqwest",
    "dashmap",
    "prometheus",
    "tracing",
    "std::fs",
    "std::net",
    "std::env",
    "std::time",
    "std::thread",
    "std::process",
];

const TOP_LEVEL: [&str; 9] = [
    "Cargo.lock",
    "Cargo.toml",
    "CHANGELOG.md",
    "Dockerfile",
    "LICENSE",
    "README.md",
    "config",
    "dashboards",
    "src",
];

/// Longer files and functions lose their readers.
const FILE_LINES_MAX: usize = 450;
/// The whole path of a request is to be seen on one screen.
const HANDLE_LINES_MAX: usize = 60;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The folder or file of `src` that a source belongs to.
fn module(path: &Path) -> String {
    let inside = path.strip_prefix(root().join("src")).unwrap();
    inside.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The text without its tests and comments.
fn shipped(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The first name after each `crate::`.
fn uses(text: &str) -> impl Iterator<Item = &str> {
    text.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    })
}

#[test]
fn modules_use_only_what_stands_to_their_right() {
    let rank = |name: &str| ARROWS.iter().position(|entry| entry.contains(&name));
    let mut checked = 0;
    for path in sources(&root().join("src")) {
        let from = module(&path);
        if from == "main" || from == "lib" {
            continue;
        }
        let text = shipped(&path);
        for to in uses(&text).filter(|to| *to != from) {
            checked += 1;
            let allowed = match (rank(&from), rank(to)) {
                // The commands run the simulator; nobody else knows it, and it knows nobody.
                _ if from == "sim" => false,
                _ if to == "sim" => from == "cli",
                // A report is made of a record alone.
                _ if from == "report" && to == "store" => false,
                (Some(left), Some(right)) => left < right,
                _ => false,
            };
            assert!(allowed, "{} must not use crate::{to}", path.display());
        }
    }
    assert!(checked > 20, "only {checked} uses found: the scan is broken");
}

#[test]
fn the_engine_is_pure() {
    for path in sources(&root().join("src/engine")) {
        let text = shipped(&path);
        for word in IMPURE {
            let used = text.contains(&format!("use {word}")) || text.contains(&format!("{word}::"));
            assert!(!used, "{} knows {word}", path.display());
        }
        assert!(!text.contains("async fn"), "{} is async", path.display());
    }
}

#[test]
fn the_shared_words_import_nothing_of_this_crate() {
    let files = sources(&root().join("src/engine/words"));
    assert!(files.len() > 1, "only {} files found: the scan is broken", files.len());
    for path in files {
        let text = shipped(&path);
        for word in ["crate::", "super::"] {
            assert!(!text.contains(word), "{} imports {word}", path.display());
        }
    }
}

/// Returns true for a file of unit tests.
fn is_test(path: &Path) -> bool {
    let inside = path.strip_prefix(root()).unwrap();
    inside.ends_with("tests.rs") || inside.components().any(|part| part.as_os_str() == "tests")
}

/// The folders and files of the engine, in reading order: each may use only those before it.
const ENGINE: [&str; 17] = [
    "words", "records", "request", "answer", "respell", "cache", "family", "fork", "gate", "align", "policy",
    "tenant", "durable", "count", "prepare", "outgoing", "decide",
];

#[test]
fn a_folder_of_the_engine_uses_only_those_before_it() {
    let engine = root().join("src/engine");
    let mut checked = 0;
    for path in sources(&engine) {
        let inside = path.strip_prefix(&engine).unwrap().components().next().unwrap();
        let from = inside.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
        if from == "mod" || is_test(&path) {
            continue;
        }
        let rank = |name: &str| ENGINE.iter().position(|folder| *folder == name);
        let own = rank(&from).unwrap_or_else(|| panic!("{from} has no place in the order of the engine"));
        let text = shipped(&path);
        for rest in text.split("crate::engine::").skip(1) {
            let to = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            let other = rank(to).unwrap_or_else(|| panic!("{}: crate::engine::{to}", path.display()));
            assert!(other <= own, "{} must not use engine::{to}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} uses found: the scan is broken");
}

#[test]
fn the_engine_shares_no_state() {
    const SHARED: [&str; 9] =
        ["Mutex", "RwLock", "Atomic", "OnceLock", "OnceCell", "LazyCell", "RefCell", "Cell<", "RandomState"];
    for path in sources(&root().join("src/engine")).into_iter().filter(|path| !is_test(path)) {
        let text = shipped(&path);
        for word in SHARED {
            assert!(!text.contains(word), "{} has a {word}", path.display());
        }
    }
}

#[test]
fn a_tenant_has_one_lock_and_one_for_its_spellings_and_all_share_token_weights() {
    let mut locks = Vec::new();
    let memory = root().join("src/store");
    // The folders are the stores behind the memory, which no request looks into.
    let is_memory = |path: &PathBuf| path.parent() == Some(&memory) && !is_test(path);
    for path in sources(&memory).into_iter().filter(is_memory) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = shipped(&path);
        for kind in ["Mutex<", "RwLock<"] {
            locks.extend(text.matches(kind).map(|kind| format!("{name} {kind}")));
        }
    }
    locks.sort();
    assert_eq!(locks, ["shared.rs Mutex<", "tenant.rs RwLock<", "weights.rs RwLock<"]);
}

/// The text of a function, up to its closing brace.
fn function<'t>(text: &'t str, name: &str) -> &'t str {
    let start = text.find(&format!("fn {name}(")).unwrap_or_else(|| panic!("no function {name}"));
    let end = text[start..].find("\n    }\n").map_or(text.len(), |end| start + end);
    &text[start..end]
}

#[test]
fn the_map_names_every_folder_and_the_phases_in_the_order_of_the_code() {
    let map = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    for entry in
        fs::read_dir(root().join("src")).unwrap().chain(fs::read_dir(root().join("src/engine")).unwrap())
    {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.trim_end_matches(".rs");
        let is_named = map.contains(&format!("[`{name}`]")) || map.contains(&format!("[`engine::{name}`]"));
        assert!(is_named || ["lib", "main", "mod"].contains(&name), "{name} is not on the map");
    }
    let phases: Vec<&str> = map
        .split("```text\n")
        .nth(1)
        .and_then(|block| block.split("//! ```").next())
        .unwrap()
        .lines()
        .filter_map(|line| line.trim_start_matches("//! ").split(' ').next())
        .filter(|phase| !phase.is_empty())
        .collect();
    let proxy = |file: &str| fs::read_to_string(root().join("src/proxy").join(file)).unwrap();
    let (handle, plan) = (proxy("handle.rs"), proxy("plan.rs"));
    let (observe, exchange) = (proxy("observe.rs"), proxy("exchange.rs"));
    let called = |text: &str, calls: &[&str]| {
        let places: Vec<_> =
            calls.iter().map(|call| text.find(call).unwrap_or_else(|| panic!("{call}"))).collect();
        assert!(places.is_sorted(), "{calls:?} are called in another order");
    };
    called(function(&handle, "handle"), &["self.answered(", "observe::relay("]);
    called(function(&handle, "answered"), &["self.collect(", "self.read(", "self.plan(", "self.send("]);
    called(function(&plan, "plan"), &["self.prepare(", "proceed(", "waits.wait("]);
    let watch = observe.split("impl Watch").nth(1).unwrap();
    called(function(watch, "end"), &["flight.settle(", "exchange.settled("]);
    called(function(&exchange, "settled"), &["self.report("]);
    let order = ["collect", "read", "prepare", "proceed", "wait", "send", "relay", "settle", "report"];
    assert_eq!(phases, order);
}

#[test]
fn contributors_are_sent_to_files_that_exist() {
    let text = fs::read_to_string(root().join(".github/CONTRIBUTING.md")).unwrap();
    let paths: Vec<&str> =
        text.split('`').filter(|word| word.starts_with("src/") || word.starts_with("tests/it")).collect();
    assert!(paths.len() > 15, "only {} paths found: the scan is broken", paths.len());
    for path in paths {
        assert!(root().join(path).exists(), "{path}");
    }
}

#[test]
fn the_path_of_a_request_fits_on_a_screen() {
    let handle = fs::read_to_string(root().join("src/proxy/handle.rs")).unwrap();
    let lines: usize =
        ["handle", "answered"].iter().map(|name| function(&handle, name).lines().count() + 1).sum();
    assert!(lines <= HANDLE_LINES_MAX, "{lines} lines");
}

#[test]
fn files_stay_a_sitting_long() {
    for path in sources(&root().join("src")) {
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.split("#[cfg(test)]").next().unwrap().lines().count();
        let tests = path.ends_with("tests.rs");
        assert!(tests || lines <= FILE_LINES_MAX, "{} has {lines} lines", path.display());
    }
}

#[test]
fn the_top_level_holds_only_what_belongs_there() {
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let known = name.starts_with('.') || ["tests", "target"].contains(&name.as_str());
        assert!(known || TOP_LEVEL.contains(&name.as_str()), "{name} does not belong at the top level");
    }
}

#[test]
fn nothing_is_left_for_later_or_tied_to_one_machine() {
    // Spelt in two halves, so that this file does not find itself.
    let unwanted =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("#[ig", "nore"), concat!("/work", "/")];
    for folder in ["src", "tests"] {
        for path in sources(&root().join(folder)) {
            let text = fs::read_to_string(&path).unwrap();
            for word in unwanted {
                assert!(!text.contains(word), "{} contains {word}", path.display());
            }
        }
    }
}
