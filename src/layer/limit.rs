//! May it go, and be paid: limits per minute, concurrency and quotas, all reserved at once and settled when the reply
//! ends. What is refused here or below consumes nothing.

use crate::call::{Call, Error, Lease, Reply, Sampling};
use crate::tenant::{Accounts, Levels};
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

    /// The call with as many tokens as it may have, and what it holds.
    fn take(&self, mut call: Call) -> Result<(Call, Lease), Error> {
        match self.accounts.reserve(&call) {
            Ok(granted) => {
                note(&call, granted.levels);
                if granted.max_tokens < call.sampling.max_tokens {
                    // A quota's last tokens: the answer ends there with `length`.
                    call.sampling = Arc::new(Sampling { max_tokens: granted.max_tokens, ..Sampling::clone(&call.sampling) });
                }
                Ok((call, Lease::on(granted.reservation)))
            }
            Err(error) => {
                note(&call, self.accounts.levels(&call));
                Err(error)
            }
        }
    }
}

fn note(call: &Call, levels: Levels) {
    let mut notes = call.record.lock();
    notes.requests = levels.requests;
    notes.tokens = levels.tokens;
    notes.passed_quotas = levels.passed;
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
        match self.take(call) {
            Ok((call, lease)) => Box::pin(lease.hold(self.inner.call(call))),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}
