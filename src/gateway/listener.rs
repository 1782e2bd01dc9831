//! Ports: TCP, HTTP/1.1 and HTTP/2, one current-thread runtime per thread, each with its own listener.

use crate::call::Peer;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use socket2::{Domain, Protocol, Socket, Type};
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

/// An open port and its threads. Dropping it lets them end by themselves; [`close`](Self::close) waits for them.
pub struct Port {
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
    first: Handle,
    stop: watch::Sender<bool>,
}

/// A client has this long to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests at once on one HTTP/2 connection.
const HTTP2_STREAMS: u32 = 256;
/// Bytes of headers an HTTP/2 client may send.
const HTTP2_HEADERS: u32 = 64 << 10;
/// Threads beside each runtime for large requests; more of them would only wait for the same cores.
const BLOCKING_THREADS: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// tokio wakes itself up for every timer that becomes the earliest; one that is always earlier spares that for all others.
const TICK: Duration = Duration::from_millis(50);
/// How long to wait where accepting fails for lack of files or memory: they come back when connections end.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Listeners on one address, one for each of `threads`; with port 0 they all get the same free one.
///
/// # Errors
/// The address can't be had, for instance because another process listens there.
pub fn bind(address: SocketAddr, threads: usize) -> io::Result<Vec<TcpListener>> {
    // Sockets that share a port would share it with another server's too. One that doesn't share finds out whether it's free.
    socket(address, false)?;
    let first = socket(address, true)?;
    first.listen(BACKLOG)?;
    let mut listeners = vec![TcpListener::from(first)];
    let address = listeners[0].local_addr()?;
    for _ in 1..threads {
        let socket = socket(address, true)?;
        socket.listen(BACKLOG)?;
        listeners.push(socket.into());
    }
    Ok(listeners)
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

// === impl Port ===

impl Port {
    /// Serves the connections of these listeners, a thread each, with `answer`. At the end open requests have `drain`
    /// to finish.
    ///
    /// # Errors
    /// There are no listeners, or a thread or its runtime can't be made.
    pub fn open<F, A, B>(name: &str, listeners: Vec<TcpListener>, answer: F, drain: Duration) -> io::Result<Self>
    where
        F: Fn(Request<Incoming>, Peer) -> A + Clone + Send + 'static,
        A: Future<Output = Response<B>> + Send + 'static,
        B: http_body::Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        let address = listeners.first().ok_or(io::ErrorKind::InvalidInput)?.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let mut threads = Vec::with_capacity(listeners.len());
        let mut first = None;
        for (index, listener) in listeners.into_iter().enumerate() {
            let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build()?;
            first.get_or_insert_with(|| runtime.handle().clone());
            let listener = adopt(&runtime, listener)?;
            let (answer, stopped) = (answer.clone(), stopped.clone());
            threads.push(thread::Builder::new().name(format!("{name}-{index}")).spawn(move || {
                runtime.block_on(serve(listener, answer, stopped, drain));
                runtime.shutdown_background(); // what is still open after the drain ends now
            })?);
        }
        let first = first.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { address, threads, first, stop })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs a task beside the connections, until the port closes.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.first.spawn(task);
    }

    /// Accepts nothing new, lets open requests finish, and returns when all threads have ended. Blocks the calling thread.
    pub fn close(self) {
        let Self { threads, stop, .. } = self;
        stop.send_replace(true);
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a serving thread panicked");
            }
        }
    }
}

fn adopt(runtime: &Runtime, listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    let _inside = runtime.enter();
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

async fn serve<F, A, B>(listener: tokio::net::TcpListener, answer: F, mut stopped: watch::Receiver<bool>, drain: Duration)
where
    F: Fn(Request<Incoming>, Peer) -> A + Clone + Send + 'static,
    A: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let server = server();
    let open = GracefulShutdown::new();
    tokio::spawn(tick());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop) => break, // also when the port was dropped
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection can't be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone before it began");
            continue;
        }
        let answer = answer.clone();
        let service = service_fn(move |http| {
            let answer = answer(http, Peer::from(peer));
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let connection = open.watch(server.serve_connection(TokioIo::new(stream), service).into_owned());
        // A task of its own: what panics in it ends this connection and nothing else.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, %peer, "a connection ended early");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(drain, open.shutdown()).await.is_err() {
        tracing::warn!("requests were still open after the drain; they are cut");
    }
}

fn server() -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    server.http2().timer(TokioTimer::new()).max_concurrent_streams(HTTP2_STREAMS).max_header_list_size(HTTP2_HEADERS);
    server
}

async fn tick() {
    let mut tick = tokio::time::interval(TICK);
    loop {
        tick.tick().await;
    }
}
