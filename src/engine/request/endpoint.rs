//! Reads from a path which part of the API a request is for.

use crate::engine::words::Endpoint;

impl Endpoint {
    pub fn of(method: &http::Method, path: &str) -> Endpoint {
        // Gateways and other clouds put a prefix before it, and some clients leave the version to their base URL.
        let is_post = method == http::Method::POST;
        if path.ends_with("/messages") && is_post {
            Endpoint::Messages
        } else if path.ends_with("/messages/count_tokens") || vertex_model(path) == Some("count-tokens") {
            Endpoint::CountTokens
        } else if bedrock_model(path).is_some() {
            Endpoint::Bedrock
        } else if vertex_model(path).is_some() && is_post {
            Endpoint::Vertex
        } else if holds(path, "/messages/batches") {
            Endpoint::Batches
        } else if holds(path, "/v1/models") {
            Endpoint::Models
        } else if holds(path, "/v1/files") {
            Endpoint::Files
        } else {
            Endpoint::Other
        }
    }

    /// Returns true if such requests are read and planned: those that bring a prompt in a form that is understood.
    pub fn is_planned(self) -> bool {
        matches!(self, Endpoint::Messages | Endpoint::Vertex)
    }

    /// Returns true if the answer is a message, or a stream of one.
    pub fn answers_with_a_message(self) -> bool {
        matches!(self, Endpoint::Messages | Endpoint::Bedrock | Endpoint::Vertex)
    }

    /// The model that the path names, if any. A resource name contains an account, so it is not used as a model name.
    pub fn model(self, path: &str) -> Option<String> {
        let model = match self {
            Endpoint::Bedrock => bedrock_model(path)?,
            Endpoint::Vertex => vertex_model(path)?,
            _ => return None,
        };
        Some(model.replace("%3A", ":").replace("%3a", ":").replace("%40", "@"))
            .filter(|model| !model.starts_with("arn:"))
    }
}

fn bedrock_model(path: &str) -> Option<&str> {
    let (model, call) = path.strip_prefix("/model/")?.split_once('/')?;
    matches!(call, "invoke" | "invoke-with-response-stream").then_some(model)
}

fn vertex_model(path: &str) -> Option<&str> {
    let (_, named) = path.split_once("/publishers/anthropic/models/")?;
    let (model, call) = named.split_once(':')?;
    matches!(call, "rawPredict" | "streamRawPredict").then_some(model)
}

/// Returns true if a path has these segments in a row.
fn holds(path: &str, segments: &str) -> bool {
    path.match_indices(segments).any(|(at, _)| {
        let rest = &path[at + segments.len()..];
        rest.is_empty() || rest.starts_with('/')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_to_messages_under_any_prefix_is_a_messages_call() {
        let post = http::Method::POST;
        for path in ["/v1/messages", "/messages", "/anthropic/v1/messages", "/team/a/v1/messages"] {
            assert_eq!(Endpoint::of(&post, path), Endpoint::Messages, "{path}");
        }
        for path in ["/v1/xmessages", "/v1/messages/x", "/v1/messages.json"] {
            assert_eq!(Endpoint::of(&post, path), Endpoint::Other, "{path}");
        }
        assert_eq!(Endpoint::of(&post, "/anthropic/v1/messages/count_tokens"), Endpoint::CountTokens);
        assert_eq!(Endpoint::of(&post, "/anthropic/v1/messages/batches"), Endpoint::Batches);
        assert_eq!(Endpoint::of(&http::Method::GET, "/v1/messages"), Endpoint::Other);
        assert_eq!(Endpoint::of(&post, "/v1/messages/"), Endpoint::Other);
        assert_eq!(Endpoint::of(&post, "/v1/messages/count_tokens"), Endpoint::CountTokens);
        assert_eq!(Endpoint::of(&post, "/v1/messages/batches/x/results"), Endpoint::Batches);
        assert_eq!(Endpoint::of(&post, "/v1/modelsx"), Endpoint::Other);
    }

    #[test]
    fn calls_of_other_clouds_are_known_by_their_paths_and_name_their_model() {
        let post = http::Method::POST;
        let vertex = "/v1/projects/p/locations/l/publishers/anthropic/models";
        for (path, endpoint, model) in [
            (
                "/model/anthropic.claude-x-v1%3A0/invoke".into(),
                Endpoint::Bedrock,
                Some("anthropic.claude-x-v1:0"),
            ),
            ("/model/x/invoke-with-response-stream".into(), Endpoint::Bedrock, Some("x")),
            ("/model/arn%3Aaws%3Abedrock%3Aus%3A123%3Ax/invoke".into(), Endpoint::Bedrock, None),
            ("/model/x/converse".into(), Endpoint::Other, None),
            (format!("{vertex}/claude-x@20250101:rawPredict"), Endpoint::Vertex, Some("claude-x@20250101")),
            (format!("{vertex}/claude-x:streamRawPredict"), Endpoint::Vertex, Some("claude-x")),
            (format!("{vertex}/count-tokens:rawPredict"), Endpoint::CountTokens, None),
            (format!("{vertex}/claude-x:predict"), Endpoint::Other, None),
        ] {
            let found = Endpoint::of(&post, &path);
            assert_eq!((found, found.model(&path).as_deref()), (endpoint, model), "{path}");
        }
    }
}
