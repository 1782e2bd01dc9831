//! Events become bytes. The reply, and with it the lease, is held to the last byte: closed before it is sent, dropped
//! where the client is gone.

use super::body::Body;
use super::prepare::Wanted;
use super::respond;
use crate::api::openai::{Chunks, Head, Whole};
use crate::api::sse;
use crate::call::{Error, Outcome, Record, Reply, Usage};
use crate::clock::Clock;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::Response;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// A stream of events on its way to a client.
///
/// `Open => Closing => Last => Over`: while `Closing`, durable rooms commit.
pub struct Events {
    state: State,
    chunks: Chunks,
    out: BytesMut,
    /// Whether `out` has content, which is what TTFT is about.
    content: bool,
    /// Whether the other tasks have had a turn since the source had nothing more.
    yielded: bool,
    written: Instant,
    /// Made when there is silence for the first time, and moved on only when it ends.
    silence: Option<Pin<Box<Sleep>>>,
    record: Record,
    clock: Clock,
}

enum State {
    Open(Reply),
    Closing(BoxFuture<'static, ()>, Ending),
    Over,
}

enum Ending {
    Complete(Usage),
    Failed(Error),
}

/// Silence after which a comment shows that we are still here.
const PING_AFTER: Duration = Duration::from_secs(15);
/// What is ready is written at once, but not more than this in one piece.
const FULL: usize = 16 << 10;

/// An answer whose events are sent as they come.
pub(super) fn events(reply: Reply, head: &Head, wanted: &Wanted, record: Record, clock: Clock) -> Response<Body> {
    let chunks = Chunks::new(wanted.kind, head, wanted.choices, wanted.usage, wanted.token_ids);
    respond::event_stream(Body::Events(Box::new(Events {
        state: State::Open(reply),
        chunks,
        out: BytesMut::new(),
        content: false,
        yielded: true, // the first event is at hand: it goes out with the head
        written: Instant::now(),
        silence: None,
        record,
        clock,
    })))
}

/// An answer in one piece. Dropping the future, as happens when the client hangs up, drops the reply.
pub(super) async fn whole(mut reply: Reply, head: &Head, wanted: &Wanted, record: &Record, clock: &Clock) -> Result<Response<Body>, Error> {
    let mut whole = Whole::new(wanted.kind, wanted.choices, wanted.token_ids);
    while let Some(event) = reply.next().await {
        match event {
            Ok(event) => whole.push(event),
            Err(error) => {
                reply.close(failure(&error)).await;
                return Err(error);
            }
        }
    }
    if !whole.is_complete() {
        reply.close(Outcome::Error).await;
        return Err(cut(record));
    }
    let usage = reply.usage();
    reply.close(Outcome::Done).await;
    {
        let mut notes = record.lock();
        notes.outcome = Some(Outcome::Done);
        notes.first_byte = Some(clock.now());
    }
    Ok(respond::json_bytes(whole.json(head, &usage)))
}

/// The backend said everything, but not how every choice ended: half an answer must not look like a whole one.
fn cut(record: &Record) -> Error {
    tracing::error!(id = record.lock().id, "the backend ended its reply before every choice had ended");
    Error::Internal
}

/// How a reply that had begun ends with this error. It was worked on, so it wasn't refused.
fn failure(error: &Error) -> Outcome {
    match error.outcome() {
        Outcome::Refused => Outcome::Error,
        outcome => outcome,
    }
}

// === impl Events ===

impl Events {
    /// The next bytes for the client; `None` when it has all. A panic below is the end of this answer and of nothing else.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.advance(cx))) {
                Ok(polled) => return polled,
                Err(_) => self.panicked(),
            }
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match &mut self.state {
                State::Open(reply) => match reply.poll_next(cx) {
                    Poll::Ready(Some(Ok(event))) => {
                        self.content |= self.chunks.write(&event, &mut self.out);
                        self.yielded = false;
                        if self.out.len() >= FULL {
                            return self.flush();
                        }
                    }
                    Poll::Ready(Some(Err(error))) => self.close(failure(&error), Ending::Failed(error)),
                    Poll::Ready(None) if self.chunks.is_complete() => {
                        let usage = reply.usage();
                        self.close(Outcome::Done, Ending::Complete(usage));
                    }
                    Poll::Ready(None) => {
                        let error = cut(&self.record);
                        self.close(Outcome::Error, Ending::Failed(error));
                    }
                    Poll::Pending if self.out.is_empty() => return self.ping(cx).map(Some),
                    // What comes in the same turn of the scheduler goes out in the same write.
                    Poll::Pending if !self.yielded => {
                        self.yielded = true;
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Poll::Pending => return self.flush(),
                },
                State::Closing(commit, _) => match commit.as_mut().poll(cx) {
                    Poll::Pending if !self.out.is_empty() => return self.flush(),
                    closed => {
                        ready!(closed);
                        self.end();
                        return self.flush();
                    }
                },
                State::Over => return Poll::Ready(None),
            }
        }
    }

    /// `Open => Closing`; where it is the closing that panicked, `Closing => Closing` without anything left to close.
    fn panicked(&mut self) {
        tracing::error!(id = self.record.lock().id, "a stream panicked");
        // What was written last may be half an event.
        let whole = self.out.windows(2).rposition(|end| end == b"\n\n").map_or(0, |at| at + 2);
        self.out.truncate(whole);
        self.record.lock().outcome = Some(Outcome::Panic);
        let commit: BoxFuture<'static, ()> = match std::mem::replace(&mut self.state, State::Over) {
            State::Open(reply) => Box::pin(reply.close(Outcome::Panic)),
            State::Closing(..) | State::Over => Box::pin(std::future::ready(())),
        };
        self.state = State::Closing(commit, Ending::Failed(Error::Internal));
    }

    fn close(&mut self, outcome: Outcome, ending: Ending) {
        self.record.lock().outcome = Some(outcome);
        if let State::Open(reply) = std::mem::replace(&mut self.state, State::Over) {
            self.state = State::Closing(Box::pin(reply.close(outcome)), ending);
        }
    }

    /// Writes the last event.
    fn end(&mut self) {
        let State::Closing(_, ending) = std::mem::replace(&mut self.state, State::Over) else { return };
        match ending {
            Ending::Complete(usage) => self.chunks.end(&usage, &mut self.out),
            Ending::Failed(error) => sse::event(&mut self.out, |out| out.extend_from_slice(&respond::error_body(&error))),
        }
    }

    fn flush(&mut self) -> Poll<Option<Bytes>> {
        self.yielded = false;
        self.written = Instant::now();
        if std::mem::take(&mut self.content) {
            self.record.lock().first_byte.get_or_insert_with(|| self.clock.now());
        }
        Poll::Ready(Some(self.out.split().freeze()))
    }

    /// Ready when there has been silence for too long.
    fn ping(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep_until(self.written + PING_AFTER)));
        loop {
            ready!(silence.as_mut().poll(cx));
            let due = self.written + PING_AFTER;
            if Instant::now() >= due {
                self.written = Instant::now();
                silence.as_mut().reset(self.written + PING_AFTER);
                return Poll::Ready(Bytes::from_static(sse::PING));
            }
            silence.as_mut().reset(due);
        }
    }
}

#[cfg(test)]
mod tests;
