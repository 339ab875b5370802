//! Why a child is not forked.

use crate::engine::json::Malformed;

/// Each is a metric label and a log field; the child is aligned and gated all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Readers could disagree about what the child or its parent says.
    Ambiguous,
    /// It is a forked child already, or its parent is.
    Nested,
    /// The tool that started it is not known to start agents.
    UnknownTool,
    /// The fan-out belongs to the holdout.
    Holdout,
    /// Forking has cost more or answered less than foreseen, and was stopped.
    StoodDown,
    /// The parent still streams, and `fork.late` lets nobody stand on a part of its turn.
    Late,
    /// The parent still streams, and the child's own call is not known.
    Unsealed,
    /// The parent's history ends with words that were put into the model's mouth.
    Prefill,
    /// The child's first message is none that can be taken apart without loss.
    Shape,
    Model,
    /// It has no tools at all.
    NoTools,
    /// It has a tool that its parent lacks.
    ToolsDiffer,
    /// It has fewer tools than its parent, and nobody is known to keep it to them.
    ToolsSubset,
    Thinking,
    ToolChoice,
    OutputConfig,
    OutputFormat,
    ContextManagement,
    Speed,
    McpServers,
    Container,
    /// A field that we do not know, and that may shape the prompt, differs.
    UnknownField,
    /// It shows an image or a document that its parent lacks.
    Media,
    /// The call asks for an agent of a special kind.
    Specialist,
    /// The call adds somebody to a team.
    Teammate,
    /// The call runs its agent elsewhere.
    Isolation,
    /// The session coordinates others.
    Coordinator,
    /// The body would exceed what the upstream takes, or what we read.
    TooLarge,
    /// Prompt and answer would exceed the model's window.
    Window,
    /// The prompt would fill more of the window than `fork.max_context_share`.
    ContextShare,
    /// It would cost more than `fork.max_cost_ratio` allows.
    Cost,
    /// What it would cost cannot be told.
    CostUnknown,
    /// The prefixes of children that work take all that `store.max_bytes` and `store.tenant_share` leave.
    StoreFull,
    /// A bug of ours.
    Internal,
}

impl Refusal {
    pub const ALL: [Refusal; 34] = [
        Refusal::Ambiguous,
        Refusal::Nested,
        Refusal::UnknownTool,
        Refusal::Holdout,
        Refusal::StoodDown,
        Refusal::Late,
        Refusal::Unsealed,
        Refusal::Prefill,
        Refusal::Shape,
        Refusal::Model,
        Refusal::NoTools,
        Refusal::ToolsDiffer,
        Refusal::ToolsSubset,
        Refusal::Thinking,
        Refusal::ToolChoice,
        Refusal::OutputConfig,
        Refusal::OutputFormat,
        Refusal::ContextManagement,
        Refusal::Speed,
        Refusal::McpServers,
        Refusal::Container,
        Refusal::UnknownField,
        Refusal::Media,
        Refusal::Specialist,
        Refusal::Teammate,
        Refusal::Isolation,
        Refusal::Coordinator,
        Refusal::TooLarge,
        Refusal::Window,
        Refusal::ContextShare,
        Refusal::Cost,
        Refusal::CostUnknown,
        Refusal::StoreFull,
        Refusal::Internal,
    ];

    /// Why what was composed cannot be read again.
    pub fn unreadable(why: Malformed) -> Refusal {
        match why {
            // Parent and child are each within bounds, and together beyond them.
            Malformed::TooMany | Malformed::TooDeep => Refusal::TooLarge,
            Malformed::At(_) | Malformed::Truncated => Refusal::Internal,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::Ambiguous => "ambiguous",
            Refusal::Nested => "nested",
            Refusal::UnknownTool => "unknown_tool",
            Refusal::Holdout => "holdout",
            Refusal::StoodDown => "stood_down",
            Refusal::Late => "late",
            Refusal::Unsealed => "unsealed",
            Refusal::Prefill => "prefill",
            Refusal::Shape => "shape",
            Refusal::Model => "model",
            Refusal::NoTools => "no_tools",
            Refusal::ToolsDiffer => "tools_differ",
            Refusal::ToolsSubset => "tools_subset",
            Refusal::Thinking => "thinking",
            Refusal::ToolChoice => "tool_choice",
            Refusal::OutputConfig => "output_config",
            Refusal::OutputFormat => "output_format",
            Refusal::ContextManagement => "context_management",
            Refusal::Speed => "speed",
            Refusal::McpServers => "mcp_servers",
            Refusal::Container => "container",
            Refusal::UnknownField => "unknown_field",
            Refusal::Media => "media",
            Refusal::Specialist => "specialist",
            Refusal::Teammate => "teammate",
            Refusal::Isolation => "isolation",
            Refusal::Coordinator => "coordinator",
            Refusal::TooLarge => "too_large",
            Refusal::Window => "window",
            Refusal::ContextShare => "context_share",
            Refusal::Cost => "cost",
            Refusal::CostUnknown => "cost_unknown",
            Refusal::StoreFull => "store_full",
            Refusal::Internal => "internal",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_together_is_too_large_and_no_bug() {
        for (why, refusal) in [
            (Malformed::TooMany, Refusal::TooLarge),
            (Malformed::TooDeep, Refusal::TooLarge),
            (Malformed::At(7), Refusal::Internal),
            (Malformed::Truncated, Refusal::Internal),
        ] {
            assert_eq!(Refusal::unreadable(why), refusal, "{why:?}");
        }
    }
}
