//! Which replica serves a call: the cheapest of those that can, by what they publish of themselves.

use crate::backend::{Backend, State};
use crate::call::{Call, Error, Reply};
use crate::config::Name;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::Service;

/// The end of the stack: hands calls to backends.
#[derive(Clone)]
pub struct Router {
    backends: Arc<BTreeMap<Name, Arc<dyn Backend>>>,
}

/// A replica that could serve a call.
struct Candidate {
    name: Name,
    backend: Arc<dyn Backend>,
    cost: Duration,
    /// Decides between equal costs.
    tie: u64,
}

/// When it is worth another try while no backend can serve: a shard takes seconds to come back.
const NO_CAPACITY: Duration = Duration::from_secs(5);

// === impl Router ===

impl Router {
    /// A router to these backends.
    pub fn new(backends: Arc<BTreeMap<Name, Arc<dyn Backend>>>) -> Self {
        Self { backends }
    }

    /// Replicas that could serve the call now, the cheapest first, ties at random.
    fn candidates(&self, call: &Call) -> Result<Vec<Candidate>, Error> {
        let names = call.route.iter().flat_map(|route| route.backends.iter());
        let known = names.filter_map(|name| Some((name.clone(), self.backends.get(name)?.clone())));
        let ready: Vec<_> = known.filter(|(_, backend)| backend.state() == State::Ready).collect();
        let mut refusal = Error::NoCapacity { model: call.model.name.to_string(), retry_after: NO_CAPACITY };
        let mut able = Vec::with_capacity(ready.len());
        for (name, backend) in ready {
            match backend.supports(call) {
                Ok(()) => {
                    let offer = backend.offer(call);
                    let (cost, tie) = (offer.queue_time + offer.prefill_time, RandomState::new().hash_one(0));
                    able.push(Candidate { name, backend, cost, tie });
                }
                Err(error) => refusal = error,
            }
        }
        if able.is_empty() {
            return Err(refusal);
        }
        able.sort_by_key(|candidate| (candidate.cost, candidate.tie));
        Ok(able)
    }
}

impl Service<Call> for Router {
    type Response = Reply;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Reply, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        match self.candidates(&call) {
            Ok(candidates) => Box::pin(try_in_turn(candidates, call)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// Each candidate at most once: one that is lost or full before its first event has shown the client nothing.
async fn try_in_turn(candidates: Vec<Candidate>, call: Call) -> Result<Reply, Error> {
    let mut refusal = Error::NoCapacity { model: call.model.name.to_string(), retry_after: NO_CAPACITY };
    for Candidate { name, backend, .. } in candidates {
        call.record.lock().backend = Some(name);
        match backend.call(call.clone()).await {
            Err(error @ (Error::ShardLost { .. } | Error::Overloaded { .. } | Error::NoCapacity { .. })) => refusal = error,
            answer => return answer,
        }
    }
    Err(refusal)
}
