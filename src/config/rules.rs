//! Refuses values that are valid by themselves and impossible together.
//!
//! Rule: a combination is checked only if each of its keys is valid by itself, so that no mistake is reported
//! twice. The problem is placed at the value of the strongest layer, which was probably set last; the message names
//! the others with their origins.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Loaded;
use super::keys::ConfigKey;
use super::problem::{Complaint, Problem};
use super::types::StoreKind;

/// Returns the problems of values that do not go together. The keys in `broken` have no valid value.
pub(super) fn check(loaded: &Loaded, broken: &BTreeSet<&str>) -> Vec<Problem> {
    let rules = CrossChecks { loaded, broken };
    let mut problems = Vec::new();
    problems.extend(rules.admin_stays_at_home());
    problems.extend(rules.listeners_are_apart());
    problems.extend(rules.upstream_is_elsewhere());
    problems.extend(rules.one_body_can_be_held());
    problems.extend(rules.a_match_has_a_file());
    problems.extend(rules.redis_has_a_server());
    problems.extend(rules.there_is_one_key());
    problems
}

struct CrossChecks<'a> {
    loaded: &'a Loaded,
    broken: &'a BTreeSet<&'a str>,
}

impl CrossChecks<'_> {
    /// Requires a token for an admin port that other machines can reach.
    fn admin_stays_at_home(&self) -> Option<Problem> {
        let (path, token) = ("server.admin_listen", "admin.token_file");
        let config = &self.loaded.config;
        let is_safe =
            config.server.admin_listen.ip().to_canonical().is_loopback() || config.admin.token_file.is_some();
        if self.broken.contains(path) || self.broken.contains(token) || is_safe {
            return None;
        }
        let complaint = Complaint::new(
            "the admin port may not be reached from other machines without a token",
            "set admin.token_file, or keep it on 127.0.0.1 and set server.metrics_listen for probes and scrapers",
        );
        Some(complaint.at(self.loaded.origin(path), self.assignment(path)))
    }

    fn listeners_are_apart(&self) -> Vec<Problem> {
        let listeners = self.listeners();
        let mut problems = Vec::new();
        for (index, (path, address)) in listeners.iter().enumerate() {
            for (other, other_address) in &listeners[..index] {
                if overlap(*address, *other_address) {
                    let message = format!("takes the same port as {}", self.with_origin(other));
                    let hint = "give each its own port, or port 0 to let the system choose";
                    problems.push(self.pair(path, other, Complaint::new(message, hint)));
                }
            }
        }
        problems
    }

    /// Refuses a proxy that would forward to itself: it would answer nobody, and fill all its queues.
    fn upstream_is_elsewhere(&self) -> Option<Problem> {
        let path = "upstream.url";
        let url = &self.loaded.config.upstream.url;
        if self.broken.contains(path) {
            return None;
        }
        let (other, _) = self.listeners().into_iter().find(|(_, address)| reaches(url, *address))?;
        let complaint = Complaint::new(
            format!("forkpoint would forward to itself: this is {}", self.with_origin(other)),
            "name the Messages API, such as https://api.anthropic.com, or listen on another port",
        );
        Some(self.pair(path, other, complaint))
    }

    fn one_body_can_be_held(&self) -> Option<Problem> {
        let (path, other) = ("limits.held_bytes", "limits.body_bytes");
        let limits = &self.loaded.config.limits;
        let known = !self.broken.contains(path) && !self.broken.contains(other);
        if !known || limits.held_bytes >= limits.body_bytes {
            return None;
        }
        let complaint = Complaint::new(
            format!("less than one body: {}", self.with_origin(other)),
            "raise limits.held_bytes or lower limits.body_bytes",
        );
        Some(self.pair(path, other, complaint))
    }

    fn a_match_has_a_file(&self) -> Option<Problem> {
        let (path, other) = ("record.match", "record.file");
        let record = &self.loaded.config.record;
        let known = !self.broken.contains(path) && !self.broken.contains(other);
        if !known || record.matching.is_none() || record.file.is_some() {
            return None;
        }
        let complaint = Complaint::new(
            format!("nothing is recorded: {}", self.with_origin(other)),
            "name a file in record.file; what matches goes to the same name with .match behind it",
        );
        Some(self.pair(path, other, complaint))
    }

    fn redis_has_a_server(&self) -> Option<Problem> {
        let (path, other) = ("store.kind", "store.url");
        let store = &self.loaded.config.store;
        let known = !self.broken.contains(path) && !self.broken.contains(other);
        if !known || store.kind != StoreKind::Redis || store.url.is_some() {
            return None;
        }
        let complaint = Complaint::new(
            format!("it is not said where: {}", self.with_origin(other)),
            "set store.url (FORKPOINT_STORE__URL) to a server, such as redis://127.0.0.1:6379",
        );
        Some(self.pair(path, other, complaint))
    }

    fn there_is_one_key(&self) -> Option<Problem> {
        let (path, other) = ("store.key_file", "store.key");
        let store = &self.loaded.config.store;
        let known = !self.broken.contains(path) && !self.broken.contains(other);
        if !known || store.key_file.is_none() || store.key.is_empty() {
            return None;
        }
        let complaint = Complaint::new(
            format!("there is a key already: {}", self.with_origin(other)),
            "remove one of store.key and store.key_file",
        );
        Some(self.pair(path, other, complaint))
    }

    fn listeners(&self) -> Vec<(&'static str, SocketAddr)> {
        let server = &self.loaded.config.server;
        let all = [
            ("server.listen", Some(server.listen)),
            ("server.admin_listen", Some(server.admin_listen)),
            ("server.metrics_listen", server.metrics_listen),
        ];
        let valid = all.into_iter().filter(|(path, _)| !self.broken.contains(path));
        valid.filter_map(|(path, address)| Some((path, address?))).collect()
    }

    /// Returns a problem of two keys, placed at the origin of the stronger layer.
    fn pair(&self, path: &str, other: &str, complaint: Complaint) -> Problem {
        let origin = self.loaded.origin(path).max(self.loaded.origin(other));
        complaint.at(origin, self.assignment(path))
    }

    fn with_origin(&self, path: &str) -> String {
        format!("{} ({})", self.assignment(path), self.loaded.origin(path))
    }

    fn assignment(&self, path: &str) -> String {
        let value = ConfigKey::find(path).map(|key| key.shown(&self.loaded.config).to_toml());
        format!("{path} = {}", value.unwrap_or_default())
    }
}

