#![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

use super::*;
use crate::api::openai::Kind;
use crate::call::{Event, Finish, Lease, Release};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

type Said = UnboundedSender<Result<Event, Error>>;

fn wanted() -> Wanted {
    Wanted {
        kind: Kind::Completion,
        stream: true,
        usage: crate::api::openai::StreamUsage::Never,
        token_ids: false,
        choices: 1,
        prices: None,
    }
}

fn head() -> Head {
    Head { id: "cmpl-1".into(), object: "text_completion", created: 1, model: "m".into(), system_fingerprint: "fp".into(), prices: None }
}

fn record() -> Record {
    Record::new("req_1".into(), std::time::Instant::now(), 1)
}

fn text(text: &str) -> Result<Event, Error> {
    Ok(Event::Text { choice: 0, text: text.into(), ids: vec![1], logprobs: Vec::new() })
}

const END: Result<Event, Error> = Ok(Event::Finish { choice: 0, reason: Finish::Stop });

fn reply() -> (Said, Reply) {
    let (said, mut hears) = unbounded_channel();
    (said, Reply::new(futures_util::stream::poll_fn(move |cx| hears.poll_recv(cx))))
}

async fn frame(body: &mut Body) -> Option<String> {
    let frame = body.frame().await?.unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn silence_is_broken_by_a_comment_every_fifteen_seconds_and_by_nothing_earlier() {
    let (said, reply) = reply();
    let mut body = events(reply, &head(), &wanted(), record(), Clock::system()).into_body();
    said.send(text("a")).unwrap();
    assert!(frame(&mut body).await.unwrap().contains("\"text\":\"a\""));
    let start = Instant::now();
    assert_eq!(frame(&mut body).await.unwrap(), ": ping\n\n");
    assert_eq!(start.elapsed().as_secs(), 15);
    assert_eq!(frame(&mut body).await.unwrap(), ": ping\n\n");
    assert_eq!(start.elapsed().as_secs(), 30);
    tokio::time::advance(Duration::from_secs(10)).await;
    said.send(text("b")).unwrap();
    assert!(frame(&mut body).await.unwrap().contains("\"text\":\"b\""));
    assert_eq!(frame(&mut body).await.unwrap(), ": ping\n\n"); // fifteen seconds after the text, not after the last comment
    assert_eq!(start.elapsed().as_secs(), 55);
}

#[tokio::test]
async fn events_of_one_turn_go_out_in_one_write() {
    let (said, reply) = reply();
    let mut body = events(reply, &head(), &wanted(), record(), Clock::system()).into_body();
    said.send(text("a")).unwrap();
    frame(&mut body).await.unwrap();
    let other = said.clone();
    tokio::spawn(async move {
        for piece in ["b", "c", "d"] {
            other.send(text(piece)).unwrap();
            tokio::task::yield_now().await; // the stream is awake now, and polled before the next piece is there
        }
    });
    let mut frames: Vec<String> = Vec::new();
    while !frames.concat().contains("\"text\":\"d\"") {
        frames.push(frame(&mut body).await.unwrap());
    }
    assert!(frames.len() < 3, "{frames:?}");
}

/// Tells when it is released, and its commit lasts until it is let go.
struct Durable {
    released: Arc<AtomicBool>,
    commit: oneshot::Receiver<()>,
}

impl Release for Durable {
    fn release(self: Box<Self>, end: Outcome, _: &Usage) -> Option<BoxFuture<'static, ()>> {
        assert_eq!(end, Outcome::Done);
        self.released.store(true, SeqCst);
        Some(Box::pin(async { self.commit.await.unwrap() }))
    }
}

#[tokio::test]
async fn the_last_byte_waits_for_what_must_be_durable() {
    let (let_go, commit) = oneshot::channel();
    let released = Arc::new(AtomicBool::new(false));
    let lease = Lease::on(Durable { released: released.clone(), commit });
    let (said, reply) = reply();
    let reply = lease.hold(async { Ok(reply) }).await.unwrap();
    let record = record();
    let mut body = events(reply, &head(), &wanted(), record.clone(), Clock::system()).into_body();
    said.send(text("a")).unwrap();
    said.send(END).unwrap();
    drop(said);
    let first = frame(&mut body).await.unwrap();
    assert!(first.contains("\"finish_reason\":\"stop\"") && !first.contains("[DONE]"), "{first}");
    assert!(released.load(SeqCst));
    let last = tokio::spawn(async move { frame(&mut body).await });
    tokio::task::yield_now().await;
    assert!(!last.is_finished());
    let_go.send(()).unwrap();
    assert_eq!(last.await.unwrap().as_deref(), Some("data: [DONE]\n\n"));
    assert_eq!(record.lock().outcome, Some(Outcome::Done));
    assert!(record.lock().first_byte.is_some());
}

