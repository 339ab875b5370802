//! `[tenants]`: the names of tenants in metrics. It is the only section whose keys the operator chooses.
//!
//! Rule: a key that is not a digest is never shown; it may be a credential that was taken for one.

use std::collections::BTreeMap;

use super::ValueOrigin;
use super::kind::Given;
use super::problem::{Complaint, Problem};

pub(super) const SECTION: &str = "tenants";

/// The most names, which is the number of tenants that metrics show.
const NAMES_MAX: usize = 50;
const NAME_BYTES_MAX: usize = 64;
/// The number of digits of a digest that the log shows.
const DIGITS: usize = 8;

/// One name as it was given.
pub(super) struct GivenTenantName {
    pub digest: String,
    pub given: Given,
    pub origin: ValueOrigin,
}

/// Names and their origins, by digest.
pub(super) type TenantNames = BTreeMap<String, (String, ValueOrigin)>;

/// Returns the valid names of entries in the order of their layers, and adds the problems of the others to
/// `problems`.
pub(super) fn read(entries: Vec<GivenTenantName>, problems: &mut Vec<Problem>) -> TenantNames {
    let mut names = TenantNames::new();
    for GivenTenantName { digest, given, origin } in entries {
        let is_digest = digest.len() == DIGITS && digest.bytes().all(|b| b.is_ascii_hexdigit());
        let subject = if is_digest { format!("{SECTION}.{digest}") } else { format!("[{SECTION}]") };
        let checked = if is_digest { name(&given) } else { Err(no_digest()) };
        match checked {
            Ok(name) => {
                names.insert(digest.to_ascii_lowercase(), (name, origin.clone()));
                if names.len() > NAMES_MAX {
                    let complaint = Complaint::new(
                        format!("more than {NAMES_MAX} names"),
                        "metrics show no more tenants than that; name those that matter most",
                    );
                    problems.push(complaint.at(origin, format!("[{SECTION}]")));
                    return names;
                }
            }
            Err(complaint) => problems.push(complaint.at(origin, subject)),
        }
    }
    names
}

fn no_digest() -> Complaint {
    Complaint::new(
        "a key that is not the digest of a tenant",
        "write the eight digits that the log shows as tenant, such as \"81f9b6d4\" = \"checkout\"",
    )
}

fn name(given: &Given) -> Result<String, Complaint> {
    let harmless = |b: u8| b.is_ascii_alphanumeric() || b"._:@/-".contains(&b);
    match given {
        Given::Text(text) | Given::Word(text)
            if (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(harmless) =>
        {
            Ok(text.clone())
        }
        given => Err(Complaint::new(
            format!("{} is no name for a metric", given.quote()),
            format!("write a text of at most {NAME_BYTES_MAX} letters, digits and . _ : @ / -"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry((digest, name): (&str, &str)) -> GivenTenantName {
        let origin = ValueOrigin::Environment(digest.to_owned());
        GivenTenantName { digest: digest.to_owned(), given: Given::Text(name.to_owned()), origin }
    }

    fn read_all(entries: &[(&str, &str)]) -> (Vec<(String, String)>, Vec<String>) {
        let mut problems = Vec::new();
        let names = read(entries.iter().copied().map(entry).collect(), &mut problems);
        let names = names.into_iter().map(|(digest, (name, _))| (digest, name)).collect();
        (names, problems.iter().map(|problem| format!("{} {}", problem.subject, problem.message)).collect())
    }

    #[test]
    fn a_later_layer_renames_and_digits_have_no_case() {
        let (names, problems) = read_all(&[("81f9b6d4", "checkout"), ("81F9B6D4", "till")]);
        assert_eq!((names, problems), (vec![("81f9b6d4".to_owned(), "till".to_owned())], vec![]));
    }

    #[test]
    fn what_is_no_digest_is_not_repeated_and_a_name_is_harmless() {
        let (names, problems) = read_all(&[("sk-ant-secret", "a"), ("81f9b6d4", "a b"), ("00000000", "")]);
        assert_eq!(names, []);
        assert_eq!(
            problems,
            [
                "[tenants] a key that is not the digest of a tenant",
                "tenants.81f9b6d4 \"a b\" is no name for a metric",
                "tenants.00000000 \"\" is no name for a metric",
            ]
        );
    }

    #[test]
    fn there_are_as_many_names_as_metrics_show_and_no_more() {
        let digests: Vec<String> = (0..60).map(|number| format!("{number:08x}")).collect();
        let entries: Vec<_> = digests.iter().map(|digest| (digest.as_str(), "n")).collect();
        assert_eq!(read_all(&entries[..NAMES_MAX]).1, Vec::<String>::new());
        assert_eq!(read_all(&entries).1, ["[tenants] more than 50 names"]);
    }
}
