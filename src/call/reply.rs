//! A reply in progress and the lease that rides in it: whatever was taken on the way down is given back exactly once,
//! whether the reply ends well, is refused, is dropped or panics.

use super::{Error, Event, Usage};
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Answered in full.
    Done,
    /// Refused before a backend worked on it.
    Refused,
    /// Failed.
    Error,
    /// It took longer than it may.
    Deadline,
    /// The client hung up.
    ClientGone,
    /// A bug of ours.
    Panic,
}

/// What one room gives back at the end of a call.
pub trait Release: Send {
    /// Called exactly once. A durable room returns its commit to await; where nobody can wait it is dropped unawaited,
    /// so the release itself must already have happened when this returns.
    fn release(self: Box<Self>, end: Outcome, usage: &Usage) -> Option<BoxFuture<'static, ()>>;
}

/// Everything a call holds, innermost first.
///
/// `taken => held by the reply => released`, or `taken => dropped => released`.
#[derive(Default)]
pub struct Lease {
    held: Vec<Box<dyn Release>>,
    usage: Usage,
    /// What `Drop` reports.
    end: Option<Outcome>,
}

/// The events of one call, with its lease.
pub struct Reply {
    events: BoxStream<'static, Result<Event, Error>>,
    lease: Lease,
}

// === impl Lease ===

impl Lease {
    /// A lease on one thing.
    pub fn on(held: impl Release + 'static) -> Self {
        Self { held: vec![Box::new(held)], ..Self::default() }
    }

    /// Runs the call below while this lease is held. On `Ok` it joins the reply's lease; an error ends it, as
    /// refused where no work was done for it; a
    /// cancellation or a panic ends it by `Drop`.
    ///
    /// # Errors
    /// Those of `below`.
    pub async fn hold(mut self, below: impl Future<Output = Result<Reply, Error>>) -> Result<Reply, Error> {
        match below.await {
            Ok(mut reply) => {
                reply.lease.held.append(&mut self.held);
                Ok(reply)
            }
            Err(error) => {
                // What was worked on until its time was over wasn't refused.
                let late = matches!(error, Error::DeadlinePassed { .. });
                self.close(if late { Outcome::Deadline } else { Outcome::Refused }).await;
                Err(error)
            }
        }
    }

    /// Releases everything, innermost first, and waits for what must be durable.
    async fn close(mut self, end: Outcome) {
        self.end = Some(end);
        for commit in self.release(end) {
            commit.await;
        }
    }

    fn release(&mut self, end: Outcome) -> Vec<BoxFuture<'static, ()>> {
        let usage = self.usage;
        // A room that panics must not keep what the others hold.
        let release = |room: Box<dyn Release>| catch_unwind(AssertUnwindSafe(|| room.release(end, &usage)));
        std::mem::take(&mut self.held).into_iter().filter_map(|room| release(room).unwrap_or(None)).collect()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let end = self.end.unwrap_or(if std::thread::panicking() { Outcome::Panic } else { Outcome::ClientGone });
        drop(self.release(end)); // commits go on by themselves; nobody is left to wait for them
    }
}

// === impl Reply ===

impl Reply {
    /// A reply of these events.
    pub fn new(events: impl Stream<Item = Result<Event, Error>> + Send + 'static) -> Self {
        Self { events: events.boxed(), lease: Lease::default() }
    }

    /// The next event; `None` when the backend has said everything. Usage is noted on the way.
    pub async fn next(&mut self) -> Option<Result<Event, Error>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`next`](Self::next), for bodies that are polled.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        let event = Pin::new(&mut self.events).poll_next(cx);
        if let Poll::Ready(Some(Ok(Event::Usage(usage)))) = &event {
            self.lease.usage = *usage;
        }
        event
    }

    /// The usage reported so far.
    pub fn usage(&self) -> Usage {
        self.lease.usage
    }

    /// The same reply with its events passed through `with`; the lease stays.
    pub fn map<S>(self, with: impl FnOnce(BoxStream<'static, Result<Event, Error>>) -> S) -> Self
    where
        S: Stream<Item = Result<Event, Error>> + Send + 'static,
    {
        Self { events: with(self.events).boxed(), lease: self.lease }
    }

    /// Ends the reply: stops its backend, releases the lease and waits for durable rooms.
    pub async fn close(self, end: Outcome) {
        drop(self.events);
        self.lease.close(end).await;
    }
}
