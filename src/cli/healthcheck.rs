//! `forkpoint healthcheck`: is the forkpoint of this configuration ready? For images without a shell.

use std::time::Duration;

use crate::config::{self, Overrides};

use super::Failure;

/// Ask a running forkpoint whether it is ready
///
/// Reads the same configuration as `serve` to find the admin port. Exit code 0: ready; 1: not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: HEALTHCHECK CMD [\"/forkpoint\", \"healthcheck\"]")]
pub struct HealthcheckArgs {
    #[command(flatten)]
    overrides: Overrides,
    /// Give up after this many milliseconds
    #[arg(long, default_value_t = 2000, value_name = "MS")]
    timeout_ms: u64,
}

pub fn run(args: HealthcheckArgs) -> Result<(), Failure> {
    let config = config::load(&args.overrides, std::env::vars_os())?.config;
    let url = format!("http://{}/readyz", config.server.metrics_listen.unwrap_or(config.server.admin_listen));
    let timeout = Duration::from_millis(args.timeout_ms);
    let status = super::runtime()?.block_on(ask(&url, timeout));
    match status {
        Ok(status) if status.is_success() => Ok(()),
        Ok(status) => Err(Failure::new(format!("not ready: {url} answered {status}"))),
        Err(error) => Err(Failure::new(format!("not ready: {url}: {error}"))
            .hint("is forkpoint running with this configuration? see server.admin_listen")),
    }
}

async fn ask(url: &str, timeout: Duration) -> Result<reqwest::StatusCode, String> {
    // Environment proxies are for the outside world, not for our own port.
    let client = reqwest::Client::builder().no_proxy().timeout(timeout).build().map_err(|e| e.to_string())?;
    client.get(url).send().await.map(|answer| answer.status()).map_err(|e| super::cause(&e))
}
