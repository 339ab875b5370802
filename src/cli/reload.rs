//! Loading the configuration anew while the proxy runs: on SIGHUP, and when one of its files changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::config::{self, Loaded, Overrides, Problems};
use crate::metrics::Metrics;
use crate::proxy::live::Live;

/// How often the files are looked at. Asking the system for news would miss files that are swapped by a link, as
/// Kubernetes does.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Distinguishes one state of a file from another; `None` for a file that does not exist.
type Print = Option<(SystemTime, u64, u64)>;

/// Where the configuration comes from.
pub struct ConfigSource {
    overrides: Overrides,
    file: Option<PathBuf>,
    /// The file as it was before it was read.
    read: Print,
}

impl ConfigSource {
    /// To be called before the first load, so that no change falls between that and the first look.
    pub fn new(overrides: Overrides) -> ConfigSource {
        let file = overrides.file();
        let read = file.as_deref().and_then(print);
        ConfigSource { overrides, file, read }
    }

    pub fn load(&self) -> Result<Loaded, Problems> {
        config::load(&self.overrides, std::env::vars_os())
    }
}

pub struct Reloader {
    source: ConfigSource,
    live: Live,
    metrics: Arc<Metrics>,
    /// The files as they were last read.
    read: [Print; 3],
    /// The files as they were last looked at.
    seen: [Print; 3],
}

impl Reloader {
    pub fn new(source: ConfigSource, live: Live, metrics: Arc<Metrics>) -> Reloader {
        let mut reloader = Reloader { source, live, metrics, read: [None; 3], seen: [None; 3] };
        reloader.seen = reloader.look();
        reloader.read = reloader.seen;
        reloader.read[0] = reloader.source.read;
        reloader
    }

    /// Returns when a file has changed and is at rest: an editor may be half-way.
    pub async fn changed(&mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = self.look();
            let at_rest = now == self.seen;
            self.seen = now;
            if at_rest && self.seen != self.read {
                return;
            }
        }
    }

    /// Takes over what is valid as a whole, or says what is wrong and leaves all as it is.
    pub fn reload(&mut self, why: &'static str) {
        // Looked at before it is read: a change in between is found next time.
        self.read = self.look();
        self.seen = self.read;
        let outcome = match self.source.load() {
            Ok(loaded) => {
                let reload = self.live.now().config().reload(&loaded.config);
                let (changed, left) = (reload.changed.join(","), reload.left.join(","));
                let next = self.live.reload(reload, loaded.prices);
                let config = next.generation().number;
                tracing::info!(why, config, changed, needs_restart = left, "configuration loaded");
                // It may name others, which were read just now.
                let [_, prices, boilerplate] = self.look();
                self.read = [self.read[0], prices, boilerplate];
                "loaded"
            }
            Err(problems) => {
                let config = self.live.now().generation().number;
                let problems = in_one_line(&problems);
                tracing::error!(why, config, problems, "configuration refused as a whole; the old one stays");
                "refused"
            }
        };
        self.metrics.config_reloads_total.with_label_values(&[outcome]).inc();
    }

    /// At the configuration file, and at the files that it names.
    fn look(&self) -> [Print; 3] {
        let proxy = self.live.now();
        let config = proxy.config();
        let named =
            [self.source.file.as_ref(), config.prices.file.as_ref(), config.fork.boilerplate.as_ref()];
        named.map(|file| print(file?))
    }
}

fn print(file: &Path) -> Print {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}

fn in_one_line(problems: &Problems) -> String {
    let line =
        |problem: &config::Problem| format!("{}: {}: {}", problem.origin, problem.subject, problem.message);
    problems.iter().map(line).collect::<Vec<_>>().join("; ")
}
