//! TLS on the ports: protocols by ALPN, client certificates, certificates that are replaced, and clients that don't speak it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use roundhouse::config::{ClientAuth, Config, Tenant, Tls};
use roundhouse::gateway;
use roundhouse::gateway::tls::{Identity, TlsError};
use roundhouse::roundhouse::{Listeners, StartError, start};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use support::edge::{Edge, Scripted, hello};
use support::fake::Fakes;
use support::server::{self, KEY, Server};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Who signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A certificate and its key.
struct Signed {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

// === impl Authority ===

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn sign(&self, name: &str) -> Signed {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Signed { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }
}

/// A server whose public port speaks TLS, and the folder of its files.
struct Secured {
    server: Server,
    _folder: TempDir,
    authority: Authority,
}

// === impl Secured ===

impl Secured {
    /// With `client_ca` clients need a certificate as `auth` says.
    fn start(client_ca: Option<&Authority>, auth: ClientAuth) -> Self {
        Self::with(client_ca, auth, |_| {})
    }

    /// The same with other changes to its configuration.
    fn with(client_ca: Option<&Authority>, auth: ClientAuth, change: impl FnOnce(&mut Config)) -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        write(folder.path(), &authority.sign("one.test"));
        let mut config = server::config();
        config.server.tls = Some(tls(folder.path(), client_ca, auth));
        change(&mut config);
        Self { server: server::with(config, Fakes(roundhouse::engine::fake::Fake::new)), _folder: folder, authority }
    }

    /// A connection of a client that expects the server to have this name.
    async fn connect(&self, name: &'static str, alpn: &[&str], own: Option<&Signed>) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.server.address()).await.unwrap();
        connector(&self.authority, alpn, own).connect(ServerName::try_from(name).unwrap(), stream).await
    }
}

fn tls(folder: &Path, client_ca: Option<&Authority>, client_auth: ClientAuth) -> Tls {
    let client_ca = client_ca.map(|authority| {
        std::fs::write(folder.join("clients.pem"), authority.certificate.pem()).unwrap();
        folder.join("clients.pem")
    });
    Tls { cert: folder.join("server.pem"), key: folder.join("server.key"), client_ca, client_auth }
}

fn write(folder: &Path, signed: &Signed) {
    std::fs::write(folder.join("server.pem"), signed.certificate.pem()).unwrap();
    std::fs::write(folder.join("server.key"), signed.key.serialize_pem()).unwrap();
}

fn connector(authority: &Authority, alpn: &[&str], own: Option<&Signed>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut client = match own {
        None => client.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::try_from(own.key.serialize_der()).unwrap();
            client.with_client_auth_cert(vec![own.certificate.der().clone()], key).unwrap()
        }
    };
    client.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(client))
}

fn completion(uri: &str) -> Request<Full<Bytes>> {
    let body = json!({"model": "default", "prompt": "hello", "max_tokens": 5});
    let request = Request::post(uri).header("host", "one.test").header("x-api-key", KEY).header("content-type", "application/json");
    request.body(Full::from(body.to_string())).unwrap()
}

/// Asks for a completion over HTTP/1.1 and reads what comes.
async fn ask(stream: TlsStream<TcpStream>) -> hyper::Result<(u16, Value)> {
    send(stream, completion("/v1/completions")).await
}

async fn send(stream: TlsStream<TcpStream>, request: Request<Full<Bytes>>) -> hyper::Result<(u16, Value)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    assert_eq!(answer.version(), Version::HTTP_11);
    let status = answer.status().as_u16();
    Ok((status, serde_json::from_slice(&answer.into_body().collect().await?.to_bytes()).unwrap()))
}

#[tokio::test]
async fn both_protocols_are_spoken_as_alpn_agrees() {
    let secured = Secured::start(None, ClientAuth::Required);
    for alpn in [&["http/1.1"][..], &[]] {
        let stream = secured.connect("one.test", alpn, None).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), alpn.first().map(|protocol| protocol.as_bytes()));
        assert_eq!(ask(stream).await.unwrap().0, 200);
    }
    let stream = secured.connect("one.test", &["h2", "http/1.1"], None).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let answer = sender.send_request(completion("https://one.test/v1/completions")).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, Version::HTTP_2));
}

#[tokio::test]
async fn a_client_that_needs_a_certificate_has_no_connection_without_the_right_one() {
    let (clients, strangers) = (Authority::new(), Authority::new());
    let secured = Secured::start(Some(&clients), ClientAuth::Required);
    let right = clients.sign("ci.acme.example");
    let stream = secured.connect("one.test", &[], Some(&right)).await.unwrap();
    assert_eq!(ask(stream).await.unwrap().0, 200);
    for own in [None, Some(strangers.sign("ci.acme.example"))] {
        // The client's part of the handshake may be over before the server's refusal comes.
        if let Ok(stream) = secured.connect("one.test", &[], own.as_ref()).await {
            assert!(ask(stream).await.is_err());
        }
    }
}

