//! The variables by which OpenTelemetry is set up everywhere: where traces go to, and who they come from.
//!
//! Rule: they are the weakest layer. `trace.endpoint` from anywhere wins, also an empty one, which switches traces off.
//! What another program is told by them must not keep this one from starting: an endpoint for gRPC, which forkpoint does
//! not speak, is left out.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::LoadedLayers;
use super::kind::Given;
use super::problem::{Complaint, ValueOrigin};

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const DISABLED: &str = "OTEL_SDK_DISABLED";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// The attribute that names the sender.
const SERVICE: &str = "service.name";

/// The attributes of what sends traces, each with the variable that gave it.
pub(super) type Resource = BTreeMap<String, (String, &'static str)>;

/// Reads the endpoint into `found`, if no other layer has one, and returns the attributes.
pub(super) fn read(env: &[(OsString, OsString)], found: &mut LoadedLayers) -> Resource {
    let text = |wanted: &str| {
        let value = env.iter().find(|(name, _)| name == wanted)?.1.to_str()?;
        (!value.trim().is_empty()).then(|| value.trim().to_owned())
    };
    let is_set = found.entries.iter().any(|entry| entry.key.path == "trace.endpoint");
    let is_disabled = text(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let is_grpc = text(PROTOCOL).is_some_and(|protocol| protocol == "grpc");
    if let Some(endpoint) = text(ENDPOINT)
        && !(is_set || is_disabled || is_grpc)
    {
        found.give("trace.endpoint", Given::Word(endpoint), ValueOrigin::Environment(ENDPOINT.to_owned()));
    }
    let mut resource = Resource::new();
    if let Some(list) = text(ATTRIBUTES) {
        match attributes(&list) {
            Some(all) => resource.extend(all.into_iter().map(|(name, value)| (name, (value, ATTRIBUTES)))),
            None => {
                let complaint =
                    Complaint::new("not a list of name=value", "write it as a=1,b=2, or unset it");
                found.problems.push(complaint.at(ValueOrigin::Environment(ATTRIBUTES.to_owned()), ""));
            }
        }
    }
    if let Some(name) = text(SERVICE_NAME) {
        resource.insert(SERVICE.to_owned(), (name, SERVICE_NAME));
    }
    resource
}

/// Reads `name=value,name=value`, in which values may have `%2C` and the like.
fn attributes(list: &str) -> Option<Vec<(String, String)>> {
    let pairs = list.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let name = decoded(name.trim())?;
            (!name.is_empty()).then_some((name, decoded(value.trim())?))
        })
        .collect()
}

/// Returns a text without its percent encoding.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use crate::config::{Overrides, ValueOrigin, load};

    const COLLECTOR: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

    fn endpoint(env: &[(&str, &str)]) -> (Option<String>, ValueOrigin) {
        let loaded = load(&Overrides::default(), env.iter().copied()).unwrap();
        let endpoint = loaded.config.trace.endpoint.as_ref();
        (endpoint.map(|url| url.to_string()), loaded.origin("trace.endpoint"))
    }

    #[test]
    fn the_endpoint_is_taken_where_no_key_says_otherwise() {
        let (url, origin) = endpoint(&[COLLECTOR]);
        assert_eq!(url.as_deref(), Some("http://collector:4318/"));
        assert_eq!(origin.to_string(), "OTEL_EXPORTER_OTLP_ENDPOINT");
        let (url, _) = endpoint(&[COLLECTOR, ("FORKPOINT_TRACE__ENDPOINT", "http://ours:1")]);
        assert_eq!(url.as_deref(), Some("http://ours:1/"));
        for off in [
            ("FORKPOINT_TRACE__ENDPOINT", ""),
            ("OTEL_SDK_DISABLED", "true"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ] {
            assert_eq!(endpoint(&[COLLECTOR, off]).0, None, "{off:?}");
        }
        assert_eq!(endpoint(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).0, None);
    }

    #[test]
    fn attributes_are_read_and_the_name_of_the_service_wins() {
        let env = [
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "service.name=other, team=a%2Cb%20c,,deployment.environment.name=test",
            ),
            ("OTEL_SERVICE_NAME", "checkout"),
        ];
        let loaded = load(&Overrides::default(), env).unwrap();
        assert_eq!(
            loaded.config.trace.resource,
            ["deployment.environment.name=test", "service.name=checkout", "team=a,b c"]
        );
        let said: Vec<String> = loaded.resource().collect();
        assert!(said.contains(&"service.name=checkout  # OTEL_SERVICE_NAME".to_owned()), "{said:?}");
        assert!(said.contains(&"team=a,b c  # OTEL_RESOURCE_ATTRIBUTES".to_owned()), "{said:?}");
    }

    #[test]
    fn what_cannot_be_read_is_a_problem_with_its_place() {
        for bad in ["team", "=a", "a=%zz", "a=%4"] {
            let problems = load(&Overrides::default(), [("OTEL_RESOURCE_ATTRIBUTES", bad)]).unwrap_err();
            assert!(
                problems.to_string().contains("OTEL_RESOURCE_ATTRIBUTES: not a list of name=value"),
                "{bad}"
            );
        }
        let env = [("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318")];
        let problems = load(&Overrides::default(), env).unwrap_err();
        assert!(problems.to_string().contains("OTEL_EXPORTER_OTLP_ENDPOINT: trace.endpoint"), "{problems}");
    }
}
