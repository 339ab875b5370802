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
/// printed, and are their spelling in a record; what else one needs is derived on top of it.
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

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let spelling = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(from)?;
                let known = $name::ALL.into_iter().find(|variant| variant.as_str() == spelling);
                known.ok_or_else(|| serde::de::Error::custom("a word that is not known"))
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
pub mod clauses;

pub use cache::{
    Baseline, BreakCause, BreakpointPlace, Carrier, CostUnit, DiagnosisVerdict, DivergenceKind, Layer,
    Origin, Parameter, SightingClass, Ttl, VolatileKind,
};
pub use exchange::{Ending, Endpoint, GateOutcome, Recall, StopReason, UpstreamRefusal};
pub use family::{Arm, FanOutDropped, Rank, Spawning, StandDown, WhyPlain};
pub use ids::{
    BodyDigest, DigestHasher, DigestMap, Hex, IdDigest, MOMENT_MEMBER, Moment, TenantId, Ticket, digits,
    first,
};
pub use plan::{ForkNote, Mode, Plan, Reason, Refusal, Role, Skip, Step, Why};
pub use records::{RecordKind, StoreError, StoreOp};

pub(crate) use shown_enums;