#[tokio::test]
async fn where_a_certificate_is_optional_a_wrong_one_is_still_refused() {
    let (clients, strangers) = (Authority::new(), Authority::new());
    let secured = Secured::start(Some(&clients), ClientAuth::Optional);
    for own in [None, Some(clients.sign("ci.acme.example"))] {
        let stream = secured.connect("one.test", &[], own.as_ref()).await.unwrap();
        assert_eq!(ask(stream).await.unwrap().0, 200);
    }
    let wrong = strangers.sign("ci.acme.example");
    if let Ok(stream) = secured.connect("one.test", &[], Some(&wrong)).await {
        assert!(ask(stream).await.is_err());
    }
}

#[tokio::test]
async fn a_certificate_stands_for_its_tenant_unless_there_is_a_key() {
    let clients = Authority::new();
    let secured = Secured::with(Some(&clients), ClientAuth::Optional, |config| {
        let build = Tenant { models: Some(Vec::new()), certificates: vec!["DNS:build.example".to_owned()], ..Tenant::new("build".into()) };
        config.tenants.insert(build.name.clone(), Arc::new(build));
    });
    let (build, unknown) = (clients.sign("build.example"), clients.sign("unknown.example"));
    let without_key = || {
        let mut request = completion("/v1/completions");
        request.headers_mut().remove("x-api-key");
        request
    };
    // The tenant of the certificate may use no model; the key's may use all.
    for (own, request, expected) in [
        (Some(&build), without_key(), (404, "model_not_found")),
        (Some(&unknown), without_key(), (401, "invalid_api_key")),
        (None, without_key(), (401, "invalid_api_key")),
        (Some(&build), completion("/v1/completions"), (200, "")),
    ] {
        let (status, answer) = send(secured.connect("one.test", &[], own).await.unwrap(), request).await.unwrap();
        assert_eq!((status, answer["error"]["code"].as_str().unwrap_or_default()), expected);
    }
}

#[tokio::test]
async fn plain_http_on_a_tls_port_is_told_so_and_noise_ends_the_connection_only() {
    let secured = Secured::start(None, ClientAuth::Required);
    let answer = read_all(secured.server.address(), b"GET /health HTTP/1.1\r\nhost: one.test\r\n\r\n").await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert!(body["error"]["message"].as_str().unwrap().contains("https://"), "{body}");
    read_all(secured.server.address(), b"\x16\x03\x01\x00\x05noise").await;
    read_all(secured.server.address(), &[0; 100]).await;
    assert_eq!(ask(secured.connect("one.test", &[], None).await.unwrap()).await.unwrap().0, 200);
}

async fn read_all(address: SocketAddr, sent: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent).await.unwrap();
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await); // it may also be reset
    answer
}

#[tokio::test]
async fn a_handshake_that_never_goes_on_is_cut() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    write(folder.path(), &authority.sign("one.test"));
    let mut config = server::config();
    config.server.tls = Some(tls(folder.path(), None, ClientAuth::Required));
    config.server.head_timeout = std::time::Duration::from_millis(100);
    let server = server::with(config, Fakes(roundhouse::engine::fake::Fake::new));
    for begun in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        assert_eq!(read_all(server.address(), begun).await, b"");
    }
}

#[tokio::test]
async fn a_replaced_certificate_is_shown_to_new_connections_while_old_ones_go_on() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    write(folder.path(), &authority.sign("one.test"));
    let (clients, others) = (Authority::new(), Authority::new());
    let own = clients.sign("ci.acme.example");
    let read = |client_ca| Identity::read(&tls(folder.path(), Some(client_ca), ClientAuth::Required), "server.tls").unwrap();
    let port = gateway::tls::Tls::new(read(&clients));
    let edge = Edge::secured(port.clone(), &[Scripted::says(hello())]);
    let connector = connector(&authority, &[], Some(&own));
    let connect = async |name: &'static str| {
        let stream = TcpStream::connect(edge.address).await.unwrap();
        connector.connect(ServerName::try_from(name).unwrap(), stream).await
    };
    let (mut old, connection) = http1::handshake(TokioIo::new(connect("one.test").await.unwrap())).await.unwrap();
    tokio::spawn(connection);
    let health = || Request::get("/health").header("host", "test").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(old.send_request(health()).await.unwrap().status().as_u16(), 200);

    write(folder.path(), &authority.sign("two.test"));
    port.replace(read(&clients));
    assert!(connect("one.test").await.is_err());
    assert_eq!(ask(connect("two.test").await.unwrap()).await.unwrap().0, 401); // a key of the other server
    old.ready().await.unwrap();
    assert_eq!(old.send_request(health()).await.unwrap().status().as_u16(), 200);

    // Who isn't trusted any more can't come back by the session it had.
    port.replace(read(&others));
    if let Ok(stream) = connect("two.test").await {
        assert!(ask(stream).await.is_err());
    }
}

