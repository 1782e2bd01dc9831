#![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use super::*;
use crate::backend::{Backend, Offer, State};
use crate::call::{Call, Digest, Error, Prompt, Record, Reply, Route, Sampling, Task};
use crate::clock::Clock;
use crate::config::{Model, Name, SamplingDefaults, Tenant, Variant};
use crate::metrics::Metrics;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::Service;

mod choose;
mod rules;

/// A backend that does nothing but answer as it is told.
struct Mock {
    state: State,
    supports: Result<(), Error>,
    cost: u64,
    answer: Result<(), Error>,
}

impl Backend for Mock {
    fn state(&self) -> State {
        self.state
    }

    fn supports(&self, _: &Call) -> Result<(), Error> {
        self.supports.clone()
    }

    fn offer(&self, _: &Call) -> Offer {
        Offer { cached_tokens: Some(0), prefill_time: Duration::from_millis(self.cost), ..Offer::default() }
    }

    fn call(&self, _: Call) -> BoxFuture<'static, Result<Reply, Error>> {
        let answer = self.answer.clone();
        Box::pin(async move { answer.map(|()| Reply::new(futures_util::stream::empty())) })
    }
}

const GOOD: Mock = Mock { state: State::Ready, supports: Ok(()), cost: 5, answer: Ok(()) };

pub(super) fn call() -> Call {
    let variant = Variant { backends: ["a".into(), "b".into(), "c".into()].into(), system: None, sampling: SamplingDefaults::default() };
    let variants = BTreeMap::from([("only".into(), variant)]);
    let model = Model {
        name: "smol".into(),
        aliases: Vec::new(),
        default_max_tokens: NonZeroU32::MIN,
        prices: None,
        request_timeout: None,
        tokenizer: None,
        variants,
        rules: Vec::new(),
    };
    Call {
        record: Record::new("req_1".into(), Instant::now(), 1),
        tenant: Arc::new(Tenant::new("acme".into())),
        key: Arc::new(crate::config::Key::new("ci".into(), [0; 32])),
        class: crate::config::Class::Interactive,
        model: Arc::new(model),
        task: Task::Generate,
        asked: Arc::default(),
        messages: Arc::default(),
        prompts: [Prompt::new([1], Digest([0; 16]))].into(),
        sampling: Arc::new(Sampling { max_tokens: 1, ..Sampling::default() }),
        route: None,
        deadline: None,
        first_by: None,
    }
}

fn router(backends: BTreeMap<Name, Arc<dyn Backend>>, renderings: Renderings) -> Router {
    let clock = Clock::system();
    Router::new(Arc::new(backends), renderings, Arc::new(Experiments::new(Metrics::new(), clock.clone())), clock)
}

/// Which backend took the call, or why none did.
async fn routed<const N: usize>(backends: [(&str, Mock); N]) -> Result<Name, Error> {
    let backends = backends.into_iter().map(|(name, mock)| (Name::from(name), Arc::new(mock) as Arc<dyn Backend>)).collect();
    let mut call = call();
    call.route = Some(Route {
        variant: "only".into(),
        backends: ["a".into(), "b".into(), "c".into()].into(),
        fallback: Arc::default(),
        shadow: None,
    });
    let record = call.record.clone();
    router(backends, Renderings::default()).call(call).await?;
    Ok(record.lock().backend.clone().unwrap())
}

#[tokio::test]
async fn the_cheapest_ready_replica_takes_the_call() {
    let cheap = |cost| Mock { cost, ..GOOD };
    assert_eq!(routed([("a", cheap(9)), ("b", cheap(1)), ("c", cheap(5))]).await, Ok("b".into()));
    for state in [State::Draining, State::Lost] {
        assert_eq!(routed([("a", cheap(9)), ("b", Mock { state, ..cheap(1) }), ("c", cheap(5))]).await, Ok("c".into()));
    }
    // Backends that serve other models are none of its business.
    assert_eq!(routed([("a", cheap(9)), ("other", cheap(0))]).await, Ok("a".into()));
}

#[tokio::test]
async fn a_replica_that_is_lost_or_full_makes_room_for_the_next_and_any_other_error_is_the_answer() {
    let failing = |answer| Mock { cost: 0, answer: Err(answer), ..GOOD };
    let lost = || Error::ShardLost { backend: "a".into() };
    assert_eq!(routed([("a", failing(lost())), ("b", GOOD)]).await, Ok("b".into()));
    let full = Error::Overloaded { model: "smol".into(), retry_after: Duration::from_secs(1) };
    assert_eq!(routed([("a", failing(full.clone())), ("b", GOOD)]).await, Ok("b".into()));
    assert_eq!(routed([("a", failing(lost())), ("b", Mock { cost: 1, ..failing(full.clone()) })]).await, Err(full));
    assert_eq!(routed([("a", failing(Error::Internal)), ("b", GOOD)]).await, Err(Error::Internal));
}

#[tokio::test]
async fn what_no_replica_can_do_is_named_and_no_replica_at_all_is_no_capacity() {
    let unable = || Error::Unsupported { param: "n".into(), message: "not here".into() };
    let mock = || Mock { supports: Err(unable()), ..GOOD };
    assert_eq!(routed([("a", mock()), ("b", GOOD)]).await, Ok("b".into()));
    assert_eq!(routed([("a", mock()), ("b", mock())]).await, Err(unable()));
    assert!(matches!(routed([("a", Mock { state: State::Lost, ..GOOD })]).await, Err(Error::NoCapacity { .. })));
    assert!(matches!(routed([]).await, Err(Error::NoCapacity { .. })));
}

#[tokio::test]
async fn equal_replicas_share_the_calls() {
    let mut counts = BTreeMap::<Name, u32>::new();
    for _ in 0..300 {
        *counts.entry(routed([("a", GOOD), ("b", GOOD), ("c", GOOD)]).await.unwrap()).or_default() += 1;
    }
    // Each expects 100; fewer than 50 has a chance below one in a hundred million.
    assert!(counts.len() == 3 && counts.values().all(|count| *count >= 50), "{counts:?}");
}
