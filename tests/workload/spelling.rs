//! Other bytes, same meaning: what a client does that serializes anew on every turn.

use serde_json::{Map, Value};

use super::dice::Dice;

/// Puts the members of every object in a value into another order.
pub fn shuffle_deep(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(object) => {
            shuffle_own(object, dice);
            object.values_mut().for_each(|value| shuffle_deep(value, dice));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| shuffle_deep(value, dice)),
        _ => {}
    }
}

/// Puts an object's own members into another order, and leaves their values alone.
pub fn shuffle_own(object: &mut Map<String, Value>, dice: &mut Dice) {
    let mut members: Vec<(String, Value)> = std::mem::take(object).into_iter().collect();
    dice.shuffle(&mut members);
    object.extend(members);
}

/// Writes a value with white space and escapes as chance has it.
pub fn write_oddly(value: &Value, dice: &mut Dice) -> Vec<u8> {
    let mut out = String::new();
    write(value, dice, &mut out);
    out.into_bytes()
}

fn write(value: &Value, dice: &mut Dice, out: &mut String) {
    match value {
        Value::Object(object) => {
            out.push('{');
            for (index, (key, value)) in object.iter().enumerate() {
                separate(index, dice, out);
                write_text(key, dice, out);
                space(dice, out);
                out.push(':');
                space(dice, out);
                write(value, dice, out);
            }
            space(dice, out);
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, value) in items.iter().enumerate() {
                separate(index, dice, out);
                write(value, dice, out);
            }
            space(dice, out);
            out.push(']');
        }
        Value::String(text) => write_text(text, dice, out),
        other => out.push_str(&other.to_string()),
    }
}

fn separate(index: usize, dice: &mut Dice, out: &mut String) {
    if index > 0 {
        out.push(',');
    }
    space(dice, out);
}

fn space(dice: &mut Dice, out: &mut String) {
    if dice.once_in(8) {
        out.push_str([" ", "\n", "\t ", "\r\n  "][dice.below(4)]);
    }
}

/// Names and words of the API come shorter than this, and nobody escapes their letters.
const PROSE_BYTES_MIN: usize = 32;

fn write_text(text: &str, dice: &mut Dice, out: &mut String) {
    if text.len() < PROSE_BYTES_MIN {
        return out.push_str(&Value::from(text).to_string());
    }
    out.push('"');
    for letter in text.chars() {
        let plain = letter != '"' && letter != '\\' && !letter.is_control();
        match letter {
            '\n' if !dice.once_in(4) => out.push_str("\\n"),
            '/' if dice.once_in(2) => out.push_str("\\/"),
            _ if plain && (letter.is_ascii() || dice.once_in(2)) && !dice.once_in(60) => out.push(letter),
            _ => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
}
