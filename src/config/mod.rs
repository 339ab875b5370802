//! Turns file, environment and flags into one valid [`Config`], or a list of all their problems.
//!
//! A proxy that guesses at its configuration fails later and elsewhere. So nothing is guessed here: unknown keys,
//! wrong types and impossible combinations are refused, all of them in one run, each with its place, its value and
//! a hint.
//!
//! ```text
//! defaults  →  TOML file  →  FORKPOINT_SECTION__KEY  →  flags  →  combinations  →  Loaded
//!              file.rs       environment.rs             flags.rs  rules.rs
//! ```
//!
//! Where none of them names a collector of traces, `OTEL_…` variables do: `open_telemetry.rs`.
//!
//! Rule: a later layer replaces an earlier one, and *every* given value must be valid, even one that is replaced;
//! otherwise removing a flag could reveal an old mistake. The only effect is reading files: the configuration, and
//! those that it names. The environment is an argument.
//!
//! ```
//! use forkpoint::config::{self, Overrides, ValueOrigin};
//!
//! let env = [("FORKPOINT_LIMITS__BODY_BYTES", "8 MiB")];
//! let loaded = config::load(&Overrides::default(), env).unwrap();
//! assert_eq!(loaded.config.limits.body_bytes, 8 * 1024 * 1024);
//! assert_eq!(loaded.origin("server.listen"), ValueOrigin::Default);
//! ```

mod types;
mod defaults;
mod flags;
mod keys;
mod kind;
mod later;
mod parse;
mod file;
mod environment;
mod open_telemetry;
mod rules;
mod reload;
mod tenants;
mod prices;
mod problem;
mod hint;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;

pub use crate::engine::words::Mode;
pub use flags::{Overrides, WordsOf};
pub use keys::{ConfigKey, KEYS, SECTIONS, Section};
pub use kind::{KeyKind, ShownValue, WordChoice};
pub use parse::masked_url;
pub use prices::load_prices;
pub use problem::{Problem, Problems, ValueOrigin};
pub use reload::Reload;
pub use types::{
    Admin, Bodies, CanonicalConfig, Config, Drain, Fork, Gate, GateScope, Identity, Limits, Log, LogFormat,
    MASK, OAuth, PriceTable, Profile, Record, Secret, Selector, Server, Store, StoreKind, StoreUrl,
    TraceConfig, Upstream, Volatile,
};

use crate::engine::cache::prices::Prices;

use kind::Given;
use problem::{Complaint, named};

/// The most bytes of the boilerplate for forked children, which is sent, and paid for, once per child.
const BOILERPLATE_BYTES_MAX: usize = 64 << 10;

impl Overrides {
    /// Returns the configuration file that these flags or the environment name, if any.
    pub fn file(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| std::env::var_os(environment::CONFIG).map(PathBuf::from))
    }
}

/// A valid configuration, with the origin of each value.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    /// The file that was read, if one was named.
    pub file: Option<PathBuf>,
    /// The built-in price table, or that of `prices.file`.
    pub prices: Prices,
    origins: BTreeMap<&'static str, ValueOrigin>,
    tenant_origins: BTreeMap<String, ValueOrigin>,
    resource: open_telemetry::Resource,
}

/// One key of a loaded configuration, ready to print.
#[derive(Debug)]
pub struct Setting {
    pub key: &'static ConfigKey,
    pub value: ShownValue,
    pub origin: ValueOrigin,
}

/// Reads the named file, the environment and the flags.
///
/// `env` takes what `std::env::vars_os()` returns; variables that are not meant for forkpoint are skipped.
pub fn load<N, V>(overrides: &Overrides, env: impl IntoIterator<Item = (N, V)>) -> Result<Loaded, Problems>
where
    N: Into<OsString>,
    V: Into<OsString>,
{
    let mut found = LoadedLayers::default();
    let env: Vec<(OsString, OsString)> =
        env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    let named_by_env = environment::read(env.iter().cloned(), &mut found);
    let named = overrides.config.clone().map(|path| (path, ValueOrigin::Flag("--config"))).or(named_by_env);
    if let Some((path, named_by)) = &named {
        file::read(path, named_by, &mut found);
    }
    overrides.read(&mut found);
    found.resource = open_telemetry::read(&env, &mut found);
    found.into_loaded(named.map(|(path, _)| path))
}

