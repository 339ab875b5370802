//! Parses a text into a typed value, for values with a syntax of their own.
//!
//! Rule: a parser accepts only what the proxy can use as it is written. No names are resolved, no scheme is
//! guessed, and nothing is dropped silently; the hint says what was probably meant.
//!
//! ```text
//! address   "127.0.0.1:8787"                 not "localhost:8787", not ":8787"
//! url       "https://gateway.example/v2"     not "gateway.example", nothing after "?" or "#"
//! size      "32 MiB", "16MB", "512"          not "32 megs"
//! ```

use std::net::SocketAddr;

use super::problem::{Complaint, quoted};
use super::types::{MASK, Secret, Selector, StoreUrl};

/// Parses an IP address with a port.
pub(super) fn address(text: &str) -> Result<SocketAddr, Complaint> {
    text.parse().map_err(|_| {
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let hint = match port.parse::<u16>() {
            Ok(port) if host.is_empty() => {
                format!("write the address too: 127.0.0.1:{port} for this machine, 0.0.0.0:{port} for all")
            }
            Ok(port) => {
                format!(
                    "names are not resolved here; write an address with its port, such as 127.0.0.1:{port}"
                )
            }
            Err(_) => "write an address with its port, such as 127.0.0.1:8787 or [::1]:8787".to_owned(),
        };
        Complaint::new("not an IP address with a port", hint)
    })
}

/// Parses a URL of scheme, authority and an optional path prefix. A slash at its end is removed.
pub(super) fn url(text: &str) -> Result<http::Uri, Complaint> {
    let example = "write it like https://api.anthropic.com";
    let (scheme, rest) = text
        .split_once("://")
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https"))
        .ok_or_else(|| Complaint::new("not an http or https URL", example))?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        let hint = "take them out; forkpoint forwards the credentials of its clients and has none of its own";
        return Err(Complaint::new("a URL with credentials", hint));
    }
    if rest.contains(['?', '#']) {
        return Err(Complaint::new(
            "a URL with a query or fragment",
            "end it before the ? or #; forkpoint appends the path and query of each request",
        ));
    }
    let bare = format!("{}://{}", scheme.to_ascii_lowercase(), rest.trim_end_matches('/'));
    let uri: http::Uri = bare.parse().map_err(|_| Complaint::new("not a valid URL", example))?;
    let host = uri.host().unwrap_or_default();
    let port_is_usable = match authority.get(host.len()..) {
        None | Some("") => true,
        Some(_) => uri.port_u16().is_some_and(|port| port > 0),
    };
    if host.is_empty() || !port_is_usable {
        return Err(Complaint::new("a URL without a usable host and port", example));
    }
    Ok(uri)
}

/// Parses the URL of a Redis server, or of some of a cluster.
pub(super) fn store_url(text: &str) -> Result<StoreUrl, Complaint> {
    let example = "write it like redis://:PASSWORD@redis.example:6379/0, or rediss://… for TLS; of a cluster name one \
                   server or several, with commas between them";
    let refuse = |why: &str| Err(Complaint::new(why, example));
    if text.matches("://").count() > 1 {
        let nodes = text.split(',').map(|node| Ok(store_url(node)?.reveal().to_owned()));
        return Ok(StoreUrl::new(nodes.collect::<Result<Vec<_>, _>>()?.join(",")));
    }
    let Some((scheme, rest)) = text.split_once("://") else { return refuse("not a redis or rediss URL") };
    let scheme = scheme.to_ascii_lowercase();
    if !matches!(scheme.as_str(), "redis" | "rediss") {
        return refuse("not a redis or rediss URL");
    }
    let (login, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    if login.split(':').any(|part| part == MASK) {
        return Err(Complaint::new(
            "this is the mask that check-config prints, not the password itself",
            "put the password here, or remove the line and set its environment variable",
        ));
    }
    if login.contains(['/', '?', '#']) || text.contains(char::is_whitespace) {
        return refuse("not a valid URL; write /, ?, # and spaces in a password as %2F, %3F, %23 and %20");
    }
    let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
    if place.contains(['?', '#']) || !database.bytes().all(|byte| byte.is_ascii_digit()) {
        return refuse("a URL with more than a database number behind its host");
    }
    if !hosts.split(',').all(is_host) {
        return refuse("a URL without a usable host and port");
    }
    // Each server by a URL of its own: the login is the same for all.
    let (before, after) = (&rest[..rest.len() - place.len()], &place[hosts.len()..]);
    let node = |host: &str| format!("{scheme}://{before}{host}{after}");
    Ok(StoreUrl::new(hosts.split(',').map(node).collect::<Vec<_>>().join(",")))
}

/// Returns true for a host with a port or without one.
fn is_host(text: &str) -> bool {
    let Ok(authority) = text.parse::<http::uri::Authority>() else { return false };
    let has_usable_port = match text.get(authority.host().len()..) {
        None | Some("") => true,
        Some(_) => authority.port_u16().is_some_and(|port| port > 0),
    };
    !authority.host().is_empty() && has_usable_port
}

/// Returns a URL in a form that messages may show: whatever may be a credential is masked, even in a broken URL.
pub fn masked_url(text: &str) -> String {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            (format!("{scheme}://"), rest)
        }
        _ => (String::new(), text),
    };
    let (address, tail) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], format!("{}{MASK}", &rest[at..=at])),
        None => (rest, String::new()),
    };
    // A password may contain "?", "#" or "@", so with an "@" in the tail everything is masked.
    if rest[address.len()..].contains('@') {
        return format!("{scheme}{MASK}");
    }
    match address.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}{MASK}@{host}{tail}"),
        None => format!("{scheme}{address}{tail}"),
    }
}

