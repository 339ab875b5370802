//! The sources of a request: a file, standard input, or a line of a recording.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::config;
use crate::report::ExchangeRecord;

use super::super::{Failure, recorded};

/// As large as any body the API takes.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The operand that means standard input.
const STDIN: &str = "-";

/// The source that an operand names.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    Stdin,
    File(PathBuf),
    Recorded {
        /// `None` if `record.file` of the configuration names it.
        recording: Option<PathBuf>,
        id: u64,
    },
}

impl Source {
    /// A number means a request of the recording, if one is named or no file has that name. `FILE#ID` means one of FILE.
    fn of(operand: &Path, recording: Option<&Path>) -> Source {
        let Some(text) = operand.to_str() else { return Source::File(operand.to_owned()) };
        if text == STDIN {
            return Source::Stdin;
        }
        if let Ok(id) = text.parse()
            && (recording.is_some() || !operand.exists())
        {
            return Source::Recorded { recording: recording.map(Path::to_owned), id };
        }
        if let Some((file, id)) = text.rsplit_once('#')
            && let Ok(id) = id.parse()
            && !operand.exists()
        {
            return Source::Recorded { recording: Some(file.into()), id };
        }
        Source::File(operand.to_owned())
    }
}

/// Refuses operands of which more than one means standard input.
pub fn check<'a>(operands: impl Iterator<Item = &'a Path>) -> Result<(), Failure> {
    match operands.filter(|operand| *operand == Path::new(STDIN)).count() {
        0 | 1 => Ok(()),
        _ => Err(Failure::usage("standard input can be read only once, and '-' is named twice")
            .hint("write one of the bodies to a file")),
    }
}

/// Returns the name and the bytes of a request. Of a recorded one that is the body as it came.
pub fn load(operand: &Path, recording: Option<&Path>) -> Result<(String, Vec<u8>), Failure> {
    load_part(operand, recording, |record| record.request)
}

/// Returns the name and the bytes of an answer.
pub fn load_answer(operand: &Path, recording: Option<&Path>) -> Result<(String, Vec<u8>), Failure> {
    load_part(operand, recording, |record| record.answer)
}

fn load_part(
    operand: &Path,
    recording: Option<&Path>,
    part: fn(ExchangeRecord) -> Option<String>,
) -> Result<(String, Vec<u8>), Failure> {
    match Source::of(operand, recording) {
        Source::Stdin => stdin(),
        Source::File(path) => file(&path),
        Source::Recorded { recording, id } => {
            let path = recording.map_or_else(configured, Ok)?;
            let (record, others) = recorded::find(&path, id)?;
            if others > 0 {
                eprintln!("{others} more with the id {id} in {}; this is the newest", path.display());
            }
            let body = part(record).ok_or_else(|| without_body(id))?;
            Ok((format!("request {id}"), body.into_bytes()))
        }
    }
}

/// The failure for a request that was recorded without its body.
pub fn without_body(id: u64) -> Failure {
    Failure::new(format!("request {id} was recorded without its body"))
        .hint("set record.bodies to \"redacted\" or \"full\", or record.match to whom it concerns")
}

fn stdin() -> Result<(String, Vec<u8>), Failure> {
    let name = "standard input";
    let mut body = Vec::new();
    let read = std::io::stdin().lock().take(FILE_BYTES_MAX + 1).read_to_end(&mut body);
    read.map_err(|error| Failure::new(format!("cannot read {name}: {error}")))?;
    let length = body.len() as u64;
    if length > FILE_BYTES_MAX { Err(too_large(name, length)) } else { Ok((name.to_owned(), body)) }
}

fn file(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let name = path.display().to_string();
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot read {name}: {error}"))
            .hint("name a file with the body of a request, - for standard input, or FILE#ID of a recording")
    };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > FILE_BYTES_MAX {
        return Err(too_large(&name, length));
    }
    let body = std::fs::read(path).map_err(failed)?;
    Ok((name, body))
}

fn too_large(name: &str, length: u64) -> Failure {
    Failure::new(format!("{name} has {length} bytes or more; a request body has at most {FILE_BYTES_MAX}"))
}

/// The recording of the configuration that the environment names.
pub fn configured() -> Result<PathBuf, Failure> {
    let loaded = config::load(&config::Overrides::default(), std::env::vars_os())?;
    loaded.config.record.file.ok_or_else(|| {
        Failure::usage("no recording is named")
            .hint("say --recording FILE, or FORKPOINT_CONFIG=… of the forkpoint that records (record.file)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operand_is_standard_input_a_file_or_a_request_of_a_recording() {
        let folder = tempfile::tempdir().unwrap();
        let named_as_one = folder.path().join("r.jsonl#7");
        std::fs::write(&named_as_one, "{}").unwrap();
        let recorded =
            |recording: Option<&str>, id| Source::Recorded { recording: recording.map(Into::into), id };
        let recording = Some(Path::new("r.jsonl"));
        for (operand, recording, source) in [
            (Path::new("-"), recording, Source::Stdin),
            (Path::new("17"), recording, recorded(Some("r.jsonl"), 17)),
            (Path::new("17"), None, recorded(None, 17)),
            (Path::new("./17"), recording, Source::File("./17".into())),
            (Path::new("x.jsonl#17"), recording, recorded(Some("x.jsonl"), 17)),
            (Path::new("turn#one.json"), None, Source::File("turn#one.json".into())),
            (&named_as_one, None, Source::File(named_as_one.clone())),
        ] {
            assert_eq!(Source::of(operand, recording), source, "{}", operand.display());
        }
    }
}
