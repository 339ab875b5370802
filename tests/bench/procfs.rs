//! Figures of the kernel about a process and its descendants: CPU time, memory, open files.
//!
//! CPU time is read in nanoseconds per thread (`schedstat`). A thread that ended takes its figure along,
//! so the coarse per-process counter (10 ms ticks, ended threads included) is read too and wins when it
//! shows clearly more.

use std::fs;
use std::time::Duration;

/// `USER_HZ` is 100 on every architecture Linux still ships for.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of a process tree at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    threads_ns: u64,
    ticks_ns: u64,
    waited_ns: u64,
}

impl Cpu {
    pub fn of_tree(root: u32) -> Cpu {
        let mut sum = Cpu::default();
        for pid in tree(root) {
            let (ran, waited) = tasks_ns(pid);
            sum.threads_ns += ran;
            sum.waited_ns += waited;
            sum.ticks_ns += ticks(pid) * TICK.as_nanos() as u64;
        }
        sum
    }

    /// Nanoseconds spent since `before`.
    pub fn since(self, before: Cpu) -> u64 {
        let threads = self.threads_ns.saturating_sub(before.threads_ns);
        let ticks = self.ticks_ns.saturating_sub(before.ticks_ns);
        let tolerance = 3 * TICK.as_nanos() as u64 + threads / 50;
        if ticks > threads + tolerance { ticks } else { threads }
    }

    /// Nanoseconds since `before` in which it could have run but its core was busy with something else.
    pub fn waited_since(self, before: Cpu) -> u64 {
        self.waited_ns.saturating_sub(before.waited_ns)
    }
}

/// Memory of a process tree in KiB, pages shared between its processes counted in each.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Memory {
    pub now_kb: u64,
    pub peak_kb: u64,
}

impl Memory {
    pub fn of_tree(root: u32) -> Memory {
        let mut sum = Memory::default();
        for pid in tree(root) {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            sum.now_kb += field(&status, "VmRSS:");
            sum.peak_kb += field(&status, "VmHWM:");
        }
        sum
    }
}

/// Open file descriptors of a process tree.
pub fn open_files(root: u32) -> usize {
    tree(root)
        .into_iter()
        .map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count()))
        .sum()
}

/// The cores this process may use.
pub fn cores() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0");
    let mut cores = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cores.extend(first..=last);
        }
    }
    cores
}

/// Processor model, kernel release and load: what a reader needs to place absolute figures.
pub fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown processor", |(_, name)| name.trim());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {} cores, Linux {}", cores().len(), kernel.trim())
}

/// Runnable processes over the last minute, ours included.
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}

fn tree(root: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for pid in numbered("/proc") {
        if let Some(parent) = stat_field(pid, 1) {
            parents.push((pid, parent as u32));
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// Time on a core and time spent waiting for one, over the threads that live.
fn tasks_ns(pid: u32) -> (u64, u64) {
    let folder = format!("/proc/{pid}/task");
    let (mut ran, mut waited) = (0, 0);
    for task in numbered(&folder) {
        let text = fs::read_to_string(format!("{folder}/{task}/schedstat")).unwrap_or_default();
        let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        if let [on_core, waiting, ..] = fields[..] {
            ran += on_core;
            waited += waiting;
        }
    }
    (ran, waited)
}

/// The entries of a folder whose names are numbers; none if the process ended meanwhile.
fn numbered(folder: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn ticks(pid: u32) -> u64 {
    stat_field(pid, 11).unwrap_or(0) + stat_field(pid, 12).unwrap_or(0)
}

/// A number from `/proc/PID/stat`, counted from the state letter, since the name before it may hold anything.
fn stat_field(pid: u32, index: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(index)?.parse().ok()
}

fn field(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
