//! One connection, from its handshake to its last byte.

use super::Answer;
use super::farewell::Farewell;
use super::pace::{Open, Pace, Paced, PacedBody};
use super::preface::{self, Protocol};
use super::reaper::Reaper;
use crate::call::Peer;
use crate::config::Config;
use crate::gateway::respond;
use crate::gateway::tls::Tls;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// A connection that is to be served.
pub(super) struct Connection<F> {
    pub(super) answer: F,
    /// What applied when it began.
    pub(super) config: Arc<Config>,
    pub(super) pace: Arc<Pace>,
    pub(super) reaper: Arc<Reaper>,
    /// Turns true when connections that have no request yet aren't to get one.
    pub(super) stopped: watch::Receiver<bool>,
    /// Lets the others finish the requests they have.
    pub(super) shutdown: Watcher,
}

/// Runs the streams of HTTP/2 connections, a task each, watched by the reaper: one that stalls is reset, and the others
/// of its connection go on.
#[derive(Clone)]
struct Streams(Arc<Reaper>);

/// What ends a connection early.
type Failure = Box<dyn Error + Send + Sync>;

tokio::task_local! {
    /// The pace of the HTTP/2 stream whose task this is.
    static STREAM: Arc<Pace>;
}

/// Bytes kept for a client that doesn't read, beside the socket's: enough for one write.
const WRITE_BUFFER: usize = 64 << 10;
/// HTTP/2 counts so much for each field beside its bytes; so many fields more than the limit are still read, to be
/// refused with a body.
const HTTP2_OVERHEAD: u64 = 32 * 256;

// === impl Connection ===

impl<F, A, B> Connection<F>
where
    F: Answer<Future = A>,
    A: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Failure>> + Send + Unpin + 'static,
{
    /// Serves HTTP/1.1 or HTTP/2, whatever the client begins with.
    pub(super) async fn serve(mut self, stream: Paced<TcpStream>, address: SocketAddr) -> Result<(), Failure> {
        let (protocol, stream) = tokio::select! {
            begun = preface::read(stream) => begun?,
            _ = self.stopped.wait_for(|stopped| *stopped) => return Ok(()),
        };
        self.speak(protocol, stream, Peer::from(address)).await
    }

    /// Shakes hands, then serves the protocol that was agreed on.
    pub(super) async fn serve_tls(mut self, stream: Paced<TcpStream>, address: SocketAddr, tls: &Tls) -> Result<(), Failure> {
        let mut first = [0];
        // A record of TLS begins with 22; a letter is the beginning of a method.
        if stream.get_ref().peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
            return Ok(Farewell::new(stream, 0).say(respond::plain_text()).await?);
        }
        let (stream, certificate) = tokio::select! {
            accepted = tls.accept(stream) => accepted?,
            _ = self.stopped.wait_for(|stopped| *stopped) => return Ok(()),
        };
        let protocol = Protocol::agreed(stream.get_ref().1.alpn_protocol());
        self.speak(protocol, stream, Peer { address, certificate }).await
    }

    async fn speak<S>(self, protocol: Protocol, stream: S, peer: Peer) -> Result<(), Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { answer, config, pace, reaper, shutdown, .. } = self;
        let service = service_fn(move |http: Request<Incoming>| {
            let open = pace.begin(http.version());
            // Boxed, since connections keep room for one future even while they are idle.
            Box::pin(answered(answer(http, peer.clone()), open))
        });
        match protocol {
            Protocol::Http1 => {
                let stream = TokioIo::new(Farewell::new(stream, config.server.max_head));
                let mut server = http1::Builder::new();
                let head = usize::try_from(config.server.max_head).unwrap_or(usize::MAX);
                server.header_read_timeout(None).max_buf_size(head.saturating_add(WRITE_BUFFER)); // time is the reaper's affair
                shutdown.watch(server.serve_connection(stream, service)).await?;
            }
            Protocol::Http2 => {
                let mut server = http2::Builder::new(Streams(reaper));
                server
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(config.server.http2.max_streams)
                    .max_header_list_size(u32::try_from(config.server.max_head + HTTP2_OVERHEAD).unwrap_or(u32::MAX))
                    .keep_alive_interval(config.server.http2.ping)
                    .max_send_buf_size(WRITE_BUFFER);
                Box::pin(shutdown.watch(server.serve_connection(TokioIo::new(stream), service))).await?;
            }
        }
        Ok(())
    }
}

/// The answer, whose request is open until its body has been sent.
async fn answered<B>(answer: impl Future<Output = Response<B>>, open: Open) -> Result<Response<PacedBody<B>>, Infallible> {
    let stream = STREAM.try_with(Arc::clone).ok();
    Ok(answer.await.map(|body| PacedBody::new(body, open, stream)))
}

// === impl Streams ===

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Streams {
    fn execute(&self, stream: S) {
        let pace = Arc::new(Pace::stream());
        let task = tokio::spawn(STREAM.scope(pace.clone(), stream));
        self.0.watch(task.abort_handle(), pace);
    }
}
