//! Reasons in words.

use crate::engine::words::Refusal;

/// Why a child was not forked, as a clause.
pub fn in_words(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Ambiguous => "they, or their parent, can be read in two ways",
        Refusal::Nested => "they are the children of a child, or forked already",
        Refusal::UnknownTool => "their tool is not known to start agents (fork.tools)",
        Refusal::Holdout => "they are held out to compare forked children with (fork.share)",
        Refusal::StoodDown => "forking has cost more than it saved, or was refused, and stands down for now",
        Refusal::Late => "they came before their parent's answer had ended (fork.late)",
        Refusal::Unsealed => "they came before their own call was known",
        Refusal::Prefill => "their parent's history ends with words put into the model's mouth",
        Refusal::Shape => "their first message cannot be taken apart without loss",
        Refusal::Compaction => "they ask for a summary, or begin with one, which nothing may come before",
        Refusal::Version => "they ask for another version of the API than their parent",
        Refusal::Model => "they ask for another model than their parent",
        Refusal::NoTools => "they have no tools",
        Refusal::ToolsDiffer => "they have tools that their parent lacks",
        Refusal::ToolsSubset => "they have fewer tools than their parent (fork.tools_policy)",
        Refusal::Thinking => "their thinking differs from their parent's",
        Refusal::ToolChoice => "their tool_choice differs from their parent's",
        Refusal::OutputConfig => "their output_config differs from their parent's",
        Refusal::OutputFormat => "their output_format differs from their parent's",
        Refusal::ContextManagement => "their context_management differs from their parent's",
        Refusal::Speed => "their speed differs from their parent's",
        Refusal::McpServers => "their mcp_servers differ from their parent's",
        Refusal::Container => "their container differs from their parent's",
        Refusal::UnknownField => {
            "a field that may shape the prompt differs from their parent's (fork.inherit)"
        }
        Refusal::Media => "they show an image or a document that their parent lacks",
        Refusal::Specialist => "they are agents of a special kind (fork.general_types)",
        Refusal::Teammate => "they join a team",
        Refusal::Isolation => "they run elsewhere",
        Refusal::Coordinator => "their session is excluded (fork.exclude_sessions)",
        Refusal::TooLarge => "forked they would exceed what the upstream takes",
        Refusal::Window => "forked they would not fit into the model's window",
        Refusal::ContextShare => {
            "forked they would fill too much of the model's window (fork.max_context_share)"
        }
        Refusal::Cost => {
            "forked they would cost more than allowed (fork.max_cost_ratio, fork.context_premium)"
        }
        Refusal::Unlearned => {
            "nothing is known yet of how such children live, and some would be dearer forked"
        }
        Refusal::CostUnknown => "nobody can tell what they would cost forked",
        Refusal::StoreFull => "children that still work fill the store (store.max_bytes)",
        Refusal::Internal => "a bug of forkpoint; they went out unforked",
    }
}
