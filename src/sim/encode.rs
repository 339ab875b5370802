//! Small notations the wire needs: ids and the time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Letters behind an id's prefix.
const ID_LETTERS: usize = 22;

/// An id in the API's style, e.g. `msg_01AbC…`, that follows from its ingredients.
pub fn id(prefix: &str, seed: u64, ingredients: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.update(prefix.as_bytes());
    for ingredient in ingredients {
        hasher.update(&(ingredient.len() as u64).to_le_bytes());
        hasher.update(ingredient);
    }
    let digest = hasher.finalize();
    let mut id = String::with_capacity(prefix.len() + 2 + ID_LETTERS);
    id.push_str(prefix);
    id.push_str("01");
    id.extend(
        digest.as_bytes().iter().take(ID_LETTERS).map(|byte| char::from(BASE62[usize::from(*byte) % 62])),
    );
    id
}

/// RFC 3339 in UTC, to the second.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days are counted from 0000-03-01, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_in_utc() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_794_787_200), "2026-11-16T00:00:00Z");
    }

    #[test]
    fn ids_follow_from_their_ingredients_and_differ_with_them() {
        assert_eq!(id("msg_", 1, &[b"a"]), id("msg_", 1, &[b"a"]));
        assert_ne!(id("msg_", 1, &[b"a"]), id("msg_", 2, &[b"a"]));
        assert_ne!(id("msg_", 1, &[b"ab"]), id("msg_", 1, &[b"a", b"b"]));
        assert_eq!(id("msg_", 1, &[b"a"]).len(), "msg_01".len() + 22);
    }
}