#[tokio::test]
async fn a_whole_answer_waits_for_it_too() {
    let (let_go, commit) = oneshot::channel();
    let lease = Lease::on(Durable { released: Arc::default(), commit });
    let (said, reply) = reply();
    let reply = lease.hold(async { Ok(reply) }).await.unwrap();
    said.send(END).unwrap();
    drop(said);
    let answer = tokio::spawn(async move { whole(reply, &head(), &wanted(), &record(), &Clock::system()).await.map(drop) });
    tokio::task::yield_now().await;
    assert!(!answer.is_finished());
    let_go.send(()).unwrap();
    answer.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_long_burst_is_written_in_pieces() {
    let (said, reply) = reply();
    for _ in 0..1000 {
        said.send(text("some text that is said a thousand times")).unwrap();
    }
    said.send(END).unwrap();
    drop(said);
    let mut body = events(reply, &head(), &wanted(), record(), Clock::system()).into_body();
    let mut frames = Vec::new();
    while let Some(frame) = frame(&mut body).await {
        frames.push(frame);
    }
    assert!(frames.iter().all(|frame| frame.len() < FULL + 1024));
    assert!(frames.last().unwrap().ends_with("data: [DONE]\n\n"));
    assert_eq!(frames.concat().matches("thousand times").count(), 1000);
}

/// What a client gets of a stream whose source panics after `events`, and how its lease ended.
async fn panicking(events: Vec<Result<Event, Error>>) -> (String, Option<Outcome>, Option<Outcome>) {
    struct Ended(Arc<std::sync::Mutex<Option<Outcome>>>);
    impl Release for Ended {
        fn release(self: Box<Self>, end: Outcome, _: &Usage) -> Option<BoxFuture<'static, ()>> {
            assert!(self.0.lock().unwrap().replace(end).is_none(), "released once");
            None
        }
    }
    let mut events = events.into_iter();
    let source = futures_util::stream::poll_fn(move |_| Poll::Ready(Some(events.next().expect("a bug, as this test wants it"))));
    let ended = Arc::default();
    let reply = Lease::on(Ended(Arc::clone(&ended))).hold(async { Ok(Reply::new(source)) }).await.unwrap();
    let record = record();
    let body = super::events(reply, &head(), &wanted(), record.clone(), Clock::system()).into_body();
    let sent = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let noted = record.lock().outcome;
    let released = *ended.lock().unwrap();
    (sent, noted, released)
}

#[tokio::test]
async fn a_stream_that_panics_ends_with_an_error_event_and_gives_back_what_it_held() {
    for events in [vec![], vec![text("a"), text("b")]] {
        let (sent, noted, released) = panicking(events.clone()).await;
        assert_eq!((noted, released), (Some(Outcome::Panic), Some(Outcome::Panic)));
        let events: Vec<_> = sent.split_terminator("\n\n").collect();
        assert!(events.last().unwrap().contains("\"code\":\"internal_error\""), "{sent}");
        assert!(!sent.contains("[DONE]"));
        assert!(events.iter().all(|event| serde_json::from_str::<serde_json::Value>(event.strip_prefix("data: ").unwrap()).is_ok()));
    }
}

#[tokio::test]
async fn a_room_that_panics_while_it_closes_keeps_nothing_of_the_others() {
    struct Broken;
    impl Release for Broken {
        fn release(self: Box<Self>, _: Outcome, _: &Usage) -> Option<BoxFuture<'static, ()>> {
            panic!("a bug, as this test wants it")
        }
    }
    let (let_go, commit) = oneshot::channel();
    let released = Arc::new(AtomicBool::new(false));
    let outer = Lease::on(Durable { released: released.clone(), commit });
    let (said, reply) = reply();
    let reply = outer.hold(Lease::on(Broken).hold(async { Ok(reply) })).await.unwrap();
    let mut body = events(reply, &head(), &wanted(), record(), Clock::system()).into_body();
    said.send(END).unwrap();
    drop(said);
    let_go.send(()).unwrap();
    let mut sent = String::new();
    while let Some(frame) = frame(&mut body).await {
        sent.push_str(&frame);
    }
    assert!(released.load(SeqCst) && sent.ends_with("data: [DONE]\n\n"), "{sent}");
}
