//! Other gateways for the same API, each with its cache of connections, one process and as little logging as it offers.
//!
//! `tests/deep peers` installs them below `target/peers`, in the versions that the folder of this name states, and
//! measures them beside nginx and forkpoint. They put their own words around ours: keys in another order, fields left
//! out, answers written anew. So of them it is asked only that each request arrives once and is answered whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Fallible;
use crate::arms::{Arm, Place};
use crate::children::pinned;

pub const NEMO: &str = "nemo-relay";
pub const PORTKEY: &str = "portkey";
pub const LITELLM: &str = "litellm";

pub const PEERS: &[Arm] = &[
    Arm { name: NEMO, what: "NeMo Relay 0.10.4, log level error", command: Some(nemo_relay) },
    Arm { name: PORTKEY, what: "Portkey gateway 1.15.2 on Node, headless", command: Some(portkey) },
    Arm { name: LITELLM, what: "LiteLLM proxy 1.106.2, one worker, log level error", command: Some(litellm) },
];

pub fn is_peer(arm: &str) -> bool {
    PEERS.iter().any(|peer| peer.name == arm)
}

/// The headers that a request to a peer needs beside those of all requests.
pub fn headers(place: &Place, name: &str) -> String {
    match name {
        PORTKEY => format!(
            "x-portkey-provider: anthropic\r\nx-portkey-custom-host: http://{}/v1\r\n",
            place.upstream
        ),
        LITELLM => format!("authorization: Bearer {}\r\n", master_key()),
        _ => String::new(),
    }
}

/// LiteLLM does not start without one.
fn master_key() -> String {
    format!("sk-{}", blake3::hash(b"the key of a bench on loopback").to_hex())
}

fn installed(path: &str) -> Fallible<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("no target folder")?;
    let file = target.join("peers").join(path);
    if !file.exists() {
        return Err(format!("{} is not there\n\nhint: `tests/deep peers` installs it", file.display()).into());
    }
    Ok(file)
}

/// A program that keeps to its folder and sees nothing of our environment but where programs are.
fn alone(place: &Place, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = pinned(&place.cores, program);
    command.env_clear().env("HOME", &place.folder).current_dir(&place.folder);
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command
}

fn nemo_relay(place: &Place) -> Fallible<Command> {
    let mut command = alone(place, installed("nemo-relay/bin/nemo-relay")?);
    command.env("XDG_CONFIG_HOME", place.folder.join("config"));
    command.args(["--bind", &place.listen.to_string(), "--log-level", "error"]);
    command.args(["--anthropic-base-url", &format!("http://{}", place.upstream)]);
    Ok(command)
}

/// It would listen on every interface of the machine.
const LOOPBACK_ONLY: &str = r#"
const { Server } = require("node:net");
const listen = Server.prototype.listen;
Server.prototype.listen = function (port, host, ...rest) {
  return listen.call(this, port, "127.0.0.1", ...rest);
};
"#;

fn portkey(place: &Place) -> Fallible<Command> {
    let start = installed("portkey/node_modules/@portkey-ai/gateway/build/start-server.js")?;
    let loopback = place.folder.join("loopback.cjs");
    fs::write(&loopback, LOOPBACK_ONLY)?;
    let mut command = alone(place, "node");
    command.env("NODE_ENV", "production").arg("--require").arg(loopback).arg(start);
    command.args([&format!("--port={}", place.listen.port()), "--headless"]);
    Ok(command)
}

fn litellm(place: &Place) -> Fallible<Command> {
    let program = installed("litellm/bin/litellm")?;
    let configuration = format!(
        "model_list:
  - model_name: claude-sonnet-4-6
    litellm_params:
      model: anthropic/claude-sonnet-4-6
      api_base: http://{}
      api_key: bench-key
litellm_settings:
  telemetry: false
general_settings:
  disable_spend_logs: true
",
        place.upstream
    );
    let file = place.folder.join("litellm.yaml");
    fs::write(&file, configuration)?;
    let mut command = alone(place, program);
    // Without these it asks the network for prices, news and presets.
    for kind in
        ["MODEL_COST_MAP", "ANTHROPIC_BETA_HEADERS", "BLOG_POSTS", "POLICY_TEMPLATES", "AUTOROUTER_PRESETS"]
    {
        command.env(format!("LITELLM_LOCAL_{kind}"), "True");
    }
    command.env("LITELLM_MASTER_KEY", master_key()).env("LITELLM_TELEMETRY", "False");
    command.env("LITELLM_LOG", "ERROR").env("DISABLE_ADMIN_UI", "True").env("NO_DOCS", "True");
    command.arg("--config").arg(file).args(["--host", &place.listen.ip().to_string()]);
    command.args(["--port", &place.listen.port().to_string()]);
    command.args(["--num_workers", "1", "--keepalive_timeout", "75"]);
    Ok(command)
}
