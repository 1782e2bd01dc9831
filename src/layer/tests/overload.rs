//! Deadlines and room, with a clock that tokio turns by itself.

use super::*;
use crate::backend::{Backend, Offer, State};
use crate::call::Route;
use crate::config::Name;
use futures_util::future::BoxFuture;
use futures_util::stream::poll_fn;
use futures_util::{Stream, StreamExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);
const SERVER_S: Duration = Duration::from_secs(60);

/// What a serving thread does beside its requests. Ticks often, so that deadlines are exact to the millisecond.
fn tick() {
    tokio::spawn(async {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            alarm::ring();
        }
    });
}

/// A call whose request has just come.
fn fresh() -> Call {
    call(tenant(None), &Clock::system())
}

fn with_timeout(mut call: Call, timeout: Duration) -> Call {
    call.model = Arc::new(Model { request_timeout: Some(timeout), ..Model::clone(&call.model) });
    call
}

/// Tells whether it was dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Runs a call through the deadline's layer.
async fn bounded<F>(call: Call, below: impl FnMut(Call) -> F) -> Result<Reply, Error>
where
    F: Future<Output = Result<Reply, Error>> + Send + 'static,
{
    Deadline::layer(SERVER_S, Clock::system()).layer(service_fn(below)).call(call).await
}

/// Two pieces, and then nothing for ever.
fn stalling(dropped: &Arc<AtomicBool>) -> impl Stream<Item = Result<Event, Error>> + Send + use<> {
    let guard = Dropped(dropped.clone());
    iter(pieces(&[1, 1])).chain(poll_fn(move |_| {
        let _held = &guard;
        Poll::Pending
    }))
}