/// Returns true if two listeners cannot both be opened.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.port() != 0 && (covers(a.ip(), b.ip()) || covers(b.ip(), a.ip()))
}

/// Returns true if a listener on `listen` also takes connections to `ip`.
fn covers(listen: IpAddr, ip: IpAddr) -> bool {
    match listen {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => true,
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => ip.to_canonical().is_ipv4(),
        one => one.to_canonical() == ip.to_canonical(),
    }
}

/// Returns true if the URL leads to this listener, as far as can be known without asking a name server.
fn reaches(url: &http::Uri, listen: SocketAddr) -> bool {
    let default_port = if url.scheme_str() == Some("https") { 443 } else { 80 };
    if listen.port() == 0 || url.port_u16().unwrap_or(default_port) != listen.port() {
        return false;
    }
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let loopbacks = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    match host.parse::<IpAddr>() {
        // On a wildcard listener an address may be that of another machine; only loopback is certain.
        Ok(ip) if ip.is_unspecified() => loopbacks.iter().any(|loopback| covers(listen.ip(), *loopback)),
        Ok(ip) if listen.ip().is_unspecified() => ip.to_canonical().is_loopback() && covers(listen.ip(), ip),
        Ok(ip) => covers(listen.ip(), ip),
        Err(_) if host.eq_ignore_ascii_case("localhost") => {
            loopbacks.iter().any(|loopback| covers(listen.ip(), *loopback))
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_listeners_overlap_when_one_takes_what_the_other_wants() {
        for (a, b, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "127.0.0.1:2", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("0.0.0.0:1", "[::1]:1", false),
            ("[::]:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "127.0.0.2:1", false),
            ("[::ffff:127.0.0.1]:1", "127.0.0.1:1", true),
        ] {
            let (one, two) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!((overlap(one, two), overlap(two, one)), (expected, expected), "{a} {b}");
        }
    }

    #[test]
    fn a_url_reaches_a_listener_by_address_wildcard_or_localhost() {
        for (url, listen, expected) in [
            ("http://127.0.0.1:8787", "127.0.0.1:8787", true),
            ("http://127.0.0.1:8787/v1", "0.0.0.0:8787", true),
            ("http://localhost:8787", "127.0.0.1:8787", true),
            ("http://LOCALHOST:8787", "[::1]:8787", true),
            ("http://[::1]:8787", "[::]:8787", true),
            ("http://0.0.0.0:8787", "127.0.0.1:8787", true),
            ("http://127.0.0.1", "127.0.0.1:80", true),
            ("https://127.0.0.1", "127.0.0.1:443", true),
            ("http://127.0.0.1:8787", "127.0.0.1:0", false),
            ("http://127.0.0.1:9000", "127.0.0.1:8787", false),
            ("http://10.0.0.7:8787", "0.0.0.0:8787", false),
            ("http://10.0.0.7:8787", "10.0.0.7:8787", true),
            ("https://api.anthropic.com", "0.0.0.0:443", false),
        ] {
            assert_eq!(reaches(&url.parse().unwrap(), listen.parse().unwrap()), expected, "{url} {listen}");
        }
    }
}
