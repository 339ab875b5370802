//! Filler: meaningless text that replaces a text, and is equal where the texts are equal.
//!
//! Each word becomes another of the same length and shape: lowercase letters stay lowercase letters, digits stay
//! digits, and characters of two, three or four bytes keep their length. White space and ASCII punctuation are
//! kept. Each letter is shifted by a keyed hash of the letters before it in its word, so the mapping is one-to-one:
//! equal texts stay equal, different texts stay different, a prefix stays a prefix, and words that occur in another
//! text still do.
//!
//! That is enough for replay, and it is no encryption: a reader with much filler who knows what such texts usually
//! say can guess words. The key is never written down.

use std::hash::{DefaultHasher, Hasher};

/// Openings that are kept, because requests are classified by them. Programs write them, not people.
const KEPT_OPENINGS: [&[u8]; 2] = [b"x-anthropic-billing-header", b"<forkpoint-child>"];

/// Makes filler.
#[derive(Clone)]
pub struct Filler {
    /// The state after the key.
    start: DefaultHasher,
}

/// A character of a JSON string, with its spelling.
struct Letter {
    code: u32,
    /// True if it is spelt as one or two `\uXXXX`.
    escaped: bool,
    /// The start and end of its bytes.
    from: usize,
    to: usize,
}

impl Filler {
    pub fn new(key: &[u8; 32]) -> Filler {
        let mut start = DefaultHasher::new();
        start.write(key);
        Filler { start }
    }

    /// Fills the inside of a JSON string, in place.
    pub fn fill(&self, text: &mut [u8]) {
        let kept = KEPT_OPENINGS.iter().find(|opening| text.starts_with(opening));
        let mut at = kept.map_or(0, |opening| opening.len());
        let mut word = self.start.clone();
        while let Some(letter) = letter(text, at) {
            at = letter.to;
            match class(letter.code) {
                None => word = self.start.clone(),
                Some(class) => {
                    let moved = class.moved(letter.code, word.finish());
                    word.write_u32(letter.code);
                    spell(moved, letter.escaped, &mut text[letter.from..letter.to]);
                }
            }
        }
    }

    /// Fills plain text.
    pub fn text(&self, text: &str) -> String {
        // `fill` reads a backslash as the start of an escape. Here it is punctuation.
        let pieces = text.split('\\').map(|piece| {
            let mut piece = piece.as_bytes().to_vec();
            self.fill(&mut piece);
            String::from_utf8(piece).unwrap_or_default()
        });
        pieces.collect::<Vec<_>>().join("\\")
    }

    /// Fills the digits of a number in place, so that it stays a valid number. Exponents are kept.
    pub fn number(&self, number: &mut [u8]) {
        let exponent = number.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(number.len());
        let whole = number.iter().take_while(|byte| !matches!(byte, b'.' | b'e' | b'E')).count();
        let digits_before = number[..whole].iter().filter(|byte| byte.is_ascii_digit()).count();
        let mut hash = self.start.clone();
        let mut first = true;
        for byte in number[..exponent].iter_mut().filter(|byte| byte.is_ascii_digit()) {
            // Only the number zero may begin with a zero.
            let from = if first && digits_before > 1 { b'1' } else { b'0' };
            let size = u32::from(b'9' - from) + 1;
            let class = Class { start: u32::from(from), size };
            let moved = class.moved(u32::from(*byte), hash.finish());
            hash.write_u8(*byte);
            *byte = moved as u8;
            first = false;
        }
    }
}

/// A range of characters that may replace each other: each of their spellings has the same length.
#[derive(Clone, Copy)]
struct Class {
    start: u32,
    size: u32,
}

/// The first code point that is no character, and the number of them.
const SURROGATES: u32 = 0xD800;
const SURROGATES_SIZE: u32 = 0x800;

impl Class {
    /// Returns the character that replaces `code` after letters with this hash.
    fn moved(self, code: u32, hash: u64) -> u32 {
        let spans_gap = self.start < SURROGATES && self.start + self.size > SURROGATES;
        let shut = |code: u32| if spans_gap && code > SURROGATES { code - SURROGATES_SIZE } else { code };
        let open = |code: u32| if spans_gap && code >= SURROGATES { code + SURROGATES_SIZE } else { code };
        let step = (hash % u64::from(self.size)) as u32;
        open(self.start + (shut(code) - self.start + step) % self.size)
    }
}

/// Returns the class of a character, or `None` if it is kept: control characters, white space and ASCII punctuation.
fn class(code: u32) -> Option<Class> {
    let (start, size) = match code {
        0x30..=0x39 => (0x30, 10),
        0x41..=0x5A => (0x41, 26),
        0x61..=0x7A => (0x61, 26),
        0x80..=0x7FF => (0x80, 0x780),
        0x800..=0xD7FF | 0xE000..=0xFFFF => (0x800, 0xF800 - SURROGATES_SIZE),
        0x1_0000..=0x10_FFFF => (0x1_0000, 0x10_0000),
        _ => return None,
    };
    Some(Class { start, size })
}

