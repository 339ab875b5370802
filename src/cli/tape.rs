//! Reading recordings.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::report::{ExchangeRecord as Line, VERSION};

use super::Failure;

/// A line is at most a request, what was made of it and its answer, escaped.
const LINE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// The counts of lines in a recording.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    pub lines: usize,
    /// How many of them could not be read, and where the first of those is.
    pub broken: usize,
    pub first_broken: Option<String>,
}

/// Calls `each` with every line of a recording, the oldest first.
pub fn each(path: &Path, mut each: impl FnMut(Line)) -> Result<ReadCounts, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot read {}: {error}", path.display())).hint("name what record.file says")
    };
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let (mut bytes, mut found) = (Vec::new(), ReadCounts::default());
    while next_line(&mut reader, &mut bytes, LINE_BYTES_MAX).map_err(failed)? {
        found.lines += 1;
        let place = || format!("{}:{}", path.display(), found.lines);
        match serde_json::from_slice::<Line>(&bytes) {
            Ok(line) if line.v > VERSION => {
                let message = format!("{}: written by a later version of forkpoint", place());
                return Err(Failure::new(message).hint("read it with that version"));
            }
            Ok(line) if line.v > 0 => each(line),
            // A process that was killed may have left half of one.
            _ => {
                found.broken += 1;
                found.first_broken = found.first_broken.take().or_else(|| Some(place()));
            }
        }
    }
    Ok(found)
}

/// Reads a line, and nothing of one that is longer than any of a recording; answers whether there was one.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>, most: usize) -> std::io::Result<bool> {
    line.clear();
    let read = reader.by_ref().take(most as u64).read_until(b'\n', line)?;
    if read == most && line.last() != Some(&b'\n') {
        line.clear();
        reader.skip_until(b'\n')?;
    }
    Ok(read > 0)
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

/// The wanted lines of a file or, if it has none, of the one before it: `FILE`, `FILE.1`, ….
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

pub fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_end_takes_no_memory() {
        let mut text = b"12345678901234567890\n123\n1234567\nend".as_slice();
        let (mut line, mut found) = (Vec::new(), Vec::new());
        while next_line(&mut text, &mut line, 8).unwrap() {
            assert!(line.capacity() <= 64);
            found.push(String::from_utf8(line.clone()).unwrap());
        }
        assert_eq!(found, ["", "123\n", "1234567\n", "end"]);
    }

    #[test]
    fn half_a_line_is_counted_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        std::fs::write(&path, "{\"v\":1}\n{\"v\":1,\"id\":2}\n{\"v\":1,\"i").unwrap();
        let mut ids = Vec::new();
        let found = each(&path, |line| ids.push(line.id)).unwrap();
        let first_broken = Some(format!("{}:3", path.display()));
        assert_eq!((ids, found), (vec![0, 2], ReadCounts { lines: 3, broken: 1, first_broken }));
    }

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
