//! May it go, and be paid: limits per minute, concurrency and quotas, all reserved at once and settled when the reply
//! ends. What is refused here or below consumes nothing.

use crate::call::{Call, Error, Lease, Reply, Sampling};
use crate::tenant::{Accounts, Granting, Reserving};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{Layer, Service, layer::layer_fn};

/// Reserves what calls could use.
#[derive(Clone)]
pub struct Limit<S> {
    inner: S,
    accounts: Arc<Accounts>,
}

// === impl Limit ===

impl<S> Limit<S> {
    /// Counts in `accounts`, which outlive a reload.
    pub fn layer(accounts: Arc<Accounts>) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, accounts: accounts.clone() })
    }
}

/// The call with as many tokens as it may have, and what it holds.
fn take(mut call: Call, (levels, granted): Granting) -> Result<(Call, Lease), Error> {
    {
        let mut notes = call.record.lock();
        notes.requests = levels.requests;
        notes.tokens = levels.tokens;
        notes.passed_quotas = levels.passed;
    }
    let granted = granted?;
    if granted.max_tokens < call.sampling.max_tokens {
        // A quota's last tokens: the answer ends there with `length`.
        call.sampling = Arc::new(Sampling { max_tokens: granted.max_tokens, ..Sampling::clone(&call.sampling) });
    }
    Ok((call, Lease::on(granted.reservation)))
}

impl<S> Service<Call> for Limit<S>
where
    S: Service<Call, Response = Reply, Error = Error> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Reply;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Reply, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let asking = match self.accounts.reserve(&call) {
            Reserving::Now(granting) => {
                return match take(call, granting) {
                    Ok((call, lease)) => Box::pin(lease.hold(self.inner.call(call))),
                    Err(error) => Box::pin(std::future::ready(Err(error))),
                };
            }
            Reserving::Later(asking) => asking,
        };
        let mut inner = self.inner.clone();
        Box::pin(async move {
            let (call, lease) = take(call, asking.await)?;
            lease.hold(inner.call(call)).await
        })
    }
}