/// Returns the character at `at`. Bytes that cannot be read are returned as a character that is kept.
fn letter(text: &[u8], at: usize) -> Option<Letter> {
    let first = *text.get(at)?;
    let found = |code: u32, escaped: bool, bytes: usize| {
        Some(Letter { code, escaped, from: at, to: (at + bytes).min(text.len()) })
    };
    if first == b'\\' {
        return match text.get(at + 1) {
            Some(b'u') => match (hex(text, at + 2), hex(text, at + 8)) {
                (Some(high @ 0xD800..=0xDBFF), Some(low @ 0xDC00..=0xDFFF))
                    if text.get(at + 6..at + 8) == Some(b"\\u") =>
                {
                    found(0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00), true, 12)
                }
                (Some(code @ 0xD800..=0xDFFF), _) => found(code, true, 6),
                (Some(code), _) => found(code, true, 6),
                (None, _) => found(0, true, 2),
            },
            _ => found(0, true, 2),
        };
    }
    let bytes = match first {
        0x00..=0x7F => return found(u32::from(first), false, 1),
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        _ => 4,
    };
    let read = text.get(at..at + bytes).and_then(|bytes| std::str::from_utf8(bytes).ok());
    match read.and_then(|read| read.chars().next()) {
        Some(character) => found(u32::from(character), false, bytes),
        None => found(0, false, 1),
    }
}

fn hex(text: &[u8], at: usize) -> Option<u32> {
    let digits = std::str::from_utf8(text.get(at..at + 4)?).ok()?;
    u32::from_str_radix(digits, 16).ok()
}

/// Writes a character in the spelling of the one that it replaces, which has the same length.
fn spell(code: u32, escaped: bool, place: &mut [u8]) {
    let Some(character) = char::from_u32(code) else { return };
    let spelt = if escaped {
        character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
    } else {
        character.to_string()
    };
    if spelt.len() == place.len() {
        place.copy_from_slice(spelt.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filler() -> Filler {
        Filler::new(&[7; 32])
    }

    fn filled(text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        filler().fill(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    fn quoted(text: &str) -> String {
        let text = serde_json::to_string(text).unwrap();
        text[1..text.len() - 1].to_owned()
    }

    fn said(inside: &str) -> String {
        serde_json::from_str(&format!("\"{inside}\"")).unwrap()
    }

    #[test]
    fn words_change_and_their_shape_does_not() {
        let text = r#"Read src/main.rs, line 42:\n\"Ünïcode 世界 🦀 \u00e9\ud83e\udd80\""#;
        let filler = filled(text);
        assert_eq!(filler.len(), text.len());
        for word in ["Read", "src", "main", "line", "42", "Ünïcode", "世界", "🦀", "\\u00e9", "\\ud83e"]
        {
            assert!(!filler.contains(word), "{word} in {filler}");
        }
        let marks = ['/', '.', ',', ':', '\\', '"', ' '];
        assert_eq!(filler.matches(marks).count(), text.matches(marks).count(), "{filler}");
        assert_ne!(Filler::new(&[8; 32]).text("Read"), super::tests::filler().text("Read"));
    }

    #[test]
    fn a_spelling_says_the_same_filler() {
        assert_eq!(said(&filled(r"caf\u00e9 \u0041")), said(&filled("café A")));
        assert_eq!(
            filled("x-anthropic-billing-header: a"),
            format!("x-anthropic-billing-header: {}", filled("a"))
        );
    }

    proptest! {
        #[test]
        fn lengths_stay_and_equality_and_inequality_too(one in "\\PC{0,40}", two in "\\PC{0,40}") {
            let (a, b) = (quoted(&one), quoted(&two));
            let (filled_a, filled_b) = (filled(&a), filled(&b));
            prop_assert_eq!(filled_a.len(), a.len());
            prop_assert_eq!(said(&filled_a).len(), one.len());
            prop_assert_eq!(said(&filled_a) == said(&filled_b), one == two);
        }

        #[test]
        fn a_prefix_stays_one(text in "\\PC{0,60}", end in 0..60_usize) {
            let start: String = text.chars().take(end).collect();
            let (whole, part) = (filled(&quoted(&text)), filled(&quoted(&start)));
            prop_assert!(said(&whole).starts_with(&said(&part)));
        }

        #[test]
        fn what_stands_whole_within_a_text_still_does(before in "\\PC{0,20}", text in "\\PC{1,40}", after in "\\PC{0,20}") {
            let around = format!("{before}\n{text}\n{after}");
            prop_assert!(said(&filled(&quoted(&around))).contains(&said(&filled(&quoted(&text)))));
        }

        #[test]
        fn any_bytes_can_be_filled(mut bytes: Vec<u8>) {
            let length = bytes.len();
            filler().fill(&mut bytes);
            prop_assert_eq!(bytes.len(), length);
        }

        #[test]
        fn numbers_stay_numbers(number in "-?(0|[1-9][0-9]{0,12})(\\.[0-9]{1,6})?([eE][+-]?[0-9]{1,2})?") {
            let mut bytes = number.clone().into_bytes();
            filler().number(&mut bytes);
            let text = String::from_utf8(bytes).unwrap();
            prop_assert_eq!(text.len(), number.len());
            prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{}", text);
        }
    }
}