/// Parses a secret. The mask that `check-config` prints instead of one is refused.
pub(super) fn secret(text: &str) -> Result<Secret, Complaint> {
    if text == MASK {
        return Err(Complaint::new(
            "this is the mask that check-config prints, not the secret itself",
            "put the secret here, or remove the line and set its environment variable",
        ));
    }
    Ok(Secret::new(text))
}

/// Parses a selector, such as `tenant:0123abcd`.
pub(super) fn selector(text: &str) -> Result<Selector, Complaint> {
    let hint = "write it as the log shows it, such as tenant:0123abcd, agent:0123abcd or fork:0123abcd";
    let (kind, digest) =
        text.split_once(':').ok_or_else(|| Complaint::new("nothing that can be matched", hint))?;
    let digest = digest.to_ascii_lowercase();
    if digest.len() != 8 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Complaint::new("not a digest of eight hex digits", hint));
    }
    match kind {
        "tenant" => Ok(Selector::Tenant(digest)),
        "agent" => Ok(Selector::Agent(digest)),
        "fork" => Ok(Selector::Fork(digest)),
        _ => Err(Complaint::new("nothing that can be matched", hint)),
    }
}

/// The most headers that identify tenants. They are digested for every request; more are a mistake.
const TENANT_HEADERS_MAX: usize = 16;

/// Parses the names of request headers, and refuses duplicates.
pub(super) fn headers(names: &[String]) -> Result<Vec<http::HeaderName>, Complaint> {
    if names.len() > TENANT_HEADERS_MAX {
        return Err(Complaint::new(
            format!("{} header names, more than {TENANT_HEADERS_MAX}", names.len()),
            "name only the headers that tell tenants apart",
        ));
    }
    let mut headers = Vec::with_capacity(names.len());
    for name in names {
        let header: http::HeaderName = name.parse().map_err(|_| {
            Complaint::new(
                format!("{} is not a header name", quoted(name)),
                "header names are letters, digits and dashes, such as x-user-id",
            )
        })?;
        if headers.contains(&header) {
            return Err(Complaint::new(format!("{header} is named twice"), "name each header once"));
        }
        headers.push(header);
    }
    Ok(headers)
}

const UNITS: [(&str, u64); 8] = [
    ("", 1),
    ("b", 1),
    ("kb", 1000),
    ("mb", 1000 * 1000),
    ("gb", 1000 * 1000 * 1000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
];

/// Parses a number of bytes with an optional unit.
pub(super) fn size(text: &str) -> Result<u64, Complaint> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let bytes =
        number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    bytes.ok_or_else(|| {
        Complaint::new(
            "not a size",
            "write a whole number of bytes, or one with B, KB, MB, GB, KiB, MiB or GiB, such as \"32 MiB\"",
        )
    })
}

