//! Kinds of keys: how a given value becomes a typed one, and how the typed one is shown.
//!
//! A kind has the field of [`Config`] that it sets, so a key cannot be declared without being read, nor be read
//! into a field of another type. A file has types and must use the right ones; the environment and flags have only
//! text.
//!
//! ```text
//! Given::Text("32 MiB")  ─put→  config.limits.body_bytes = 33554432  ─show→  "32 MiB"
//! ```
//!
//! Rule: a shown value, when given again, sets the same value. Only the mask of a secret is refused.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::parse::{self, masked_url, size_text};
use super::problem::{Complaint, quoted};
use super::types::{Config, MASK, Secret, Selector, StoreUrl};

/// Returns a field of the configuration.
type FieldOf<T> = fn(&mut Config) -> &mut T;

/// The greatest factor; nothing that is compared differs by more.
const FACTOR_MAX: f64 = 100.0;

/// The type of a key's value, and the field that holds it.
pub enum KeyKind {
    Switch(FieldOf<bool>),
    /// True, false, or "" to let other keys decide.
    OptionalSwitch(FieldOf<Option<bool>>),
    /// A number from 0 to 1.
    Share(FieldOf<f64>),
    /// A number from 0 to `FACTOR_MAX`.
    Factor(FieldOf<f64>),
    Address(FieldOf<SocketAddr>),
    /// An address, or "" for none.
    OptionalAddress(FieldOf<Option<SocketAddr>>),
    Url(FieldOf<http::Uri>),
    /// A URL, or "" for none.
    OptionalUrl(FieldOf<Option<http::Uri>>),
    /// The URL of a store, or "" for none.
    StoreUrl(FieldOf<Option<StoreUrl>>),
    Secret(FieldOf<Secret>),
    /// A path, or "" for none.
    OptionalPath(FieldOf<Option<PathBuf>>),
    /// A selector of traffic, or "" for none.
    Selector(FieldOf<Option<Selector>>),
    Headers(FieldOf<Vec<http::HeaderName>>),
    Texts(FieldOf<Vec<String>>),
    Count(RangeInclusive<u64>, FieldOf<usize>),
    Bytes(RangeInclusive<u64>, FieldOf<usize>),
    Millis(RangeInclusive<u64>, FieldOf<Duration>),
    Seconds(RangeInclusive<u64>, FieldOf<Duration>),
    Choice(WordChoice),
}

/// A choice of one word out of a few.
pub struct WordChoice {
    pub words: &'static [&'static str],
    /// The words that are designed and not built in this version.
    pub later: &'static [&'static str],
    pub get: fn(&Config) -> &'static str,
    /// Sets the value; called with one of `words`.
    pub put: fn(&mut Config, &str),
}

/// A value as it was given.
#[derive(Clone, Debug)]
pub(super) enum Given {
    Switch(bool),
    Integer(i64),
    Text(String),
    Fraction(f64),
    List(Vec<Given>),
    /// A text from the environment or a flag, which may mean any type.
    Word(String),
    /// A value that no key takes, by its description.
    Other(&'static str),
}

/// A valid value, ready to print.
#[derive(Clone, Debug, PartialEq)]
pub enum ShownValue {
    Switch(bool),
    Integer(u64),
    Fraction(f64),
    Bytes(u64),
    Text(String),
    List(Vec<String>),
    /// A secret that is set. One that is not set is an empty text.
    Masked,
    /// A text with a secret in it, masked.
    PartlyMasked(String),
}

impl KeyKind {
    /// Checks the value and writes it into the configuration.
    pub(super) fn put(&self, config: &mut Config, given: &Given) -> Result<(), Complaint> {
        match self {
            KeyKind::Switch(slot) => *slot(config) = self.switch(given)?,
            KeyKind::OptionalSwitch(slot) => {
                *slot(config) = match given {
                    Given::Text(text) | Given::Word(text) if text.is_empty() => None,
                    given => Some(self.switch(given)?),
                };
            }
            KeyKind::Share(slot) => *slot(config) = self.fraction(given, 0.0..=1.0)?,
            KeyKind::Factor(slot) => *slot(config) = self.fraction(given, 0.0..=FACTOR_MAX)?,
            KeyKind::Address(slot) => *slot(config) = parse::address(self.text(given)?)?,
            KeyKind::OptionalAddress(slot) => {
                let text = self.text(given)?;
                *slot(config) = if text.is_empty() { None } else { Some(parse::address(text)?) };
            }
            KeyKind::Url(slot) => *slot(config) = parse::url(self.text(given)?)?,
            KeyKind::OptionalUrl(slot) => {
                let text = self.text(given)?;
                *slot(config) = if text.is_empty() { None } else { Some(parse::url(text)?) };
            }
            KeyKind::StoreUrl(slot) => {
                let text = self.text(given)?;
                *slot(config) = if text.is_empty() { None } else { Some(parse::store_url(text)?) };
            }
            KeyKind::Secret(slot) => *slot(config) = parse::secret(self.text(given)?)?,
            KeyKind::OptionalPath(slot) => {
                let text = self.text(given)?;
                *slot(config) = (!text.is_empty()).then(|| text.into());
            }
            KeyKind::Selector(slot) => {
                let text = self.text(given)?;
                *slot(config) = if text.is_empty() { None } else { Some(parse::selector(text)?) };
            }
            KeyKind::Headers(slot) => *slot(config) = parse::headers(&self.list(given)?)?,
            KeyKind::Texts(slot) => *slot(config) = self.list(given)?,
            KeyKind::Count(range, slot) => *slot(config) = to_usize(self.integer(given, range)?),
            KeyKind::Bytes(range, slot) => *slot(config) = to_usize(self.size(given, range)?),
            KeyKind::Millis(range, slot) => {
                *slot(config) = Duration::from_millis(self.integer(given, range)?);
            }
            KeyKind::Seconds(range, slot) => *slot(config) = Duration::from_secs(self.integer(given, range)?),
            KeyKind::Choice(choice) => choice.choose(config, self.text(given)?)?,
        }
        Ok(())
    }

