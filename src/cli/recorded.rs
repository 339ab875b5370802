//! Reading recordings.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::report::{ExchangeRecord, VERSION};

use super::Failure;

/// A line is at most a request, what was made of it and its answer, escaped.
const LINE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// The counts of lines in a recording.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    pub lines: usize,
    /// The number of them that could not be read, and the place of the first.
    pub broken: usize,
    pub first_broken: Option<String>,
}

/// Calls `take` with every record of a recording, the oldest first.
pub fn for_each(path: &Path, mut take: impl FnMut(ExchangeRecord)) -> Result<ReadCounts, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot read {}: {error}", path.display())).hint("name what record.file says")
    };
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let (mut line, mut counts) = (Vec::new(), ReadCounts::default());
    while next_line(&mut reader, &mut line, LINE_BYTES_MAX).map_err(failed)? {
        counts.lines += 1;
        let place = || format!("{}:{}", path.display(), counts.lines);
        match serde_json::from_slice::<ExchangeRecord>(&line) {
            Ok(record) if record.v > VERSION => {
                let message = format!("{}: written by a later version of forkpoint", place());
                return Err(Failure::new(message).hint("read it with that version"));
            }
            Ok(record) if record.v > 0 => take(record),
            // A process that was killed may have left half of one.
            _ => {
                counts.broken += 1;
                counts.first_broken = counts.first_broken.take().or_else(|| Some(place()));
            }
        }
    }
    Ok(counts)
}

/// Reads a line, but nothing of one that is longer than `most` bytes. Returns false at the end of the file.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>, most: usize) -> std::io::Result<bool> {
    line.clear();
    let read = reader.by_ref().take(most as u64).read_until(b'\n', line)?;
    if read == most && line.last() != Some(&b'\n') {
        line.clear();
        reader.skip_until(b'\n')?;
    }
    Ok(read > 0)
}

/// Returns the newest record with this id, and the number of others with it: ids start again with each process.
/// A record of `FILE.match`, which has its bodies in full, is preferred.
pub fn find(path: &Path, id: u64) -> Result<(ExchangeRecord, usize), Failure> {
    let mut found = search(path, |record| record.id == id)?;
    let others = found.len().saturating_sub(1);
    let matched = suffixed(path, "match");
    if matched.exists() {
        let newest = found.last().map(|record| record.time_ms);
        let is_it = |record: &ExchangeRecord| record.id == id && newest.is_none_or(|at| record.time_ms >= at);
        found.extend(search(&matched, is_it)?);
    }
    match found.pop() {
        Some(record) => Ok((record, others)),
        None => Err(Failure::new(format!("no request {id} in {}", path.display()))
            .hint("the number is the id of the log line; older requests may have been rotated away")),
    }
}

/// Returns the wanted records of a file or, if it has none, of the one before it: `FILE`, `FILE.1`, ….
fn search(path: &Path, is_wanted: impl Fn(&ExchangeRecord) -> bool) -> Result<Vec<ExchangeRecord>, Failure> {
    let mut found = Vec::new();
    let earlier = (1..).map(|number| suffixed(path, &number.to_string())).take_while(|path| path.exists());
    for file in std::iter::once(path.to_owned()).chain(earlier) {
        for_each(&file, |record| {
            if is_wanted(&record) {
                found.push(record);
            }
        })?;
        if !found.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// Returns the path with a suffix behind its name: `FILE.1`, `FILE.match`.
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
        let counts = for_each(&path, |record| ids.push(record.id)).unwrap();
        let first_broken = Some(format!("{}:3", path.display()));
        assert_eq!((ids, counts), (vec![0, 2], ReadCounts { lines: 3, broken: 1, first_broken }));
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
        let (record, others) = find(&path, 7).unwrap();
        assert_eq!((record.time_ms, record.bodies.as_str(), others), (70, "full", 1));
        assert_eq!(find(&path, 9).unwrap().0.bodies, "full");
        assert!(find(&path, 8).is_err());
    }
}
