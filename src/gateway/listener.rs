//! Ports: TCP, HTTP/1.1 and HTTP/2, one current-thread runtime per thread, each with its own listener.

mod connection;
mod farewell;
mod pace;
mod preface;
mod reaper;
mod worker;

use super::tls::Tls;
use crate::call::Peer;
use crate::config::Config;
use crate::metrics::Metrics;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::error::Error;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use worker::Worker;

/// An open port and its threads. Dropping it lets them end by themselves; [`close`](Self::close) waits for them.
pub struct Port {
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
    first: Handle,
    stop: watch::Sender<bool>,
}

/// What answers the requests of a port.
pub trait Answer: Fn(Request<Incoming>, Peer) -> Self::Future + Clone + Send + 'static {
    /// The answer to come.
    type Future;
}

/// What applies to a port's connections now; a reload changes it.
pub type Bounds = Arc<dyn Fn() -> Arc<Config> + Send + Sync>;

/// What a port is opened with.
pub struct Opening {
    /// What its threads and metrics are called.
    pub name: &'static str,
    /// Its sockets, a thread each.
    pub listeners: Vec<TcpListener>,
    /// How its connections are encrypted, if they are.
    pub tls: Option<Arc<Tls>>,
    /// What clients may do to it: `server` of this configuration. New connections see a change, and all waits do.
    pub bounds: Bounds,
    /// Where its connections are counted.
    pub metrics: Metrics,
    /// How long open requests have to finish at the end.
    pub drain: Duration,
}

/// Threads beside each runtime for large requests; more of them would only wait for the same cores.
const BLOCKING_THREADS: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// Unsent bytes the system takes for a connection beyond what its client's window allows. With more, a client that
/// doesn't read would be noticed only after megabytes.
const UNSENT: u32 = 64 << 10;
/// A silent client is asked for a sign of life after so long, and is gone after four without an answer.
const ASK_AFTER: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_secs(15);
const ASK: u32 = 4;

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
    // Accepted sockets inherit these.
    socket.set_tcp_notsent_lowat(UNSENT)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_AGAIN).with_retries(ASK))?;
    socket.bind(&address.into())?;
    Ok(socket)
}

// === impl Answer ===

impl<F, A> Answer for F
where
    F: Fn(Request<Incoming>, Peer) -> A + Clone + Send + 'static,
{
    type Future = A;
}

// === impl Port ===

impl Port {
    /// Serves a port's connections with `answer`.
    ///
    /// # Errors
    /// There are no listeners, or a thread or its runtime can't be made.
    pub fn open<A, B>(opening: Opening, answer: impl Answer<Future = A>) -> io::Result<Self>
    where
        A: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let Opening { name, listeners, tls, bounds, metrics, drain } = opening;
        let address = listeners.first().ok_or(io::ErrorKind::InvalidInput)?.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let worker = Worker { answer, bounds, tls, metrics: metrics.connections(name), open: Arc::default() };
        let mut threads = Vec::with_capacity(listeners.len());
        let mut first = None;
        for (index, listener) in listeners.into_iter().enumerate() {
            let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build()?;
            first.get_or_insert_with(|| runtime.handle().clone());
            let listener = adopt(&runtime, listener)?;
            let (worker, stopped) = (worker.clone(), stopped.clone());
            threads.push(thread::Builder::new().name(format!("{name}-{index}")).spawn(move || {
                runtime.block_on(worker.run(listener, stopped, drain));
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
