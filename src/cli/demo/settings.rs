//! The configuration that is played: what requests are planned by counts, what reaches out of the demo does not.

use std::path::PathBuf;

use crate::config::{self, Config, Mode, Overrides, Server, ValueOrigin};
use crate::engine::cache::prices::Prices;

use super::super::Failure;
use super::stage::DemoArm;
use super::table::wrapped;

/// The sections that count, and the key that does of a section that does not.
const SECTIONS: [&str; 5] = ["canonical", "fork", "gate", "limits", "prices"];
const MODE: &str = "server.mode";

/// The settings of the user, as far as they count.
pub struct DemoSettings {
    config: Config,
    pub prices: Prices,
    source: String,
    /// The keys that were given and count, and those that do not.
    counted: Vec<&'static str>,
    left: Vec<&'static str>,
}

impl DemoSettings {
    /// Reads the file, or what `FORKPOINT_CONFIG` and the environment give.
    pub fn load(file: Option<PathBuf>) -> Result<DemoSettings, Failure> {
        let overrides = Overrides { config: file, ..Overrides::default() };
        let loaded = config::load(&overrides, std::env::vars_os())?;
        let given = loaded.settings().filter(|setting| setting.origin != ValueOrigin::Default);
        let (counted, left) = given.map(|setting| setting.key.path).partition(|path| {
            *path == MODE || SECTIONS.contains(&path.split('.').next().unwrap_or_default())
        });
        let source = match &loaded.file {
            Some(file) => file.display().to_string(),
            None => "the environment".to_owned(),
        };
        let given = loaded.config;
        let plain = Config::default();
        let config = Config {
            server: Server { mode: given.server.mode, ..plain.server },
            canonical: given.canonical,
            fork: given.fork,
            gate: given.gate,
            limits: given.limits,
            ..plain
        };
        Ok(DemoSettings { config, prices: loaded.prices, source, counted, left })
    }

    /// The configuration that is chosen by: the user's.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// The configuration of the forkpoint in between, if there is one.
    pub fn of(&self, arm: DemoArm) -> Option<Config> {
        let mut config = self.config();
        match arm {
            DemoArm::AsSent => return None,
            DemoArm::Aligned => config.server.mode = Mode::Align,
            DemoArm::Forked => {
                config.server.mode = Mode::Fork;
                // The largest that the configuration takes.
                config.fork.policy.context_premium = 100.0;
                config.fork.policy.max_cost_ratio = 100.0;
            }
            DemoArm::AsChosen => {}
        }
        Some(config)
    }

    /// Who chose the last column: the default configuration, or the user's.
    pub fn chooser(&self) -> &'static str {
        if self.counted.is_empty() { "the default configuration" } else { "your configuration" }
    }

    /// What counts of the settings that were given, and what does not; nothing if none were.
    pub fn describe(&self) -> String {
        let mut out = String::new();
        if !self.counted.is_empty() {
            let keys = self.counted.join(", ");
            out += &(wrapped("", &format!("Played with {keys} of {}.", self.source), "  ") + "\n");
        }
        if !self.left.is_empty() {
            let keys = self.left.join(", ");
            let text = format!(
                "Not played: {keys} of {}. The demo has a simulator, ports and tenants of its own, and keeps nothing.",
                self.source
            );
            out += &(wrapped("", &text, "  ") + "\n");
        }
        out
    }
}
