//! The pages of the documentation say what the code does, their links lead somewhere, and what they show can be run.

mod faults;
mod figures;
mod forks;
mod links;
mod log;
mod metrics;
mod recorded;
mod snippets;
mod written;

use std::path::{Path, PathBuf};

/// Modes, operations, headers, reasons and log fields.
const CONFIG: &str = "config/README.md";
/// Metrics and alerts.
const DASHBOARDS: &str = "dashboards/README.md";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap()
}

/// Every Markdown file of the repository by its path from the root, in order: the README comes before the pages in
/// folders without a dot.
fn pages() -> Vec<String> {
    let mut found = Vec::new();
    collect(&root(), &mut found);
    let name = |path: &PathBuf| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<String> = found.iter().map(name).collect();
    names.sort();
    for page in ["README.md", CONFIG, DASHBOARDS, "tests/README.md", ".github/SECURITY.md", "CHANGELOG.md"] {
        assert!(names.iter().any(|name| name == page), "{page} is not among {names:?}");
    }
    names
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if path.is_dir() && name != "target" && name != ".git" && name != "node_modules" {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}
