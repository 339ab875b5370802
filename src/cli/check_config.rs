//! `forkpoint check-config`: what a `serve` with the same flags would run with, and where each value came from.
//!
//! It is the dry look at a start: the same loader, the same problems, the same exit code, nothing opened.
//!
//! ```text
//! [limits]
//! body_bytes = "8 MiB"  # FORKPOINT_LIMITS__BODY_BYTES
//! header_s   = 30       # default
//! ```
//!
//! Rule: the output is a configuration file. Given back with `--config` it yields the same configuration, with
//! one exception: a secret that is set prints as its mask, and the mask is refused when it is given back.
//! Leaving the line out instead would start a proxy with other tenant digests and say nothing.

use std::fmt;
use std::io::{self, Write};

use serde_json::json;

use super::Failure;
use crate::config::{self, Loaded, Overrides, Problems, SECTIONS, Setting, ShownValue};

const EXAMPLE: &str = "\
Examples:
  forkpoint check-config --config forkpoint.toml
  FORKPOINT_LIMITS__BODY_BYTES=8MiB forkpoint check-config --json

The output is a configuration file again. Secrets print as MASKED, which is
refused when fed back: put the secret in its place, or remove the line.
Exits with 64 after reporting every problem, if there is one.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct CheckConfigArgs {
    #[command(flatten)]
    overrides: Overrides,
    /// Print JSON, with defaults and meanings
    #[arg(long)]
    json: bool,
}

pub fn run(args: CheckConfigArgs) -> Result<(), Failure> {
    match config::load(&args.overrides, std::env::vars_os()) {
        Ok(loaded) if args.json => print(&pretty(&loaded_json(&loaded))),
        Ok(loaded) => print(&toml(&loaded)),
        Err(problems) => {
            if args.json {
                print(&pretty(&problems_json(&problems)))?;
            }
            Err(problems.into())
        }
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Failure::usage(problems.to_string())
    }
}

fn toml(loaded: &Loaded) -> String {
    let mut text = format!("# forkpoint {}, effective configuration\n", env!("CARGO_PKG_VERSION"));
    text.push_str(&format!("# prices: {}\n", PricesInForce::of(loaded)));
    for attribute in loaded.resource() {
        // Escaped, because it goes into a comment of one line.
        text.push_str(&format!("# traces: {}\n", attribute.escape_debug()));
    }
    let settings: Vec<Setting> = loaded.settings().collect();
    for section in SECTIONS {
        let keys = settings.iter().filter(|setting| setting.key.section() == section.name);
        let mut lines: Vec<(&str, String, String)> =
            keys.map(|setting| (setting.key.name(), setting.value.to_toml(), comment(setting))).collect();
        if section.name == "tenants" {
            let text = |name: &str| ShownValue::Text(name.to_owned()).to_toml();
            lines.extend(
                loaded
                    .tenant_names()
                    .map(|tenant| (tenant.digest, text(tenant.name), tenant.origin.to_string())),
            );
        }
        let name_width = lines.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
        let value_width = lines.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or(0);
        text.push_str(&format!("\n[{}]\n", section.name));
        for (name, value, comment) in lines {
            text.push_str(&format!("{name:name_width$} = {value:value_width$}  # {comment}\n"));
        }
    }
    text
}

fn comment(setting: &Setting) -> String {
    match setting.value {
        ShownValue::Masked | ShownValue::PartlyMasked(_) => {
            format!("{}; a secret, refused if fed back masked", setting.origin)
        }
        _ => setting.origin.to_string(),
    }
}

fn loaded_json(loaded: &Loaded) -> serde_json::Value {
    let keys: serde_json::Map<_, _> = loaded
        .settings()
        .map(|Setting { key, value, origin }| {
            let entry = json!({
                "value": value.to_json(),
                "default": key.default().to_json(),
                "origin": origin.to_string(),
                "variable": key.variable(),
                "meaning": key.meaning,
            });
            (key.path.to_owned(), entry)
        })
        .collect();
    let tenants: serde_json::Map<_, _> = loaded
        .tenant_names()
        .map(|tenant| {
            let entry = json!({ "name": tenant.name, "origin": tenant.origin.to_string() });
            (tenant.digest.to_owned(), entry)
        })
        .collect();
    let prices = PricesInForce::of(loaded);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "keys": keys,
        "tenants": tenants,
        "resource": loaded.config.trace.resource,
        "prices": {
            "source": prices.file.as_deref().unwrap_or(BUILT_IN),
            "models": prices.models,
            "priced": prices.priced,
            "as_of": prices.as_of,
        },
    })
}

const BUILT_IN: &str = "built in";

/// Which price table would be used, and what is in it.
struct PricesInForce {
    /// Instead of the built-in table.
    file: Option<String>,
    models: usize,
    priced: usize,
    /// The oldest date in the table.
    as_of: Option<String>,
}

impl PricesInForce {
    fn of(loaded: &Loaded) -> PricesInForce {
        let file = loaded.config.prices.file.as_ref();
        PricesInForce {
            file: file.map(|file| file.display().to_string()),
            models: loaded.prices.models().len(),
            priced: loaded.prices.models().filter(|model| model.price.is_some()).count(),
            as_of: loaded.prices.models().map(|model| model.as_of.clone()).min(),
        }
    }
}

impl fmt::Display for PricesInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            // Escaped, because it goes into a comment of one line.
            Some(file) => write!(f, "{file:?}")?,
            None => f.write_str(BUILT_IN)?,
        }
        write!(f, "; models {}, with a price {}", self.models, self.priced)?;
        self.as_of.iter().try_for_each(|date| write!(f, ", oldest figures {date}"))
    }
}

fn problems_json(problems: &Problems) -> serde_json::Value {
    let list: Vec<_> = problems
        .iter()
        .map(|problem| {
            json!({
                "origin": problem.origin.to_string(),
                "subject": problem.subject,
                "message": problem.message,
                "hint": problem.hint,
            })
        })
        .collect();
    json!({ "version": env!("CARGO_PKG_VERSION"), "problems": list })
}

fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

/// A reader that leaves early (`check-config | head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
