//! Re-reading: a child is given a tool result that its parent had read before it was started.
//!
//! A child that knows nothing of its parent's conversation opens the same files again. That is seen by comparing the
//! results that a child brings with those in its parent's prompt at the fork point, in either of two ways:
//!
//! ```text
//! equal       the texts are the same, however they are spelt in JSON and divided into blocks
//! by lines    20 lines in a row are in one result of the parent, and so are 80 % of all its lines
//! ```
//!
//! Of the parent digests are kept and never text. Each result of a child is looked at on the turn that brings it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use super::fanout::ForkId;
use crate::engine::request::anatomy::Piece;
use crate::engine::request::json::{self, Span};
use crate::engine::request::recall::Remembered;
use crate::engine::words::first;

/// Shorter results say little, and are often equal by chance: "ok", "no matches found".
pub const TEXT_BYTES_MIN: usize = 256;
/// Lines in a row that are no chance: braces and blank lines are everywhere.
const RUN_LINES: usize = 20;
/// The percentage of a result's lines that its parent must have read.
const LINES_PERCENT: usize = 80;

/// Results of one parent that are digested, the newest first: more than fit into most windows.
const RESULTS_MAX: usize = 512;
/// Bytes of one parent's results that are digested, which bounds the work.
const TEXT_BYTES_MAX: usize = 8 << 20;
/// Lines of one parent that are kept: some 100,000 tokens.
const LINES_MAX: usize = 8_192;
/// Results of a parent that one result is compared with by lines: the versions of a file.
const CANDIDATES_MAX: usize = 8;

/// Parents of one tenant whose digests are kept, and lines of all of them: 5 MiB at most. A parent that is needed again
/// is digested again.
const PARENTS_MAX: usize = 256;
const PARENT_LINES_MAX: usize = 64 << 10;

/// The tool results of a parent's prompt, as digests.
#[derive(Debug, Default)]
pub struct ParentResults {
    texts: HashSet<TextDigest>,
    /// Every run of [`RUN_LINES`] lines, with the newest result that has it.
    runs: HashMap<u64, usize>,
    /// The lines of each result that has runs, sorted.
    lines: Vec<Vec<u64>>,
    /// Of all of them.
    line_count: usize,
}

type TextDigest = [u8; 16];

impl ParentResults {
    /// Digests the results in a parent's prompt.
    pub fn of(parent: &Remembered) -> ParentResults {
        let mut digested = ParentResults::default();
        let mut bytes = 0;
        let pieces = parent.anatomy().pieces.iter().rev();
        for text in pieces.filter_map(|piece| result_text(parent.body(), piece)).take(RESULTS_MAX) {
            bytes += text.len();
            if bytes > TEXT_BYTES_MAX {
                break;
            }
            digested.texts.insert(digest(&text));
            let lines = line_hashes(&text);
            if lines.len() >= RUN_LINES && digested.line_count + lines.len() <= LINES_MAX {
                digested.add_lines(lines);
            }
        }
        digested
    }

    fn add_lines(&mut self, mut lines: Vec<u64>) {
        let result = self.lines.len();
        for run in lines.windows(RUN_LINES) {
            self.runs.entry(run_hash(run)).or_insert(result);
        }
        self.line_count += lines.len();
        lines.sort_unstable();
        lines.dedup();
        self.lines.push(lines);
    }

    /// Returns true if the parent had read this text.
    fn has(&self, text: &str) -> bool {
        self.texts.contains(&digest(text)) || self.has_lines(text)
    }

    fn has_lines(&self, text: &str) -> bool {
        if self.runs.is_empty() {
            return false;
        }
        let lines = line_hashes(text);
        let mut candidates: Vec<usize> = Vec::new();
        for run in lines.windows(RUN_LINES) {
            if let Some(result) = self.runs.get(&run_hash(run))
                && !candidates.contains(result)
            {
                candidates.push(*result);
                if candidates.len() == CANDIDATES_MAX {
                    break;
                }
            }
        }
        candidates.into_iter().any(|result| {
            let known = &self.lines[result];
            let found = lines.iter().filter(|line| known.binary_search(line).is_ok()).count();
            found * 100 >= lines.len() * LINES_PERCENT
        })
    }
}

