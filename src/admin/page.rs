//! What operators can ask for, and the answers.

use super::Control;
use crate::call::Error;
use crate::config::Secret;
use crate::gateway::{Body, respond};
use crate::metrics::Metrics;
use http::{HeaderMap, Method, Request, Response, header};
use std::sync::Arc;

/// What can be asked for.
#[derive(Clone, Copy)]
pub(super) enum Page {
    Live,
    Metrics,
    Status,
    Reload,
}

const READ: &str = "GET, HEAD";
const ACT: &str = "POST";

// === impl Page ===

impl Page {
    /// What a request asks for; all but health only with the `token`, where there is one.
    pub(super) fn find<B>(http: &Request<B>, token: Option<&Secret>) -> Result<Self, Error> {
        let (method, path) = (http.method(), http.uri().path());
        let (page, allow) = match path {
            "/health" | "/livez" => (Page::Live, READ),
            "/metrics" => (Page::Metrics, READ),
            "/admin/v1/status" => (Page::Status, READ),
            "/admin/v1/reload" => (Page::Reload, ACT),
            _ => return Err(Error::UnknownUrl { method: method.to_string(), path: path.to_owned() }),
        };
        let right = if allow == ACT { method == Method::POST } else { method == Method::GET || method == Method::HEAD };
        if !right {
            return Err(Error::MethodNotAllowed { method: method.to_string(), path: path.to_owned(), allow });
        }
        let known = token.is_none_or(|token| bearer(http.headers()).is_some_and(|given| token.matches(given)));
        if known || matches!(page, Page::Live) { Ok(page) } else { Err(Error::Unauthenticated { shown: None }) }
    }

    pub(super) async fn answer(self, metrics: &Metrics, control: Arc<dyn Control>) -> Response<Body> {
        match self {
            Page::Live => respond::live(),
            Page::Metrics => respond::text(metrics.render()),
            Page::Status => respond::json(&control.status()),
            // A reload reads files and a database.
            Page::Reload => match tokio::task::spawn_blocking(move || control.reload()).await {
                Ok(Ok(reloaded)) => respond::json(&reloaded),
                Ok(Err(message)) => respond::error(&Error::Invalid { param: None, message }),
                Err(error) => {
                    tracing::error!(%error, "a reload panicked");
                    respond::error(&Error::Internal)
                }
            },
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}