#[tokio::test]
async fn a_reload_whose_certificate_can_t_be_read_changes_nothing_and_a_good_one_is_shown() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    write(folder.path(), &authority.sign("one.test"));
    let mut config = server::config();
    config.server.tls = Some(tls(folder.path(), None, ClientAuth::Required));
    let server = server::with(config.clone(), Fakes(roundhouse::engine::fake::Fake::new));
    let connector = connector(&authority, &[], None);
    let connect = async |name: &'static str| {
        let stream = TcpStream::connect(server.address()).await.unwrap();
        connector.connect(ServerName::try_from(name).unwrap(), stream).await
    };
    std::fs::write(folder.path().join("server.pem"), "half a certif").unwrap();
    config.server.max_body = 1;
    let refused = server.reload(config.clone()).unwrap_err().to_string();
    assert!(refused.starts_with("server.tls.cert: "), "{refused}");
    assert_eq!(ask(connect("one.test").await.unwrap()).await.unwrap().0, 200);
    config.server.max_body = 1 << 20;
    write(folder.path(), &authority.sign("two.test"));
    server.reload(config).unwrap();
    assert!(connect("one.test").await.is_err());
    assert_eq!(ask(connect("two.test").await.unwrap()).await.unwrap().0, 200);
}

#[tokio::test]
async fn operators_come_over_tls_too() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    write(folder.path(), &authority.sign("admin.test"));
    let mut config = server::config();
    config.admin.tls = Some(tls(folder.path(), None, ClientAuth::Required));
    let server = server::with(config, Fakes(roundhouse::engine::fake::Fake::new));
    let stream = TcpStream::connect(server.admin_address()).await.unwrap();
    let stream = connector(&authority, &[], None).connect(ServerName::try_from("admin.test").unwrap(), stream).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/metrics").header("host", "admin.test").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status().as_u16(), 200);
}

/// Why a server doesn't start, or this port's certificates can't be taken up.
fn problem(config: &Config) -> (String, TlsError) {
    let tls = config.server.tls.as_ref().unwrap();
    let Err(error) = Identity::read(tls, "server.tls") else { panic!("these certificates are taken") };
    let listeners = Listeners::bind(config).unwrap();
    let started = start(Arc::new(config.clone()), None, Box::new(Fakes(roundhouse::engine::fake::Fake::new)), listeners);
    let Err(StartError::Tls(same)) = started else { panic!("the server starts") };
    assert_eq!(same.to_string(), error.to_string());
    (error.to_string(), error)
}

#[test]
fn a_certificate_that_can_t_be_used_is_refused_by_key_and_file_and_never_shown() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (one, other) = (authority.sign("one.test"), authority.sign("other.test"));
    let mut config = server::config();
    config.server.tls = Some(tls(folder.path(), Some(&authority), ClientAuth::Required));
    let path = |name: &str| folder.path().join(name);

    let (message, error) = problem(&config);
    assert!(message.starts_with(&format!("server.tls.cert: {}: ", path("server.pem").display())), "{message}");
    assert!(matches!(error, TlsError::Read { .. }), "{error:?}");

    write(folder.path(), &one);
    let secret = one.key.serialize_pem();
    let line = secret.lines().nth(1).unwrap();
    std::fs::write(path("server.key"), secret.replace("-----BEGIN PRIVATE KEY-----\n", "-----BEGIN\n")).unwrap();
    let (message, error) = problem(&config);
    assert!(message.starts_with("server.tls.key: ") && message.contains("private key"), "{message}");
    assert!(matches!(error, TlsError::Missing { .. }) && !format!("{message}{error:?}").contains(line), "{error:?}");

    std::fs::write(path("server.key"), other.key.serialize_pem()).unwrap();
    let (message, error) = problem(&config);
    assert!(message.starts_with("server.tls.cert: ") && matches!(error, TlsError::Unusable { .. }), "{message}");

    write(folder.path(), &one);
    std::fs::write(path("clients.pem"), "not PEM").unwrap();
    let (message, error) = problem(&config);
    assert!(message.starts_with("server.tls.client_ca: ") && matches!(error, TlsError::Missing { .. }), "{message}");
}
