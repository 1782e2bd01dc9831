//! May it go: requests per minute. What is refused here or below consumes nothing.

use crate::call::{Call, Error, Lease, Reply};
use crate::tenant::RequestLimits;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{Layer, Service, layer::layer_fn};

/// Counts requests against the limits of their tenant and key.
#[derive(Clone)]
pub struct Limit<S> {
    inner: S,
    requests: Arc<RequestLimits>,
}

// === impl Limit ===

impl<S> Limit<S> {
    /// Counts in `requests`, which outlives a reload.
    pub fn layer(requests: Arc<RequestLimits>) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, requests: requests.clone() })
    }

    fn take(&self, call: &Call) -> Result<Lease, Error> {
        let taken = self.requests.take(&call.tenant, call.key);
        let (lease, level) = match taken {
            Ok((taken, level)) => (Ok(Lease::on(taken)), level),
            Err(error) => (Err(error), self.requests.level(&call.tenant, call.key)),
        };
        call.record.lock().requests = level;
        lease
    }
}

impl<S> Service<Call> for Limit<S>
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
        match self.take(&call) {
            Ok(lease) => Box::pin(lease.hold(self.inner.call(call))),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}
