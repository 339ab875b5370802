//! Writes lines to files of bounded number and size.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The mode of the files: they hold what users wrote.
const OWNER_ONLY: u32 = 0o600;

/// The file that is written; older ones are `FILE.1`, `FILE.2` and so on.
pub struct Writer {
    path: PathBuf,
    max_bytes: u64,
    files: usize,
    file: File,
    written: u64,
}

impl Writer {
    /// Opens the file, and appends to what an earlier process wrote.
    pub fn open(path: &Path, max_bytes: u64, files: usize) -> io::Result<Writer> {
        let mut file = open(path)?;
        let mut written = file.metadata()?.len();
        if written > 0 {
            // A process that was killed may have left half a line.
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                written += 1;
            }
        }
        Ok(Writer { path: path.to_owned(), max_bytes, files, file, written })
    }

    /// Returns true if a line of this length fits into a file.
    pub fn fits(&self, bytes: usize) -> bool {
        bytes as u64 <= self.max_bytes
    }

    /// Writes one line, which includes its line feed.
    pub fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.written > 0 && self.written + line.len() as u64 > self.max_bytes {
            self.rotate()?;
        }
        // A failed write may leave half a line, which is cut off again.
        let before = self.written;
        self.written += line.len() as u64;
        self.file.write_all(line).inspect_err(|_| {
            let _ = self.file.set_len(before);
            self.written = before;
        })
    }

    fn rotate(&mut self) -> io::Result<()> {
        let _ = fs::remove_file(numbered(&self.path, self.files - 1));
        for number in (0..self.files.saturating_sub(1)).rev() {
            match fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.file = open(&self.path)?;
        self.written = self.file.metadata()?.len();
        Ok(())
    }
}

/// Returns the path of a file by its number; `FILE` itself is number 0.
fn numbered(path: &Path, number: usize) -> PathBuf {
    match number {
        0 => path.to_owned(),
        _ => with_suffix(path, &number.to_string()),
    }
}

/// Returns `FILE.suffix`.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".");
    name.push(suffix);
    name.into()
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).read(true).append(true).mode(OWNER_ONLY).open(path)?;
    // A file that existed gets this mode too. A pipe or a device keeps its own.
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn the_newest_lines_are_kept_in_order_and_only_the_owner_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut writer = Writer::open(&path, 12, 3).unwrap();
        for number in 1..=7 {
            writer.write(format!("line {number}\n").as_bytes()).unwrap();
        }
        let found = [2, 1, 0].map(|number| read(&numbered(&path, number)));
        assert_eq!(found, ["line 5\n", "line 6\n", "line 7\n"]);
        assert!(!numbered(&path, 3).exists());
        for entry in fs::read_dir(dir.path()).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o777, OWNER_ONLY);
        }
    }

    #[test]
    fn half_a_line_of_a_process_that_was_killed_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        fs::write(&path, "{\"half").unwrap();
        Writer::open(&path, 100, 1).unwrap().write(b"whole\n").unwrap();
        Writer::open(&path, 100, 1).unwrap().write(b"again\n").unwrap();
        assert_eq!(read(&path), "{\"half\nwhole\nagain\n");
    }

    proptest! {
        #[test]
        fn no_file_exceeds_its_cap_and_none_is_too_many(
            lengths in prop::collection::vec(1..60_usize, 0..60), cap in 60..200_u64, files in 1..4_usize,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("r");
            let mut writer = Writer::open(&path, cap, files).unwrap();
            for length in &lengths {
                writer.write(&[vec![b'x'; length - 1], b"\n".to_vec()].concat()).unwrap();
            }
            let sizes: Vec<u64> = fs::read_dir(dir.path()).unwrap()
                .map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
            prop_assert!(sizes.len() <= files && sizes.iter().all(|size| *size <= cap), "{:?}", sizes);
            let total: u64 = lengths.iter().map(|length| *length as u64).sum();
            prop_assert!(total > cap || sizes.iter().sum::<u64>() == total);
        }
    }
}
