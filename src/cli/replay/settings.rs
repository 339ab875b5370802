//! The runs of a replay: each mode, then one setting changed at a time, then together what helped.

use std::time::Duration;

use crate::config::{Config, GateScope, Mode};
use crate::engine::fork::Late;

/// One run.
#[derive(Clone)]
pub struct RunSetting {
    pub title: String,
    /// The differences from the configuration that is played, as they are written there.
    pub words: Vec<String>,
    pub mode: Mode,
    changes: Vec<ConfigChange>,
}

type ConfigChange = fn(&mut Config);

/// Changes that are worth a try, as they are said in the configuration. Few: each is a run of the whole recording.
const TRIES: [(&str, ConfigChange); 8] = [
    ("fork.context_premium = 0", |config| config.fork.policy.context_premium = 0.0),
    ("fork.context_premium = 100", |config| config.fork.policy.context_premium = 100.0),
    ("fork.max_cost_ratio = 0.8", |config| config.fork.policy.max_cost_ratio = 0.8),
    ("fork.late = \"passthrough\"", |config| config.fork.policy.late = Late::Passthrough),
    ("fork.late = \"partial\"", |config| config.fork.policy.late = Late::Partial),
    ("gate.scope = \"all\"", |config| config.gate.scope = GateScope::All),
    ("gate.max_hold_ms = 0", |config| config.gate.max_hold = Duration::ZERO),
    ("gate.max_hold_ms = 10000", |config| config.gate.max_hold = Duration::from_secs(10)),
];

impl RunSetting {
    /// As sent, aligned, forked.
    pub fn modes() -> Vec<RunSetting> {
        let modes = [("observe", "as sent"), ("align", "aligned"), ("fork", "forked")];
        let modes = modes.into_iter().filter_map(|(word, title)| Some((Mode::named(word)?, title)));
        let setting = |(mode, title): (Mode, &str)| RunSetting {
            title: title.to_owned(),
            words: vec![format!("server.mode = \"{}\"", mode.as_str())],
            mode,
            changes: Vec::new(),
        };
        modes.map(setting).collect()
    }

    /// This one with one thing changed, for everything that is worth a try and not so already.
    pub fn tries(&self, config: &Config) -> Vec<RunSetting> {
        let new = TRIES.iter().filter(|(_, change)| {
            let mut changed = config.clone();
            change(&mut changed);
            !config.reload(&changed).changed.is_empty()
        });
        new.map(|(word, change)| RunSetting {
            title: format!("{}, {word}", self.title),
            words: [self.words.as_slice(), &[(*word).to_owned()]].concat(),
            mode: self.mode,
            changes: vec![*change],
        })
        .collect()
    }

    /// All that `others` change, the first of those that change the same key; if that is more than one of them does.
    pub fn together(&self, others: &[&RunSetting]) -> Option<RunSetting> {
        let mut all = self.clone();
        let key = |word: &str| word.split(' ').next().unwrap_or_default().to_owned();
        for other in others {
            let Some(word) = other.words.last().filter(|new| !all.words.iter().any(|w| key(w) == key(new)))
            else {
                continue;
            };
            all.title += &format!(", {word}");
            all.words.push(word.clone());
            all.changes.extend_from_slice(&other.changes);
        }
        (all.changes.len() > 1).then_some(all)
    }

    pub fn apply(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.server.mode = self.mode;
        for change in &self.changes {
            change(&mut config);
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_already_is_not_tried() {
        let forked = RunSetting::modes().pop().unwrap();
        let mut config = Config::default();
        let tries = forked.tries(&config);
        assert_eq!(tries.len(), TRIES.len() - 1, "taking late ones is the default");
        config.gate.scope = GateScope::All;
        assert_eq!(forked.tries(&config).len(), tries.len() - 1);
        assert!(tries.iter().all(|setting| setting.mode == Mode::Fork && setting.changes.len() == 1));
    }

    #[test]
    fn what_helped_is_tried_together() {
        let forked = RunSetting::modes().pop().unwrap();
        let tries = forked.tries(&Config::default());
        let scope = tries.iter().find(|setting| setting.title.contains("gate.scope")).unwrap();
        let late = tries.iter().find(|setting| setting.title.contains("fork.late")).unwrap();
        let holds: Vec<_> = tries.iter().filter(|setting| setting.title.contains("max_hold_ms")).collect();
        assert!(forked.together(&[scope]).is_none());
        assert!(forked.together(&holds).is_none(), "two values of one key");
        let both = forked.together(&[scope, late]).unwrap();
        assert_eq!(both.title, "forked, gate.scope = \"all\", fork.late = \"passthrough\"");
        assert_eq!(both.words.len(), 3, "{:?}", both.words);
        let config = both.apply(&Config::default());
        assert_eq!((config.gate.scope, config.fork.policy.late), (GateScope::All, Late::Passthrough));
    }
}
