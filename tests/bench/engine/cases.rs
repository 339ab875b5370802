//! The conversations that are measured, and the table that shows their figures.

use std::fmt::Write as _;
use std::process::ExitCode;

use crate::bodies::Bodies;
use crate::stages::{self, Cost, STAGES, Stages};

pub struct Case {
    pub name: &'static str,
    pub body_bytes: usize,
    pub bodies: Bodies,
    pub conversations: usize,
    pub interleaved: bool,
}

const CASES: &[Case] = &[
    case("plain", 24_000, Bodies::Plain, 60),
    case("plain", 200_000, Bodies::Plain, 20),
    case("growing", 200_000, Bodies::Growing, 20),
    Case { interleaved: true, ..case("growing, 16 interleaved", 200_000, Bodies::Growing, 16) },
    case("drifting", 200_000, Bodies::Drifting, 20),
    case("never seen", 200_000, Bodies::Fresh, 400),
    case("plain", 1_000_000, Bodies::Plain, 3),
    case("growing", 1_000_000, Bodies::Growing, 3),
    case("drifting", 1_000_000, Bodies::Drifting, 3),
];

const fn case(name: &'static str, body_bytes: usize, bodies: Bodies, conversations: usize) -> Case {
    Case { name, body_bytes, bodies, conversations, interleaved: false }
}

/// A column of the table: a figure, and the share of requests that do not exceed what is shown of it.
pub struct Column {
    pub head: &'static str,
    pub figure: fn(&Cost) -> f64,
    pub share: f64,
}

pub fn main(columns: &[Column]) -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs benches too, without arguments.
    let measured = words.iter().any(|word| word == "--bench");
    words.retain(|word| word != "--bench");
    if !measured {
        println!("nothing to test here; `tests/deep engine` measures");
        return ExitCode::SUCCESS;
    }
    if words.iter().any(|word| word.starts_with('-')) {
        println!(
            "usage: tests/deep engine [WORD...]\n\nRuns the cases whose name has one of the words, or all."
        );
        return ExitCode::SUCCESS;
    }
    for case in CASES {
        let name = format!("{}, {} KB", case.name, case.body_bytes / 1_000);
        if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
            println!("{name}\n{}", table(&stages::run(case), columns));
        }
    }
    ExitCode::SUCCESS
}

fn table(stages: &Stages, columns: &[Column]) -> String {
    let mut text = format!("  {:<26}", format!("{} of {} continue", stages.continued, stages.requests));
    columns.iter().for_each(|column| text += &format!("{:>12}", column.head));
    for stage in STAGES.into_iter().filter(|stage| !stages.of(*stage).is_empty()) {
        let indent = if stage.is_part() { "  " } else { "" };
        let _ = write!(text, "\n  {:<26}", format!("{indent}{}", stage.as_str()));
        columns.iter().for_each(|column| text += &format!("{:>12.1}", column.of(stages.of(stage))));
    }
    text + "\n"
}

impl Column {
    fn of(&self, costs: &[Cost]) -> f64 {
        let mut values: Vec<f64> = costs.iter().map(self.figure).collect();
        values.sort_by(f64::total_cmp);
        values[((values.len() - 1) as f64 * self.share) as usize]
    }
}
