//! Requests that `align` must leave as they came, byte for byte.

use crate::workload::{Behaviour, Client, Exchange, Letter, Shape};

use super::Stage;

/// A request that would be marked, if it may be; its answer may be a refusal.
fn letter() -> Letter {
    Client::new(Shape::Tools, Behaviour::Naive, 9).letter()
}

async fn sent(letters: &[Letter]) -> Vec<Exchange> {
    let stage = Stage::aligned().await;
    let line = stage.line();
    let mut exchanges = Vec::new();
    for letter in letters {
        exchanges.push(line.send(letter).await);
    }
    exchanges
}

fn assert_untouched(exchange: &Exchange, reason: &str) {
    assert!(exchange.is_untouched(), "{reason}");
    assert_eq!(exchange.said("plan"), Some("passthrough"), "{reason}");
    assert_eq!(exchange.said("reason"), Some(reason));
}

#[tokio::test]
async fn without_any_of_this_it_is_marked() {
    let exchange = sent(&[letter()]).await.remove(0);
    assert!(!exchange.is_untouched());
    assert_eq!(exchange.said("plan"), Some("aligned"));
}

#[tokio::test]
async fn the_mode_is_lowered_by_the_request() {
    let exchanges = sent(&[letter().with("x-forkpoint-mode", "observe")]).await;
    assert_untouched(&exchanges[0], "observe");
    let aligned = sent(&[letter().with("x-forkpoint-mode", "fork")]).await.remove(0);
    assert_eq!(aligned.said("plan"), Some("aligned"), "the mode is never raised");
}

#[tokio::test]
async fn without_a_credential() {
    let mut letter = letter();
    letter.headers.retain(|(name, _)| *name != "x-api-key");
    assert_untouched(&sent(&[letter]).await[0], "no_credential");
}

#[tokio::test]
async fn of_a_consumer_login() {
    let exchanges = sent(&[letter().with("anthropic-beta", "context-1m-2025-08-07,oauth-2025-04-20")]).await;
    assert!(exchanges[0].is_untouched());
    assert_eq!(exchanges[0].said("plan"), Some("passthrough"));
    let mut bearer = letter().with("authorization", "Bearer sk-ant-oat01-0123456789abcdef");
    bearer.headers.retain(|(name, _)| *name != "x-api-key");
    let exchange = sent(&[bearer]).await.remove(0);
    assert!(exchange.is_untouched());
    assert_eq!(exchange.said("plan"), Some("passthrough"));
}

#[tokio::test]
async fn with_a_signature() {
    let signatures = [
        ("x-amz-content-sha256", "00ff"),
        ("digest", "sha-256=AAAA"),
        ("content-md5", "AAAA"),
        ("signature", "sig1=:AAAA:"),
    ];
    for (name, value) in signatures {
        assert_untouched(&sent(&[letter().with(name, value)]).await[0], "signed");
    }
    let mut aws = letter().with("authorization", "AWS4-HMAC-SHA256 Credential=a/b, Signature=00");
    aws.headers.retain(|(name, _)| *name != "x-api-key");
    assert_untouched(&sent(&[aws]).await[0], "signed");
}

#[tokio::test]
async fn what_is_no_request_is_left_to_the_upstream() {
    let bodies: [&[u8]; 4] = [b"", b"[]", b"{\"messages\":[", b"{\"model\":\"x\",\"tools\":7}"];
    for body in bodies {
        let letter = Letter { body: body.to_vec(), ..letter() };
        let exchange = sent(&[letter]).await.remove(0);
        assert_eq!(exchange.forwarded, body, "{}", String::from_utf8_lossy(body));
        assert!((400..500).contains(&exchange.status));
    }
}

#[tokio::test]
async fn of_a_body_that_readers_could_understand_differently() {
    let tools = r#""tools":[{"name":"a","input_schema":{"type":"object"}}]"#;
    let messages = r#""messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]"#;
    let twice = [
        format!(r#"{{"model":"claude-sonnet-4-6","max_tokens":9,{tools},{messages},{messages}}}"#),
        format!(r#"{{"model":"claude-sonnet-4-6","max_tokens":9,{tools},{messages},{tools}}}"#),
    ];
    for body in twice {
        let exchange = sent(&[Letter { body: body.into_bytes(), ..letter() }]).await.remove(0);
        assert!(exchange.is_untouched());
        assert_eq!(exchange.said("plan"), Some("passthrough"));
    }
}

#[tokio::test]
async fn count_tokens_and_other_calls() {
    let letter = Letter { target: "/v1/messages/count_tokens", ..letter() };
    let exchange = sent(&[letter]).await.remove(0);
    assert!(exchange.status == 200 && exchange.is_untouched());
}
