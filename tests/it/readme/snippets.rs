//! Every fence of the documentation is run by a test: here, or by the suite that has what it needs. One that
//! nobody runs fails.
//!
//! Shell lines are run as they stand, in a folder with the files that they name, by a shell that finds forkpoint,
//! an agent called `claude`, and the simulator for its upstream. Output that is shown is compared with what came.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use forkpoint::sim::{Sim, SimConfig};
use tokio::process::Command;

use super::{pages, read, root};
use crate::harness::{Binary, within};

/// A fenced block.
struct Fence {
    language: String,
    lines: Vec<String>,
}

impl Fence {
    fn text(&self) -> String {
        self.lines.join("\n")
    }
}

fn fences(text: &str) -> Vec<Fence> {
    let mut fences: Vec<Fence> = Vec::new();
    let mut open: Option<usize> = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        match (open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => {
                fences.push(Fence { language: language.to_owned(), lines: Vec::new() });
                open = Some(indent);
            }
            (Some(_), Some(_)) => open = None,
            (Some(indent), None) => {
                let own = line.get(indent..).unwrap_or_default();
                fences.last_mut().unwrap().lines.push(own.to_owned());
            }
            (None, None) => {}
        }
    }
    assert_eq!(open, None, "a fence is not closed");
    fences
}

/// Every fence of every page, with the page's path.
fn shown_fences() -> Vec<(String, Fence)> {
    let mut found = Vec::new();
    for page in pages() {
        found.extend(fences(&read(&page)).into_iter().map(|fence| (page.clone(), fence)));
    }
    found
}

/// Who runs a line of a shell.
enum Runner {
    Here,
    /// It runs until it is told to end.
    Serves,
    /// A file of the tests, and what it must hold to be the one.
    Elsewhere(&'static str, &'static str),
}

fn runner(command: &str) -> Runner {
    let elsewhere = [
        ("cargo run --release -- demo", "tests/it/demo.rs", "demo(&["),
        ("tests/run", ".ci/run", "tests/run"),
        ("cargo install --path .", "tests/clients/snippets.py", "cargo install"),
        ("docker build ", "tests/ship/image.py", "shown_in_readme(\"docker "),
        ("docker run ", "tests/ship/image.py", "shown_in_readme(\"docker "),
        ("docker compose ", "tests/ship/compose.py", "shown_in_readme(\"docker compose "),
        ("kubectl apply -k ", "tests/ship/kubernetes.py", "shown_in_readme(\"kubectl "),
    ];
    if let Some((_, file, holds)) = elsewhere.into_iter().find(|(start, ..)| command.starts_with(start)) {
        return Runner::Elsewhere(file, holds);
    }
    match command.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["forkpoint", "serve"] => Runner::Serves,
        ["forkpoint", _] | ["claude"] | ["export", _] => Runner::Here,
        _ => panic!("no test runs `{command}`; add one"),
    }
}

/// The commands of a shell fence, without their remarks.
fn commands(fence: &Fence) -> impl Iterator<Item = &str> {
    fence.lines.iter().map(|line| line.split(" #").next().unwrap_or_default().trim_end())
}

/// A folder with all that the shown commands name.
struct Desk {
    folder: tempfile::TempDir,
    sim: Sim,
    /// Where the pages say 127.0.0.1:8787.
    proxy: Binary,
}

impl Desk {
    async fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let bin = path.join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forkpoint"), bin.join("forkpoint")).unwrap();
        let agent = format!("#!/bin/bash\n{}\n", crate::run::asks_for("claude-opus-5-5"));
        std::fs::write(bin.join("claude"), agent).unwrap();
        std::fs::set_permissions(bin.join("claude"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let wire = root().join("tests/golden/wire/claude-code");
        for (turn, recorded) in [("turn-1.json", "001.json"), ("turn-2.json", "005.json")] {
            std::fs::copy(wire.join(recorded), path.join(turn)).unwrap();
        }
        let family = crate::explain::family(200_000);
        for (name, body) in ["parent.json", "answer.json", "child.json"].iter().zip(family) {
            std::fs::write(path.join(name), body.to_string()).unwrap();
        }
        let sim = Sim::start(SimConfig::default()).await.unwrap();
        let proxy = Binary::serve(&sim.url(), &[]).await;
        Desk { folder, sim, proxy }
    }

    fn shell(&self, script: &str) -> Command {
        let script = script.replace("127.0.0.1:8787", &self.proxy.proxy.to_string());
        let bin = self.folder.path().join("bin");
        let mut command = Command::new("bash");
        command.args(["-e", "-c", &script]).current_dir(self.folder.path()).env_clear().kill_on_drop(true);
        command.env("HOME", self.folder.path());
        command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
        command.env("FORKPOINT_UPSTREAM", self.sim.url());
        command.env("FORKPOINT_RECORD__FILE", "traffic.jsonl").env("FORKPOINT_RECORD__BODIES", "full");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it to its end; all that it showed.
    async fn run(&self, script: &str) -> String {
        let output = within(script, self.shell(script).output()).await.unwrap();
        let shown = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        assert!(output.status.success(), "{script}\n{shown}");
        shown
    }

    /// Runs a command that ends only when it is told to.
    async fn serve(&self, command: &str) {
        let mut shell = self.shell(&format!("exec {command}"));
        shell.env("FORKPOINT_LISTEN", "127.0.0.1:0").env("FORKPOINT_ADMIN_LISTEN", "127.0.0.1:0");
        let mut child = shell.spawn().unwrap();
        let mut lines =
            tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stderr.take().unwrap()));
        let announced = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.starts_with("  proxy ") {
                    return;
                }
            }
            panic!("{command} ended");
        };
        within(command, announced).await;
        child.kill().await.unwrap();
    }
}

