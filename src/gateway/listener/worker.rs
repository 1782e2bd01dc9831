//! One thread's part of a port: it accepts connections and lets each be served by a task of its own.

use super::connection::Connection;
use super::pace::{Pace, Paced};
use super::reaper::Reaper;
use super::{Answer, Bounds};
use crate::gateway::tls::Tls;
use crate::metrics::ConnectionMetrics;
use bytes::Bytes;
use http::Response;
use http_body::Body;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the threads of a port share, and each of them has.
#[derive(Clone)]
pub(super) struct Worker<F> {
    pub(super) answer: F,
    pub(super) bounds: Bounds,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) metrics: ConnectionMetrics,
    /// Connections of all threads.
    pub(super) open: Arc<AtomicUsize>,
}

/// A connection's place among those that may be open at once.
struct Place(Arc<AtomicUsize>, ConnectionMetrics);

/// Says something once a second at most.
#[derive(Default)]
struct Seldom(Option<Instant>);

/// How long to wait where accepting fails for lack of files or memory: they come back when connections end.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

// === impl Worker ===

impl<F, A, B> Worker<F>
where
    F: Answer<Future = A>,
    A: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
{
    /// Serves until `stopped`, then lets open requests finish for as long as `drain`.
    pub(super) async fn run(self, listener: TcpListener, mut stopped: watch::Receiver<bool>, drain: Duration) {
        let open = GracefulShutdown::new();
        let reaper = Reaper::new(self.bounds.clone(), self.metrics.clone());
        tokio::spawn(reaper.clone().run());
        let (mut unaccepted, mut refused) = (Seldom::default(), Seldom::default());
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(|stop| *stop) => break, // also when the port was dropped
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    unaccepted.say(|| tracing::warn!(%error, "connections can't be accepted"));
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let Some(place) = self.place() else {
                self.metrics.refused.increment(1);
                refused.say(|| tracing::warn!("connections are refused: there are as many as server.max_connections"));
                continue;
            };
            self.begin(stream, address, place, (stopped.clone(), open.watcher()), &reaper);
        }
        drop(listener);
        if tokio::time::timeout(drain, open.shutdown()).await.is_err() {
            tracing::warn!("requests were still open after the drain; they are cut");
        }
    }

    fn begin(&self, stream: TcpStream, address: SocketAddr, place: Place, end: (watch::Receiver<bool>, Watcher), reaper: &Arc<Reaper>) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone before it began");
            return;
        }
        let pace = Arc::new(Pace::default());
        let connection = Connection {
            answer: self.answer.clone(),
            config: (self.bounds)(),
            pace: pace.clone(),
            reaper: reaper.clone(),
            stopped: end.0,
            shutdown: end.1,
        };
        let tls = self.tls.clone();
        // A task of its own: what panics in it ends this connection and nothing else.
        let task = tokio::spawn(async move {
            let _place = place;
            let stream = Paced::new(stream, connection.pace.clone());
            let ended = match tls {
                Some(tls) => Box::pin(connection.serve_tls(stream, address, &tls)).await,
                None => connection.serve(stream, address).await,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, peer = %address, "a connection ended early");
            }
        });
        reaper.watch(task.abort_handle(), pace);
    }

    /// A place for one more connection, if there is one.
    fn place(&self) -> Option<Place> {
        let most = (self.bounds)().server.max_connections;
        let place = Place::take(&self.open, &self.metrics);
        (self.open.load(Relaxed) <= most).then_some(place)
    }
}

// === impl Place ===

impl Place {
    fn take(open: &Arc<AtomicUsize>, metrics: &ConnectionMetrics) -> Self {
        open.fetch_add(1, Relaxed);
        metrics.open.increment(1.0);
        Self(open.clone(), metrics.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
        self.1.open.decrement(1.0);
    }
}

// === impl Seldom ===

impl Seldom {
    fn say(&mut self, say: impl FnOnce()) {
        let now = Instant::now();
        if self.0.is_none_or(|last| now - last >= Duration::from_secs(1)) {
            self.0 = Some(now);
            say();
        }
    }
}
