//! Connections to a remote: TCP, TLS, and whichever HTTP both sides speak.

use super::failure::{Failure, UpstreamError};
use crate::config::{self, BaseUrl, Environment};
use crate::outbound;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

/// Makes connections to one remote.
pub(super) struct Connector {
    url: BaseUrl,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
}

/// The sending end of one connection.
#[derive(Debug)]
pub(super) enum Sender {
    /// One request at a time.
    Http1(http1::SendRequest<Full<Bytes>>),
    /// Many at once.
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A new connection.
pub(super) struct Connection {
    pub(super) sender: Sender,
    /// Ends it at once.
    pub(super) driver: AbortHandle,
}

/// Bytes of an answer's head, and of what is read at once. More than any server sends, and little enough for thousands of
/// connections.
const BUFFER: usize = 64 << 10;
const HTTP2: &[u8] = b"h2";
/// How often a silent HTTP/2 connection is asked for a sign of life.
const PING: Duration = Duration::from_secs(20);

// === impl Connector ===

impl Connector {
    /// For the remote of this configuration.
    ///
    /// # Errors
    /// Its root certificates can't be read, or its host's name is none that a certificate could have.
    pub(super) fn new(config: &config::Upstream) -> Result<Self, UpstreamError> {
        let secure = || {
            let host = config.url.host().to_owned();
            let name = ServerName::try_from(host).map_err(|error| UpstreamError::Unsendable {
                upstream: config.name.clone(),
                key: "url",
                message: error.to_string(),
            })?;
            Ok((TlsConnector::from(Arc::new(tls(config)?)), name))
        };
        let tls = config.url.is_secure().then(secure).transpose()?;
        Ok(Self { url: config.url.clone(), tls, timeout: config.timeouts.connect })
    }

    /// A new connection, served by a task of this thread's runtime.
    pub(super) async fn connect(&self) -> Result<Connection, Failure> {
        let timeout = || Failure::ConnectTimeout(self.timeout);
        tokio::time::timeout(self.timeout, self.dial()).await.unwrap_or_else(|_| Err(timeout()))
    }

    async fn dial(&self) -> Result<Connection, Failure> {
        let stream = TcpStream::connect((self.url.host(), self.url.port())).await.map_err(Failure::Connect)?;
        stream.set_nodelay(true).map_err(Failure::Connect)?;
        match &self.tls {
            None => http1(stream).await,
            Some((tls, name)) => {
                let stream = tls.connect(name.clone(), stream).await.map_err(Failure::Connect)?;
                if stream.get_ref().1.alpn_protocol() == Some(HTTP2) { http2(stream).await } else { http1(stream).await }
            }
        }
    }
}

async fn http1(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Connection, Failure> {
    let handshake = http1::Builder::new().max_buf_size(BUFFER).handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(Failure::Broke)?;
    // How it ends is told to whoever sent the last request.
    let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
    Ok(Connection { sender: Sender::Http1(sender), driver })
}

async fn http2(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Connection, Failure> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(PING).max_header_list_size(BUFFER as u32);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(Failure::Broke)?;
    let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
    Ok(Connection { sender: Sender::Http2(sender), driver })
}

fn tls(config: &config::Upstream) -> Result<ClientConfig, UpstreamError> {
    let (mut roots, file) = match &config.tls.ca {
        Some(file) => (RootCertStore::empty(), Some(file.clone())),
        None => (outbound::web(), Environment::from_process().certificates),
    };
    if let Some(file) = file {
        outbound::add(&mut roots, &file).map_err(|error| UpstreamError::Roots { upstream: config.name.clone(), file, error })?;
    }
    let mut tls = outbound::trusting(roots);
    tls.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

// === impl Sender ===

impl Sender {
    /// Whether it takes a request.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender) => !sender.is_closed(),
        }
    }

    /// The same connection for somebody else, if it can be shared.
    pub(super) fn share(&self) -> Option<Self> {
        match self {
            Sender::Http1(_) => None,
            Sender::Http2(sender) => Some(Sender::Http2(sender.clone())),
        }
    }

    /// Sends a request and waits for its answer's head.
    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Sender::Http1(sender) => sender.send_request(request).await,
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}