#[tokio::test]
async fn every_fence_is_run_by_a_test() {
    let desk = Desk::new().await;
    let (mut shown, mut outputs) = (String::new(), Vec::new());
    for (page, fence) in shown_fences() {
        match fence.language.as_str() {
            "sh" => {
                let mut script = Vec::new();
                for command in commands(&fence) {
                    match runner(command) {
                        Runner::Here => script.push(command),
                        Runner::Serves => desk.serve(command).await,
                        Runner::Elsewhere(file, holds) => {
                            assert!(read(file).contains(holds), "{file} does not run `{command}`");
                        }
                    }
                }
                if !script.is_empty() {
                    shown += &desk.run(&script.join("\n")).await;
                }
            }
            "python" | "ts" => {
                let suite = read("tests/clients/snippets.py");
                for name in [&page, &fence.language] {
                    assert!(suite.contains(&format!("\"{name}\"")), "nobody runs {}", fence.text());
                }
            }
            "toml" => {
                std::fs::write(desk.folder.path().join("shown.toml"), fence.text()).unwrap();
                desk.run("forkpoint check-config --config shown.toml").await;
            }
            "text" => outputs.push(fence),
            other => panic!("no test runs a fence in {other:?}: {}", fence.text()),
        }
    }
    assert!(shown.contains("x-forkpoint-plan: aligned"), "the agent went through the proxy: {shown}");
    let demo = desk.run("forkpoint demo --scenario session").await;
    for fence in outputs {
        was_shown(&fence, &shown, &demo);
    }
}

/// What a page shows is what came, or has its rows where the figures are those of one run.
fn was_shown(fence: &Fence, shown: &str, demo: &str) {
    let first = &fence.lines[0];
    let lines = |text: &str| text.lines().map(String::from).collect::<Vec<String>>();
    if first.starts_with("saved $") {
        assert!(fence.lines[1].starts_with("forkpoint: ") && shown.contains("saved "), "{shown}");
        assert!(rows(&fence.lines[2..]).is_subset(&receipt(shown)), "{:?}", rows(&fence.lines[2..]));
    } else if first.contains("as sent") {
        let titles =
            |line: &str| line.split("  ").map(|cell| cell.trim().to_owned()).collect::<BTreeSet<_>>();
        assert!(demo.lines().any(|line| titles(line) == titles(first)), "{first:?} in {demo}");
        // Below a rule, whose length is that of one run's figures.
        let named = rows(&fence.lines[2..]);
        assert!(named.is_subset(&rows(&lines(demo))), "{named:?} in {demo}");
    } else {
        assert!(shown.contains(&fence.text()), "not what came:\n{}\nbut\n{shown}", fence.text());
    }
}

/// The first words of lines in columns.
fn rows(lines: &[String]) -> BTreeSet<String> {
    let name = |line: &String| line.trim_start().split("  ").next().unwrap_or_default().trim().to_owned();
    lines.iter().map(name).collect()
}

/// The rows of the receipt among all that was shown.
fn receipt(shown: &str) -> BTreeSet<String> {
    let behind = shown.split("\nforkpoint: ").nth(1).expect("a receipt");
    let lines: Vec<String> =
        behind.lines().skip(1).take_while(|line| line.starts_with("  ")).map(String::from).collect();
    rows(&lines)
}

#[test]
fn the_picture_is_well_formed_and_small() {
    let text = read(".github/layout.svg");
    assert!(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && text.len() < 16_000);
    let mut open = Vec::new();
    for tag in text.split('<').skip(1) {
        let (inside, after) = tag.split_once('>').expect("a tag that ends");
        assert!(!after.contains('>') && inside.matches('"').count() % 2 == 0, "{tag}");
        let name = inside.split([' ', '/']).find(|part| !part.is_empty()).unwrap();
        match (inside.starts_with('/'), inside.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name), "{tag}"),
            (false, false) => open.push(name),
            (false, true) => {}
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for part in ["placeholder", "directive 3", "<title"] {
        assert!(text.contains(part), "{part}");
    }
}
