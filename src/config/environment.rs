//! Reads the environment: `FORKPOINT_SECTION__KEY` for every key, and a short form for the few that are set by hand.
//!
//! Rule: a name with a double underscore is meant for forkpoint and must be right. Any other `FORKPOINT_…` is
//! skipped: orchestrators invent such names, such as `FORKPOINT_SERVICE_HOST`.
//!
//! ```text
//! FORKPOINT_LIMITS__BODY_BYTES=8MiB          limits.body_bytes
//! FORKPOINT_IDENTITY__TENANT_HEADERS=a,b     identity.tenant_headers = ["a", "b"]
//! FORKPOINT_LISTEN=127.0.0.1:9000            server.listen, the same as FORKPOINT_SERVER__LISTEN
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use super::LoadedLayers;
use super::hint::nearest;
use super::keys::{ConfigKey, KEYS};
use super::kind::Given;
use super::problem::{Complaint, ValueOrigin, named};

const PREFIX: &str = "FORKPOINT_";
pub(super) const CONFIG: &str = "FORKPOINT_CONFIG";

/// The short forms, each with its key.
const SHORT_FORMS: [(&str, &str); 5] = [
    ("FORKPOINT_MODE", "server.mode"),
    ("FORKPOINT_LISTEN", "server.listen"),
    ("FORKPOINT_ADMIN_LISTEN", "server.admin_listen"),
    ("FORKPOINT_UPSTREAM", "upstream.url"),
    ("FORKPOINT_STORE", "store.kind"),
];

/// Reads the variables of forkpoint into `found`, and returns the file that they name.
pub(super) fn read<N, V>(
    env: impl IntoIterator<Item = (N, V)>,
    found: &mut LoadedLayers,
) -> Option<(PathBuf, ValueOrigin)>
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
    let config = ours.remove(CONFIG).map(|path| (path.into(), ValueOrigin::Environment(CONFIG.to_owned())));
    let mut texts = BTreeMap::new();
    for (name, value) in ours {
        let Some(path) = path_of(&name) else { continue };
        match value.into_string() {
            Ok(text) => {
                texts.insert(name, (path, text));
            }
            Err(_) => {
                let complaint = Complaint::new("not UTF-8", "set it to plain text");
                found.problems.push(complaint.at(ValueOrigin::Environment(named(&name)), path));
            }
        }
    }
    refuse_disagreement(&texts, found);
    for (name, (path, text)) in texts {
        give(found, name, &path, text);
    }
    config
}

/// Returns the variable that sets a key: `FORKPOINT_SERVER__LISTEN`.
pub(super) fn long_name(path: &str) -> String {
    format!("{PREFIX}{}", path.replacen('.', "__", 1).to_uppercase())
}

/// Returns the key that a variable sets, known or not, or `None` if the variable is not meant for forkpoint.
fn path_of(name: &str) -> Option<String> {
    if let Some((_, path)) = SHORT_FORMS.iter().find(|(short, _)| *short == name) {
        return Some((*path).to_owned());
    }
    let (section, key) = name.strip_prefix(PREFIX)?.split_once("__")?;
    Some(format!("{section}.{key}").to_lowercase())
}

fn give(found: &mut LoadedLayers, name: String, path: &str, text: String) {
    let exact = name == long_name(path) || SHORT_FORMS.iter().any(|(short, _)| *short == name);
    let known = KEYS.iter().any(|key| key.path == path);
    if exact && (known || super::tenant(path).is_some() || super::later::later(path).is_some()) {
        return found.give(path, Given::Word(text), ValueOrigin::Environment(name));
    }
    let names: Vec<String> = KEYS.iter().map(|key| long_name(key.path)).collect();
    let hint = match nearest(&name.to_uppercase(), names.iter().map(String::as_str)) {
        Some(suggestion) => format!("did you mean {suggestion}?"),
        None => "unset it, or see check-config for the keys; FORKPOINT_SECTION__KEY sets section.key".into(),
    };
    let complaint = Complaint::new("unknown variable", hint);
    found.problems.push(complaint.at(ValueOrigin::Environment(named(&name)), ""));
}