/// The results that the newest turn of a child brings.
#[derive(Debug)]
pub struct NewResults {
    results: Vec<NewResult>,
}

#[derive(Debug)]
struct NewResult {
    text: String,
    /// Its bytes in the prompt.
    bytes: u64,
}

/// The results of one turn that the parent had read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAgain {
    pub results: u64,
    /// Their bytes in the prompt.
    pub bytes: u64,
}

impl NewResults {
    /// Reads the results that came since the last answer, in the child's own request. None if none is long enough.
    pub fn of(child: &Remembered) -> Option<NewResults> {
        let (body, anatomy) = (child.body(), child.anatomy());
        let messages = anatomy.messages.iter().rev();
        let new = messages.take_while(|message| !message.has_role(body, "assistant"));
        let pieces = new.flat_map(|message| &anatomy.pieces[message.pieces.clone()]);
        let results: Vec<NewResult> = pieces
            .filter_map(|piece| {
                Some(NewResult { text: result_text(body, piece)?, bytes: piece.prompt_bytes() })
            })
            .collect();
        (!results.is_empty()).then_some(NewResults { results })
    }

    /// Returns those that the parent had read.
    pub fn read_again(&self, parent: &ParentResults) -> ReadAgain {
        let mut again = ReadAgain::default();
        for result in self.results.iter().filter(|result| parent.has(&result.text)) {
            again.results += 1;
            again.bytes += result.bytes;
        }
        again
    }
}

/// The parents of one tenant that were digested, the one that was used last at the end.
#[derive(Debug, Default)]
pub struct DigestedParents {
    parents: VecDeque<(ForkId, Arc<ParentResults>)>,
}

impl DigestedParents {
    /// Returns the results of the parent at this fork point, if they are digested.
    pub fn get(&mut self, fork: ForkId) -> Option<Arc<ParentResults>> {
        let found = self.parents.iter().position(|(id, _)| *id == fork)?;
        let parent = self.parents.remove(found)?;
        let results = Arc::clone(&parent.1);
        self.parents.push_back(parent);
        Some(results)
    }

    /// Keeps the results of the parent at this fork point; the oldest others make room.
    pub fn keep(&mut self, fork: ForkId, results: Arc<ParentResults>) {
        self.parents.retain(|(id, _)| *id != fork);
        self.parents.push_back((fork, results));
        while self.parents.len() > PARENTS_MAX || self.line_count() > PARENT_LINES_MAX {
            self.parents.pop_front();
        }
    }

    fn line_count(&self) -> usize {
        self.parents.iter().map(|(_, results)| results.line_count).sum()
    }
}

/// The text of a tool result that is long enough to count.
fn result_text(body: &[u8], piece: &Piece) -> Option<String> {
    // What is shorter as JSON is shorter as text.
    if piece.span.len() < TEXT_BYTES_MIN || piece.kind_in(body) != b"\"tool_result\"" {
        return None;
    }
    let content = json::member(body, piece.span.start, "content")?;
    let text = match body[content.start] {
        b'"' => json::text(body, &content)?.into_owned(),
        b'[' => block_texts(body, &content)?,
        _ => return None,
    };
    (text.len() >= TEXT_BYTES_MIN).then_some(text)
}

/// The texts of blocks, one behind the other.
fn block_texts(body: &[u8], blocks: &Span) -> Option<String> {
    let mut text = String::new();
    let walked = json::walk_array(body, blocks.start, |start| {
        let is_text = json::member(body, start, "type").is_some_and(|kind| &body[kind] == b"\"text\"");
        let said = if is_text { json::member(body, start, "text") } else { None };
        if let Some(said) = said.and_then(|said| json::text(body, &said)) {
            text.push_str(&said);
        }
        json::value_end(body, start)
    });
    walked.ok().map(|_| text)
}

fn digest(text: &str) -> TextDigest {
    first(blake3::hash(text.as_bytes()).as_bytes())
}

fn line_hashes(text: &str) -> Vec<u64> {
    let hash = |line: &str| {
        let mut hasher = DefaultHasher::new();
        line.hash(&mut hasher);
        hasher.finish()
    };
    text.lines().map(hash).collect()
}

fn run_hash(run: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    run.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
