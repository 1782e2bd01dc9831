//! Which replica serves a call: the best of its variant's that can, by what they publish of themselves; where none
//! can, one of the next variant's.

use super::affinity::{self, Bid};
use super::experiment::Experiments;
use super::render::Renderings;
use super::shadow::Mirror;
use crate::backend::{Backend, Offer, State};
use crate::call::{Call, Considered, Error, Reply};
use crate::clock::Clock;
use crate::config::{Name, Retries};
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tower::Service;

/// The end of the stack: hands calls to backends.
#[derive(Clone)]
pub struct Router {
    backends: Arc<BTreeMap<Name, Arc<dyn Backend>>>,
    pub(super) renderings: Renderings,
    pub(super) experiments: Arc<Experiments>,
    pub(super) clock: Clock,
}

/// A replica that could serve a call.
struct Candidate {
    name: Name,
    backend: Arc<dyn Backend>,
    retries: Retries,
    /// Whether its last attempt failed in a way that the next may not.
    failed: bool,
}

/// When it is worth another try while no backend can serve: a shard takes seconds to come back.
const NO_CAPACITY: Duration = Duration::from_secs(5);

/// Before the first repetition.
const PAUSE: Duration = Duration::from_millis(100);

// === impl Router ===

impl Router {
    /// A router to these backends; `renderings` make a call one for a fallback or a shadow, which `experiments` count.
    pub fn new(
        backends: Arc<BTreeMap<Name, Arc<dyn Backend>>>,
        renderings: Renderings,
        experiments: Arc<Experiments>,
        clock: Clock,
    ) -> Self {
        Self { backends, renderings, experiments, clock }
    }

    fn serve(&self, call: Call) -> BoxFuture<'static, Result<Reply, Error>> {
        let candidates = self.candidates(&call);
        if call.route.as_ref().is_none_or(|route| route.fallback.is_empty()) {
            return match candidates {
                Ok(candidates) => Box::pin(try_in_turn(candidates, call)),
                Err(error) => Box::pin(std::future::ready(Err(error))),
            };
        }
        let router = self.clone();
        Box::pin(async move {
            let answer = match candidates {
                Ok(candidates) => try_in_turn(candidates, call.clone()).await,
                Err(error) => Err(error),
            };
            match answer {
                Err(error) if may_pass_to_a_variant(&error) => router.fall_back(call, error).await,
                answer => answer,
            }
        })
    }

    /// The call at one of its own variant's replicas, once, as shadows are.
    pub(super) async fn once(&self, call: Call) -> Result<Reply, Error> {
        try_in_turn(self.candidates(&call)?, call).await
    }

    /// The variants of the chain one after the other, until one has the first content. A call is one request, however many
    /// have tried: what it holds above is held once.
    async fn fall_back(self, mut call: Call, refusal: Error) -> Result<Reply, Error> {
        let mut refusal = refusal;
        let Some(chosen) = call.route.clone() else { return Err(refusal) };
        for variant in chosen.fallback.iter().filter(|variant| **variant != chosen.variant) {
            if let Err(error) = self.renderings.render(&mut call, variant).await {
                refusal = worse(refusal, error);
                continue;
            }
            {
                let mut notes = call.record.lock();
                notes.fallback_from.get_or_insert_with(|| chosen.variant.clone());
                notes.variant = Some(variant.clone());
            }
            let answer = match self.candidates(&call) {
                Ok(candidates) => try_in_turn(candidates, call.clone()).await,
                Err(error) => Err(error),
            };
            match answer {
                Err(error) if may_pass_to_a_variant(&error) => refusal = worse(refusal, error),
                answer => return answer,
            }
        }
        Err(refusal)
    }

    /// Replicas that could serve the call now, the best first.
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
                    let Offer { cached_tokens, queue_time, prefill_time, .. } = offer;
                    let considered = Considered { backend: name.clone(), cached_tokens, queue_time, prefill_time };
                    call.record.lock().considered.push(considered);
                    let retries = backend.retries();
                    able.push(Bid { name: name.clone(), offer, of: Candidate { name, backend, retries, failed: false } });
                }
                Err(error) => refusal = error,
            }
        }
        if able.is_empty() {
            return Err(refusal);
        }
        Ok(affinity::order(call, able).into_iter().map(|bid| bid.of).collect())
    }
}

