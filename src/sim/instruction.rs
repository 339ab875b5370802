//! How a test or a demo tells the scripted model what to do: a line in the user's text.
//!
//! # Grammar
//!
//! ```text
//! [[sim:VERB key=value … | instruction for each child]]
//!
//! fan_out   n=3 tool=NAME field=NAME words=40 alike=false short=false type=NAME rounds=1
//! tools     turns=1 calls=1 tool=NAME words=30
//! text      words=30
//! thinking  words=30                      a text answer with thinking before it
//! empty                                   an end_turn without content
//! any verb  thinking=WORDS  pace_ms=0  first_ms=0
//! ```
//!
//! - The newest user message with an instruction decides; of several in one message the last. Assistant messages
//!   after it count the steps: `fan_out` calls its children in the first `rounds` steps and then reports, `tools`
//!   calls tools for `turns` steps and then answers.
//! - The text after `|` is put into every child's directive, as that child's own instruction. It may have a `|`
//!   of its own: `[[sim:fan_out n=3 | fan_out n=2 | tools turns=1]]` is a fan-out of fan-outs.
//! - Values with spaces are quoted: `tool="my tool"`. Unknown keys and verbs are ignored: a model never fails.
//! - Without an instruction the answer is a short text.

/// Bounds, so that one line of text cannot keep a simulator busy.
const MOST_CHILDREN: u64 = 64;
const MOST_WORDS: u64 = 50_000;
const MOST_TURNS: u64 = 1_000;
const MOST_WAIT_MS: u64 = 60_000;

/// An instruction to the scripted model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction {
    pub act: Act,
    /// Words of thinking before the answer, if the request allows thinking.
    pub thinking_words: usize,
    /// Between two events of the stream.
    pub pace_ms: Option<u64>,
    /// Added to the time to the first token.
    pub first_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    FanOut(FanOut),
    Tools { turns: u64, calls: u64, tool: Option<String>, words: usize },
    Text { words: usize },
    Empty,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FanOut {
    pub children: u64,
    pub tool: Option<String>,
    /// The input member that carries the directive.
    pub field: Option<String>,
    pub words: usize,
    pub likeness: Likeness,
    /// The value of `subagent_type`, when asked for.
    pub agent_type: Option<String>,
    pub rounds: u64,
    /// The instruction each child finds in its directive.
    pub child: Option<String>,
}

/// How siblings' directives resemble each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Likeness {
    /// Different from the first word on.
    Own,
    /// One template: only the number and the area differ.
    Alike,
    /// Too short to be recognised as a directive.
    Short,
}

impl Default for Instruction {
    fn default() -> Self {
        Instruction { act: Act::Text { words: 12 }, thinking_words: 0, pace_ms: None, first_ms: 0 }
    }
}

impl Instruction {
    /// The last instruction in a text.
    pub fn find(text: &str) -> Option<Instruction> {
        let (_, after) = text.rsplit_once("[[sim:")?;
        let (inside, _) = after.split_once("]]")?;
        Some(Instruction::parse(inside))
    }

    fn parse(inside: &str) -> Instruction {
        let (own, child) = match inside.split_once('|') {
            Some((own, child)) => (own, Some(child.trim().to_owned())),
            None => (inside, None),
        };
        let parts = split(own);
        let verb = parts.first().map(String::as_str).unwrap_or_default();
        let pairs: Vec<(&str, &str)> = parts.iter().skip(1).filter_map(|part| part.split_once('=')).collect();
        let value = |key: &str| pairs.iter().rev().find(|(known, _)| *known == key).map(|(_, value)| *value);
        let named = |key: &str| value(key).map(str::to_owned);
        let number = |key: &str, default: u64, most: u64| {
            value(key).and_then(|value| value.parse().ok()).unwrap_or(default).min(most)
        };
        let words = |default: u64| number("words", default, MOST_WORDS) as usize;
        let is_set = |key: &str| value(key) == Some("true");
        let act = match verb {
            "fan_out" => Act::FanOut(FanOut {
                children: number("n", 3, MOST_CHILDREN),
                tool: named("tool"),
                field: named("field"),
                words: words(40),
                likeness: if is_set("short") {
                    Likeness::Short
                } else if is_set("alike") {
                    Likeness::Alike
                } else {
                    Likeness::Own
                },
                agent_type: named("type"),
                rounds: number("rounds", 1, MOST_TURNS),
                child,
            }),
            "tools" => Act::Tools {
                turns: number("turns", 1, MOST_TURNS),
                calls: number("calls", 1, MOST_CHILDREN),
                tool: named("tool"),
                words: words(30),
            },
            "empty" => Act::Empty,
            _ => Act::Text { words: words(30) },
        };
        let thinking_default = if verb == "thinking" { 20 } else { 0 };
        Instruction {
            act,
            thinking_words: match value("thinking") {
                Some("true") => 20,
                _ => number("thinking", thinking_default, MOST_WORDS) as usize,
            },
            pace_ms: value("pace_ms")
                .and_then(|value| value.parse().ok())
                .map(|ms: u64| ms.min(MOST_WAIT_MS)),
            first_ms: number("first_ms", 0, MOST_WAIT_MS),
        }
    }
}

/// Splits at white space, except inside double quotes; the quotes go.
fn split(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut is_quoted = false;
    for letter in text.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            _ if letter.is_whitespace() && !is_quoted => parts.push(std::mem::take(&mut part)),
            _ => part.push(letter),
        }
    }
    parts.push(part);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fan_out(text: &str) -> FanOut {
        match Instruction::find(text).unwrap().act {
            Act::FanOut(fan_out) => fan_out,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_instruction_is_read_out_of_the_text_around_it() {
        let found =
            fan_out(r#"Survey it. [[sim:fan_out n=5 tool="My Agent" field=prompt alike=true words=80]] Go."#);
        assert_eq!((found.children, found.words, found.likeness), (5, 80, Likeness::Alike));
        assert_eq!((found.tool.as_deref(), found.field.as_deref()), (Some("My Agent"), Some("prompt")));
    }

    #[test]
    fn the_last_instruction_of_a_text_wins() {
        let found = Instruction::find("[[sim:fan_out n=5]] and then [[sim:text words=7]]").unwrap();
        assert_eq!(found.act, Act::Text { words: 7 });
    }

    #[test]
    fn what_stands_behind_the_bar_is_the_childs_own() {
        let found = fan_out("[[sim:fan_out n=3 | fan_out n=2 | tools turns=1]]");
        assert_eq!(found.child.as_deref(), Some("fan_out n=2 | tools turns=1"));
        let nested = fan_out(&format!("[[sim:{}]]", found.child.unwrap()));
        assert_eq!((nested.children, nested.child.as_deref()), (2, Some("tools turns=1")));
    }

    #[test]
    fn numbers_are_bounded_and_nonsense_is_a_text_answer() {
        assert_eq!(fan_out("[[sim:fan_out n=99999999]]").children, MOST_CHILDREN);
        assert_eq!(fan_out("[[sim:fan_out n=-4]]").children, 3);
        let nonsense = Instruction::find("[[sim:dance x = \" | ]]").unwrap();
        assert_eq!(nonsense.act, Act::Text { words: 30 });
        for text in ["no instruction", "[[sim:text", "]] [[sim:"] {
            assert_eq!(Instruction::find(text), None, "{text}");
        }
    }
}
