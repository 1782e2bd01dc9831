//! Last words: a client whose request can't be parsed gets an answer that it can read, and time to read it.

use crate::gateway::respond;
use bytes::{Buf, Bytes};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// A connection in plain text, below the parser. Where the parser answers by itself, with a status and nothing more, the
/// client gets an error of ours instead.
///
/// `Talking => Leaving => Deaf`: what a client still sends while it is `Deaf` is read and dropped, since one that is cut
/// off while it writes sees a broken connection instead of the answer.
pub(super) struct Farewell<S> {
    stream: S,
    /// The largest head, which an answer to a larger one names.
    max_head: u64,
    state: State,
}

enum State {
    Talking,
    /// The answer that is yet to be written.
    Leaving(Bytes),
    /// How many bytes are still read.
    Deaf(usize),
}

/// What is read and dropped at most; the reaper bounds the time.
const DROPPED: usize = 1 << 20;

// === impl Farewell ===

impl<S: AsyncRead + AsyncWrite + Unpin> Farewell<S> {
    pub(super) fn new(stream: S, max_head: u64) -> Self {
        Self { stream, max_head, state: State::Talking }
    }

    /// Says this, and nothing else.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn say(mut self, answer: Bytes) -> io::Result<()> {
        self.state = State::Leaving(answer);
        self.flush().await?;
        self.shutdown().await
    }

    /// Writes what is left of the answer.
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let State::Leaving(answer) = &mut self.state {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, answer))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            answer.advance(written);
            if answer.is_empty() {
                self.state = State::Deaf(DROPPED);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Farewell<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Farewell<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match &this.state {
            State::Talking => match respond::instead_of(bytes, this.max_head) {
                Some(answer) => this.state = State::Leaving(answer),
                None => return Pin::new(&mut this.stream).poll_write(cx, bytes),
            },
            State::Leaving(_) => {}
            State::Deaf(_) => return Poll::Ready(Ok(bytes.len())),
        }
        // The parser's words count as written; ours are flushed in their place.
        this.poll_leave(cx).map_ok(|()| bytes.len())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_leave(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_leave(cx))?;
        ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        while let State::Deaf(left) = &mut this.state {
            let mut dropped = [0; 4096];
            let mut into = ReadBuf::new(&mut dropped);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut into))?;
            match (into.filled().len(), left.checked_sub(into.filled().len())) {
                (0, _) | (_, None) => this.state = State::Talking, // all was said
                (_, Some(less)) => *left = less,
            }
        }
        Poll::Ready(Ok(()))
    }
}
