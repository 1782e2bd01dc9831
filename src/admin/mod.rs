//! The operators' port: metrics and health, never on the public port.

use crate::call::Error;
use crate::config::Secret;
use crate::gateway::listener::{Bounds, Opening, Port};
use crate::gateway::tls::Tls;
use crate::gateway::{Body, respond};
use crate::metrics::Metrics;
use http::{HeaderMap, Method, Request, Response, header};
use std::future::ready;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// The admin port at work.
pub struct Admin(Port);

/// How often samples are folded into their histograms while nobody reads the metrics.
const UPKEEP: Duration = Duration::from_secs(5);
/// Open requests have this long to finish at the end; none of them takes longer than a page.
const DRAIN: Duration = Duration::from_secs(1);
const ALLOW: &str = "GET, HEAD";

// === impl Admin ===

impl Admin {
    /// Serves `metrics` on this listener; with a `token` only to those who send it. `bounds` are those of the public port.
    ///
    /// # Errors
    /// The thread or its runtime can't be made.
    pub fn open(socket: TcpListener, tls: Option<Arc<Tls>>, bounds: Bounds, metrics: Metrics, token: Option<Secret>) -> io::Result<Self> {
        let shown = metrics.clone();
        let token = Arc::new(token);
        let answer = move |http: Request<_>, _| ready(answer(&http, &shown, token.as_ref().as_ref()));
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

fn answer<B>(http: &Request<B>, metrics: &Metrics, token: Option<&Secret>) -> Response<Body> {
    let (method, path) = (http.method(), http.uri().path());
    let known = matches!(path, "/health" | "/livez" | "/metrics");
    if !known {
        return respond::error(&Error::UnknownUrl { method: method.to_string(), path: path.to_owned() });
    }
    if method != Method::GET && method != Method::HEAD {
        return respond::error(&Error::MethodNotAllowed { method: method.to_string(), path: path.to_owned(), allow: ALLOW });
    }
    if path != "/metrics" {
        return respond::live();
    }
    if token.is_some_and(|token| !bearer(http.headers()).is_some_and(|given| token.matches(given))) {
        return respond::error(&Error::Unauthenticated { shown: None });
    }
    respond::text(metrics.render())
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}
