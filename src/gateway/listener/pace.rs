//! What a connection is waiting for, told by those who move its bytes and read by the [`Reaper`](super::reaper::Reaper).
//! Nobody looks at a clock here.

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The state of one connection, or of one stream of an HTTP/2 connection. One thread writes it; counters may wrap.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How often something was read.
    reads: AtomicU32,
    /// `reads` when the last request had ended: more of them are the next one's head.
    read_before: AtomicU32,
    /// How often something was written.
    writes: AtomicU32,
    /// Whether there is something to write that can't be.
    blocked: AtomicBool,
    /// Requests begun.
    begun: AtomicU32,
    /// Those of them that have ended.
    ended: AtomicU32,
    /// Whether bytes may be other things than a request's head: those of HTTP/2 are.
    multiplexed: AtomicBool,
}

/// What a connection is waiting for. Two equal ones, one after the other, are one and the same wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The head of the request after so many.
    Head(u32),
    /// Any byte of the request after so many.
    Idle(u32),
    /// Us.
    Busy,
    /// The client to read on, after so many writes.
    Stalled(u32),
}

/// A request that has begun and not ended.
pub(super) struct Open(Arc<Pace>);

/// A socket whose reads and writes are noted.
pub(super) struct Paced<S> {
    stream: S,
    pace: Arc<Pace>,
}

/// An answer's body: its request is open as long as it is there.
pub(super) struct PacedBody<B> {
    body: B,
    _open: Open,
    /// The HTTP/2 stream it goes to.
    stream: Option<Arc<Pace>>,
}

// === impl Pace ===

impl Pace {
    /// A stream of an HTTP/2 connection: it begins with its request's head.
    pub(super) fn stream() -> Self {
        Self { begun: AtomicU32::new(1), ..Self::default() }
    }

    pub(super) fn phase(&self) -> Phase {
        let begun = self.begun.load(Relaxed);
        if self.blocked.load(Relaxed) {
            Phase::Stalled(self.writes.load(Relaxed))
        } else if begun != self.ended.load(Relaxed) {
            Phase::Busy
        } else if begun == 0 || !self.multiplexed.load(Relaxed) && self.reads.load(Relaxed) != self.read_before.load(Relaxed) {
            Phase::Head(begun)
        } else {
            Phase::Idle(begun)
        }
    }

    /// A request's head has been read.
    pub(super) fn begin(self: &Arc<Self>, version: http::Version) -> Open {
        self.multiplexed.store(version == http::Version::HTTP_2, Relaxed);
        self.begun.fetch_add(1, Relaxed);
        Open(self.clone())
    }

    fn wrote(&self) {
        self.writes.fetch_add(1, Relaxed);
        self.blocked.store(false, Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.read_before.store(self.0.reads.load(Relaxed), Relaxed);
        self.0.ended.fetch_add(1, Relaxed);
    }
}

// === impl Paced ===

impl<S> Paced<S> {
    pub(super) fn new(stream: S, pace: Arc<Pace>) -> Self {
        Self { stream, pace }
    }

    pub(super) fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.stream).poll_read(cx, into);
        if read.is_ready() {
            this.pace.reads.fetch_add(1, Relaxed);
        }
        read
    }
}

/// Not vectored: an event is small enough to be copied to the end of its head, and TLS copies it anyway.
impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        match written {
            Poll::Pending => this.pace.blocked.store(true, Relaxed),
            Poll::Ready(_) => this.pace.wrote(),
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

// === impl PacedBody ===

impl<B> PacedBody<B> {
    /// The body of `open`'s answer, on its way to `stream` where that is one of several on its connection.
    pub(super) fn new(body: B, open: Open, stream: Option<Arc<Pace>>) -> Self {
        Self { body, _open: open, stream }
    }
}

impl<B: Body<Data: Buf> + Unpin> Body for PacedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        if let Some(stream) = &this.stream {
            stream.wrote(); // whoever asks for more has sent what there was
        }
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        if let (Some(stream), Poll::Ready(Some(_))) = (&this.stream, &frame) {
            stream.blocked.store(true, Relaxed); // until asked again: the client's window may be shut
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
