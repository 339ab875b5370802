//! Who sent a request: tenant, session, agent, client. Ids leave this module only as digests.

use std::fmt;

use http::{HeaderMap, HeaderName, header};

use super::clients;
use crate::engine::words::{IdDigest, TenantId, first};

/// The headers that carry a credential, and the one that narrows it to a workspace.
static CREDENTIALS: [HeaderName; 2] = [header::AUTHORIZATION, HeaderName::from_static("x-api-key")];
static WORKSPACE: HeaderName = HeaderName::from_static("anthropic-workspace-id");
/// The headers that name a session, the stronger first, and the one that names an agent.
pub static SESSION: HeaderName = HeaderName::from_static("x-claude-code-session-id");
static OUR_SESSION: HeaderName = HeaderName::from_static("x-forkpoint-session");
static AGENT: HeaderName = HeaderName::from_static("x-claude-code-agent-id");
static BETA: HeaderName = HeaderName::from_static("anthropic-beta");
/// The first characters of the access tokens of consumer logins.
const OAUTH_TOKEN: &[u8] = b"sk-ant-oat";
static SIGNATURES: [HeaderName; 4] = [
    HeaderName::from_static("x-amz-content-sha256"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("signature"),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// `None` without a credential.
    pub tenant: Option<TenantId>,
    /// The digest of its credentials alone: the tenants of one credential share what one tenant may take. A tenant that
    /// headers name pays for itself.
    pub payer: Option<TenantId>,
    /// The digest of each of its credentials alone, if it has several.
    pub credentials: Vec<TenantId>,
    pub session: Option<Session>,
    pub agent: Option<IdDigest>,
    /// Family and major.minor of the user agent, such as `claude-cli/2.1`, if the family is known.
    pub client: String,
    /// The whole version of such a client.
    pub client_version: Option<String>,
}

/// The session that a request names. Several headers can name one: a gateway's, and the client's behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Session {
    /// The digest of the strongest name, which is shown.
    pub shown: IdDigest,
    /// The digest of every name and every value. Sessions are compared by this alone: a client that adds a header of
    /// another session to what its gateway says is in neither of the two.
    pub hints: IdDigest,
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown.fmt(f)
    }
}

/// The rule that decides which senders are one tenant, from `identity.*`.
#[derive(Clone, Copy, Debug)]
pub struct TenantRule<'a> {
    pub pepper: &'a str,
    /// Instead of the credentials, when not empty.
    pub headers: &'a [HeaderName],
}

/// `own` are families of clients that are known beside [`clients`]'.
pub fn sender(headers: &HeaderMap, rule: TenantRule<'_>, own: &[String]) -> Sender {
    let tenant = tenant(headers, rule, Scope::Whole);
    let has_workspace = rule.headers.is_empty() && headers.contains_key(&WORKSPACE);
    Sender {
        tenant,
        payer: if has_workspace { self::tenant(headers, rule, Scope::Credentials) } else { tenant },
        credentials: several(headers, rule),
        session: session(headers),
        agent: agent(headers),
        client: user_agent(headers)
            .map_or_else(|| clients::OTHER.to_owned(), |agent| clients::name(agent, own)),
        client_version: user_agent(headers).and_then(|agent| clients::version(agent, own)),
    }
}

impl Sender {
    /// The body's `metadata.user_id` is the weakest session hint.
    pub fn hint(&mut self, user_id: &str) {
        let digest = id_digest(user_id.as_bytes());
        self.session.get_or_insert(Session { shown: digest, hints: digest });
    }
}

/// Returns true if the body is covered by a signature, so that not a byte of it may change.
pub fn is_signed(headers: &HeaderMap) -> bool {
    SIGNATURES.iter().any(|name| headers.contains_key(name))
        || headers.get_all(header::AUTHORIZATION).iter().any(|value| value.as_bytes().starts_with(b"AWS4-"))
}

/// Returns true for the traffic of a consumer login: a beta says so, or the token does.
pub fn is_oauth(headers: &HeaderMap) -> bool {
    betas(headers).any(|beta| beta.starts_with("oauth-"))
        || credentials(headers).any(|credential| credential.starts_with(OAUTH_TOKEN))
}