fn seconds(since: Instant) -> u64 {
    since.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_has_no_first_event_in_time_is_cancelled_and_told_so() {
    tick();
    let (start, dropped) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let guard = Dropped(dropped.clone());
    let mut guard = Some(guard);
    let answer = bounded(fresh(), move |call| {
        assert!(call.deadline.is_some());
        let guard = guard.take();
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
    let Err(Error::DeadlinePassed { after }) = answer.await.map(drop) else { panic!("it never comes") };
    assert_eq!((after, seconds(start)), (SERVER_S, 60));
    assert!(dropped.load(SeqCst), "nothing works on it any more");
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_isn_t_whole_in_time_ends_with_the_error_and_its_work_is_cancelled() {
    tick();
    let (start, dropped) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let events = stalling(&dropped);
    let mut events = Some(events);
    let mut reply = bounded(fresh(), move |_| std::future::ready(Ok(Reply::new(events.take().unwrap())))).await.unwrap();
    assert!(matches!(reply.next().await, Some(Ok(_))) && matches!(reply.next().await, Some(Ok(_))));
    assert!(!dropped.load(SeqCst));
    assert_eq!(reply.next().await, Some(Err(Error::DeadlinePassed { after: SERVER_S })));
    assert_eq!(seconds(start), 60);
    assert!(dropped.load(SeqCst), "before anybody asks for more");
    assert_eq!(reply.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn the_model_s_timeout_takes_the_place_of_the_server_s() {
    tick();
    for timeout in [SECOND, 600 * SECOND] {
        let start = Instant::now();
        let answer = bounded(with_timeout(fresh(), timeout), |_| std::future::pending()).await;
        assert_eq!(answer.map(drop), Err(Error::DeadlinePassed { after: timeout }));
        assert_eq!(seconds(start), timeout.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_less_gets_less_and_one_that_waits_longer_no_more() {
    tick();
    for (own, expected) in [(5, 5), (600, 60)] {
        let (start, mut call) = (Instant::now(), fresh());
        call.deadline = Some(call.record.lock().arrived + own * SECOND);
        assert!(bounded(call, |_| std::future::pending()).await.is_err());
        assert_eq!(seconds(start), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_s_client_waits_for_the_first_event_only() {
    tick();
    let patient = |call: &mut Call| call.first_by = Some(call.record.lock().arrived + 5 * SECOND);
    let (start, mut late) = (Instant::now(), fresh());
    patient(&mut late);
    assert_eq!(bounded(late, |_| std::future::pending()).await.map(drop), Err(Error::DeadlinePassed { after: 5 * SECOND }));
    assert_eq!(seconds(start), 5);

    let (start, mut begun) = (Instant::now(), fresh());
    patient(&mut begun);
    let events = stalling(&Arc::default());
    let mut events = Some(events);
    let mut reply = bounded(begun, move |_| std::future::ready(Ok(Reply::new(events.take().unwrap())))).await.unwrap();
    while let Some(Ok(_)) = reply.next().await {}
    assert_eq!(seconds(start), 60);
}

#[tokio::test]
async fn a_call_whose_time_is_over_before_it_begins_costs_nothing() {
    let mut late = fresh();
    late.deadline = Some(late.record.lock().arrived);
    let answer = bounded(late, |_| async { panic!("nobody asks for it") });
    assert!(matches!(answer.await.map(drop), Err(Error::DeadlinePassed { .. })));
}

#[tokio::test(start_paused = true)]
async fn what_a_late_call_holds_is_released_as_late_and_what_a_refused_one_holds_as_refused() {
    tick();
    let (clock, _hand) = Clock::manual(Duration::ZERO);
    let requests = accounts(&clock);
    let tenant = tenant(Some(2));
    for (below, left) in [(Some(Error::Overloaded { model: "m".into(), retry_after: SECOND }), 2), (None, 1)] {
        let inner = service_fn(move |_| {
            let below = below.clone();
            async move {
                match below {
                    Some(error) => Err::<Reply, _>(error),
                    None => std::future::pending().await,
                }
            }
        });
        let inner = Deadline::layer(SECOND, clock.clone()).layer(inner);
        Limit::layer(requests.clone()).layer(inner).call(call(tenant.clone(), &clock)).await.map(drop).unwrap_err();
        assert_eq!(requests.in_flight(&tenant.name), (0, 0));
        // The next one takes one of what is left, and gives it back.
        let (next, refuse) = (call(tenant.clone(), &clock), service_fn(|_| std::future::ready(Err::<Reply, _>(Error::Internal))));
        Limit::layer(requests.clone()).layer(refuse).call(next.clone()).await.map(drop).unwrap_err();
        assert_eq!(next.record.lock().requests.unwrap().remaining, left - 1);
    }
}

/// A backend that offers what it is told to.
struct Mock {
    state: State,
    able: bool,
    offer: Offer,
}

impl Backend for Mock {
    fn state(&self) -> State {
        self.state
    }

    fn supports(&self, _: &Call) -> Result<(), Error> {
        if self.able { Ok(()) } else { Err(Error::Internal) }
    }

    fn offer(&self, _: &Call) -> Offer {
        self.offer
    }

    fn call(&self, _: Call) -> BoxFuture<'static, Result<Reply, Error>> {
        panic!("admit calls nobody")
    }
}

/// Offers a turn in `queue` seconds and an answer `prefill` seconds later.
fn offering(queue: u32, prefill: u32) -> Mock {
    Mock {
        state: State::Ready,
        able: true,
        offer: Offer { queue_time: queue * SECOND, prefill_time: prefill * SECOND, ..Offer::default() },
    }
}

fn full(room_in: u32) -> Mock {
    Mock { offer: Offer { room_in: room_in * SECOND, ..Offer::default() }, ..offering(0, 0) }
}

/// Whether a call that has 60 seconds passes, or when it is to come back.
async fn admitted<const N: usize>(backends: [Mock; N]) -> Result<(), Duration> {
    let names: Vec<Name> = (0..N).map(|index| format!("b{index}").into()).collect();
    let backends = names.iter().cloned().zip(backends.map(|mock| Arc::new(mock) as Arc<dyn Backend>)).collect();
    let (clock, _hand) = Clock::manual(Duration::ZERO);
    let mut call = call(tenant(None), &clock);
    call.deadline = Some(clock.now() + SERVER_S);
    call.route = Some(Route { variant: "only".into(), backends: names.into(), fallback: Arc::default(), shadow: None });
    let passed = Arc::new(Mutex::new(0));
    let counted = passed.clone();
    let inner = service_fn(move |_| {
        *counted.lock().unwrap() += 1;
        std::future::ready(Ok::<_, Error>(Reply::new(iter(pieces(&[1])))))
    });
    match Admit::layer(Arc::new(backends), clock).layer(inner).call(call).await {
        Ok(_) => Ok(()),
        Err(Error::Overloaded { retry_after, .. }) => {
            assert_eq!(*passed.lock().unwrap(), 0);
            Err(retry_after)
        }
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_call_passes_where_one_replica_has_room_in_time() {
    assert_eq!(admitted([offering(0, 0)]).await, Ok(()));
    assert_eq!(admitted([offering(40, 20)]).await, Ok(()));
    assert_eq!(admitted([offering(500, 0), full(3), offering(59, 1)]).await, Ok(()));
}

#[tokio::test]
async fn a_call_that_would_wait_in_vain_comes_back_when_the_first_replica_has_got_on() {
    assert_eq!(admitted([offering(40, 30)]).await, Err(10 * SECOND));
    assert_eq!(admitted([offering(100, 0), offering(70, 2), full(30)]).await, Err(12 * SECOND));
    assert_eq!(admitted([full(7), offering(500, 0)]).await, Err(7 * SECOND));
}

#[tokio::test]
async fn backends_that_are_not_ready_or_not_able_offer_nothing() {
    for state in [State::Stuck, State::Draining, State::Lost] {
        assert_eq!(admitted([Mock { state, ..offering(0, 0) }, offering(100, 0)]).await, Err(40 * SECOND));
    }
    assert_eq!(admitted([Mock { able: false, ..offering(0, 0) }, full(1)]).await, Err(SECOND));
    // Where nobody is left, the router says why.
    assert_eq!(admitted([Mock { state: State::Lost, ..full(1) }]).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_endless_burst_is_cut_too() {
    tick();
    let endless = poll_fn(|cx| {
        cx.waker().wake_by_ref();
        Poll::Ready(pieces(&[1]).pop())
    });
    let mut endless = Some(endless);
    let mut reply = bounded(fresh(), move |_| std::future::ready(Ok(Reply::new(endless.take().unwrap())))).await.unwrap();
    let mut events = 0_u64;
    while let Some(Ok(_)) = reply.next().await {
        events += 1;
        tokio::time::advance(SECOND).await;
    }
    assert!((59..=61).contains(&events), "{events}");
}
