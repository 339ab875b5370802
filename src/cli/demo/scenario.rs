//! The fan-outs that are played, from the main job to one that is better left alone.

use super::agent::{Client, Workload};

/// A fan-out with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Five children of 22,000 tokens under a parent of 48,500
    Main,
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
    /// Five children of 3,000 tokens under a parent of 100,000: forkpoint declines
    Small,
}

impl Scenario {
    pub const ALL: [Scenario; 6] = [
        Scenario::Main,
        Scenario::Large3,
        Scenario::Large8,
        Scenario::ToolHeavy,
        Scenario::Medium,
        Scenario::Small,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Scenario::Main => "main",
            Scenario::Large3 => "large-3",
            Scenario::Large8 => "large-8",
            Scenario::ToolHeavy => "tool-heavy",
            Scenario::Medium => "medium",
            Scenario::Small => "small",
        }
    }

    pub fn workload(self) -> Workload {
        let main = Workload {
            children: 5,
            turns: 2,
            context_tokens: 48_500,
            tool_tokens: 20_000,
            child_tokens: 2_000,
            client: Client::Careful,
        };
        let large = Workload { context_tokens: 100_000, tool_tokens: 35_000, ..main };
        let naive = Workload { context_tokens: 46_000, client: Client::Naive, ..main };
        match self {
            Scenario::Main => main,
            Scenario::Large3 => Workload { children: 3, ..large },
            Scenario::Large8 => Workload { children: 8, ..large },
            Scenario::ToolHeavy => Workload { turns: 4, tool_tokens: 39_000, ..naive },
            Scenario::Medium => Workload { tool_tokens: 10_000, ..naive },
            Scenario::Small => Workload { tool_tokens: 2_000, child_tokens: 1_000, ..large },
        }
    }
}
