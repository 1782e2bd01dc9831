//! What was it: tokens and the time between them, noted in the record and counted in the metrics when the reply ends.

use crate::call::{Call, Error, Event, Lease, Outcome, Prompt, Record, Release, Reply, Usage};
use crate::clock::Clock;
use crate::config::{Name, Prices};
use crate::metrics::{LatencyMetrics, Metrics, Served, Sum, TokenMetrics};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tower::{Layer, Service, layer::layer_fn};

/// Counts what calls use.
#[derive(Clone)]
pub struct Meter<S> {
    inner: S,
    metrics: Metrics,
    clock: Clock,
    currency: Name,
}

/// Counts a call's tokens once, when its reply ends, however it ends.
struct Tally {
    record: Record,
    tokens: Arc<TokenMetrics>,
    /// Where the model has prices.
    cost: Option<(Prices, Sum)>,
}

/// Watches the events of one reply.
struct Watch {
    record: Record,
    latency: Arc<LatencyMetrics>,
    clock: Clock,
    choices: Vec<Pace>,
}

/// How one choice's tokens came.
#[derive(Clone, Copy, Default)]
struct Pace {
    first: Option<Instant>,
    last: Option<Instant>,
    /// Tokens after the first piece.
    later: u32,
    /// Whether its tokens are told.
    told: bool,
}

// === impl Meter ===

impl<S> Meter<S> {
    /// Counts into `metrics`, and costs in `currency`.
    pub fn layer(metrics: Metrics, clock: Clock, currency: Name) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, metrics: metrics.clone(), clock: clock.clone(), currency: currency.clone() })
    }
}

impl<S> Service<Call> for Meter<S>
where
    S: Service<Call, Response = Reply, Error = Error>,
    S::Future: Send + 'static,
{
    type Response = Reply;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Reply, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let (metrics, clock, record) = (self.metrics.clone(), self.clock.clone(), call.record.clone());
        let cost = call.model.prices.map(|prices| (prices, metrics.cost(&call.tenant.name, &self.currency)));
        let tally = Tally { record: record.clone(), tokens: metrics.tokens(&call.tenant.name, &call.model.name), cost };
        let choices = call.prompts.len() * call.sampling.n as usize;
        let prompt_tokens = call.prompts.iter().map(Prompt::likely_tokens).sum();
        let estimated = call.prompts.iter().any(|prompt| !prompt.exact);
        let below = self.inner.call(call);
        Box::pin(Lease::on(tally).hold(async move {
            let reply = below.await?;
            // The first event is at hand, so the prompts were computed; the backend's own figures follow.
            let served = {
                let mut notes = record.lock();
                notes.usage.prompt_tokens = prompt_tokens;
                notes.estimated = estimated;
                Served { tenant: None, model: notes.model.clone(), variant: notes.variant.clone(), backend: notes.backend.clone() }
            };
            let mut watch = Watch { record, latency: metrics.latency(served), clock, choices: vec![Pace::default(); choices] };
            Ok(reply.map(|events| {
                events.inspect(move |event| {
                    if let Ok(event) = event {
                        watch.see(event);
                    }
                })
            }))
        }))
    }
}

// === impl Watch ===

impl Watch {
    fn see(&mut self, event: &Event) {
        match event {
            Event::Text { choice, ids, .. } if !ids.is_empty() => {
                let now = self.clock.now();
                note(&self.record, now, ids.len() as u32);
                if let Some(pace) = self.choices.get_mut(*choice as usize) {
                    pace.told = true;
                    pace.piece(now, ids.len() as u32, &self.latency);
                }
            }
            // A backend that doesn't tell its tokens sends about one in a piece, until it reports its usage. One that does tells
            // text that it had held back without them at the end.
            Event::Text { text, .. } if text.is_empty() => {}
            Event::Text { choice, .. } | Event::Other { choice, .. } => {
                let now = self.clock.now();
                if let Some(pace) = self.choices.get_mut(*choice as usize).filter(|pace| !pace.told) {
                    note(&self.record, now, 1);
                    pace.piece(now, 1, &self.latency);
                }
            }
            Event::Echo { .. } => {}
            Event::Usage(usage) => {
                // Usage may be reported in between; tokens that were seen are never forgotten.
                let mut notes = self.record.lock();
                let completion_tokens = usage.completion_tokens.max(notes.usage.completion_tokens);
                notes.usage = Usage { completion_tokens, ..*usage };
            }
            Event::Finish { choice, .. } => {
                if let Some(pace) = self.choices.get(*choice as usize).and_then(Pace::per_token) {
                    self.latency.tpot.record(pace.as_secs_f64());
                    let (sum, choices) = &mut self.record.lock().paces;
                    (*sum, *choices) = (*sum + pace, *choices + 1);
                }
            }
        }
    }
}

// === impl Pace ===

impl Pace {
    fn piece(&mut self, now: Instant, tokens: u32, latency: &LatencyMetrics) {
        match self.last.replace(now) {
            None => self.first = Some(now),
            Some(last) => {
                latency.itl.record((now - last).as_secs_f64());
                self.later += tokens;
            }
        }
    }

    /// Of the tokens after the first piece; `None` where there are none.
    fn per_token(&self) -> Option<Duration> {
        let (first, last) = (self.first?, self.last?);
        (self.later > 0).then(|| (last - first) / self.later)
    }
}

/// More tokens of the answer came.
fn note(record: &Record, now: Instant, tokens: u32) {
    let mut notes = record.lock();
    notes.usage.completion_tokens += tokens;
    notes.first_token.get_or_insert(now);
}

// === impl Tally ===

impl Release for Tally {
    fn release(self: Box<Self>, end: Outcome, _: &Usage) -> Option<BoxFuture<'static, ()>> {
        // The record knows more than the lease: also the tokens of a reply that was cut before it reported its usage.
        let used = self.record.lock().usage;
        if end != Outcome::Refused {
            self.tokens.prompt.increment(used.prompt_tokens.into());
            self.tokens.cached.increment(used.cached_tokens.into());
            self.tokens.completion.increment(used.completion_tokens.into());
            if let Some((prices, cost)) = &self.cost {
                cost.add(used.cost(prices).nanos());
            }
        }
        None
    }
}
