//! The one reason of a cache break.

use crate::engine::anatomy::Layer;
use crate::engine::divergence::{Divergence, Kind};
use crate::engine::entry::Parameter;

/// Why fewer tokens were read than predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A tool was changed, added, removed or moved.
    Tools,
    /// The system prompt or the speed changed.
    System,
    Model,
    /// Thinking or the effort changed.
    Thinking,
    ToolChoice,
    /// Another set of betas.
    Betas,
    /// The history was changed, the first image came or the last went, or context management changed.
    Messages,
    /// The same meaning in other bytes.
    Spelling,
    /// The entry's lifetime was over.
    TtlExpired,
    /// The prefix is shorter than the model caches.
    BelowMinimum,
    /// No breakpoint stands close enough behind the entry.
    Lookback,
    /// The entry's writer had not begun to answer.
    NotYetVisible,
    Unknown,
}

impl Cause {
    pub const ALL: [Cause; 13] = [
        Cause::Tools,
        Cause::System,
        Cause::Model,
        Cause::Thinking,
        Cause::ToolChoice,
        Cause::Betas,
        Cause::Messages,
        Cause::Spelling,
        Cause::TtlExpired,
        Cause::BelowMinimum,
        Cause::Lookback,
        Cause::NotYetVisible,
        Cause::Unknown,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Tools => "tools",
            Cause::System => "system",
            Cause::Model => "model",
            Cause::Thinking => "thinking",
            Cause::ToolChoice => "tool_choice",
            Cause::Betas => "betas",
            Cause::Messages => "messages",
            Cause::Spelling => "spelling",
            Cause::TtlExpired => "ttl_expired",
            Cause::BelowMinimum => "below_minimum",
            Cause::Lookback => "lookback",
            Cause::NotYetVisible => "not_yet_visible",
            Cause::Unknown => "unknown",
        }
    }

    pub(super) fn of_divergence(divergence: &Divergence) -> Cause {
        match (divergence.kind, divergence.layer) {
            (Kind::Spelling, _) => Cause::Spelling,
            (_, Layer::Model) => Cause::Model,
            (_, Layer::Tools) => Cause::Tools,
            (_, Layer::System) => Cause::System,
            (_, Layer::Messages) => Cause::Messages,
        }
    }

    pub(super) fn of_parameter(parameter: Parameter) -> Cause {
        match parameter {
            Parameter::Speed => Cause::System,
            Parameter::Thinking | Parameter::OutputConfig => Cause::Thinking,
            Parameter::ToolChoice => Cause::ToolChoice,
            Parameter::Betas => Cause::Betas,
            Parameter::ContextManagement | Parameter::Image => Cause::Messages,
        }
    }
}
