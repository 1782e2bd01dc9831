//! The HTTP edge. [`stack`] is the way of a request, top to bottom; everything below `translate` knows nothing of HTTP.

mod body;
pub mod listener;
mod paths;
mod prepare;
pub mod read;
pub mod respond;
pub mod stack;
mod stream;
pub mod tls;
mod translate;
mod usage;

use arc_swap::ArcSwap;
use listener::{Opening, Port};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tls::Tls;

pub use body::Body;
pub use paths::decoded;
pub use prepare::Served;
pub use stack::{Parts, Stack};
pub use usage::usage;

/// The public port at work.
pub struct Gateway {
    port: Port,
    draining: Arc<AtomicBool>,
}

// === impl Gateway ===

impl Gateway {
    /// Serves connections of these listeners, a thread each. A request loads the stack once and keeps it to its end, so
    /// the stack may be swapped at any time. `draining` becomes true when it closes. At the end open requests have `drain` to finish.
    ///
    /// # Errors
    /// A thread or its runtime can't be made.
    pub fn open(
        sockets: Vec<TcpListener>,
        tls: Option<Arc<Tls>>,
        stack: Arc<ArcSwap<Stack>>,
        draining: Arc<AtomicBool>,
        drain: Duration,
    ) -> io::Result<Self> {
        let leaving = draining.clone();
        let metrics = stack.load().metrics.clone();
        let current = stack.clone();
        let bounds = Arc::new(move || current.load().config.clone());
        let answer = move |http, peer| {
            let (stack, draining) = (stack.load_full(), leaving.load(Ordering::Relaxed));
            async move { stack.answer(http, peer, draining).await }
        };
        let opening = Opening { name: "gateway", listeners: sockets, tls, bounds, metrics, drain };
        Ok(Self { port: Port::open(opening, answer)?, draining })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Says it isn't ready, accepts nothing new, lets open requests finish, and returns when all threads have ended.
    /// Blocks the calling thread.
    pub fn close(self) {
        self.draining.store(true, Ordering::Relaxed);
        self.port.close();
    }
}
