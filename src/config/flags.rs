//! The flags that all commands with a configuration share, as the last and strongest layer.
//!
//! Rule: a flag is only text here. It is checked with all the other values, so that a bad flag and a bad file are
//! reported in the same run.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};

use super::LoadedLayers;
use super::keys::ConfigKey;
use super::kind::{Given, KeyKind};
use super::problem::ValueOrigin;

/// Flags that replace configuration values.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Overrides {
    /// Read this TOML file
    ///
    /// Environment: FORKPOINT_CONFIG. No file is read unless one is named.
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Take requests here
    ///
    /// Key: server.listen. Environment: FORKPOINT_LISTEN.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Serve health, metrics and /api here
    ///
    /// Key: server.admin_listen. Environment: FORKPOINT_ADMIN_LISTEN.
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<String>,
    /// Forward to this Messages API
    ///
    /// Key: upstream.url. Environment: FORKPOINT_UPSTREAM.
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,
    /// What to do with requests: observe, align or fork
    ///
    /// Key: server.mode. Environment: FORKPOINT_MODE.
    #[arg(long, value_name = "MODE", value_parser = WordsOf("server.mode"), hide_possible_values = true)]
    pub mode: Option<String>,
    /// Where to remember: memory, file or redis
    ///
    /// Key: store.kind. Environment: FORKPOINT_STORE.
    #[arg(long, value_name = "KIND", value_parser = WordsOf("store.kind"), hide_possible_values = true)]
    pub store: Option<String>,
    /// The file to record in. `run` alone has a flag for it.
    #[arg(skip)]
    pub record: Option<PathBuf>,
}

/// The words that the key at this path takes, for help and completions. Any text passes here, since flags are checked
/// with all the other values.
#[derive(Clone, Debug)]
pub struct WordsOf(pub &'static str);

impl TypedValueParser for WordsOf {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        match &ConfigKey::find(self.0)?.kind {
            KeyKind::Choice(choice) => Some(Box::new(choice.words.iter().map(PossibleValue::new))),
            _ => None,
        }
    }
}

impl Overrides {
    pub(super) fn read(&self, found: &mut LoadedLayers) {
        let flags = [
            ("--listen", "server.listen", &self.listen),
            ("--admin-listen", "server.admin_listen", &self.admin_listen),
            ("--upstream", "upstream.url", &self.upstream),
            ("--mode", "server.mode", &self.mode),
            ("--store", "store.kind", &self.store),
        ];
        for (flag, path, value) in flags {
            if let Some(value) = value {
                found.give(path, Given::Word(value.clone()), ValueOrigin::Flag(flag));
            }
        }
        if let Some(file) = &self.record {
            let file = Given::Word(file.to_string_lossy().into_owned());
            found.give("record.file", file, ValueOrigin::Flag("--record"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_sets_a_key_that_exists() {
        let text = || Some("x".to_owned());
        let all = Overrides {
            config: None,
            listen: text(),
            admin_listen: text(),
            upstream: text(),
            mode: text(),
            store: text(),
            record: Some("x".into()),
        };
        let mut found = LoadedLayers::default();
        all.read(&mut found);
        assert!(found.problems.is_empty());
        assert_eq!(found.entries.len(), 6);
    }
}
