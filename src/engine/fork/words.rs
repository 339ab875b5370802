//! The notes to a forked child, in our own words.

use std::borrow::Cow;

use memchr::memmem;

use super::policy::{ForkPolicy, Report};
use crate::engine::family::fanout::{CHILD_TAG, ForkPoint};
use crate::engine::request::anatomy::Piece;
use crate::engine::request::json;
use crate::engine::request::recall::Remembered;
use crate::engine::words::Layer;

const CLOSING_TAG: &str = "</forkpoint-child>";

const CALLED: &str = "\
You are a fork of the agent in the conversation above, and not that main agent. One of the calls in its last turn \
started you; other forks carry out the other calls, and their results do not come to you.";

const NAMED: &str = "\
You are a fork of the agent in the conversation above, and not that main agent. Others carry out the calls of its \
last turn, and their results do not come to you.";

const STANDING: &str = "
- What is said above about delegating, about starting agents or waiting for them, was said to the main agent. Start \
no agents of any kind: do the work yourself.
- Your task is the last text of this message. Keep to its scope, and leave to the main agent what lies outside of it.
- Work silently: no remarks between tool calls, no questions. Report once, at the end.";

const INSTRUCTIONS: &str = "
- The texts between this note and your task are instructions of your own. Where they differ from what stands above, \
they hold.";

const REPORT: &str = "
- If you changed files, commit them before you report.
- Report in under 500 words, under the headings Scope, Result, Key files, Files changed and Issues, in that order. \
Begin with \"Scope:\".";

const ASIDE: &str = "\
The calls of the last turn above go on elsewhere, and their results do not come here. What follows is asked beside \
that work: answer it from what stands above.";

/// The words with which clients name the directory that an agent works in.
const DIRECTORY: [&[u8]; 4] = [b"orking directory: ", b"urrent directory: ", b"cwd: ", b"<cwd>"];
/// The number of times that each of them is looked for in a text.
const MENTIONS_MAX: usize = 16;
/// Longer than any path.
const PATH_BYTES_MAX: usize = 4096;
/// The number of leading messages in which clients name it.
const DIRECTORY_MESSAGES: usize = 2;

/// The facts about one child that its note mentions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes<'a> {
    /// A call started it; otherwise it has named its parent.
    pub called: bool,
    /// It has a system prompt of its own.
    pub instructions: bool,
    pub report: bool,
    /// Its tools, if they are fewer than those above.
    pub tools: Option<Vec<Cow<'a, str>>>,
    pub worktree: Option<Worktree<'a>>,
}

/// It works elsewhere than its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worktree<'a> {
    pub own: Option<Cow<'a, str>>,
    pub parents: Option<Cow<'a, str>>,
}

/// Returns the note to a child. With a template the general words are the operator's.
pub fn boilerplate(notes: &Notes<'_>, template: Option<&str>) -> String {
    let mut text = String::from(CHILD_TAG);
    text.push('\n');
    match template {
        Some(template) => text.push_str(own_words(template)),
        None => {
            text.push_str(if notes.called { CALLED } else { NAMED });
            text.push_str(STANDING);
            text.push_str(if notes.instructions { INSTRUCTIONS } else { "" });
            text.push_str(if notes.report { REPORT } else { "" });
        }
    }
    if let Some(tools) = &notes.tools {
        text.push_str("\n- Of the tools above only these are yours; calls of the others fail: ");
        text.push_str(&tools.join(", "));
        text.push('.');
    }
    if let Some(worktree) = &notes.worktree {
        text.push_str(&worktree.notice());
    }
    text.push('\n');
    text.push_str(CLOSING_TAG);
    text
}

/// Returns the note before a message to a turn whose calls have no results yet: it goes on from there, and is not an
/// agent.
pub fn aside() -> String {
    format!("{CHILD_TAG}\n{ASIDE}\n{CLOSING_TAG}")
}

/// A template without the tags, which are put around it again.
fn own_words(template: &str) -> &str {
    let inner = template.trim();
    let inner = inner.strip_prefix(CHILD_TAG).unwrap_or(inner);
    inner.strip_suffix(CLOSING_TAG).unwrap_or(inner).trim()
}

impl Worktree<'_> {
    fn notice(&self) -> String {
        let place = match &self.own {
            Some(own) => format!("in the directory {own}"),
            None => "in a working copy of your own".to_owned(),
        };
        let parents = self.parents.as_ref().map_or_else(String::new, |parents| format!(" ({parents})"));
        format!(
            "\n- You work {place}, not in that of the main agent{parents}. Translate the paths above to yours, read \
             a file again before you change it, and change nothing outside."
        )
    }
}

