//! The process itself, under the names that every exporter uses for it.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::MetricFamily;

const FAMILIES: [(&str, &str, &str); 7] = [
    ("process_cpu_seconds_total", "counter", "CPU time of the process in user and system mode, in seconds."),
    ("process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM."),
    ("process_virtual_memory_bytes", "gauge", "Memory that the process has reserved."),
    ("process_open_fds", "gauge", "Files and connections that the process has open."),
    ("process_max_fds", "gauge", "Files and connections that the process may have open."),
    ("process_threads", "gauge", "Threads of the process."),
    ("process_start_time_seconds", "gauge", "When the process started, in seconds since 1970."),
];

pub fn families() -> impl Iterator<Item = MetricFamily> {
    FAMILIES.into_iter().map(|(name, kind, help)| MetricFamily {
        name: name.to_owned(),
        help: help.to_owned(),
        kind,
        labels: Vec::new(),
    })
}

/// When this process started, as far as it knows.
pub fn started() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The value of a family now; `None` where the system does not say.
pub fn value(family: &str, started: f64) -> Option<f64> {
    match family {
        "process_cpu_seconds_total" => {
            let time = clock_gettime(ClockId::ProcessCPUTime);
            Some(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
        }
        "process_resident_memory_bytes" => Some(status("VmRSS:")? * 1024.0),
        "process_virtual_memory_bytes" => Some(status("VmSize:")? * 1024.0),
        // One of them is the directory that is being read.
        "process_open_fds" => Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64),
        "process_max_fds" => getrlimit(Resource::Nofile).current.map(|limit| limit as f64),
        "process_threads" => status("Threads:"),
        "process_start_time_seconds" => Some(started),
        _ => None,
    }
}

/// The bytes of memory that the container may use; `None` where nothing limits it.
pub fn memory_limit() -> Option<u64> {
    // Its own control group, as a container sees it.
    fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}

/// The number in a line of the status that the system keeps of this process.
fn status(name: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_plausible_value() {
        for family in families() {
            let value = value(&family.name, started()).unwrap_or_else(|| panic!("no {}", family.name));
            assert!(value > 0.0, "{} is {value}", family.name);
        }
        assert!(value("process_open_fds", 0.0) < value("process_max_fds", 0.0));
        assert!(value("process_resident_memory_bytes", 0.0) < value("process_virtual_memory_bytes", 0.0));
        assert_eq!(value("process_other", 0.0), None);
    }
}
