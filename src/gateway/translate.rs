//! HTTP ends here: a request becomes a [`Call`], a [`Reply`] becomes an answer.

use super::body::Body;
use super::paths::Endpoint;
use super::prepare::{Catalog, Wanted};
use super::{read, respond, stream, usage};
use crate::api::openai::{Head, Kind, Model, ModelList};
use crate::call::{Call, Error, Outcome, Record, Reply};
use crate::clock::Clock;
use crate::config::Server;
use crate::layer::Incoming;
use crate::layer::trace::random_id;
use crate::route::render;
use crate::tenant::{Accounts, Holder};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use std::fmt::Display;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service, layer::layer_fn};

/// Turns requests into calls and replies into answers.
#[derive(Clone)]
pub(super) struct Translate<S> {
    inner: S,
    shared: Arc<Shared>,
}

struct Shared {
    catalog: Arc<Catalog>,
    accounts: Arc<Accounts>,
    max_body: u64,
    body_timeout: Duration,
    clock: Clock,
    /// When the models began to be offered, in seconds since the epoch.
    created: u64,
}

// === impl Translate ===

impl<S> Translate<S> {
    pub(super) fn layer(catalog: Catalog, accounts: Arc<Accounts>, server: &Server, clock: Clock) -> impl Layer<S, Service = Self> + Clone {
        let created = clock.unix().as_secs();
        let (catalog, max_body, body_timeout) = (Arc::new(catalog), server.max_body, server.body_timeout);
        let shared = Arc::new(Shared { catalog, accounts, max_body, body_timeout, clock, created });
        layer_fn(move |inner| Self { inner, shared: shared.clone() })
    }
}

impl<S, B> Service<Incoming<B>> for Translate<S>
where
    S: Service<Call, Response = Reply, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error: Display> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Response<Body>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, incoming: Incoming<B>) -> Self::Future {
        let (mut inner, shared) = (self.inner.clone(), self.shared.clone());
        Box::pin(async move {
            let Incoming { http, record, holder, .. } = incoming;
            let holder = holder.ok_or(Error::Unauthenticated { shown: None })?;
            let endpoint = Endpoint::find(http.method(), http.uri().path())?;
            if let Some(scoped) = endpoint.scoped() {
                holder.check(scoped)?; // before the body is read
            }
            match endpoint {
                Endpoint::Generate(kind) => {
                    let patience = read::patience(http.headers());
                    let (mut call, wanted) = shared.understand(kind, http, holder, record.clone()).await?;
                    let until = patience.map(|patience| record.lock().arrived + patience);
                    if wanted.stream {
                        call.first_by = until;
                    } else {
                        call.deadline = until;
                    }
                    let reply = inner.call(call).await?;
                    shared.answer(reply, wanted, record).await
                }
                Endpoint::Models => {
                    record.lock().outcome = Some(Outcome::Done);
                    Ok(respond::json(&shared.list(&holder)))
                }
                Endpoint::Model(name) => {
                    let model = shared.catalog.model(&name, &holder)?;
                    record.lock().outcome = Some(Outcome::Done);
                    Ok(respond::json(&shared.model(model)))
                }
                Endpoint::Usage => {
                    let (uri, headers) = (http.uri(), http.headers());
                    let of = (shared.accounts.as_ref(), shared.catalog.config());
                    let answer = usage::usage(uri.query(), headers, Some(&holder.tenant.name), of, shared.clock.unix()).await?;
                    record.lock().outcome = Some(Outcome::Done);
                    Ok(answer)
                }
                Endpoint::Live | Endpoint::Ready | Endpoint::Options(_) => {
                    Err(Error::UnknownUrl { method: http.method().to_string(), path: http.uri().path().to_owned() })
                }
            }
        })
    }
}

// === impl Shared ===

impl Shared {
    async fn understand<B>(&self, kind: Kind, http: http::Request<B>, holder: Holder, record: Record) -> Result<(Call, Wanted), Error>
    where
        B: http_body::Body<Data = Bytes, Error: Display>,
    {
        let (head, body) = http.into_parts();
        read::check_content_type(&head.headers)?;
        let body = read::body(&head.headers, body, self.max_body, self.body_timeout).await?;
        if body.len() <= render::LARGE {
            return self.catalog.prepare(kind, &head.headers, &body, holder, record);
        }
        let catalog = self.catalog.clone();
        match tokio::task::spawn_blocking(move || catalog.prepare(kind, &head.headers, &body, holder, record)).await {
            Ok(prepared) => prepared,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Error::Internal), // the runtime is shutting down
            },
        }
    }

    async fn answer(&self, reply: Reply, wanted: Wanted, record: Record) -> Result<Response<Body>, Error> {
        let (prefix, object) = match (wanted.kind, wanted.stream) {
            (Kind::Chat, false) => ("chatcmpl-", "chat.completion"),
            (Kind::Chat, true) => ("chatcmpl-", "chat.completion.chunk"),
            (Kind::Completion, _) => ("cmpl-", "text_completion"),
        };
        let (model, system_fingerprint) = {
            let notes = record.lock();
            let served = notes.model.as_ref().zip(notes.variant.as_ref());
            let fingerprint = served.map(|(model, variant)| self.catalog.fingerprint(model, variant));
            (notes.model.as_ref().map(ToString::to_string).unwrap_or_default(), fingerprint.unwrap_or_default())
        };
        let head =
            Head { id: random_id(prefix), object, created: self.clock.unix().as_secs(), model, system_fingerprint, prices: wanted.prices };
        if wanted.stream {
            Ok(stream::events(reply, &head, &wanted, record, self.clock.clone()))
        } else {
            stream::whole(reply, &head, &wanted, &record, &self.clock).await
        }
    }

    fn list<'a>(&'a self, holder: &'a Holder) -> ModelList<'a> {
        let models = self.catalog.models(holder);
        ModelList { object: "list", data: models.map(|model| self.model(model)).collect() }
    }

    fn model<'a>(&self, model: &'a crate::config::Model) -> Model<'a> {
        Model { id: model.name.as_str(), object: "model", created: self.created, owned_by: "roundhouse" }
    }
}