/// Returns true if the note to a child says how to report. By default only if nothing else says it: the call has no
/// type or the type `fork`, and the child has no instructions of its own.
pub fn asks_report(policy: &ForkPolicy, kind: Option<&str>, instructions: bool) -> bool {
    match policy.report {
        Report::Always => true,
        Report::Never => false,
        Report::Auto => matches!(kind, None | Some("" | "fork")) && !instructions,
    }
}

/// The kind of agent that a call asks for.
pub fn kind(fork: &ForkPoint, call: usize, policy: &ForkPolicy) -> Option<String> {
    let input = fork.input(call)?;
    policy.specialist_fields.iter().find_map(|field| {
        let value = json::member(&input, 0, field)?;
        json::text(&input, &value).map(Cow::into_owned)
    })
}

/// The names of a request's tools.
pub fn tool_names(request: &Remembered) -> Vec<Cow<'_, str>> {
    let (body, anatomy) = (request.body(), request.anatomy());
    let tools = &anatomy.pieces[..anatomy.tools];
    tools.iter().filter_map(|tool| name_of(body, tool)).collect()
}

/// The name of a tool; of a toolset, which has none, its kind.
pub fn name_of<'b>(body: &'b [u8], tool: &Piece) -> Option<Cow<'b, str>> {
    let member = |name| json::member(body, tool.span.start, name).and_then(|span| json::text(body, &span));
    let name = tool.name().and_then(|name| json::text(body, &name));
    name.or_else(|| member("name")).or_else(|| member("type"))
}

/// Returns where a child works, if that is not where its parent does: both name a directory and differ, or the call
/// asks for it. A directory that the call names (`cwd`) comes before that of the child's prompt.
pub fn worktree<'a>(
    child: &'a Remembered,
    parent: &'a Remembered,
    fork: &ForkPoint,
    call: Option<usize>,
) -> Option<Worktree<'a>> {
    let input = call.and_then(|call| fork.input(call));
    let said = |name: &str| {
        let input = input.as_ref()?;
        let value = json::member(input, 0, name)?;
        json::text(input, &value).map(|text| Cow::Owned(text.into_owned()))
    };
    let asked = said("isolation").is_some_and(|word: Cow<'_, str>| word == "worktree");
    let own = said("cwd").or_else(|| directory(child));
    // A parent's prompt is long, and only looked through where there is something to compare it with.
    let parents = own.as_ref().and_then(|_| directory(parent));
    let differ = parents.is_some() && own != parents;
    match (differ, asked) {
        (true, _) => Some(Worktree { own, parents }),
        (false, true) => Some(Worktree { own: None, parents: None }),
        (false, false) => None,
    }
}

/// The working directory that a prompt names first.
fn directory(request: &Remembered) -> Option<Cow<'_, str>> {
    let (body, anatomy) = (request.body(), request.anatomy());
    let last =
        anatomy.messages.iter().take(DIRECTORY_MESSAGES).map(|message| message.pieces.end).max().unwrap_or(0);
    let pieces = anatomy.pieces.iter().enumerate().take(last);
    let spoken = pieces.filter(|(index, _)| anatomy.layer(*index) != Layer::Tools);
    let mut texts = spoken.map(|(_, piece)| piece.text().unwrap_or_else(|| piece.span.clone()));
    texts.find_map(|span| {
        let text = &body[span];
        let mentions = |words: &&'static [u8]| {
            let length = words.len();
            memmem::find_iter(text, *words).take(MENTIONS_MAX).map(move |at| at + length)
        };
        let mut starts: Vec<usize> = DIRECTORY.iter().flat_map(mentions).collect();
        starts.sort_unstable();
        starts.into_iter().find_map(|start| path_in(&text[start..])).map(Cow::Owned)
    })
}

/// The path that a text within a JSON string begins with. Words that only explain what a directory is for do not count.
fn path_in(text: &[u8]) -> Option<String> {
    let line = &text[..text.len().min(PATH_BYTES_MAX)];
    // Up to the end of the string, or to the escape that ends the line.
    let end = line.iter().position(|byte| matches!(byte, b'"' | b'<'));
    let end = memmem::find(line, b"\\n").into_iter().chain(end).min()?;
    let quoted = [b"\"", &line[..end], b"\""].concat();
    let path = json::text(&quoted, &(0..quoted.len()))?.trim().to_owned();
    let has_drive = path.as_bytes().get(1) == Some(&b':');
    (path.starts_with(['/', '~', '\\']) || has_drive).then_some(path)
}
