//! The traffic that is played: a parent, its fan-outs and their children.

use std::time::Duration;

/// Fan-outs of one parent, one after another.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub fan_outs: u16,
    /// The time between two fan-outs, which is skipped and not waited for.
    pub pause: Duration,
    pub children: u16,
    /// How often a child calls tools before it reports.
    pub turns: u16,
    pub lives: Lives,
    /// The parent's context: tools, instructions and history.
    pub context_tokens: u32,
    /// Of that the tools, which the children bring too.
    pub tool_tokens: u32,
    /// A sub-agent's own instructions.
    pub child_tokens: u32,
    pub personas: Personas,
    /// Words of a directive, beside a sentence that opens it.
    pub directive_words: u16,
    pub history: History,
    pub client: Client,
    /// Prompts of different projects share nothing. They have a number from 1; 0 is the only one of its kind.
    pub project: u32,
}

/// How long siblings live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lives {
    Equal,
    /// Every second child calls tools once less.
    Uneven,
}

/// The instructions of siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personas {
    /// All siblings have the same.
    Shared,
    /// Each has its own, different from the first words on.
    Own,
}

/// The history of the parent before it fans out, and what it means to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// Text that no child asks for again.
    Told,
    /// Three files that the parent has read. A child that is not forked first reads them again, in one turn; a forked
    /// child has them before it.
    Files,
}

/// The client's own care for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Client {
    /// Marks its system prompt and its newest message, and always spells alike
    Careful,
    /// Marks nothing, and shuffles its tools
    Naive,
}

impl Client {
    pub fn name(self) -> &'static str {
        match self {
            Client::Careful => "careful",
            Client::Naive => "naive",
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Client::Careful => "The client marks its system prompt and its newest message for the cache.",
            Client::Naive => "The client marks nothing for the cache, and shuffles its tools.",
        }
    }
}

impl Workload {
    /// One fan-out.
    pub const SINGLE: Workload = Workload {
        fan_outs: 1,
        pause: Duration::ZERO,
        children: 5,
        turns: 2,
        lives: Lives::Equal,
        context_tokens: 48_500,
        tool_tokens: 20_000,
        child_tokens: 2_000,
        personas: Personas::Shared,
        directive_words: 60,
        history: History::Told,
        client: Client::Careful,
        project: 0,
    };

    /// The most requests that it takes: the parent's two of each fan-out, and each child's.
    pub fn requests(&self) -> usize {
        let children: usize = (1..=self.children).map(|number| usize::from(self.calls(number)) + 1).sum();
        let again = usize::from(self.children * self.rereading_turns());
        usize::from(self.fan_outs) * (2 + children + again)
    }

    /// The turns that a child spends on reading what its parent has read, unless it is forked.
    pub fn rereading_turns(&self) -> u16 {
        u16::from(self.history == History::Files)
    }

    /// The calls in one turn of a child: as many as there are files to read again.
    pub fn calls_per_turn(&self) -> usize {
        match self.history {
            History::Told => 1,
            History::Files => super::agent::FILES.len(),
        }
    }

    /// How often the child with this number, from 1, calls tools for its own work.
    pub fn calls(&self, number: u16) -> u16 {
        let is_short = self.lives == Lives::Uneven && number.is_multiple_of(2);
        self.turns.saturating_sub(u16::from(is_short))
    }

    /// The traffic of a scenario with this name in words, in lines of 80 characters.
    pub fn describe(&self, name: &str) -> String {
        let requests = match (self.lives, self.turns + 1) {
            (Lives::Equal, 1) => "one request".to_owned(),
            (Lives::Equal, requests) => format!("{requests} requests"),
            (Lives::Uneven, requests) => format!("{} or {requests} requests", self.turns),
        };
        let times = match (self.fan_outs, self.pause.as_secs() / 60) {
            (1, _) => "once".to_owned(),
            (fan_outs, 0) => format!("{fan_outs} times in a row"),
            (fan_outs, minutes) => format!("{fan_outs} times, {minutes} minutes apart"),
        };
        let instructions = match self.personas {
            Personas::Shared => "that all of them share",
            Personas::Own => "of its own",
        };
        let history = match self.history {
            History::Told => "",
            History::Files => {
                " Modelled: a child that is not forked first reads three files again that its parent has read, in \
                 one turn; a forked child does not. Otherwise they do the same."
            }
        };
        super::table::wrapped(
            "",
            &format!(
                "{name}: a parent of {} tokens fans out {times}, to {} children at once. Each has {} tokens of tools \
                 and {} of instructions {instructions}, and makes {requests}. {}{history}",
                super::grouped(self.context_tokens.into()),
                self.children,
                super::grouped(self.tool_tokens.into()),
                super::grouped(self.child_tokens.into()),
                self.client.describe(),
            ),
            "",
        )
    }
}