impl Loaded {
    /// Returns the origin of the value of this key.
    pub fn origin(&self, path: &str) -> ValueOrigin {
        self.origins.get(path).cloned().unwrap_or(ValueOrigin::Default)
    }

    /// Returns every key with its value and origin, in the order of the manual.
    pub fn settings(&self) -> impl Iterator<Item = Setting> + '_ {
        KEYS.iter().map(|key| Setting { key, value: key.shown(&self.config), origin: self.origin(key.path) })
    }

    /// Returns the attributes of what sends traces, each with the variable that gave it.
    pub fn resource(&self) -> impl Iterator<Item = String> {
        self.resource.iter().map(|(name, (value, origin))| format!("{name}={value}  # {origin}"))
    }

    /// Returns every name of `[tenants]`, by digest.
    pub fn tenant_names(&self) -> impl Iterator<Item = TenantName<'_>> {
        self.config.tenants.iter().map(|(digest, name)| {
            let origin = self.tenant_origins.get(digest).cloned().unwrap_or(ValueOrigin::Default);
            TenantName { digest, name, origin }
        })
    }
}

/// One name of a tenant, ready to print.
#[derive(Debug)]
pub struct TenantName<'a> {
    pub digest: &'a str,
    pub name: &'a str,
    pub origin: ValueOrigin,
}

/// The values of all layers, before any of them is checked.
#[derive(Default)]
struct LoadedLayers {
    entries: Vec<LayerValue>,
    tenants: Vec<tenants::GivenTenantName>,
    resource: open_telemetry::Resource,
    problems: Vec<Problem>,
    /// True if a layer could not be read, so that its values are unknown.
    unread: bool,
}

/// One value for one known key.
struct LayerValue {
    key: &'static ConfigKey,
    given: Given,
    origin: ValueOrigin,
}

impl LoadedLayers {
    /// Adds a value for the key at `path`, or a problem if there is no such key.
    fn give(&mut self, path: &str, given: Given, origin: ValueOrigin) {
        if let Some(key) = ConfigKey::find(path) {
            self.entries.push(LayerValue { key, given, origin });
        } else if let Some(digest) = tenant(path) {
            self.tenants.push(tenants::GivenTenantName { digest: digest.to_owned(), given, origin });
        } else if let Some(later) = later::later(path) {
            self.problems.push(later.complaint().at(origin, path));
        } else {
            let complaint = Complaint::new("unknown key", hint::for_unknown_key(path));
            self.problems.push(complaint.at(origin, named(path)));
        }
    }

    fn into_loaded(mut self, file: Option<PathBuf>) -> Result<Loaded, Problems> {
        // Origins are ordered like layers, so the last entry of a key wins.
        self.entries.sort_by(|a, b| a.origin.cmp(&b.origin));
        let mut config = Config::default();
        let mut origins = BTreeMap::new();
        let mut broken = BTreeSet::new();
        for LayerValue { key, given, origin } in self.entries {
            match key.kind.put(&mut config, &given) {
                Ok(()) => {
                    origins.insert(key.path, origin);
                }
                Err(complaint) => {
                    broken.insert(key.path);
                    self.problems.push(complaint.at(origin, key.assignment(&given)));
                }
            }
        }
        self.tenants.sort_by(|a, b| a.origin.cmp(&b.origin));
        let mut tenant_origins = BTreeMap::new();
        for (digest, (name, origin)) in tenants::read(self.tenants, &mut self.problems) {
            config.tenants.insert(digest.clone(), name);
            tenant_origins.insert(digest, origin);
        }
        let named_by = origins.get("prices.file").unwrap_or(&ValueOrigin::Default);
        let prices = prices::read(config.prices.file.as_deref(), named_by).unwrap_or_else(|problems| {
            self.problems.extend(problems);
            Prices::default()
        });
        if let Some(path) = &config.fork.boilerplate {
            match file::read_text(path, BOILERPLATE_BYTES_MAX) {
                Ok(words) => config.fork.policy.template = Some(words.into()),
                Err(complaint) => {
                    let named_by = origins.get("fork.boilerplate").cloned().unwrap_or(ValueOrigin::Default);
                    self.problems.push(complaint.at(named_by, named(&path.to_string_lossy())));
                }
            }
        }
        let resource = self.resource;
        config.trace.resource = resource.iter().map(|(name, (value, _))| format!("{name}={value}")).collect();
        let loaded = Loaded { config, file, prices, origins, tenant_origins, resource };
        if !self.unread {
            self.problems.extend(rules::check(&loaded, &broken));
        }
        match Problems::from_list(self.problems) {
            Some(problems) => Err(problems),
            None => Ok(loaded),
        }
    }
}

