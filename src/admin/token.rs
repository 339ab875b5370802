//! The token of the admin port.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

/// The least length of a token; shorter ones can be guessed.
const LENGTH_MIN: usize = 16;
/// The greatest length of a token; a longer file is something else by mistake.
const LENGTH_MAX: usize = 4096;

/// The token that a caller must bring as `authorization: Bearer …`. Only its digest is kept, and digests are
/// compared in constant time.
#[derive(Clone)]
pub struct Token(blake3::Hash);

/// The reason why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("it cannot be read: {0}")]
    Read(#[from] std::io::Error),
    #[error("it must hold one token of {LENGTH_MIN} to {LENGTH_MAX} visible characters")]
    Shape,
}

impl Token {
    /// Reads a token from a file, without the white space around it.
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let mut bytes = Vec::new();
        File::open(path)?.take(LENGTH_MAX as u64 + 2).read_to_end(&mut bytes)?;
        let token = bytes.trim_ascii();
        let fits = (LENGTH_MIN..=LENGTH_MAX).contains(&token.len());
        if fits && token.iter().all(u8::is_ascii_graphic) {
            Ok(Token(blake3::hash(token)))
        } else {
            Err(TokenError::Shape)
        }
    }

    fn is_brought_by(&self, headers: &HeaderMap) -> bool {
        let mut brought = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (brought.next(), brought.next()) else { return false };
        let (scheme, token) = value.as_bytes().split_at_checked(7).unwrap_or_default();
        scheme.eq_ignore_ascii_case(b"bearer ") && blake3::hash(token.trim_ascii()) == self.0
    }
}

/// Asks for the token on all pages but health, and on metrics unless `open_metrics` is set.
pub fn guard(pages: Router, token: Token, open_metrics: bool) -> Router {
    let guard = Arc::new((token, open_metrics));
    pages.layer(middleware::from_fn_with_state(guard, check))
}

async fn check(State(guard): State<Arc<(Token, bool)>>, request: Request, next: Next) -> Response {
    let (token, open_metrics) = &*guard;
    let is_open = match request.uri().path() {
        "/healthz" | "/readyz" => true,
        "/metrics" => *open_metrics,
        _ => false,
    };
    if is_open || token.is_brought_by(request.headers()) {
        return next.run(request).await;
    }
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, challenge, "bring the token of admin.token_file: authorization: Bearer …\n")
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Token, TokenError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Token::read(file.path())
    }

    #[test]
    fn only_the_whole_token_opens() {
        let token = read(" 0123456789abcdef\n").unwrap();
        let brings = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            token.is_brought_by(&headers)
        };
        assert!(brings(&["Bearer 0123456789abcdef"]) && brings(&["bearer  0123456789abcdef"]));
        for wrong in [
            &[][..],
            &["Bearer 0123456789abcde"],
            &["Bearer 0123456789abcdef0"],
            &["0123456789abcdef"],
            &["Basic 0123456789abcdef"],
            &["Bearer "],
            &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"],
        ] {
            assert!(!brings(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_file_without_a_real_token_is_refused() {
        for text in ["", "short", "0123456789 abcdef", "0123456789abcdeé", &"x".repeat(LENGTH_MAX + 1)] {
            assert!(read(text).is_err(), "{text:.20}");
        }
        assert!(Token::read(Path::new("/no/such/file")).is_err());
    }
}