    /// Returns the value in the configuration. It is cloned because slots return mutable fields.
    pub(super) fn show(&self, config: &Config) -> ShownValue {
        let config = &mut config.clone();
        match self {
            KeyKind::Switch(slot) => ShownValue::Switch(*slot(config)),
            KeyKind::OptionalSwitch(slot) => {
                slot(config).map_or_else(|| ShownValue::Text(String::new()), ShownValue::Switch)
            }
            KeyKind::Share(slot) | KeyKind::Factor(slot) => ShownValue::Fraction(*slot(config)),
            KeyKind::Address(slot) => ShownValue::Text(slot(config).to_string()),
            KeyKind::OptionalAddress(slot) => {
                ShownValue::Text(slot(config).map(|address| address.to_string()).unwrap_or_default())
            }
            KeyKind::Url(slot) => ShownValue::Text(slot(config).to_string().trim_end_matches('/').to_owned()),
            KeyKind::OptionalUrl(slot) => {
                let url = slot(config).as_ref();
                ShownValue::Text(
                    url.map(|url| url.to_string().trim_end_matches('/').to_owned()).unwrap_or_default(),
                )
            }
            KeyKind::StoreUrl(slot) => match slot(config) {
                Some(url) if url.to_string() == url.reveal() => ShownValue::Text(url.to_string()),
                Some(url) => ShownValue::PartlyMasked(url.to_string()),
                None => ShownValue::Text(String::new()),
            },
            KeyKind::Secret(slot) if slot(config).is_empty() => ShownValue::Text(String::new()),
            KeyKind::Secret(_) => ShownValue::Masked,
            KeyKind::OptionalPath(slot) => {
                let path = slot(config).as_ref();
                ShownValue::Text(path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default())
            }
            KeyKind::Selector(slot) => {
                ShownValue::Text(slot(config).as_ref().map(ToString::to_string).unwrap_or_default())
            }
            KeyKind::Headers(slot) => {
                ShownValue::List(slot(config).iter().map(ToString::to_string).collect())
            }
            KeyKind::Texts(slot) => ShownValue::List(slot(config).clone()),
            KeyKind::Count(_, slot) => ShownValue::Integer(*slot(config) as u64),
            KeyKind::Bytes(_, slot) => ShownValue::Bytes(*slot(config) as u64),
            KeyKind::Millis(_, slot) => ShownValue::Integer(slot(config).as_millis() as u64),
            KeyKind::Seconds(_, slot) => ShownValue::Integer(slot(config).as_secs()),
            KeyKind::Choice(choice) => ShownValue::Text((choice.get)(config).to_owned()),
        }
    }

    /// Returns the given value in a form that messages may show, with secrets and credentials masked.
    pub(super) fn quote(&self, given: &Given) -> String {
        match (self, given) {
            (KeyKind::Secret(_), _) => MASK.to_owned(),
            (
                KeyKind::Url(_) | KeyKind::OptionalUrl(_) | KeyKind::StoreUrl(_),
                Given::Text(text) | Given::Word(text),
            ) => quoted(&masked_url(text)),
            (KeyKind::Url(_) | KeyKind::OptionalUrl(_) | KeyKind::StoreUrl(_), Given::List(_)) => {
                "[…]".to_owned()
            }
            (_, given) => given.quote(),
        }
    }

