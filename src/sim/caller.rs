//! Who asks: a credential, and the workspace it belongs to.
//!
//! Every credential is accepted. Caches are shared inside a workspace, whatever the key, so the workspace must be
//! choosable: the header `anthropic-workspace-id` names it, else the text after `@` in the credential
//! (`sk-ant-anything@blue`), else it is the default one.

use http::HeaderMap;

use super::config::SimConfig;
use super::encode::id;
use super::error::ApiError;
use super::settings::{Isolation, VersionHeader};

#[derive(Debug, Clone)]
pub struct Caller {
    /// As the response header shows it.
    pub workspace: String,
    /// Requests with equal values share a cache.
    pub shared_cache: String,
    /// A digest of credential and workspace: threads belong to it.
    pub credential: [u8; 32],
    pub version: ApiVersion,
}

/// The versions of the API, by the `anthropic-version` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiVersion {
    V20230601,
    /// Without sampling parameters, and stricter about documents and citations.
    V20261021,
}

impl ApiVersion {
    fn parse(name: &str) -> Option<ApiVersion> {
        match name {
            "2023-06-01" => Some(ApiVersion::V20230601),
            "2026-10-21" => Some(ApiVersion::V20261021),
            _ => None,
        }
    }
}

/// Checks the headers that every call needs.
pub fn identify(headers: &HeaderMap, config: &SimConfig) -> Result<Caller, ApiError> {
    let credential = credential(headers)?;
    let named = headers.get("anthropic-workspace-id").and_then(|value| value.to_str().ok());
    let workspace = match named {
        Some(workspace) => workspace.to_owned(),
        None => {
            let name = credential.rsplit_once('@').map_or("default", |(_, name)| name);
            id("wrkspc_", config.seed, &[name.as_bytes()])
        }
    };
    let version = version(headers, config.rules.version_header)?;
    let shared_cache = match config.rules.isolation {
        Isolation::Workspace => workspace.clone(),
        Isolation::Organization => "organization".to_owned(),
    };
    let credential =
        *blake3::hash([credential.as_bytes(), b"\0", workspace.as_bytes()].concat().as_slice()).as_bytes();
    Ok(Caller { workspace, shared_cache, credential, version })
}

fn version(headers: &HeaderMap, rule: VersionHeader) -> Result<ApiVersion, ApiError> {
    let named = headers.get("anthropic-version").map(|value| String::from_utf8_lossy(value.as_bytes()));
    match named.as_deref().map(|name| (ApiVersion::parse(name.trim()), name)) {
        Some((Some(version), _)) => Ok(version),
        _ if rule == VersionHeader::Optional => Ok(ApiVersion::V20230601),
        None => Err(ApiError::invalid("anthropic-version: header is required")),
        Some((None, name)) => {
            Err(ApiError::invalid(format!("anthropic-version: \"{name}\" is not a valid version")))
        }
    }
}

fn credential(headers: &HeaderMap) -> Result<&str, ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(key) = text("x-api-key").filter(|key| !key.is_empty()) {
        return Ok(key);
    }
    match text("authorization") {
        None => Err(ApiError::new(401, "x-api-key header is required")),
        Some(value) => match value.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() => {
                Ok(token.trim())
            }
            _ => Err(ApiError::new(401, "Invalid bearer token")),
        },
    }
}
