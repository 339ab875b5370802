//! The shared words: every enum that is shown, the ids, and points in time.
//!
//! A variant that reaches a log line, a metric label, a header or the API has one spelling, its `as_str()`. It is
//! written beside the variant, in [`shown_enums!`], so that no variant can lack one or be missing in `ALL`.
//!
//! The rule: nothing of this crate is imported here, so that everybody can import this.

/// Enums that are shown. Each variant has its spelling behind it:
///
/// ```text
/// shown_enums! {
///     /// The size of a thing.
///     pub enum Size {
///         Small = "small",
///         /// Larger than most.
///         Large = "large",
///     }
/// }
/// ```
///
/// Each has `ALL`, its variants in their order, and `as_str`. All are small values that can be compared, hashed and
/// printed; what else one needs is derived on top of it.
macro_rules! shown_enums {
    ($(
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $($(#[$variant_attribute:meta])* $variant:ident = $spelling:literal,)+
        }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_attribute])* $variant,)+
        }

        impl $name {
            /// Every variant, in the order of their definition.
            pub const ALL: [$name; [$($spelling),+].len()] = [$($name::$variant),+];

            /// The spelling in logs, metrics, headers and the API.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $spelling,)+
                }
            }
        }
    )+};
}

mod plan;
mod exchange;
mod cache;
mod family;
mod ids;
mod records;

pub use cache::{
    Baseline, BreakCause, BreakpointPlace, Carrier, CostUnit, DiagnosisVerdict, DivergenceKind, Layer,
    Origin, Parameter, SightingClass, Ttl, VolatileKind,
};
pub use exchange::{Ending, Endpoint, GateOutcome, Recall, StopReason, UpstreamRefusal};
pub use family::{Arm, FanOutDropped, Rank, Spawning, StandDown, WhyPlain};
pub use ids::{BodyDigest, IdDigest, Moment, TenantId, Ticket, first};
pub use plan::{ForkNote, Mode, Plan, Reason, Refusal, Role, Skip, Step, Why};
pub use records::{RecordKind, StoreError};

pub(crate) use shown_enums;
