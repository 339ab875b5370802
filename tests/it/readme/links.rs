//! The README is short, and every link of every page leads to a file or heading that is there.

use std::collections::BTreeSet;
use std::path::Path;

use super::{DASHBOARDS, pages, read, root};

/// Longer ones lose their readers. What does not fit goes beside what it describes.
const README_LINES_MAX: usize = 250;

#[test]
fn the_readme_stays_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines");
}

#[test]
fn every_link_of_every_page_leads_somewhere() {
    let mut checked = 0;
    for page in pages() {
        let text = outside_fences(&read(&page));
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            leads_somewhere(&page, target);
            checked += 1;
        }
    }
    assert!(checked > 40, "only {checked} links found: the scan is broken");
}

/// Fails unless the file is there and, of a page, the heading.
fn leads_somewhere(page: &str, target: &str) {
    let (file, heading) = match target.split_once('#') {
        Some((file, heading)) => (file, Some(heading)),
        None => (target, None),
    };
    let source = root().join(page);
    let path = if file.is_empty() { source.clone() } else { source.parent().unwrap().join(file) };
    assert!(path.exists(), "{page} links to {target}, and there is no file {}", path.display());
    if let Some(heading) = heading {
        assert!(anchors(&path).contains(heading), "{page} links to {target}, and there is no such heading");
    }
}

fn anchors(path: &Path) -> BTreeSet<String> {
    let text = outside_fences(&std::fs::read_to_string(path).unwrap());
    text.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}

/// The name that a page gives a heading.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The text without fenced blocks, where a `#` starts a remark and no heading.
fn outside_fences(text: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            kept += line;
            kept += "\n";
        }
    }
    kept
}

#[test]
fn every_alert_is_explained_and_no_other() {
    let page = read(DASHBOARDS);
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `Forkpoint")?.split('`').next());
    let rules = read("dashboards/alerts.yml");
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: Forkpoint"));
    assert_eq!(rows.collect::<Vec<_>>(), alerts.collect::<Vec<_>>());
}
