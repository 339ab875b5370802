//! The signals that come to us while a command runs, and which of them it has not had already.

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use tokio::sync::mpsc;

use crate::cli::Failure;

/// Stopping and continuing are not among them: we stop as the command does, both by the terminal.
const PASSED_ON: [(i32, Signal); 7] = [
    (SIGINT, Signal::INT),
    (SIGTERM, Signal::TERM),
    (SIGHUP, Signal::HUP),
    (SIGQUIT, Signal::QUIT),
    (SIGWINCH, Signal::WINCH),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
];
/// Signals that wait to be passed on; more than a person can send.
const WAITING_MAX: usize = 64;

pub struct Signals(mpsc::Receiver<Received>);

/// A signal, and whether the terminal sent it, which sends it to the whole process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    signal: i32,
    by_terminal: bool,
}

impl Signals {
    /// Whatever comes from here on is ours to pass on. What we were started to ignore (`nohup`) stays ignored,
    /// and so it is for the command.
    pub fn new() -> Result<Signals, Failure> {
        let failed = |error| Failure::new(format!("cannot handle signals: {error}"));
        let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
        let taken = PASSED_ON.iter().map(|(number, _)| *number).filter(|n| ignored >> (n - 1) & 1 == 0);
        let mut signals = SignalsInfo::<WithOrigin>::new(taken.collect::<Vec<_>>()).map_err(failed)?;
        let (give, take) = mpsc::channel(WAITING_MAX);
        let listen = move || {
            for Origin { signal, cause, .. } in signals.forever() {
                let _ = give.try_send(Received { signal, by_terminal: cause == Cause::Kernel });
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
        Ok(Signals(take))
    }

    pub async fn next(&mut self) -> Received {
        match self.0.recv().await {
            Some(received) => received,
            // The thread never ends; if it did, no signal would come.
            None => std::future::pending().await,
        }
    }
}

impl Received {
    /// Hands it to the command, unless the terminal has done that.
    pub fn pass_on(self, pid: Option<u32>) {
        let named = PASSED_ON.iter().find(|(number, _)| *number == self.signal);
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let (false, Some((_, signal)), Some(pid)) = (self.by_terminal, named, pid) {
            // It may have ended just now.
            let _ = kill_process(pid, *signal);
        }
    }
}

/// The signals that this process ignores, as a mask.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = "Name:\tx\nSigBlk:\t0000000000000004\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored(status), 0x1001);
        assert_eq!(ignored("nothing"), 0);
    }
}
