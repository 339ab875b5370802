//! The one reason of a cache break.

use crate::engine::cache::divergence::Divergence;
use crate::engine::words::{BreakCause, DivergenceKind, Layer, Parameter};

impl BreakCause {
    pub(super) fn of_divergence(divergence: &Divergence) -> BreakCause {
        match (divergence.kind, divergence.layer) {
            (DivergenceKind::Spelling, _) => BreakCause::Spelling,
            (_, Layer::Model) => BreakCause::Model,
            (_, Layer::Tools) => BreakCause::Tools,
            (_, Layer::System) => BreakCause::System,
            (_, Layer::Messages) => BreakCause::Messages,
        }
    }

    pub(super) fn of_parameter(parameter: Parameter) -> BreakCause {
        match parameter {
            Parameter::Speed => BreakCause::System,
            Parameter::Thinking | Parameter::OutputConfig => BreakCause::Thinking,
            Parameter::ToolChoice => BreakCause::ToolChoice,
            Parameter::Betas => BreakCause::Betas,
            Parameter::ContextManagement | Parameter::Image => BreakCause::Messages,
        }
    }
}
