//! An upstream behind TLS, by whichever version of HTTP it chooses.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::harness::samples::PROMPT;
use crate::harness::{Binary, call};

/// A certificate authority of our own, in a file as SSL_CERT_FILE wants it, and a server it vouches for.
struct Authority {
    folder: tempfile::TempDir,
    server: rustls::ServerConfig,
}

impl Authority {
    fn new(alpn: &[u8]) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("root.pem"), root.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        let server_key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = certificate.signed_by(&server_key, &issuer).unwrap();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .unwrap();
        server.alpn_protocols = vec![alpn.to_vec()];
        Authority { folder, server }
    }

    fn root(&self) -> String {
        self.folder.path().join("root.pem").to_str().unwrap().to_owned()
    }

    /// Serves what it was asked as the answer.
    async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(self.server.clone()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service_fn(echo)).await;
                });
            }
        });
        address
    }
}

async fn echo(request: http::Request<Incoming>) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let target = head.uri.path_and_query().unwrap();
    let answer = http::Response::builder()
        .header("x-asked", format!("{:?} {} {target}", head.version, head.method))
        .header("x-names", head.headers.keys().map(|name| name.as_str()).collect::<Vec<_>>().join(" "));
    Ok(answer.body(Full::new(body)).unwrap())
}

#[tokio::test]
async fn http_1_and_http_2_are_spoken_as_the_upstream_chooses() {
    for (alpn, version, host) in [(&b"http/1.1"[..], "HTTP/1.1", " host"), (b"h2", "HTTP/2.0", "")] {
        let authority = Authority::new(alpn);
        let url = format!("https://{}/base", authority.serve().await);
        let binary = Binary::serve(&url, &[("SSL_CERT_FILE", &authority.root())]).await;
        let mut client = binary.client().await;
        for _ in 0..3 {
            let reply = client.ask(&call(PROMPT)).await;
            assert_eq!((reply.status(), &reply.body[..]), (200, PROMPT));
            let asked = reply.head.get("x-asked").unwrap();
            assert_eq!(asked, format!("{version} POST /base/v1/messages"));
            let names = reply.head.get("x-names").unwrap();
            let mut names: Vec<_> = names.split(' ').collect();
            names.sort_unstable();
            assert_eq!(names.join(" "), format!("content-length content-type{host} x-api-key"));
        }
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_an_unreachable_upstream() {
    let (ours, theirs) = (Authority::new(b"http/1.1"), Authority::new(b"http/1.1"));
    let url = format!("https://{}", theirs.serve().await);
    let binary = Binary::serve(&url, &[("SSL_CERT_FILE", &ours.root())]).await;
    let reply = binary.client().await.ask(&call(PROMPT)).await;
    reply.is_refusal(502, "upstream_unreachable");
    assert!(reply.error().1.contains(&url), "{:?}", reply.error());
}
