//! Request bodies as they come: compressed, and with their model in the path.

use std::io::{self, Read};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};

use super::body::{PromptEndpoint, missing, parse};
use super::error::ApiError;

/// The header that Vertex does without: its version is a member of the body.
const VERSION: &str = "anthropic-version";

/// Decodes a body that came compressed.
pub fn decode(body: Bytes, headers: &HeaderMap, most: usize) -> Result<Bytes, ApiError> {
    let lines = headers.get_all(header::CONTENT_ENCODING).iter();
    let names = lines.flat_map(|line| line.to_str().unwrap_or("?").split(',')).map(str::trim);
    let names: Vec<String> = names.map(str::to_ascii_lowercase).collect();
    let mut decoded = body;
    // The coding that was applied last is named last.
    for name in names.iter().rev().filter(|name| !matches!(name.as_str(), "" | "identity")) {
        let encoded = &decoded[..];
        let reader: io::Result<Box<dyn Read>> = match name.as_str() {
            "gzip" | "x-gzip" => Ok(Box::new(flate2::read::MultiGzDecoder::new(encoded))),
            "deflate" => Ok(Box::new(flate2::read::ZlibDecoder::new(encoded))),
            "br" => Ok(Box::new(brotli::Decompressor::new(encoded, 4096))),
            "zstd" => {
                zstd::stream::read::Decoder::new(encoded).map(|reader| Box::new(reader) as Box<dyn Read>)
            }
            _ => return Err(unsupported(name)),
        };
        let mut whole = Vec::new();
        let most_read = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
        let read = reader.and_then(|reader| reader.take(most_read).read_to_end(&mut whole));
        read.map_err(|_| invalid(name))?;
        if whole.len() > most {
            let message = "Request exceeds the maximum size after decoding";
            return Err(ApiError::new(413, message).coded("request_body_too_large_after_decoding"));
        }
        decoded = whole.into();
    }
    Ok(decoded)
}

fn unsupported(name: &str) -> ApiError {
    let message = format!("content-encoding: \"{name}\" is not supported");
    ApiError::new(415, message).coded("request_body_encoding_unsupported")
}

fn invalid(name: &str) -> ApiError {
    let message = format!("The request body is not valid {name}");
    ApiError::invalid(message).coded("request_body_encoding_invalid")
}

/// A call of Vertex: `{model}:rawPredict` or `{model}:streamRawPredict`.
#[derive(Debug)]
pub struct VertexCall {
    /// None for a count of tokens, which names its model in the body.
    model: Option<String>,
}

impl VertexCall {
    /// Reads the last segment of the path.
    pub fn read(segment: &str) -> Option<VertexCall> {
        let (model, call) = segment.rsplit_once(':')?;
        match (model, call) {
            ("count-tokens", "rawPredict") => Some(VertexCall { model: None }),
            (model, "rawPredict" | "streamRawPredict") => Some(VertexCall { model: Some(model.to_owned()) }),
            _ => None,
        }
    }

    pub fn endpoint(&self) -> PromptEndpoint {
        if self.model.is_some() { PromptEndpoint::Messages } else { PromptEndpoint::CountTokens }
    }

    /// Checks a body of Vertex, and returns the Messages body that says the same.
    pub fn body(&self, body: &Bytes, headers: &mut HeaderMap) -> Result<Bytes, ApiError> {
        headers.entry(VERSION).or_insert(HeaderValue::from_static("2023-06-01"));
        let value = parse(body)?;
        let version = value.get("anthropic_version").ok_or_else(|| missing("anthropic_version"))?;
        if version != "vertex-2023-10-16" {
            return Err(ApiError::invalid("anthropic_version: Input should be 'vertex-2023-10-16'"));
        }
        let Some(model) = &self.model else { return Ok(body.clone()) };
        // Neither is part of this form of the API.
        for name in ["model", "cache_control"] {
            if value.get(name).is_some_and(|value: &Value| !value.is_null()) {
                return Err(ApiError::invalid(format!("{name}: Extra inputs are not permitted")));
            }
        }
        let text = String::from_utf8_lossy(body);
        Ok(text.replacen('{', &format!("{{\"model\":{},", json!(model)), 1).into())
    }
}
