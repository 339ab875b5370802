//! Requests that come compressed: read, planned and forked like others; unchanged they go out as they came.

use std::io::Write;

use forkpoint::config::Mode;
use forkpoint::sim::RequestRecord;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::refused::refuse_forks;
use super::{FORKED, FREE, Stage, child, extend, parent, plan};
use crate::harness::http2::{Http2, request};
use crate::workload::{Exchange, Letter};

const CODINGS: [&str; 5] = ["gzip", "deflate", "br", "zstd", "zstd, gzip"];
const FAN_OUT: &str = "[[sim:fan_out n=3 tool=Agent field=prompt | tools turns=3 calls=1 tool=search]]";

fn encode(coding: &str, body: &[u8]) -> Vec<u8> {
    use flate2::{Compression, write};
    let (mut out, level) = (Vec::new(), Compression::default());
    match coding {
        "gzip" => write::GzEncoder::new(&mut out, level).write_all(body).unwrap(),
        "deflate" => write::ZlibEncoder::new(&mut out, level).write_all(body).unwrap(),
        "br" => brotli::CompressorWriter::new(&mut out, 4096, 5, 22).write_all(body).unwrap(),
        "zstd" => out = zstd::encode_all(body, 3).unwrap(),
        lists => {
            let (first, second) = lists.split_once(", ").unwrap();
            out = encode(second, &encode(first, body));
        }
    }
    out
}

/// A request with its body in this coding.
pub fn compressed(body: &Value, coding: &str) -> Letter {
    let letter = Letter::alone(body).with("content-encoding", coding);
    Letter { body: encode(coding, &letter.body), ..letter }
}

/// The request as it arrived last.
fn arrived(stage: &Stage) -> RequestRecord {
    stage.sim.requests().pop().unwrap()
}

