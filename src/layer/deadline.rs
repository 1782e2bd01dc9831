//! How long may it take: what isn't answered in time is cancelled and told so, before its first byte or after.

use super::alarm::Alarm;
use crate::call::{Call, Error, Event, Reply};
use crate::clock::Clock;
use futures_util::Stream;
use futures_util::future::{BoxFuture, Either, select};
use futures_util::stream::BoxStream;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service, layer::layer_fn};

/// Sets each call's deadline, and keeps it.
#[derive(Clone)]
pub struct Deadline<S> {
    inner: S,
    timeout: Duration,
    clock: Clock,
}

/// A reply's events until its deadline.
///
/// `Some(events) => None`: then the deadline has passed, and nothing works on the call any more.
struct Until {
    events: Option<BoxStream<'static, Result<Event, Error>>>,
    alarm: Alarm,
    passed: Error,
}

// === impl Deadline ===

impl<S> Deadline<S> {
    /// Calls may take `timeout` from their request's head on, or as long as their model says.
    pub fn layer(timeout: Duration, clock: Clock) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, timeout, clock: clock.clone() })
    }
}

impl<S> Service<Call> for Deadline<S>
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

    fn call(&mut self, mut call: Call) -> Self::Future {
        let clock = self.clock.clone();
        let (arrived, now) = (call.record.lock().arrived, clock.now());
        let ours = arrived + call.model.request_timeout.unwrap_or(self.timeout);
        let deadline = call.deadline.map_or(ours, |own| own.min(ours));
        let first_by = call.first_by.map_or(deadline, |own| own.min(deadline));
        (call.deadline, call.first_by) = (Some(deadline), Some(first_by));
        let passed = move |at| Error::DeadlinePassed { after: at - arrived };
        if first_by <= now {
            return Box::pin(std::future::ready(Err(passed(first_by))));
        }
        let below = self.inner.call(call);
        Box::pin(async move {
            let mut alarm = Alarm::after(first_by - now);
            let reply = match select(pin!(below), pin!(alarm.rung())).await {
                Either::Left((reply, _)) => reply?,
                Either::Right(_) => return Err(passed(first_by)),
            };
            if first_by < deadline {
                alarm = Alarm::after(deadline.saturating_duration_since(clock.now()));
            }
            Ok(reply.map(|events| Until { events: Some(events), alarm, passed: passed(deadline) }))
        })
    }
}

// === impl Until ===

impl Stream for Until {
    type Item = Result<Event, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Some(events) = &mut this.events else { return Poll::Ready(None) };
        if this.alarm.poll(cx).is_ready() {
            this.events = None; // which cancels what still runs
            return Poll::Ready(Some(Err(this.passed.clone())));
        }
        Pin::new(events).poll_next(cx)
    }
}
