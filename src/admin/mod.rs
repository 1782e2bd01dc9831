//! The operators' port: metrics, health, status, experiments, keys and reload, never on the public port.

mod control;
mod experiments;
mod keys;
mod page;

use crate::gateway::listener::{Opening, Port};
use crate::gateway::respond;
use crate::gateway::tls::Tls;
use crate::metrics::Metrics;
use http::Request;
use page::Page;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

pub use control::{ConfigStatus, Control, Deed, LoadStatus, Reloaded, ShardStatus, Status, TenantStatus, UpstreamStatus};

/// The admin port at work.
pub struct Admin(Port);

/// How often samples are folded into their histograms while nobody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);
/// Open requests have this long to finish at the end; none of them takes longer than a page.
const DRAIN: Duration = Duration::from_secs(1);

// === impl Admin ===

impl Admin {
    /// Serves `metrics` and `control` on this listener; where the configuration has a token, only to those who send it. Its
    /// clients are bounded as those of the public port.
    ///
    /// # Errors
    /// The thread or its runtime can't be made.
    pub fn open(socket: TcpListener, tls: Option<Arc<Tls>>, metrics: Metrics, control: Arc<dyn Control>) -> io::Result<Self> {
        let shown = metrics.clone();
        let current = control.clone();
        let answer = move |http: Request<hyper::body::Incoming>, _| {
            let page = Page::find(&http, control.config().admin.token.as_ref());
            let (shown, control) = (shown.clone(), control.clone());
            async move {
                match page {
                    Ok(page) => page.answer(http, &shown, control).await,
                    Err(error) => respond::error(&error),
                }
            }
        };
        let bounds = Arc::new(move || current.config());
        let opening = Opening { name: "admin", listeners: vec![socket], tls, bounds, metrics: metrics.clone(), drain: DRAIN };
        let port = Port::open(opening, answer)?;
        port.spawn(async move {
            let mut tick = tokio::time::interval(UPKEEP);
            loop {
                tick.tick().await;
                metrics.upkeep();
            }
        });
        Ok(Self(port))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Ends it, and returns when it has ended. Blocks the calling thread.
    pub fn close(self) {
        self.0.close();
    }
}
