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

/// What is said in messages, inputs of calls aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// Its strings are escaped as they always were.
    Stable,
    /// Its strings are escaped anew like all others.
    Odd,
}

/// Writes a request with white space and escapes as chance has it.
pub fn write_oddly(body: &Value, history: History, dice: &mut Dice) -> Vec<u8> {
    let mut writer = Writer { dice, history, is_stable: false, out: String::new() };
    writer.value(body);
    writer.out.into_bytes()
}

struct Writer<'d> {
    dice: &'d mut Dice,
    history: History,
    is_stable: bool,
    out: String,
}

/// Names and words of the API come shorter than this, and nobody escapes their letters.
const PROSE_BYTES_MIN: usize = 32;

impl Writer<'_> {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Object(object) => {
                self.out.push('{');
                for (index, (key, value)) in object.iter().enumerate() {
                    self.separate(index);
                    self.text(key);
                    self.space();
                    self.out.push(':');
                    self.space();
                    self.member(key, value);
                }
                self.space();
                self.out.push('}');
            }
            Value::Array(items) => {
                self.out.push('[');
                for (index, value) in items.iter().enumerate() {
                    self.separate(index);
                    self.value(value);
                }
                self.space();
                self.out.push(']');
            }
            Value::String(text) => self.text(text),
            other => self.out.push_str(&other.to_string()),
        }
    }

    fn member(&mut self, key: &str, value: &Value) {
        let before = self.is_stable;
        match key {
            "messages" => self.is_stable = self.history == History::Stable,
            "input" => self.is_stable = false,
            _ => {}
        }
        self.value(value);
        self.is_stable = before;
    }

    fn separate(&mut self, index: usize) {
        if index > 0 {
            self.out.push(',');
        }
        self.space();
    }

    fn space(&mut self) {
        if self.dice.once_in(8) {
            self.out.push_str([" ", "\n", "\t ", "\r\n  "][self.dice.below(4)]);
        }
    }

    fn text(&mut self, text: &str) {
        if self.is_stable || text.len() < PROSE_BYTES_MIN {
            return self.out.push_str(&Value::from(text).to_string());
        }
        self.out.push('"');
        for letter in text.chars() {
            let (dice, out) = (&mut *self.dice, &mut self.out);
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
        self.out.push('"');
    }
}
