//! Is there room: refuses at once what would only wait in vain. It holds no queue; the only one is the shard's.

use crate::backend::{Backend, State};
use crate::call::{Call, Error, Reply};
use crate::clock::Clock;
use crate::config::Name;
use futures_util::future::Either;
use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service, layer::layer_fn};

/// Lets calls pass that a backend has room for.
#[derive(Clone)]
pub struct Admit<S> {
    inner: S,
    backends: Arc<BTreeMap<Name, Arc<dyn Backend>>>,
    clock: Clock,
}

// === impl Admit ===

impl<S> Admit<S> {
    /// Asks these backends for their offers.
    pub fn layer(backends: Arc<BTreeMap<Name, Arc<dyn Backend>>>, clock: Clock) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, backends: backends.clone(), clock: clock.clone() })
    }

    /// When the call is worth another try; `None` where it may go on now. Where no backend can serve at all, or do what is
    /// asked, the router says so.
    fn wait(&self, call: &Call) -> Option<Duration> {
        let by = call.first_by.into_iter().chain(call.deadline).min();
        let left = by.map_or(Duration::MAX, |by| by.saturating_duration_since(self.clock.now()));
        // Where its own variant has no room, one of its fallbacks may.
        let instead = call.route.iter().flat_map(|route| route.fallback.iter());
        let instead = instead.filter_map(|variant| call.model.variants.get(variant)).flat_map(|variant| variant.backends.iter());
        let names = call.route.iter().flat_map(|route| route.backends.iter()).chain(instead);
        let ready = names.filter_map(|name| self.backends.get(name)).filter(|backend| backend.state() == State::Ready);
        let able = ready.filter(|backend| backend.supports(call).is_ok());
        let soonest = able.map(|backend| {
            let offer = backend.offer(call);
            // As the queue moves on, so much less time is needed.
            let late = offer.queue_time.saturating_add(offer.prefill_time).saturating_sub(left);
            offer.room_in.max(late)
        });
        soonest.min().filter(|wait| !wait.is_zero())
    }
}

impl<S> Service<Call> for Admit<S>
where
    S: Service<Call, Response = Reply, Error = Error>,
{
    type Response = Reply;
    type Error = Error;
    type Future = Either<Ready<Result<Reply, Error>>, S::Future>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        match self.wait(&call) {
            None => Either::Right(self.inner.call(call)),
            Some(retry_after) => Either::Left(ready(Err(Error::Overloaded { model: call.model.name.to_string(), retry_after }))),
        }
    }
}
