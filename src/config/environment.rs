//! The environment: `FORKPOINT_SECTION__KEY` for every key, and a short form for the few that are set by hand.
//!
//! Rule: a name with a double underscore is addressed to us and must be right; any other `FORKPOINT_…` is none
//! of ours (orchestrators invent such names: `FORKPOINT_SERVICE_HOST`) and is skipped.
//!
//! ```text
//! FORKPOINT_LIMITS__BODY_BYTES=8MiB          limits.body_bytes
//! FORKPOINT_IDENTITY__TENANT_HEADERS=a,b     identity.tenant_headers = ["a", "b"]
//! FORKPOINT_LISTEN=127.0.0.1:9000            server.listen, the same as FORKPOINT_SERVER__LISTEN
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use super::Found;
use super::hint::nearest;
use super::keys::{KEYS, Key};
use super::kind::Given;
use super::problem::{Complaint, Origin, named};

const PREFIX: &str = "FORKPOINT_";
const CONFIG: &str = "FORKPOINT_CONFIG";

/// Short name and key.
const SHORT_FORMS: [(&str, &str); 5] = [
    ("FORKPOINT_MODE", "server.mode"),
    ("FORKPOINT_LISTEN", "server.listen"),
    ("FORKPOINT_ADMIN_LISTEN", "server.admin_listen"),
    ("FORKPOINT_UPSTREAM", "upstream.url"),
    ("FORKPOINT_STORE", "store.kind"),
];

/// Reads our variables into `found`; returns the file that the environment names.
pub(super) fn read<N, V>(
    env: impl IntoIterator<Item = (N, V)>,
    found: &mut Found,
) -> Option<(PathBuf, Origin)>
where
    N: Into<OsString>,
    V: Into<OsString>,
{
    let ours = env.into_iter().filter_map(|(name, value)| {
        let name = name.into().to_string_lossy().into_owned();
        name.starts_with(PREFIX).then(|| (name, value.into()))
    });
    // Sorted, so that the same environment always gives the same report.
    let mut ours: BTreeMap<String, OsString> = ours.collect();
    let config = ours.remove(CONFIG).map(|path| (path.into(), Origin::Environment(CONFIG.to_owned())));
    let mut texts = BTreeMap::new();
    for (name, value) in ours {
        let Some(path) = path_of(&name) else { continue };
        match value.into_string() {
            Ok(text) => {
                texts.insert(name, (path, text));
            }
            Err(_) => {
                let complaint = Complaint::new("not UTF-8", "set it to plain text");
                found.problems.push(complaint.at(Origin::Environment(named(&name)), path));
            }
        }
    }
    refuse_disagreement(&texts, found);
    for (name, (path, text)) in texts {
        give(found, name, &path, text);
    }
    config
}

/// The variable that sets a key: `FORKPOINT_SERVER__LISTEN`.
pub(super) fn long_name(path: &str) -> String {
    format!("{PREFIX}{}", path.replacen('.', "__", 1).to_uppercase())
}

/// The key that a variable addresses, known or not; none if the variable is none of ours.
fn path_of(name: &str) -> Option<String> {
    if let Some((_, path)) = SHORT_FORMS.iter().find(|(short, _)| *short == name) {
        return Some((*path).to_owned());
    }
    let (section, key) = name.strip_prefix(PREFIX)?.split_once("__")?;
    Some(format!("{section}.{key}").to_lowercase())
}

fn give(found: &mut Found, name: String, path: &str, text: String) {
    let exact = name == long_name(path) || SHORT_FORMS.iter().any(|(short, _)| *short == name);
    let known = KEYS.iter().any(|key| key.path == path);
    if exact && (known || super::keys::later(path).is_some()) {
        return found.give(path, Given::Word(text), Origin::Environment(name));
    }
    let names: Vec<String> = KEYS.iter().map(|key| long_name(key.path)).collect();
    let hint = match nearest(&name.to_uppercase(), names.iter().map(String::as_str)) {
        Some(suggestion) => format!("did you mean {suggestion}?"),
        None => "unset it, or see check-config for the keys; FORKPOINT_SECTION__KEY sets section.key".into(),
    };
    let complaint = Complaint::new("unknown variable", hint);
    found.problems.push(complaint.at(Origin::Environment(named(&name)), ""));
}

/// Two names for one key with two values: neither is more right than the other.
fn refuse_disagreement(texts: &BTreeMap<String, (String, String)>, found: &mut Found) {
    for (short, path) in SHORT_FORMS {
        let long = long_name(path);
        let (Some((_, short_text)), Some((_, long_text))) = (texts.get(short), texts.get(&long)) else {
            continue;
        };
        if short_text == long_text {
            continue;
        }
        let quote = |text: &str| {
            let given = Given::Word(text.to_owned());
            Key::find(path).map_or_else(String::new, |key| key.kind.quote(&given))
        };
        let complaint = Complaint::new(
            format!("{} here, but {long} says {}", quote(short_text), quote(long_text)),
            format!("set only one of {short} and {long}"),
        );
        found.problems.push(complaint.at(Origin::Environment(short.to_owned()), path));
    }
}