/// Refuses a key whose two variables have different values: neither has precedence.
fn refuse_disagreement(texts: &BTreeMap<String, (String, String)>, found: &mut LoadedLayers) {
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
            ConfigKey::find(path).map_or_else(String::new, |key| key.kind.quote(&given))
        };
        let complaint = Complaint::new(
            format!("{} here, but {long} says {}", quote(short_text), quote(long_text)),
            format!("set only one of {short} and {long}"),
        );
        found.problems.push(complaint.at(ValueOrigin::Environment(short.to_owned()), path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(env: &[(&str, &str)]) -> LoadedLayers {
        let mut found = LoadedLayers::default();
        read(env.iter().copied(), &mut found);
        found
    }

    #[test]
    fn every_key_has_a_long_name_that_leads_back_to_it() {
        for key in KEYS.iter() {
            assert_eq!(path_of(&key.variable()).as_deref(), Some(key.path));
        }
        for (short, path) in SHORT_FORMS {
            assert!(ConfigKey::find(path).is_some(), "{short}");
        }
    }

    #[test]
    fn names_without_a_double_underscore_are_none_of_ours() {
        let found =
            found(&[("FORKPOINT_SERVICE_HOST", "x"), ("FORKPOINT_", "x"), ("PATH", "/a__b"), ("A__B", "x")]);
        assert!(found.entries.is_empty() && found.problems.is_empty());
    }

    #[test]
    fn names_with_one_must_be_known_and_in_capitals() {
        for (name, hint) in [
            ("FORKPOINT_SERVER__LISEN", "did you mean FORKPOINT_SERVER__LISTEN?"),
            ("FORKPOINT_server__listen", "did you mean FORKPOINT_SERVER__LISTEN?"),
            ("FORKPOINT_LIMITS_BODY__BYTES", "did you mean FORKPOINT_LIMITS__BODY_BYTES?"),
        ] {
            let found = found(&[(name, "hunter2")]);
            assert_eq!(found.problems[0].hint, hint);
            assert!(!found.problems[0].to_string().contains("hunter2"));
        }
        assert!(found(&[("FORKPOINT___", "")]).problems[0].hint.starts_with("unset it"));
        for name in
            ["PRIVACY__EXCERPTS", "BUDGET__USD", "SERVER__TLS__CERT", "UPSTREAM__PROXY", "UPSTREAM__CA"]
        {
            let found = found(&[(&format!("FORKPOINT_{name}"), "hunter2")]);
            let [problem] = &found.problems[..] else { panic!("{name}: {:?}", found.problems) };
            assert!(
                problem.message.contains("not built") && problem.hint.starts_with("remove it; "),
                "{problem}"
            );
            assert!(!problem.to_string().contains("hunter2"), "{problem}");
        }
    }

    #[test]
    fn short_and_long_name_may_agree_but_not_differ() {
        let same = [("FORKPOINT_UPSTREAM", "http://a"), ("FORKPOINT_UPSTREAM__URL", "http://a")];
        assert!(found(&same).problems.is_empty());
        let different =
            [("FORKPOINT_UPSTREAM", "http://u:hunter2@a"), ("FORKPOINT_UPSTREAM__URL", "http://a")];
        assert_eq!(
            found(&different).problems[0].to_string(),
            "FORKPOINT_UPSTREAM: upstream.url: \"http://MASKED@a\" here, but FORKPOINT_UPSTREAM__URL says \"http://a\"\n  \
             hint: set only one of FORKPOINT_UPSTREAM and FORKPOINT_UPSTREAM__URL"
        );
    }

    #[cfg(unix)]
    #[test]
    fn names_and_values_that_are_not_utf8_are_reported_or_skipped() {
        use std::os::unix::ffi::OsStringExt;
        let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let env = [
            (os(b"FORKPOINT_LOG__LEVEL"), os(b"\xff")),
            (os(b"FORKPOINT_LOG__\xff"), os(b"x")),
            (os(b"OTHER_\xff"), os(b"\xff")),
        ];
        let mut found = LoadedLayers::default();
        read(env, &mut found);
        let messages: Vec<_> = found.problems.iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(messages, ["not UTF-8", "unknown variable"]);
    }
}