impl Service<Call> for Router {
    type Response = Reply;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Reply, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut call: Call) -> Self::Future {
        let shadow = call.route.as_mut().and_then(|route| route.shadow.take());
        match shadow.and_then(|shadow| Mirror::begin(self, shadow, &call)) {
            None => self.serve(call),
            Some(mirror) => {
                let (call, recorder) = mirror.recorder(call);
                let below = self.serve(call);
                match recorder {
                    None => below,
                    Some(recorder) => Box::pin(async move { Ok(recorder.over(below.await?)) }),
                }
            }
        }
    }
}

/// Each candidate in turn, and those that allow it again: one that is lost or full before its first event has shown the
/// client nothing. Attempts are bounded by each candidate's budget of them and of time.
async fn try_in_turn(mut candidates: Vec<Candidate>, call: Call) -> Result<Reply, Error> {
    let began = Instant::now();
    let mut refusal = Error::NoCapacity { model: call.model.name.to_string(), retry_after: NO_CAPACITY };
    let rounds = candidates.iter().map(|candidate| candidate.retries.attempts.get()).max().unwrap_or_default();
    for round in 0..rounds {
        let mut paused = false;
        for Candidate { name, backend, retries, failed, .. } in &mut candidates {
            if round > 0 {
                let budget = round < retries.attempts.get() && began.elapsed() < retries.time;
                if !*failed || !budget || backend.state() != State::Ready {
                    continue;
                }
                if !std::mem::replace(&mut paused, true) {
                    tokio::time::sleep(pause(round)).await;
                }
            }
            {
                let mut notes = call.record.lock();
                notes.backend = Some(name.clone());
                notes.attempts += 1;
            }
            match backend.call(call.clone()).await {
                Err(error) if may_pass_elsewhere(&error) => {
                    *failed = matches!(error, Error::UpstreamFailed { .. });
                    call.record.lock().failed.push((name.clone(), failure(&error)));
                    refusal = error;
                }
                answer => return answer,
            }
        }
    }
    Err(refusal)
}

/// Whether another backend, or the same one a little later, may do better.
fn may_pass_elsewhere(error: &Error) -> bool {
    matches!(error, Error::ShardLost { .. } | Error::UpstreamFailed { .. } | Error::Overloaded { .. } | Error::NoCapacity { .. })
}

/// Whether another variant may do better: it may also have more room, and what this one lacks.
fn may_pass_to_a_variant(error: &Error) -> bool {
    may_pass_elsewhere(error) || matches!(error, Error::Unsupported { .. } | Error::ContextLength { .. })
}

/// Of two variants' refusals the one to tell: the first that is worth another try, else the first.
fn worse(first: Error, second: Error) -> Error {
    if !may_pass_elsewhere(&first) && may_pass_elsewhere(&second) { second } else { first }
}

/// As the log says it behind the backend's name.
fn failure(error: &Error) -> String {
    match error {
        Error::UpstreamFailed { failure, .. } => failure.clone(),
        Error::ShardLost { .. } => "was lost".to_owned(),
        Error::Overloaded { .. } => "was full".to_owned(),
        _ => "took no calls".to_owned(),
    }
}

/// Doubles from 100 ms, and half of it is random, so that calls that failed together don't come back together.
fn pause(round: u32) -> Duration {
    let longest = PAUSE * 2_u32.saturating_pow(round - 1).min(8);
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    longest.mul_f64(0.5 + random / 2.0)
}
