//! One request from its head to the last byte of its answer: its record, its log line and its metrics.

use super::Incoming;
use crate::call::{Considered, Outcome, Peer, Record};
use crate::clock::Clock;
use crate::config::Name;
use crate::metrics::{Metrics, Served, UNKNOWN};
use bytes::Buf;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service, layer::layer_fn};

/// Watches requests to their end.
#[derive(Clone)]
pub struct Trace<S> {
    inner: S,
    metrics: Metrics,
    clock: Clock,
}

/// Logs and counts one request when it is dropped: at the end of its answer, or when its client hangs up before.
pub struct Watch {
    record: Record,
    peer: Peer,
    metrics: Metrics,
    clock: Clock,
    status: u16,
}

/// An answer's body that ends its request's [`Watch`] with it.
pub struct Watched<B> {
    // The order matters: the body's lease writes its last notes before the watch reads them.
    body: B,
    watch: Option<Watch>,
}

/// What the log and the metrics show where the client left before there was a status.
const CLIENT_GONE: u16 = 499;

/// The record of a request: under the client's own id where that is 1 to 128 of `A-Za-z0-9._-`, else under a made one.
pub fn record(headers: &HeaderMap, clock: &Clock, config_version: u64) -> Record {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let own = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let own = own.filter(|id| (1..=128).contains(&id.len()) && id.as_bytes().iter().all(allowed));
    let id = own.map_or_else(|| random_id("req_"), str::to_owned);
    let record = Record::new(id, clock.now(), config_version);
    record.lock().traceparent = traceparent(headers);
    record
}

/// Where the request belongs in a trace, as W3C's Trace Context says: `00-{32 hex}-{16 hex}-{2 hex}`.
fn traceparent(headers: &HeaderMap) -> Option<String> {
    let given = headers.get("traceparent")?.to_str().ok()?;
    let lengths = given.split('-').map(str::len);
    let hex = given.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    (hex && lengths.eq([2, 32, 16, 2])).then(|| given.to_owned())
}

/// An id nobody has had before; it isn't a secret.
pub fn random_id(prefix: &str) -> String {
    // Two differently keyed hashes: the keys come from the system's randomness and change with every use.
    let half = || RandomState::new().hash_one(0);
    format!("{prefix}{:016x}{:016x}", half(), half())
}

// === impl Trace ===

impl<S> Trace<S> {
    /// Counts into `metrics`.
    pub fn layer(metrics: Metrics, clock: Clock) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, metrics: metrics.clone(), clock: clock.clone() })
    }
}

impl<S, B, R> Service<Incoming<B>> for Trace<S>
where
    S: Service<Incoming<B>, Response = Response<R>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Watched<R>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, incoming: Incoming<B>) -> Self::Future {
        let watch = Watch::new(incoming.record.clone(), incoming.peer.clone(), self.metrics.clone(), self.clock.clone());
        let below = self.inner.call(incoming);
        Box::pin(async move { Ok(watch.over(below.await?)) })
    }
}

// === impl Watch ===

impl Watch {
    /// A watch over the request of this record.
    pub fn new(record: Record, peer: Peer, metrics: Metrics, clock: Clock) -> Self {
        Self { record, peer, metrics, clock, status: CLIENT_GONE }
    }

    /// Watches the answer to its end.
    pub fn over<B>(mut self, response: Response<B>) -> Response<Watched<B>> {
        self.status = response.status().as_u16();
        response.map(|body| Watched { body, watch: Some(self) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let notes = self.record.lock().clone();
        let duration = self.clock.now() - notes.arrived;
        let ttft = notes.first_byte.map(|at| at - notes.arrived);
        let outcome = notes.outcome.unwrap_or(if std::thread::panicking() { Outcome::Panic } else { Outcome::ClientGone });
        tracing::info!(
            target: "request",
            id = notes.id,
            peer = %self.peer,
            tenant = shown(&notes.tenant),
            key = shown(&notes.key),
            model = shown(&notes.model),
            rule = notes.rule.as_ref().map(Name::as_str),
            variant = shown(&notes.variant),
            fallback_from = notes.fallback_from.as_ref().map(Name::as_str),
            backend = shown(&notes.backend),
            offers = (!notes.considered.is_empty()).then(|| offers(&notes.considered)),
            config = notes.config_version,
            attempts = notes.attempts,
            failed = (!notes.failed.is_empty()).then(|| failures(&notes.failed)),
            status = self.status,
            prompt_tokens = notes.usage.prompt_tokens,
            cached_tokens = notes.usage.cached_tokens,
            completion_tokens = notes.usage.completion_tokens,
            estimated = notes.estimated.then_some(true),
            device_ms = milliseconds(notes.usage.device_time),
            ttft_ms = ttft.map(milliseconds),
            duration_ms = milliseconds(duration),
            outcome = ?outcome,
        );
        let served = Served { tenant: notes.tenant, model: notes.model, variant: notes.variant, backend: notes.backend };
        let latency = self.metrics.latency(served.clone());
        latency.duration.record(duration.as_secs_f64());
        if let Some(ttft) = ttft {
            latency.ttft.record(ttft.as_secs_f64());
        }
        self.metrics.count_request(served, self.status);
    }
}

/// `a cached 96 queue 0ms prefill 2.5ms, b queue 3ms prefill 12.5ms`
fn offers(considered: &[Considered]) -> String {
    let offer = |one: &Considered| {
        let (queue, prefill) = (milliseconds(one.queue_time), milliseconds(one.prefill_time));
        let cached = one.cached_tokens.map_or(String::new(), |tokens| format!(" cached {tokens}"));
        format!("{}{cached} queue {queue}ms prefill {prefill}ms", one.backend)
    };
    considered.iter().map(offer).collect::<Vec<_>>().join(", ")
}

/// `a can't be reached, b answered with status 500`
fn failures(failed: &[(Name, String)]) -> String {
    failed.iter().map(|(backend, failure)| format!("{backend} {failure}")).collect::<Vec<_>>().join(", ")
}

fn shown(name: &Option<Name>) -> &str {
    name.as_ref().map_or(UNKNOWN, Name::as_str)
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

// === impl Watched ===

impl<B> Watched<B> {
    /// A body nobody watches.
    pub fn unwatched(body: B) -> Self {
        Self { body, watch: None }
    }

    /// The same watch over another body.
    pub fn map<C>(self, change: impl FnOnce(B) -> C) -> Watched<C> {
        Watched { body: change(self.body), watch: self.watch }
    }
}

impl<B: Body<Data: Buf> + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
