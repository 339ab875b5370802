//! A collector in a process of its own: this binary, run again as one that takes OTLP over HTTP, decodes it and prints
//! what it got, a line for each request.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Stdio;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::harness::peer::{Peer, Reply};
use crate::harness::samples::{answer, get, post};
use crate::harness::{Upstream, within};

/// Set for the process that receives.
const RECEIVES: &str = "FORKPOINT_TEST_RECEIVER";
/// Asked for to have it printed: all that came before is printed before it.
const SO_FAR: &str = "/so-far";
const BAD: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";

/// The process, as a test sees it.
pub struct Receiver {
    _process: Child,
    url: String,
    printed: mpsc::UnboundedReceiver<String>,
}

/// A request to the receiver, and what it made of it.
#[derive(Debug, Deserialize, Serialize)]
pub struct Export {
    /// Method, target and version.
    pub line: String,
    pub headers: BTreeMap<String, String>,
    /// As it came.
    pub body: String,
    /// As it was decoded; nothing if it could not be.
    pub spans: Option<Vec<Span>>,
}

impl Receiver {
    pub async fn start() -> Receiver {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "traces::receiver::a_receiver_prints_what_it_decodes_and_refuses_the_rest"])
            .args(["--nocapture", "--quiet"])
            .env(RECEIVES, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (print, mut printed) = mpsc::unbounded_channel();
        // Read at once: a pipe that is full would stop the receiver.
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let _ = print.send(line);
            }
        });
        let url = line(&mut printed).await;
        Receiver { _process: process, url, printed }
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Waits for the next export.
    pub async fn next(&mut self) -> Export {
        let line = line(&mut self.printed).await;
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"))
    }

    /// Everything that came until now.
    pub async fn so_far(&mut self) -> Vec<Export> {
        assert_eq!(self.ask(&get(SO_FAR)).await.status(), 200);
        let mut exports = Vec::new();
        loop {
            let export = self.next().await;
            if export.line.contains(SO_FAR) {
                return exports;
            }
            exports.push(export);
        }
    }

    async fn ask(&self, request: &[u8]) -> Reply {
        let address = self.url.trim_start_matches("http://").parse().unwrap();
        Peer::connect(address).await.ask(request).await
    }
}

async fn line(printed: &mut mpsc::UnboundedReceiver<String>) -> String {
    within("a line of the receiver", printed.recv()).await.expect("a receiver that runs")
}

/// Receives until the process that started this one is gone.
async fn receive() {
    let upstream = Upstream::answering_with(|request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let is_export = request.head.line().starts_with("POST /v1/traces ");
        let spans = if is_export { decoded(&request.body) } else { None };
        let refused = is_export && spans.is_none();
        let headers = request.head.headers().into_iter().collect();
        let export = Export { line: request.head.line(), headers, body, spans };
        eprintln!("{}", serde_json::to_string(&export).unwrap());
        if refused { BAD.to_vec() } else { answer("content-type: application/json\r\n", b"{}") }
    })
    .await;
    eprintln!("{}", upstream.url());
    let orphaned = || std::io::stdin().read_to_end(&mut Vec::new());
    let _ = tokio::task::spawn_blocking(orphaned).await;
}

/// The spans of one request, each of a resource that has a name.
fn decoded(body: &[u8]) -> Option<Vec<Span>> {
    let request: ExportTraceServiceRequest = serde_json::from_slice(body).ok()?;
    let mut spans = Vec::new();
    for of_resource in request.resource_spans {
        let resource = of_resource.resource?;
        resource.attributes.iter().find(|attribute| attribute.key == "service.name")?;
        spans.extend(of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    Some(spans)
}

#[tokio::test]
async fn a_receiver_prints_what_it_decodes_and_refuses_the_rest() {
    if std::env::var_os(RECEIVES).is_some() {
        return receive().await;
    }
    let mut receiver = Receiver::start().await;
    let export = |body: &[u8]| post("/v1/traces", "", body);
    assert_eq!(receiver.ask(&export(b"{\"resourceSpans\":[]}")).await.status(), 200);
    assert_eq!(receiver.ask(&export(b"{\"resourceSpans\":7}")).await.status(), 400);
    let told: Vec<_> = receiver.so_far().await.into_iter().map(|export| export.spans).collect();
    assert_eq!(told, [Some(vec![]), None]);
}
