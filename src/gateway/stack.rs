//! The way of a request, top to bottom.

use super::body::Body;
use super::paths::Endpoint;
use super::prepare::{Catalog, Served};
use super::respond::{self, Look, Respond};
use super::translate::Translate;
use crate::backend::{Backend, State};
use crate::call::{Error, Peer, Record};
use crate::clock::Clock;
use crate::config::{Config, Name};
use crate::layer::trace::{self, Watch, Watched};
use crate::layer::{Admit, Authenticate, Deadline, Incoming, Limit, Meter, Trace};
use crate::metrics::Metrics;
use crate::route::{Choose, Experiments, Router};
use crate::tenant::{Accounts, Keys};
use http::{HeaderMap, Method, Request, Response, header};
use http_body::Body as _;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder};

/// What a stack is made of. What outlives a reload comes as an `Arc`.
pub struct Parts {
    /// The configuration its requests get.
    pub config: Arc<Config>,
    /// The tokenizer and the limits of each model.
    pub served: BTreeMap<Name, Served>,
    /// What answers calls.
    pub backends: BTreeMap<Name, Arc<dyn Backend>>,
    /// Who may come in.
    pub keys: Arc<Keys>,
    /// How much, and what was used.
    pub accounts: Arc<Accounts>,
    /// What variants did in experiments.
    pub experiments: Arc<Experiments>,
    /// What is counted.
    pub metrics: Metrics,
    /// What time it is.
    pub clock: Clock,
}

/// Everything that answers requests under one configuration.
pub struct Stack {
    /// That configuration.
    pub config: Arc<Config>,
    /// Who may come in under it.
    pub keys: Arc<Keys>,
    service: Boxed,
    backends: Arc<BTreeMap<Name, Arc<dyn Backend>>>,
    pub(super) metrics: Metrics,
    clock: Clock,
    look: Look,
}

type Boxed = BoxCloneSyncService<Incoming<hyper::body::Incoming>, Response<Watched<Body>>, Infallible>;

// === impl Stack ===

impl Stack {
    /// Builds the stack: the first line sees the request first and the answer last.
    pub fn build(parts: Parts) -> Stack {
        let Parts { config, served, backends, keys, accounts, experiments, metrics, clock } = parts;
        let look = Look { show_backend: config.server.show_backend, clock: clock.clone() };
        let catalog = Catalog::new(config.clone(), served);
        let renderings = catalog.renderings();
        let backends = Arc::new(backends);
        let service = ServiceBuilder::new()
            .layer(Trace::layer(metrics.clone(), clock.clone())) // outermost: logs and counts whatever happens below, to the last byte
            .layer(Respond::layer(look.clone())) // below trace, which reads its status; above all that can fail or panic
            .layer(Authenticate::layer(keys.clone())) // before the body is read: strangers cost us a header lookup
            .layer(Translate::layer(catalog, accounts.clone(), &config.server, clock.clone())) // HTTP ends here; what follows needs tokens and models
            .layer(Choose::layer(renderings.clone(), experiments.clone(), clock.clone())) // before limit: what is reserved depends on the variant's prompt; above all that can refuse a variant's call, so that its experiment counts that
            .layer(Limit::layer(accounts)) // holds what it took to the last byte, then bills it; takes it back if anything below refuses
            .layer(Deadline::layer(config.server.request_timeout, clock.clone())) // below limit, which counts what was cut; above admit, which has to know it
            .layer(Admit::layer(backends.clone(), clock.clone())) // the last look before work is done for it: what would wait in vain goes at once
            .layer(Meter::layer(metrics.clone(), clock.clone(), config.billing.currency.clone())) // directly above the replies: sees every token once, whoever sent it
            .service(Router::new(backends.clone(), renderings, experiments, clock.clone())); // picks the replica last, when everything about the call is known
        Stack { config, keys, service: BoxCloneSyncService::new(service), backends, metrics, clock, look }
    }

    /// Answers one request. Health, unknown paths and wrong methods are answered here, before authentication.
    pub async fn answer(&self, http: Request<hyper::body::Incoming>, peer: Peer, draining: bool) -> Response<Watched<Body>> {
        let record = trace::record(http.headers(), &self.clock, self.config.version);
        let is_head = http.method() == Method::HEAD;
        let endpoint =
            check_headers(http.headers(), self.config.server.max_head).and_then(|()| Endpoint::find(http.method(), http.uri().path()));
        let response = match endpoint {
            Ok(Endpoint::Live) => self.aside(respond::live(), &record),
            Ok(Endpoint::Ready) => self.aside(respond::readiness(self.ready(draining)), &record),
            Ok(Endpoint::Options(allow)) => self.aside(respond::options(allow), &record),
            Ok(Endpoint::Generate(_) | Endpoint::Models | Endpoint::Model(_) | Endpoint::Usage) => {
                let incoming = Incoming { http, peer, record, holder: None };
                match self.service.clone().call(incoming).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
            Err(error) => {
                let watch = Watch::new(record.clone(), peer, self.metrics.clone(), self.clock.clone());
                let mut response = respond::refuse(&error, &record);
                self.look.dress(&mut response, &record);
                watch.over(response)
            }
        };
        if is_head { without_body(response) } else { response }
    }

    /// Whether requests can be served now.
    fn ready(&self, draining: bool) -> Result<(), &'static str> {
        let any = |state| self.backends.values().any(|backend| backend.state() == state);
        match () {
            () if draining => Err("draining"),
            () if any(State::Stuck) => Err("a backend is stuck"),
            () if !any(State::Ready) => Err("no backend can serve"),
            () => Ok(()),
        }
    }

    /// An answer that is neither logged nor counted: probes come every second.
    fn aside(&self, mut response: Response<Body>, record: &Record) -> Response<Watched<Body>> {
        self.look.dress(&mut response, record);
        response.map(Watched::unwatched)
    }
}

fn check_headers(headers: &HeaderMap, limit: u64) -> Result<(), Error> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes as u64 > limit { Err(Error::HeadersTooLarge { limit }) } else { Ok(()) }
}

/// The answer to HEAD: that of GET, its length included, and no body.
fn without_body(mut response: Response<Watched<Body>>) -> Response<Watched<Body>> {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response.map(|watched| watched.map(|_| Body::empty()))
}