/// The credentials of a request, in whichever header they come: SDKs changed the header, and not the key.
fn credentials(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = CREDENTIALS.iter().flat_map(|name| headers.get_all(name)).map(http::HeaderValue::as_bytes);
    values.map(|value| {
        // A scheme may be written in any case, and with any space behind it.
        let bearer = value.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        bearer.map_or(value, |(_, token)| token.trim_ascii_start())
    })
}

/// The betas that a request asks for, in its order.
pub fn betas(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lists = headers.get_all(&BETA).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(each_beta)
}

/// The betas of one list.
pub fn each_beta(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|beta| !beta.is_empty())
}

/// Betas that the API takes and that change nothing any more. Clients add and drop them.
const WITHOUT_EFFECT: [&str; 8] = [
    "prompt-caching-2024-07-31",
    "pdfs-2024-09-25",
    "message-batches-2024-09-24",
    "token-counting-2024-11-01",
    "token-efficient-tools-2025-02-19",
    "extended-cache-ttl-2025-04-11",
    "cache-diagnosis-2026-04-07",
    "ce-user-management-2026-07-13",
];

/// Returns true unless a beta is known to change nothing.
pub fn has_effect(beta: &str) -> bool {
    !WITHOUT_EFFECT.contains(&beta)
}

/// The version of the API that a request asks for.
pub fn version(headers: &HeaderMap) -> &str {
    headers.get("anthropic-version").and_then(|version| version.to_str().ok()).unwrap_or_default().trim()
}

/// What of a sender makes a digest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Whole,
    /// Everything but the workspace.
    Credentials,
}

fn tenant(headers: &HeaderMap, rule: TenantRule<'_>, scope: Scope) -> Option<TenantId> {
    if !rule.headers.is_empty() {
        return digest(headers, rule, &[], rule.headers);
    }
    let credentials = distinct(headers);
    let narrowed: &[HeaderName] = if scope == Scope::Whole { std::slice::from_ref(&WORKSPACE) } else { &[] };
    if credentials.is_empty() { None } else { digest(headers, rule, &credentials, narrowed) }
}

/// The digest of each credential alone, if there are several that make the tenant.
fn several(headers: &HeaderMap, rule: TenantRule<'_>) -> Vec<TenantId> {
    if !rule.headers.is_empty() {
        return Vec::new();
    }
    let credentials = distinct(headers);
    let alone = |credential: &&[u8]| digest(headers, rule, std::slice::from_ref(credential), &[]);
    if credentials.len() > 1 { credentials.iter().filter_map(alone).collect() } else { Vec::new() }
}

/// The credentials of a request in their order, each of them once.
fn distinct(headers: &HeaderMap) -> Vec<&[u8]> {
    let mut credentials: Vec<&[u8]> = credentials(headers).collect();
    credentials.sort_unstable();
    credentials.dedup();
    credentials
}

/// The digest of credentials and of what further headers say; none if there is nothing of either.
fn digest(
    headers: &HeaderMap,
    rule: TenantRule<'_>,
    credentials: &[&[u8]],
    named: &[HeaderName],
) -> Option<TenantId> {
    let mut material = Vec::with_capacity(512);
    let mut add = |part: &[u8]| {
        // Lengths keep ("ab", "c") apart from ("a", "bc").
        material.extend_from_slice(&(part.len() as u64).to_le_bytes());
        material.extend_from_slice(part);
    };
    add(rule.pepper.as_bytes());
    if rule.headers.is_empty() {
        // Nor is a workspace taken for a credential.
        add(&(credentials.len() as u64).to_le_bytes());
        for &credential in credentials {
            add(credential);
        }
    }
    let mut found = !credentials.is_empty();
    for name in named {
        for value in headers.get_all(name) {
            add(name.as_str().as_bytes());
            add(value.as_bytes());
            found = true;
        }
    }
    // In one run, which is far cheaper than in parts.
    found.then(|| TenantId(blake3::derive_key("forkpoint tenant v2", &material)))
}

/// The session that the headers name.
fn session(headers: &HeaderMap) -> Option<Session> {
    let mut shown = None;
    let mut material = Vec::new();
    for name in [&SESSION, &OUR_SESSION] {
        for value in headers.get_all(name) {
            shown.get_or_insert_with(|| id_digest(value.as_bytes()));
            // Lengths keep two values apart from one that contains both.
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                material.extend_from_slice(&(part.len() as u64).to_le_bytes());
                material.extend_from_slice(part);
            }
        }
    }
    Some(Session { shown: shown?, hints: id_digest(&material) })
}