/// Returns the shortest exact spelling of a size.
pub(super) fn size_text(bytes: u64) -> String {
    for (unit, factor) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{} {unit}", bytes / factor);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_numbers_and_the_hint_knows_what_was_meant() {
        assert_eq!(address("[::1]:80").unwrap().port(), 80);
        let hint = |text| address(text).unwrap_err().hint;
        assert!(hint("localhost:9000").contains("127.0.0.1:9000"));
        assert!(hint(":9000").contains("127.0.0.1:9000 for this machine"));
        assert!(hint("9000").contains("127.0.0.1:9000 for this machine"));
        assert!(hint("127.0.0.1").contains("127.0.0.1:8787"));
        assert!(hint("127.0.0.1:99999").contains("127.0.0.1:8787"));
    }

    #[test]
    fn urls_keep_a_prefix_and_lose_the_slash_at_its_end() {
        for (given, kept) in [
            ("https://api.anthropic.com", "https://api.anthropic.com/"),
            ("https://api.anthropic.com/", "https://api.anthropic.com/"),
            ("HTTP://127.0.0.1:9/v2/", "http://127.0.0.1:9/v2"),
            ("http://[::1]:8080", "http://[::1]:8080/"),
        ] {
            assert_eq!(url(given).unwrap().to_string(), kept, "{given}");
        }
    }

    #[test]
    fn urls_that_cannot_be_forwarded_to_are_refused() {
        for (given, message) in [
            ("", "not an http or https URL"),
            ("api.anthropic.com", "not an http or https URL"),
            ("ftp://a", "not an http or https URL"),
            ("http://", "not a valid URL"),
            ("http://a b", "not a valid URL"),
            ("http://:80", "a URL without a usable host and port"),
            ("http://a:0", "a URL without a usable host and port"),
            ("http://a:99999", "a URL without a usable host and port"),
            ("http://a:", "a URL without a usable host and port"),
            ("http://u:p@a", "a URL with credentials"),
            ("http://a/?k=v", "a URL with a query or fragment"),
            ("http://a#f", "a URL with a query or fragment"),
        ] {
            assert_eq!(url(given).unwrap_err().message, message, "{given}");
        }
    }

    #[test]
    fn credentials_in_urls_are_masked_however_the_url_is_broken() {
        for (given, shown) in [
            ("https://u:hunter2@h/p", "https://MASKED@h/p"),
            ("u:hunter2@h", "MASKED@h"),
            ("u:hunter2://@h", "MASKED@h"),
            ("https://u:hunter2@x@h", "https://MASKED@h"),
            ("https://h?key=hunter2", "https://h?MASKED"),
            ("https://h#hunter2", "https://h#MASKED"),
            ("https://u:hunt?er2@h", "https://MASKED"),
            ("https://h", "https://h"),
        ] {
            assert_eq!(masked_url(given), shown, "{given}");
        }
    }

    #[test]
    fn the_url_of_a_store_names_hosts_a_login_and_a_database_and_nothing_else() {
        for good in [
            "redis://127.0.0.1",
            "rediss://h:6380/3",
            "redis://:hunter2@h:1",
            "redis://u:p@w@h",
            "redis://:hunter2@a:1,redis://:other@b:2",
        ] {
            assert_eq!(store_url(good).unwrap().reveal(), good);
            assert!(!format!("{:?}", store_url(good).unwrap()).contains("hunter2"));
        }
        let several = store_url("redis://u:p%2Fw@a:1,b,[::1]:3/2").unwrap();
        assert_eq!(several.reveal(), "redis://u:p%2Fw@a:1/2,redis://u:p%2Fw@b/2,redis://u:p%2Fw@[::1]:3/2");
        assert_eq!(store_url("REDIS://h").unwrap().reveal(), "redis://h");
        for (bad, message) in [
            ("h:6379", "not a redis or rediss URL"),
            ("http://h", "not a redis or rediss URL"),
            ("redis://", "a URL without a usable host and port"),
            ("redis://h:0", "a URL without a usable host and port"),
            ("redis://a,,b", "a URL without a usable host and port"),
            ("redis://h/x", "a URL with more than a database number behind its host"),
            ("redis://h?a=b", "a URL with more than a database number behind its host"),
            ("redis://MASKED@h", "this is the mask that check-config prints, not the password itself"),
        ] {
            assert_eq!(store_url(bad).unwrap_err().message, message, "{bad}");
        }
        assert!(store_url("redis://:a/b@h").unwrap_err().message.starts_with("not a valid URL"));
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        for (given, bytes) in [
            ("512", 512),
            ("1 B", 1),
            ("16MB", 16_000_000),
            ("32 MiB", 33_554_432),
            ("1gib", 1 << 30),
            ("2 kb", 2000),
        ] {
            assert_eq!(size(given), Ok(bytes), "{given}");
        }
        for given in
            ["", "MiB", "1.5 MiB", "-1", "32 megs", "32M", "99999999999999999999", "9999999999999 GiB"]
        {
            assert_eq!(size(given).unwrap_err().message, "not a size", "{given}");
        }
    }

    #[test]
    fn headers_are_valid_and_named_once() {
        let read = |names: &[&str]| headers(&names.iter().map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(read(&["X-User"]).unwrap(), ["x-user"]);
        assert_eq!(read(&["a b"]).unwrap_err().message, "\"a b\" is not a header name");
        assert_eq!(read(&["a", "A"]).unwrap_err().message, "a is named twice");
        assert_eq!(read(&["a"; 17]).unwrap_err().message, "17 header names, more than 16");
    }

    #[test]
    fn the_mask_is_no_secret() {
        assert!(secret("MASKED").is_err());
        assert_eq!(secret("hunter2").unwrap().reveal(), "hunter2");
    }

    proptest! {
        #[test]
        fn a_size_reads_back_as_itself(bytes: u64) {
            prop_assert_eq!(size(&size_text(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_breaks_a_parser_or_slips_a_password_through(text in "\\PC*") {
            let _ = (address(&text), size(&text), headers(std::slice::from_ref(&text)));
            if let Ok(uri) = url(&text) {
                prop_assert!(uri.host().is_some_and(|host| !host.is_empty()));
                prop_assert!(uri.query().is_none());
            }
            let dressed = format!("https://u:hunter2{text}@h");
            prop_assert!(!masked_url(&dressed).contains("hunter2"), "{}", dressed);
        }
    }
}
