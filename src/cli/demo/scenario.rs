//! The scenarios, from a session to a fan-out that is better left alone.

use std::time::Duration;

use super::workload::{Client, History, Lives, Personas, Workload};

/// Longer than the five minutes that a cache entry lives.
const TEN_MINUTES: Duration = Duration::from_secs(600);
/// About 200 tokens, as the simulator counts them.
const DIRECTIVE_WORDS: u16 = 105;

/// Traffic with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Three fan-outs ten minutes apart, to five children of two or three requests
    Session,
    /// The well-known sum: a 48,500-token parent, five children with system prompts of their own, 200-token directives
    Single,
    /// Five fan-outs in a row to three children of 14,000 tokens: one fan-out alone flatters
    Series,
    /// Three fan-outs to children that, unless forked, first read three files of their parent's again (modelled)
    Reread,
    /// Three children of 37,000 tokens under a parent of 100,000
    #[value(name = "large-3")]
    Large3,
    /// Eight of them
    #[value(name = "large-8")]
    Large8,
    /// Five children of 41,000 tokens, nearly all of it tools, from a client that marks nothing
    ToolHeavy,
    /// Five children of 12,000 tokens under a parent of 46,000, from a client that marks nothing
    Medium,
    /// Five children of 3,000 tokens under a parent of 100,000
    Small,
}

impl Scenario {
    pub const ALL: [Scenario; 9] = [
        Scenario::Session,
        Scenario::Single,
        Scenario::Series,
        Scenario::Reread,
        Scenario::Large3,
        Scenario::Large8,
        Scenario::ToolHeavy,
        Scenario::Medium,
        Scenario::Small,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Scenario::Session => "session",
            Scenario::Single => "single",
            Scenario::Series => "series",
            Scenario::Reread => "reread",
            Scenario::Large3 => "large-3",
            Scenario::Large8 => "large-8",
            Scenario::ToolHeavy => "tool-heavy",
            Scenario::Medium => "medium",
            Scenario::Small => "small",
        }
    }

    pub fn workload(self) -> Workload {
        let single = Workload::SINGLE;
        let session = Workload { fan_outs: 3, pause: TEN_MINUTES, ..single };
        let large = Workload { context_tokens: 100_000, tool_tokens: 35_000, ..single };
        let naive = Workload { context_tokens: 46_000, client: Client::Naive, ..single };
        match self {
            Scenario::Session => Workload { lives: Lives::Uneven, ..session },
            Scenario::Single => {
                Workload { personas: Personas::Own, directive_words: DIRECTIVE_WORDS, ..single }
            }
            Scenario::Series => Workload {
                fan_outs: 5,
                children: 3,
                turns: 1,
                context_tokens: 34_000,
                tool_tokens: 12_000,
                ..single
            },
            Scenario::Reread => Workload { history: History::Files, ..session },
            Scenario::Large3 => Workload { children: 3, ..large },
            Scenario::Large8 => Workload { children: 8, ..large },
            Scenario::ToolHeavy => Workload { turns: 4, tool_tokens: 39_000, ..naive },
            Scenario::Medium => Workload { tool_tokens: 10_000, ..naive },
            Scenario::Small => Workload { tool_tokens: 2_000, child_tokens: 1_000, ..large },
        }
    }
}
