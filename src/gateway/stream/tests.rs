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
        fingerprint: "fp".into(),
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