    /// Returns a description of the values that the key takes, to be put after "not".
    pub fn expected(&self) -> String {
        match self {
            KeyKind::Switch(_) => "true or false".to_owned(),
            KeyKind::OptionalSwitch(_) => "true, false, or \"\" for what fits the other keys".to_owned(),
            KeyKind::Share(_) => "a number from 0.0 to 1.0".to_owned(),
            KeyKind::Factor(_) => format!("a number from 0.0 to {FACTOR_MAX:.1}"),
            KeyKind::Address(_) => "an IP address with a port, in quotes".to_owned(),
            KeyKind::OptionalAddress(_) => {
                "an IP address with a port, in quotes, or \"\" for none".to_owned()
            }
            KeyKind::Url(_) => "an http or https URL, in quotes".to_owned(),
            KeyKind::OptionalUrl(_) => "an http or https URL, in quotes, or \"\" for none".to_owned(),
            KeyKind::StoreUrl(_) => "a redis or rediss URL, in quotes, or \"\" for none".to_owned(),
            KeyKind::Secret(_) => "a text in quotes".to_owned(),
            KeyKind::OptionalPath(_) => "a path in quotes, or \"\" for none".to_owned(),
            KeyKind::Selector(_) => {
                "tenant:, agent: or fork: and eight hex digits, or \"\" for none".to_owned()
            }
            KeyKind::Headers(_) => "a list of header names, such as [\"x-user\"]".to_owned(),
            KeyKind::Texts(_) => "a list of texts, such as [\"Agent\"]".to_owned(),
            KeyKind::Bytes(range, _) => {
                let (from, to) = (size_text(*range.start()), size_text(*range.end()));
                format!("a size from {from} to {to}, as a number of bytes or such as \"32 MiB\"")
            }
            KeyKind::Count(range, _) => whole_number("", range),
            KeyKind::Millis(range, _) => whole_number(" of milliseconds", range),
            KeyKind::Seconds(range, _) => whole_number(" of seconds", range),
            KeyKind::Choice(choice) => {
                let words: Vec<String> = choice.words.iter().map(|word| format!("{word:?}")).collect();
                words.join(" or ")
            }
        }
    }

    fn switch(&self, given: &Given) -> Result<bool, Complaint> {
        match given {
            Given::Switch(value) => Ok(*value),
            Given::Word(word) => word.parse().map_err(|_| self.wrong_value()),
            other => Err(self.wrong_type(other)),
        }
    }

    fn fraction(&self, given: &Given, range: RangeInclusive<f64>) -> Result<f64, Complaint> {
        let number = match given {
            Given::Fraction(number) => Some(*number),
            Given::Integer(number) => Some(*number as f64),
            Given::Word(word) => word.parse().ok(),
            other => return Err(self.wrong_type(other)),
        };
        number.filter(|number| range.contains(number)).ok_or_else(|| self.wrong_value())
    }

    fn text<'a>(&self, given: &'a Given) -> Result<&'a str, Complaint> {
        match given {
            Given::Text(text) | Given::Word(text) => Ok(text),
            other => Err(self.wrong_type(other)),
        }
    }

    fn integer(&self, given: &Given, range: &RangeInclusive<u64>) -> Result<u64, Complaint> {
        let number = match given {
            Given::Integer(number) => u64::try_from(*number).ok(),
            Given::Word(word) => word.parse().ok(),
            other => return Err(self.wrong_type(other)),
        };
        self.in_range(number, range)
    }

    fn size(&self, given: &Given, range: &RangeInclusive<u64>) -> Result<u64, Complaint> {
        let bytes = match given {
            Given::Integer(number) => u64::try_from(*number).ok(),
            Given::Text(text) | Given::Word(text) => Some(parse::size(text)?),
            other => return Err(self.wrong_type(other)),
        };
        self.in_range(bytes, range)
    }

    fn in_range(&self, number: Option<u64>, range: &RangeInclusive<u64>) -> Result<u64, Complaint> {
        number.filter(|number| range.contains(number)).ok_or_else(|| self.wrong_value())
    }

    fn list(&self, given: &Given) -> Result<Vec<String>, Complaint> {
        match given {
            Given::Word(word) if word.trim().is_empty() => Ok(Vec::new()),
            Given::Word(word) => Ok(word.split(',').map(|part| part.trim().to_owned()).collect()),
            Given::List(items) => items.iter().map(element).collect(),
            other => Err(self.wrong_type(other)),
        }
    }

    fn wrong_value(&self) -> Complaint {
        Complaint::new(format!("not {}", self.expected()), self.default_hint())
    }

    fn wrong_type(&self, given: &Given) -> Complaint {
        let expected = self.expected();
        let hint = match (self, given) {
            (KeyKind::Switch(_) | KeyKind::OptionalSwitch(_), Given::Text(text))
                if matches!(text.as_str(), "true" | "false") =>
            {
                format!("write it without quotes: {text}")
            }
            (KeyKind::Count(..) | KeyKind::Millis(..) | KeyKind::Seconds(..), Given::Text(text))
                if text.parse::<u64>().is_ok() =>
            {
                format!("write it without quotes: {text}")
            }
            (KeyKind::Headers(_) | KeyKind::Texts(_), Given::Text(text)) => {
                format!("write it as a list: [{}]", quoted(text))
            }
            _ => self.default_hint(),
        };
        Complaint::new(format!("{} where the key takes {expected}", given.description()), hint)
    }

    fn default_hint(&self) -> String {
        format!("leave the key out for its default, {}", self.show(&Config::default()).to_toml())
    }
}

