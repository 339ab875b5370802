//! The rules of this code base that a compiler does not know.

mod aims;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use source::{is_test, root, shipped, sources};

/// From left to right: a module may use those further right, and itself. Modules of one entry do not
/// know each other.
const ARROWS: [&[&str]; 6] =
    [&["cli"], &["admin"], &["proxy"], &["report"], &["config", "metrics", "store"], &["engine"]];

/// Crates and modules that the engine must not know: the outside world, time, and randomness.
const IMPURE: [&str; 19] = [
    "tokio",
    "axum",
    "hyper",
    "hyper_util",
    "reqwest",
    "dashmap",
    "prometheus",
    "tracing",
    "redis",
    "redb",
    "rand",
    "aws_lc_rs",
    "std::fs",
    "std::io",
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

/// The folder or file of `src` that a source belongs to.
fn module(path: &Path) -> String {
    let inside = path.strip_prefix(root().join("src")).unwrap();
    inside.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// Returns the modules right below `folder` that a file uses, each as often as it names them: by the path that leads there
/// from the crate, and by as many `super::` as lead there from the file.
fn uses(path: &Path, folder: &Path, absolute: &str, code: &str) -> Vec<String> {
    let inside = path.strip_prefix(folder).unwrap();
    let levels = inside.components().count() - usize::from(inside.ends_with("mod.rs"));
    let relative = "super::".repeat(levels);
    let mut found = Vec::new();
    for prefix in [absolute, relative.as_str()] {
        for (at, _) in code.match_indices(prefix) {
            let is_longer = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if !is_longer {
                found.extend(named(&code[at + prefix.len()..]));
            }
        }
    }
    found
}

/// Returns the first name of a path, or of each path in braces.
fn named(rest: &str) -> Vec<String> {
    let first = |path: &str| {
        let name: String =
            path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        (!name.is_empty() && name != "self" && name != "super").then_some(name)
    };
    let Some(list) = rest.strip_prefix('{') else { return first(rest).into_iter().collect() };
    let (mut depth, mut paths, mut from) = (0, Vec::new(), 0);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth > 0 => depth -= 1,
            b',' | b'}' if depth == 0 => {
                paths.extend(first(&list[from..at]));
                from = at + 1;
                if byte == b'}' {
                    break;
                }
            }
            _ => {}
        }
    }
    paths
}

#[test]
fn a_use_is_found_however_it_is_spelt() {
    let folder = root().join("src/engine");
    let uses = |path: &str, code: &str| uses(&folder.join(path), &folder, "crate::engine::", code);
    assert_eq!(uses("align.rs", "use super::cache::{a, b}; crate::engine::gate::Gate"), ["gate", "cache"]);
    assert_eq!(uses("cache/mod.rs", "use super::{words::{A, B}, fork};"), ["words", "fork"]);
    assert_eq!(uses("cache/entry.rs", "use super::ledger; use super::super::tenant::T;"), ["tenant"]);
    assert_eq!(uses("cache/entry/key.rs", "use super::super::ledger;"), [""; 0]);
}

