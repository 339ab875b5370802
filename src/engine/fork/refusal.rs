//! Why a child is not forked.

use crate::engine::request::json::Malformed;
use crate::engine::words::Refusal;

impl Refusal {
    /// Returns why what was composed cannot be read again.
    pub fn unreadable(why: Malformed) -> Refusal {
        match why {
            // Parent and child are each within bounds, and together beyond them.
            Malformed::TooMany | Malformed::TooDeep => Refusal::TooLarge,
            Malformed::At(_) | Malformed::Truncated => Refusal::Internal,
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
