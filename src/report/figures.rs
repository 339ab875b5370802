//! Numbers, times and names as people read them in a terminal.

use std::time::Duration;

/// Writes a number with commas between its thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Writes dollars, with more digits for small sums.
pub fn usd(dollars: f64) -> String {
    let size = dollars.abs();
    let is_small = (size * 1e4).round() < 1e5;
    let text = if is_small { format!("{size:.4}") } else { format!("{size:.2}") };
    let is_zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
    let sign = if dollars < 0.0 && !is_zero { "-" } else { "" };
    format!("{sign}${text}")
}

/// Writes a part of a whole in per cent: all of it only if nothing is missing. Nothing can be said of a whole of
/// nothing.
pub fn percent(part: f64, whole: f64) -> Option<String> {
    if whole <= 0.0 {
        return None;
    }
    let share = 100.0 * part / whole;
    let tenths = if share > 99.0 { (10.0 * share).floor() } else { (10.0 * share).round() };
    let has_tenths = tenths.abs() < 10.0 || (share > 99.5 && share < 100.0);
    let text = if has_tenths { format!("{:.1}", tenths / 10.0) } else { format!("{share:.0}") };
    Some(match text.as_str() {
        "0.0" | "-0.0" => "0 %".to_owned(),
        text => format!("{text} %"),
    })
}

pub fn duration(time: Duration) -> String {
    if (time.as_secs_f64() * 10.0).round() < 600.0 {
        return format!("{:.1} s", time.as_secs_f64());
    }
    match time.as_secs().max(60) {
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// The most characters of a name that somebody else chose, in a sentence or a table.
pub const NAME_CHARS_MAX: usize = 60;

/// Writes a name that somebody else chose: each character of it is visible, and there are at most so many.
///
/// A terminal would act on control characters, and those that turn the direction of text would reorder its
/// neighbours.
pub fn harmless(name: &str, most: usize) -> String {
    let mut shown = String::new();
    let mut length = 0;
    for char in name.chars() {
        let text = if is_unseen(char) { char.escape_unicode().to_string() } else { char.to_string() };
        length += text.chars().count();
        if length > most {
            while shown.chars().count() >= most.max(1) {
                shown.pop();
            }
            shown.push('…');
            break;
        }
        shown.push_str(&text);
    }
    shown
}

/// Returns true for characters that are not seen, or that change the order or form of those around them.
fn is_unseen(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{ffff}' | '\u{e0000}'..='\u{e0fff}')
        || is_combining(char)
}

/// Returns true for marks that are drawn over the character before them, of which there may be any number.
fn is_combining(char: char) -> bool {
    matches!(char, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_234_567].map(grouped), ["0", "999", "1,234,567"]);
    }

    #[test]
    fn a_loss_is_shown_as_one_and_a_part_of_nothing_not_at_all() {
        assert_eq!([0.0123, -0.004, -0.000_01, 12.5].map(usd), ["$0.0123", "-$0.0040", "$0.0000", "$12.50"]);
        assert_eq!(percent(0.34, 1.0).as_deref(), Some("34 %"));
        assert_eq!(percent(-0.03, 1.0).as_deref(), Some("-3 %"));
        assert_eq!(percent(0.004, 1.0).as_deref(), Some("0.4 %"));
        assert_eq!(percent(-0.000_1, 1.0).as_deref(), Some("0 %"));
        assert_eq!(percent(1.0, 0.0), None);
        let of_thousand =
            [9.7, 99.7, 994.0, 996.0, 999.99, 1000.0].map(|part| percent(part, 1000.0).unwrap());
        assert_eq!(of_thousand, ["1 %", "10 %", "99 %", "99.6 %", "99.9 %", "100 %"]);
    }

    #[test]
    fn a_figure_that_is_rounded_up_has_the_form_of_the_larger_one() {
        assert_eq!([9.999_96, 1.095].map(usd), ["$10.00", "$1.0950"]);
        let times = [59.94, 59.97, 119.6, 3599.7].map(|seconds| duration(Duration::from_secs_f64(seconds)));
        assert_eq!(times, ["59.9 s", "1 min 0 s", "1 min 59 s", "59 min 59 s"]);
    }

    #[test]
    fn hostile_names_are_visible_and_short() {
        assert_eq!(harmless("Agent", 10), "Agent");
        assert_eq!(harmless("a\u{1b}[31m", 20), "a\\u{1b}[31m");
        assert_eq!(harmless("a\u{202e}b", 20), "a\\u{202e}b");
        assert_eq!(harmless("e\u{301}", 20), "e\\u{301}");
        assert_eq!(harmless("abcdef", 4), "abc…");
        assert_eq!(harmless(&"x".repeat(10_000), 40).chars().count(), 40);
        assert_eq!(harmless("ab\u{202e}", 4), "ab…");
    }
}
