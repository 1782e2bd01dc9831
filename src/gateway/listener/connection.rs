//! One connection, from its handshake to its last byte.

use super::Answer;
use super::farewell::Farewell;
use super::pace::{Pace, Paced, PacedBody};
use super::reaper::Reaper;
use crate::call::Peer;
use crate::config::{Config, Server};
use crate::gateway::respond;
use crate::gateway::tls::Tls;
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection that is to be served.
pub(super) struct Connection<F> {
    pub(super) answer: F,
    /// What applied when it began.
    pub(super) config: Arc<Config>,
    pub(super) pace: Arc<Pace>,
    pub(super) reaper: Arc<Reaper>,
    pub(super) shutdown: Watcher,
}

/// Runs the streams of HTTP/2 connections, a task each, watched by the reaper: one that stalls is reset, and the others
/// of its connection go on.
#[derive(Clone)]
struct Streams(Arc<Reaper>);

type Ended = Result<(), Box<dyn Error + Send + Sync>>;

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
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
{
    /// Shakes hands first.
    pub(super) async fn serve_tls(self, stream: Paced<TcpStream>, address: SocketAddr, tls: &Tls) -> Ended {
        let mut first = [0];
        // A record of TLS begins with 22; a letter is the beginning of a method.
        if stream.get_ref().peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
            return Ok(Farewell::new(stream, 0).say(respond::plain_text()).await?);
        }
        let (stream, certificate) = tls.accept(stream).await?;
        Box::pin(self.serve(stream, Peer { address, certificate })).await
    }

    /// Serves HTTP/1.1 or HTTP/2, whatever the client begins with.
    pub(super) async fn serve<S>(self, stream: S, peer: Peer) -> Ended
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { answer, config, pace, reaper, shutdown } = self;
        let service = service_fn(move |http: Request<Incoming>| {
            let multiplexed = http.version() == Version::HTTP_2;
            let open = pace.begin(http.version());
            let answer = answer(http, peer.clone());
            async move {
                let stream = multiplexed.then(|| STREAM.try_with(Clone::clone).ok()).flatten();
                Ok::<_, Infallible>(answer.await.map(|body| PacedBody::new(body, open, stream)))
            }
        });
        let stream = TokioIo::new(Farewell::new(stream, config.server.max_head));
        let connection = server(&config.server, reaper).serve_connection(stream, service).into_owned();
        shutdown.watch(connection).await
    }
}

/// Times are the reaper's affair.
fn server(config: &Server, reaper: Arc<Reaper>) -> auto::Builder<Streams> {
    let mut server = auto::Builder::new(Streams(reaper));
    let head = usize::try_from(config.max_head).unwrap_or(usize::MAX).saturating_add(WRITE_BUFFER);
    server.http1().header_read_timeout(None).max_buf_size(head);
    let list = u32::try_from(config.max_head + HTTP2_OVERHEAD).unwrap_or(u32::MAX);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(config.http2.max_streams)
        .max_header_list_size(list)
        .keep_alive_interval(config.http2.ping)
        .max_send_buf_size(WRITE_BUFFER);
    server
}

// === impl Streams ===

impl<S: Future<Output = ()> + Send + 'static> hyper::rt::Executor<S> for Streams {
    fn execute(&self, stream: S) {
        let pace = Arc::new(Pace::stream());
        let task = tokio::spawn(STREAM.scope(pace.clone(), stream));
        self.0.watch(task.abort_handle(), pace);
    }
}