/// Returns the digest that a path in `[tenants]` names.
fn tenant(path: &str) -> Option<&str> {
    path.strip_prefix(tenants::SECTION)?.strip_prefix('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NO_ENV: [(&str, &str); 0] = [];

    fn problems_of(overrides: &Overrides, env: &[(&str, &str)]) -> Vec<String> {
        let problems = load(overrides, env.iter().copied()).unwrap_err();
        problems.iter().map(|problem| format!("{}: {}", problem.origin, problem.message)).collect()
    }

    #[test]
    fn nothing_given_is_the_defaults() {
        let loaded = load(&Overrides::default(), NO_ENV).unwrap();
        for setting in loaded.settings() {
            assert_eq!(setting.value, setting.key.default(), "{}", setting.key.path);
            assert_eq!(setting.origin, ValueOrigin::Default);
        }
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.toml");
        let text = "[server]\nlisten = '127.0.0.1:1'\nadmin_listen = '127.0.0.1:2'\n[drain]\ndelay_ms = 3\n";
        std::fs::write(&path, text).unwrap();
        let overrides =
            Overrides { config: Some(path), listen: Some("127.0.0.1:4".into()), ..Overrides::default() };
        let env = [("FORKPOINT_LISTEN", "127.0.0.1:5"), ("FORKPOINT_SERVER__ADMIN_LISTEN", "127.0.0.1:6")];
        let loaded = load(&overrides, env).unwrap();
        assert_eq!(loaded.config.server.listen.port(), 4);
        assert_eq!(loaded.origin("server.listen"), ValueOrigin::Flag("--listen"));
        assert_eq!(loaded.config.server.admin_listen.port(), 6);
        assert_eq!(loaded.config.drain.delay.as_millis(), 3);
        assert!(loaded.origin("drain.delay_ms").to_string().ends_with("f.toml:5"));
    }

    #[test]
    fn a_replaced_value_must_be_valid_too() {
        let overrides = Overrides { mode: Some("observe".into()), ..Overrides::default() };
        assert_eq!(
            problems_of(&overrides, &[("FORKPOINT_MODE", "obzerve")]),
            ["FORKPOINT_MODE: no such choice"]
        );
    }

    #[test]
    fn a_broken_value_is_reported_once_and_not_again_in_combinations() {
        let overrides = Overrides { listen: Some("127.0.0.1".into()), ..Overrides::default() };
        let env = [("FORKPOINT_ADMIN_LISTEN", "127.0.0.1:8787")];
        assert_eq!(problems_of(&overrides, &env), ["--listen: not an IP address with a port"]);
    }

    #[test]
    fn a_file_that_cannot_be_read_hides_no_other_mistake() {
        let overrides = Overrides { config: Some("/nowhere/f.toml".into()), ..Overrides::default() };
        let found = problems_of(&overrides, &[("FORKPOINT_DRAIN__DELAY_MS", "-1"), ("FORKPOINT_X__Y", "1")]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[2].starts_with("--config: the file cannot be read"), "{found:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_file_break_the_loader(bytes: Vec<u8>) {
            let mut found = LoadedLayers::default();
            file::parse(&bytes, "any.toml", &mut found);
            let _ = found.into_loaded(None);
        }

        #[test]
        fn no_text_near_toml_breaks_the_loader(
            lines in prop::collection::vec(
                "(\\[{0,2}(server|limits|identity|zebra)?\\]{0,2}|(server\\.)?(listen|body_bytes|pepper|\"\\PC\") = (\\PC{0,6}|\\[1,'a'\\]|-?[0-9]{1,20}|\\{a.b=1\\}|\"\\PC{0,9}\"))",
                0..12,
            )
        ) {
            let text = lines.join("\n");
            let mut found = LoadedLayers::default();
            file::parse(text.as_bytes(), "any.toml", &mut found);
            if let Err(problems) = found.into_loaded(None) {
                for problem in problems.iter() {
                    let ValueOrigin::File { line, .. } = problem.origin else { panic!("{problem}") };
                    prop_assert!((1..=lines.len().max(1)).contains(&line), "{}\n{}", problem, text);
                }
            }
        }
    }
}
