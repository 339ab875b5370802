//! Reading recordings.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use crate::proxy::recording::{Line, VERSION};

use super::Failure;

/// A line is at most a request, what was made of it and its answer, escaped.
const LINE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Calls `each` with every line of a recording, the oldest first, and answers how many lines were none.
pub fn each(path: &Path, mut each: impl FnMut(Line)) -> Result<usize, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("cannot read {}: {error}", path.display()));
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let (mut bytes, mut number, mut broken) = (Vec::new(), 0, 0);
    loop {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes).map_err(failed)? == 0 {
            return Ok(broken);
        }
        number += 1;
        match serde_json::from_slice::<Line>(&bytes) {
            _ if bytes.len() > LINE_BYTES_MAX => broken += 1,
            Ok(line) if line.v > VERSION => {
                let message = format!("{}:{number}: written by a later version of forkpoint", path.display());
                return Err(Failure::new(message).hint("read it with that version"));
            }
            Ok(line) if line.v > 0 => each(line),
            // A process that was killed may have left half of one.
            _ => broken += 1,
        }
    }
}

/// The newest request of this number, and how many others have it: numbers begin anew with each process. What is
/// kept in full goes before what is not.
pub fn find(path: &Path, id: u64) -> Result<(Line, usize), Failure> {
    let mut found = search(path, |line| line.id == id)?;
    let others = found.len().saturating_sub(1);
    let matched = suffixed(path, "match");
    if matched.exists() {
        let newest = found.last().map(|line| line.time_ms);
        let is_it = |line: &Line| line.id == id && newest.is_none_or(|at| line.time_ms >= at);
        found.extend(search(&matched, is_it)?);
    }
    match found.pop() {
        Some(line) => Ok((line, others)),
        None => Err(Failure::new(format!("no request {id} in {}", path.display()))
            .hint("the number is the id of the log line; older requests may have been rotated away")),
    }
}

/// What is wanted of a file or, if it has nothing of it, of the one before it: `FILE`, `FILE.1`, ….
fn search(path: &Path, is_wanted: impl Fn(&Line) -> bool) -> Result<Vec<Line>, Failure> {
    let mut found: Vec<Line> = Vec::new();
    let earlier = (1..).map(|number| suffixed(path, &number.to_string())).take_while(|path| path.exists());
    for file in std::iter::once(path.to_owned()).chain(earlier) {
        each(&file, |line| found.extend(Some(line).filter(|line| is_wanted(line))))?;
        if !found.is_empty() {
            break;
        }
    }
    Ok(found)
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_in_full_is_found_also_in_files_that_were_rotated_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let write = |suffix: &str, lines: &[(u64, u64, &str)]| {
            let line = |(id, time_ms, bodies): &(u64, u64, &str)| {
                format!("{{\"v\":1,\"id\":{id},\"time_ms\":{time_ms},\"bodies\":\"{bodies}\"}}\n")
            };
            let name = format!("{}{suffix}", path.display());
            std::fs::write(name, lines.iter().map(line).collect::<String>()).unwrap();
        };
        write("", &[(9, 90, "off")]);
        write(".1", &[(7, 20, "off"), (7, 70, "off")]);
        write(".match", &[(9, 90, "full")]);
        write(".match.1", &[(7, 20, "full"), (7, 70, "full")]);
        let (line, others) = find(&path, 7).unwrap();
        assert_eq!((line.time_ms, line.bodies.as_str(), others), (70, "full", 1));
        assert_eq!(find(&path, 9).unwrap().0.bodies, "full");
        assert!(find(&path, 8).is_err());
    }
}