#[test]
fn modules_use_only_those_to_their_right() {
    let rank = |name: &str| ARROWS.iter().position(|entry| entry.contains(&name));
    let mut checked = 0;
    let src = root().join("src");
    for path in sources(&src) {
        let from = module(&path);
        if from == "main" || from == "lib" || is_test(&path) {
            continue;
        }
        for to in uses(&path, &src, "crate::", &shipped(&path).code).iter().filter(|to| **to != from) {
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
    assert!(checked > 300, "only {checked} uses found: the scan is broken");
}

#[test]
fn the_engine_is_pure() {
    for path in sources(&root().join("src/engine")).into_iter().filter(|path| !is_test(path)) {
        let code = shipped(&path).code;
        for word in IMPURE {
            let is_whole = |(at, _): (usize, &str)| {
                let is_name = |c: char| c.is_alphanumeric() || c == '_';
                !code[..at].ends_with(|c| is_name(c) || c == ':')
                    && !code[at + word.len()..].starts_with(is_name)
            };
            let used = code.match_indices(&format!("{word}::")).any(is_whole)
                || code.match_indices(&format!("use {word}")).any(|(at, _)| is_whole((at + 4, word)));
            assert!(!used, "{} knows {word}", path.display());
        }
        for word in ["async fn", "async move", "async {", ".await;", ".await)", ".await?", ".await."] {
            assert!(!code.contains(word), "{} is async", path.display());
        }
    }
}

#[test]
fn the_shared_words_import_nothing_of_this_crate() {
    let files = sources(&root().join("src/engine/words"));
    assert!(files.len() > 1, "only {} files found: the scan is broken", files.len());
    for path in files {
        let code = shipped(&path).code;
        let above = uses(&path, &root().join("src/engine"), "crate::", &code);
        assert_eq!(above, [""; 0], "{} imports what is not a word", path.display());
    }
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
        for to in uses(&path, &engine, "crate::engine::", &shipped(&path).code) {
            let other = rank(&to).unwrap_or_else(|| panic!("{} uses engine::{to}", path.display()));
            assert!(other <= own, "{} must not use engine::{to}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} uses found: the scan is broken");
}

#[test]
fn the_engine_shares_no_state() {
    const SHARED: [&str; 12] = [
        "Mutex",
        "RwLock",
        "Atomic",
        "OnceLock",
        "OnceCell",
        "LazyLock",
        "LazyCell",
        "RefCell",
        "Cell<",
        "RandomState",
        "thread_local",
        "static mut",
    ];
    for path in sources(&root().join("src/engine")).into_iter().filter(|path| !is_test(path)) {
        let code = shipped(&path).code;
        for word in SHARED {
            assert!(!code.contains(word), "{} has a {word}", path.display());
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
        let code = shipped(&path).code;
        for kind in ["Mutex<", "RwLock<"] {
            locks.extend(code.matches(kind).map(|kind| format!("{name} {kind}")));
        }
    }
    locks.sort();
    assert_eq!(locks, ["shared.rs Mutex<", "tenant.rs RwLock<", "weights.rs RwLock<"]);
}

/// What is remembered, expires or waits goes by the clock of the proxy, which tests and `replay` skip ahead.
#[test]
fn the_memory_the_configuration_and_the_admin_port_read_no_clock() {
    let src = root().join("src");
    let memory = src.join("store");
    let is_clockless = |path: &PathBuf| {
        path.parent() == Some(&memory) || ["admin", "config", "engine"].contains(&module(path).as_str())
    };
    let paths: Vec<_> =
        sources(&src).into_iter().filter(|path| is_clockless(path) && !is_test(path)).collect();
    assert!(paths.len() > 200, "only {} files found: the scan is broken", paths.len());
    for path in paths {
        let code = shipped(&path).code;
        for word in ["Instant::now", "SystemTime::now", ".elapsed()"] {
            assert!(!code.contains(word), "{} reads {word}", path.display());
        }
    }
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
    let (watch, exchange) = (proxy("watch.rs"), proxy("exchange.rs"));
    called(function(&handle, "handle"), &["self.answered(", "observe::relay("]);
    let screen = ["headers::check(", "Caller::of(", "self.route(", "self.collect(", "self.with_prefix("];
    let planned = ["self.read(", "self.plan(", "self.send("];
    called(function(&handle, "answered"), &[&screen[..], &planned].concat());
    called(function(&plan, "plan"), &["preparing.prepare_first(", "proceed(", "waits.wait("]);
    called(function(&watch, "settle"), &["flight.settle(", "exchange.settled("]);
    called(function(&exchange, "settled"), &["self.report("]);
    let order =
        ["caller", "collect", "read", "prepare", "proceed", "wait", "send", "relay", "settle", "report"];
    assert_eq!(phases, order);
}

/// Returns true if each of these calls is made once, one after the other.
fn are_called_in_order(text: &str, calls: &[&str]) -> bool {
    let places: Vec<_> = calls.iter().filter_map(|call| text.find(call)).collect();
    places.len() == calls.len()
        && places.is_sorted()
        && calls.iter().all(|call| text.matches(call).count() == 1)
}

/// Checks that these calls are made in this order, and that no two of them could change places unseen.
fn called(text: &str, calls: &[&str]) {
    let code = source::Shipped::of(text).code;
    assert!(are_called_in_order(&code, calls), "{calls:?} are not called once each, in this order");
    for at in 1..calls.len() {
        let (first, second) = (calls[at - 1], calls[at]);
        let swapped = code.replacen(first, "\0", 1).replacen(second, first, 1).replacen('\0', second, 1);
        assert!(!are_called_in_order(&swapped, calls), "{first} and {second} may change places");
    }
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
    for path in sources(&root().join("src")).into_iter().filter(|path| !is_test(path)) {
        let lines = shipped(&path).text.lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines", path.display());
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
