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
    let mut found: Vec<Line> = Vec::new();
    each(path, |line| found.extend(Some(line).filter(|line| line.id == id)))?;
    let others = found.len().saturating_sub(1);
    let matched = suffixed(path, "match");
    if matched.exists() {
        let newest = found.last().map(|line| line.time_ms);
        each(&matched, |line| {
            found.extend(
                Some(line).filter(|line| line.id == id && newest.is_none_or(|at| line.time_ms >= at)),
            );
        })?;
    }
    let number = (1..).map(|number| suffixed(path, &number.to_string()));
    for earlier in number.take_while(|path| path.exists()) {
        if found.is_empty() {
            each(&earlier, |line| found.extend(Some(line).filter(|line| line.id == id)))?;
        }
    }
    match found.pop() {
        Some(line) => Ok((line, others)),
        None => Err(Failure::new(format!("no request {id} in {}", path.display()))
            .hint("the number is the id of the log line; older requests may have been rotated away")),
    }
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}
