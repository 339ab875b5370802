//! Requests and answers that many tests use.

/// An answer in JSON that bills one token of each kind: 1 uncached, 2 read, 3 and 4 written, 5 put out.
pub const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"cache_read_input_tokens":2,"cache_creation_input_tokens":7,"cache_creation":{"ephemeral_5m_input_tokens":3,"ephemeral_1h_input_tokens":4},"output_tokens":5}}"#;

/// That message as a stream of events.
pub const EVENTS: [&str; 6] = [
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":\"claude-x\",\"content\":[],\"usage\":{\"input_tokens\":1,\"cache_read_input_tokens\":2,\"cache_creation_input_tokens\":7,\"cache_creation\":{\"ephemeral_5m_input_tokens\":3,\"ephemeral_1h_input_tokens\":4},\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
];

pub const PROMPT: &[u8] =
    br#"{"model":"claude-x","max_tokens":9,"messages":[{"role":"user","content":"hello"}]}"#;

/// The head of an answer that streams events in chunks.
pub const EVENT_STREAM: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nhost: here\r\n\r\n").into_bytes()
}

/// A request with a body of declared length.
pub fn post(target: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("POST {target} HTTP/1.1\r\nhost: here\r\n{headers}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A Messages call with a credential.
pub fn call(body: &[u8]) -> Vec<u8> {
    post("/v1/messages", "x-api-key: key\r\ncontent-type: application/json\r\n", body)
}

/// An answer with a body of declared length.
pub fn answer(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// [`MESSAGE`] as an answer.
pub fn message() -> Vec<u8> {
    answer("content-type: application/json\r\n", MESSAGE.as_bytes())
}

/// What a probe asks a port for operators.
pub const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