fn header(record: &RequestRecord, name: &str) -> Option<String> {
    record.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

/// What arrived is what was sent, its coding included.
fn is_as_it_came(stage: &Stage, exchange: &Exchange, coding: &str) -> bool {
    let record = arrived(stage);
    assert_eq!(header(&record, "content-length"), Some(exchange.sent.body.len().to_string()));
    exchange.is_untouched() && header(&record, "content-encoding").as_deref() == Some(coding)
}

#[tokio::test]
async fn what_is_not_changed_goes_out_as_it_came_in_every_mode() {
    for mode in [Mode::Observe, Mode::Align, Mode::Fork] {
        let stage = Stage::new(|config| config.server.mode = mode).await;
        for coding in CODINGS {
            let body = json!({
                "model": FREE, "max_tokens": 100,
                "messages": [{"role": "user", "content": format!("Once, in {coding}.")}],
            });
            let exchange = stage.line().send(&compressed(&body, coding)).await;
            assert_eq!(exchange.status, 200, "{coding}: {:?}", exchange.answer);
            assert!(is_as_it_came(&stage, &exchange, coding), "{mode:?} {coding}");
            let expected = if mode == Mode::Observe { "observe" } else { "one_shot" };
            assert_eq!(exchange.said("reason"), Some(expected), "{mode:?} {coding}");
        }
        // It was read: the model is known, and so is what it costs.
        stage.forkpoint.recorded(CODINGS.len() as u32).await;
        let model = format!("model=\"{FREE}\"");
        assert!(stage.count("tokens_total", &[&model, "kind=\"output\""]) > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fan_out_is_forked_and_goes_out_uncompressed() {
    for coding in CODINGS {
        let stage = Stage::new(|_| ()).await;
        let line = stage.line();
        let lead = line.send(&compressed(&parent(FREE, FAN_OUT), coding)).await;
        assert_eq!((lead.status, lead.said("plan")), (200, Some("aligned")), "{coding}");
        let record = arrived(&stage);
        assert_eq!(header(&record, "content-encoding"), None, "it was marked");
        assert_eq!(header(&record, "content-length"), Some(record.body.len().to_string()));
        let told = super::directives(&lead);
        super::until("the fan-out to be sealed", || stage.count("forks_total", &["outcome=\"sealed\""]) > 0)
            .await;
        let mut bodies: Vec<Value> = told.iter().map(|told| child(FREE, told)).collect();
        // Whether a child's turns come compressed changes nothing of what goes out.
        for turn in [Some(coding), None, Some(coding)] {
            let letters: Vec<Letter> = bodies
                .iter()
                .map(|body| turn.map_or_else(|| Letter::alone(body), |coding| compressed(body, coding)))
                .collect();
            let exchanges = join_all(letters.iter().map(|letter| line.send(letter))).await;
            for (exchange, body) in exchanges.iter().zip(&mut bodies) {
                assert_eq!((exchange.status, plan(exchange)), (200, FORKED), "{coding}");
                assert!(super::usage(exchange).cache_read > 10_000);
                extend(body, exchange);
            }
        }
        // A child keeps its prefix when the configuration says otherwise later.
        stage.forkpoint.reload(|config| config.server.mode = Mode::Observe);
        let exchange = line.send(&compressed(&bodies[0], coding)).await;
        assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{coding}");
        let records = stage.sim.requests();
        for record in &records[1..] {
            assert_eq!(header(record, "content-encoding"), None);
            assert_eq!(header(record, "content-length"), Some(record.body.len().to_string()));
        }
    }
}

#[tokio::test]
async fn a_refused_rewrite_goes_out_once_more_as_it_came() {
    let stage = Stage::new(|_| ()).await;
    let told = stage.fan_out(&parent(FREE, FAN_OUT)).await;
    refuse_forks(&stage, 400);
    let exchange = stage.line().send(&compressed(&child(FREE, &told[0]), "zstd")).await;
    assert_eq!((exchange.status, plan(&exchange)), (200, ["child", "passthrough", "refused"]));
    assert!(is_as_it_came(&stage, &exchange, "zstd"));
}

#[tokio::test]
async fn what_cannot_be_decoded_goes_out_as_it_came_and_the_upstream_says_why() {
    const BODY_BYTES: usize = 1_000_000;
    for mode in [Mode::Observe, Mode::Fork] {
        let stage = Stage::new(|config| {
            config.server.mode = mode;
            config.limits.body_bytes = BODY_BYTES;
        })
        .await;
        let whole = encode("gzip", parent(FREE, "").to_string().as_bytes());
        let bomb = encode("br", &vec![b' '; BODY_BYTES + 1]);
        for (coding, body, reason, status, code) in [
            (
                "gzip",
                &whole[..whole.len() - 9],
                "content_encoding",
                400,
                Some("request_body_encoding_invalid"),
            ),
            ("gzip", b"{}", "content_encoding", 400, Some("request_body_encoding_invalid")),
            ("rot13", b"{}", "content_encoding", 415, Some("request_body_encoding_unsupported")),
            ("br", &bomb[..], "body_too_large", 400, None),
        ] {
            let mut letter = Letter::alone(&json!({})).with("content-encoding", coding);
            letter.body = body.to_vec();
            let exchange = stage.line().send(&letter).await;
            assert_eq!(
                (exchange.status, plan(&exchange)),
                (status, ["plain", "passthrough", reason]),
                "{coding}"
            );
            assert!(is_as_it_came(&stage, &exchange, coding), "{coding}");
            assert_eq!(arrived(&stage).error_code.as_deref(), code);
        }
    }
}

#[tokio::test]
async fn decoded_bytes_count_as_held() {
    let body = parent(FREE, "[[sim:text words=5]]");
    let (plain, small) = (body.to_string().len(), compressed(&body, "zstd"));
    assert!(small.body.len() * 4 < plain);
    // A tenant without an accepted request has a part of a quarter.
    for (held_bytes, plan) in [(plain / 2, "passthrough"), (plain * 8, "aligned")] {
        let stage = Stage::new(|config| config.limits.held_bytes = held_bytes).await;
        let exchange = stage.line().send(&small).await;
        assert_eq!((exchange.status, exchange.said("plan")), (200, Some(plan)));
        assert_eq!(exchange.said("reason") == Some("held_bytes"), plan == "passthrough");
        super::until("all to be given back", || stage.count("held", &["bytes"]) == 0).await;
    }
}

#[tokio::test]
async fn over_http_2_it_is_the_same() {
    let stage = Stage::new(|_| ()).await;
    let mut client = Http2::connect(&stage.forkpoint).await;
    for (instruction, plan) in [("", "aligned"), (FAN_OUT, "aligned")] {
        let letter = compressed(&parent(FREE, instruction), "br");
        let asked = letter
            .headers
            .iter()
            .fold(request("POST", letter.target), |asked, (name, value)| asked.header(*name, value));
        let (head, _) = client.ask(asked.body(()).unwrap(), &letter.body).await;
        assert_eq!((head.status.as_u16(), head.headers["x-forkpoint-plan"].to_str().unwrap()), (200, plan));
        assert_eq!(header(&arrived(&stage), "content-encoding"), None);
    }
}
