//! The arm `minimal-hyper`: in, collect, out, with nothing between.
//!
//! It shows the cost of the libraries alone when a body must be collected. It is kept as plain as the
//! examples of those libraries on purpose: a tuned one would show something else.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri, header};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::Fallible;

type Upstream = Client<HttpConnector, Full<Bytes>>;

pub fn run(listen: SocketAddr, upstream: SocketAddr) -> Fallible<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(listen, upstream))
}

async fn serve(listen: SocketAddr, upstream: SocketAddr) -> Fallible<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Upstream = Client::builder(TokioExecutor::new()).build(connector);
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let client = client.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| forward(client.clone(), upstream, request));
            // A client that leaves ends its connection with an error, which nobody waits for.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn forward(
    client: Upstream,
    upstream: SocketAddr,
    request: Request<Incoming>,
) -> Fallible<Response<Incoming>> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |target| target.as_str());
    head.uri = format!("http://{upstream}{path}").parse::<Uri>()?;
    head.headers.remove(header::HOST);
    let body = body.collect().await?.to_bytes();
    Ok(client.request(Request::from_parts(head, Full::new(body))).await?)
}