/// The agent that the headers name; several names are another one than each of them.
fn agent(headers: &HeaderMap) -> Option<IdDigest> {
    let names: Vec<&[u8]> = headers.get_all(&AGENT).iter().map(http::HeaderValue::as_bytes).collect();
    (!names.is_empty()).then(|| id_digest(&names.join(&b", "[..])))
}

fn id_digest(id: &[u8]) -> IdDigest {
    IdDigest(first(blake3::hash(id).as_bytes()))
}

/// The user agent, empty if there is none; `None` if it is no text.
fn user_agent(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::USER_AGENT).map_or(Some(""), |value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: TenantRule<'_> = TenantRule { pepper: "", headers: &[] };

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    fn tenant_of(pairs: &[(&'static str, &'static str)], rule: TenantRule<'_>) -> Option<TenantId> {
        sender(&headers(pairs), rule, &[]).tenant
    }

    #[test]
    fn every_credential_and_the_workspace_make_the_tenant() {
        let key = ("x-api-key", "k");
        let bearer = ("authorization", "Bearer other");
        let workspace = ("anthropic-workspace-id", "w");
        let all = [
            tenant_of(&[key], RULE),
            tenant_of(&[bearer], RULE),
            tenant_of(&[key, bearer], RULE),
            tenant_of(&[key, workspace], RULE),
            tenant_of(&[key, ("x-api-key", "anthropic-workspace-id"), ("x-api-key", "w")], RULE),
            tenant_of(&[key], TenantRule { pepper: "p", headers: &[] }),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(one.is_some() && all[..i].iter().all(|other| other != one), "{i}");
        }
        assert_eq!(tenant_of(&[key, bearer], RULE), tenant_of(&[bearer, key, ("x-other", "1")], RULE));
    }

    #[test]
    fn one_key_is_one_tenant_in_whichever_header_it_comes() {
        let one = tenant_of(&[("x-api-key", "k")], RULE);
        for again in [
            &[("authorization", "Bearer k")][..],
            &[("authorization", "bearer  k")],
            &[("authorization", "k")],
            &[("x-api-key", "k"), ("authorization", "Bearer k")],
            &[("x-api-key", "k"), ("x-api-key", "k")],
        ] {
            assert_eq!(tenant_of(again, RULE), one, "{again:?}");
        }
        assert_ne!(tenant_of(&[("authorization", "Basic k")], RULE), one);
    }

    #[test]
    fn the_workspaces_of_a_credential_have_one_payer() {
        let sender = |pairs: &[(&'static str, &'static str)]| sender(&headers(pairs), RULE, &[]);
        let key = sender(&[("x-api-key", "k")]);
        assert_eq!(key.payer, key.tenant);
        for workspace in ["w", "v"] {
            let of = sender(&[("x-api-key", "k"), ("anthropic-workspace-id", workspace)]);
            assert!(of.payer == key.tenant && of.tenant != key.tenant, "{workspace}");
        }
        assert_ne!(sender(&[("x-api-key", "l"), ("anthropic-workspace-id", "w")]).payer, key.payer);
        assert_eq!(sender(&[("anthropic-workspace-id", "w")]).payer, None);
    }

    #[test]
    fn each_of_several_credentials_is_known_as_if_it_came_alone() {
        let sender = |pairs: &[(&'static str, &'static str)]| sender(&headers(pairs), RULE, &[]);
        let (key, token) = (("x-api-key", "k"), ("authorization", "Bearer t"));
        let both = sender(&[key, token, ("anthropic-workspace-id", "w")]);
        let alone = [sender(&[key]), sender(&[token])].map(|sender| sender.tenant.unwrap());
        assert_eq!(both.credentials, alone);
        for one in [sender(&[key]), sender(&[key, ("authorization", "Bearer k")]), sender(&[])] {
            assert!(one.credentials.is_empty());
        }
    }

    #[test]
    fn without_a_credential_there_is_no_tenant() {
        assert_eq!(tenant_of(&[("anthropic-workspace-id", "w")], RULE), None);
    }

    #[test]
    fn configured_headers_replace_the_credentials() {
        let names = [HeaderName::from_static("x-user")];
        let rule = TenantRule { pepper: "", headers: &names };
        let one = tenant_of(&[("x-api-key", "rotates-1"), ("x-user", "ann")], rule);
        assert!(one.is_some());
        assert_eq!(one, tenant_of(&[("x-api-key", "rotates-2"), ("x-user", "ann")], rule));
        assert_ne!(one, tenant_of(&[("x-api-key", "rotates-1"), ("x-user", "bob")], rule));
        assert_eq!(tenant_of(&[("x-api-key", "rotates-1")], rule), None);
    }

    #[test]
    fn session_hints_have_an_order_and_show_only_a_digest() {
        let map = headers(&[("x-claude-code-session-id", "s"), ("x-claude-code-agent-id", "a")]);
        let mut seen = sender(&map, RULE, &[]);
        seen.hint("u");
        assert_eq!(seen.session.unwrap().shown, id_digest(b"s"));
        assert_eq!(seen.agent.unwrap().to_string().len(), 8);
        let mut seen = sender(&HeaderMap::new(), RULE, &[]);
        seen.hint("u");
        assert_eq!(seen.session.unwrap().shown, id_digest(b"u"));
    }

    #[test]
    fn sessions_are_the_same_only_if_every_name_and_every_value_is() {
        let (theirs, ours) = ("x-claude-code-session-id", "x-forkpoint-session");
        let named: [&[(&'static str, &'static str)]; 8] = [
            &[(theirs, "a")],
            &[(ours, "a")],
            &[(ours, "b")],
            &[(theirs, "a"), (ours, "a")],
            &[(theirs, "a"), (ours, "b")],
            &[(theirs, "b"), (ours, "a")],
            &[(ours, "a"), (ours, "b")],
            &[(ours, "b"), (ours, "a")],
        ];
        let hints = named.map(|named| sender(&headers(named), RULE, &[]).session.unwrap().hints);
        for (number, one) in hints.iter().enumerate() {
            assert!(hints[..number].iter().all(|other| other != one), "{number}");
        }
        let again = headers(&[("x-other", "1"), (ours, "b"), (theirs, "a")]);
        assert_eq!(sender(&again, RULE, &[]).session.unwrap().hints, hints[4]);
    }

    #[test]
    fn every_name_of_an_agent_counts() {
        let agent = |names: &[&'static str]| {
            let pairs: Vec<_> = names.iter().map(|name| ("x-claude-code-agent-id", *name)).collect();
            sender(&headers(&pairs), RULE, &[]).agent
        };
        assert_eq!((agent(&[]), agent(&["a"])), (None, Some(id_digest(b"a"))));
        let all = [agent(&["a"]), agent(&["b"]), agent(&["a", "b"]), agent(&["b", "a"])];
        for (number, one) in all.iter().enumerate() {
            assert!(all[..number].iter().all(|other| other != one), "{number}");
        }
    }

    #[test]
    fn a_client_is_named_by_its_user_agent() {
        let name = |pairs| sender(&headers(pairs), RULE, &["till".to_owned()]).client;
        assert_eq!(name(&[("user-agent", "till/3.2.1")]), "till/3.2");
        assert_eq!(name(&[("user-agent", "stranger/3.2.1")]), "other");
        assert_eq!(name(&[]), "none");
    }

    #[test]
    fn consumer_logins_are_recognised_by_beta_and_by_token() {
        assert!(is_oauth(&headers(&[("anthropic-beta", "a-1, oauth-2025-04-20")])));
        assert!(is_oauth(&headers(&[("anthropic-beta", "a-1"), ("anthropic-beta", "oauth-2025-04-20")])));
        for token in
            ["Bearer sk-ant-oat01-x", "bearer sk-ant-oat01-x", "BEARER  sk-ant-oat01-x", "sk-ant-oat01-x"]
        {
            assert!(is_oauth(&headers(&[("authorization", token)])), "{token}");
        }
        assert!(!is_oauth(&headers(&[("authorization", "Bearer sk-ant-api03-x"), ("x-api-key", "k")])));
        assert!(!is_oauth(&headers(&[("anthropic-beta", "no-oauth-here")])));
    }

    #[test]
    fn signed_bodies_are_recognised() {
        assert!(is_signed(&headers(&[(
            "authorization",
            "AWS4-HMAC-SHA256 Credential=…".split('…').next().unwrap()
        )])));
        assert!(is_signed(&headers(&[("content-md5", "x")])));
        assert!(!is_signed(&headers(&[("authorization", "Bearer AWS4-")])));
    }
}