impl WordChoice {
    fn choose(&self, config: &mut Config, word: &str) -> Result<(), Complaint> {
        if self.words.contains(&word) {
            (self.put)(config, word);
            return Ok(());
        }
        let words: Vec<String> = self.words.iter().map(|word| format!("{word:?}")).collect();
        let built = words.join(", ");
        if self.later.contains(&word) {
            let version = env!("CARGO_PKG_VERSION");
            return Err(Complaint::new(
                format!("known, but not built in forkpoint {version}"),
                format!("this version has {built}; use that, or leave the key out"),
            ));
        }
        let suggestion = super::hint::nearest(&word.to_lowercase(), self.words.iter().copied());
        let hint = match suggestion {
            Some(suggestion) => format!("did you mean {suggestion:?}?"),
            None => format!("the choices are {built}"),
        };
        Err(Complaint::new("no such choice", hint))
    }
}

impl Given {
    /// Returns the type of the value, with its article.
    pub fn description(&self) -> &'static str {
        match self {
            Given::Switch(_) => "a boolean",
            Given::Integer(_) => "a number",
            Given::Fraction(_) => "a number with a fraction",
            Given::Text(_) | Given::Word(_) => "a text",
            Given::List(_) => "a list",
            Given::Other(description) => description,
        }
    }

    pub fn quote(&self) -> String {
        match self {
            Given::Switch(value) => value.to_string(),
            Given::Integer(number) => number.to_string(),
            Given::Fraction(number) => number.to_string(),
            Given::Text(text) | Given::Word(text) => quoted(text),
            Given::List(items) => {
                let shown: Vec<String> = items.iter().take(8).map(Given::quote).collect();
                let rest = if items.len() > shown.len() { ", …" } else { "" };
                format!("[{}{rest}]", shown.join(", "))
            }
            Given::Other(_) => "…".to_owned(),
        }
    }
}

impl ShownValue {
    /// Returns the value as TOML that can be given again, except for the mask of a secret, which would be refused.
    pub fn to_toml(&self) -> String {
        match self {
            ShownValue::Switch(value) => value.to_string(),
            ShownValue::Integer(number) => number.to_string(),
            ShownValue::Fraction(number) => format!("{number:?}"),
            ShownValue::Bytes(bytes) => match size_text(*bytes) {
                text if text.ends_with("iB") => toml_text(&text),
                _ => bytes.to_string(),
            },
            ShownValue::Text(text) => toml_text(text),
            ShownValue::List(items) => {
                let items: Vec<String> = items.iter().map(|item| toml_text(item)).collect();
                format!("[{}]", items.join(", "))
            }
            ShownValue::Masked => toml_text(MASK),
            ShownValue::PartlyMasked(text) => toml_text(text),
        }
    }

    /// Returns the value as JSON, with sizes in bytes.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            ShownValue::Switch(value) => (*value).into(),
            ShownValue::Integer(number) | ShownValue::Bytes(number) => (*number).into(),
            ShownValue::Fraction(number) => (*number).into(),
            ShownValue::Text(text) | ShownValue::PartlyMasked(text) => text.as_str().into(),
            ShownValue::List(items) => items.clone().into(),
            ShownValue::Masked => MASK.into(),
        }
    }
}

impl std::fmt::Debug for KeyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.expected())
    }
}

fn element(given: &Given) -> Result<String, Complaint> {
    match given {
        Given::Text(text) => Ok(text.clone()),
        other => Err(Complaint::new(
            format!("{} in a list of texts", other.description()),
            "write each element in quotes, such as [\"x-user\"]",
        )),
    }
}

fn whole_number(unit: &str, range: &RangeInclusive<u64>) -> String {
    format!("a whole number{unit} from {} to {}", range.start(), range.end())
}

fn toml_text(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

/// Converts a number of a range. On a machine with a smaller `usize` the result is at most its maximum.
fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
