//! How a connection in plain text begins: with a method of HTTP/1, or with the preface of HTTP/2.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// A connection of which the first bytes have been read. They are given back together with what follows, since the
/// parser keeps twice the memory for a head that comes in two pieces.
pub(super) struct Begun<S> {
    stream: S,
    first: [u8; 3],
    unread: Range<usize>,
}

/// No method begins like this. What comes after it is checked by HTTP/2 itself.
const PREFACE: &[u8; 3] = b"PRI";

/// Reads as much as tells which protocol the client speaks.
///
/// # Errors
/// The client hung up before.
pub(super) async fn read<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(Protocol, Begun<S>)> {
    let (mut first, mut read) = ([0; 3], 0);
    while read < first.len() && first[..read] == PREFACE[..read] {
        match stream.read(&mut first[read..]).await? {
            0 => break,
            more => read += more,
        }
    }
    let protocol = if first == *PREFACE { Protocol::Http2 } else { Protocol::Http1 };
    Ok((protocol, Begun { stream, first, unread: 0..read }))
}

// === impl Protocol ===

impl Protocol {
    /// The one that the handshake agreed on.
    pub(super) fn agreed(alpn: Option<&[u8]>) -> Self {
        if alpn == Some(b"h2") { Protocol::Http2 } else { Protocol::Http1 }
    }
}

// === impl Begun ===

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        while into.remaining() > 0
            && let Some(next) = this.unread.next()
        {
            into.put_slice(&this.first[next..=next]);
        }
        let read = Pin::new(&mut this.stream).poll_read(cx, into);
        if into.filled().len() > before { Poll::Ready(Ok(())) } else { read }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

    use super::*;

    #[tokio::test]
    async fn the_first_bytes_tell_the_protocol_and_none_is_lost_however_they_come() {
        for (sent, expected) in [
            ("PRI * HTTP/2.0\r\n", Protocol::Http2),
            ("POST /v1/completions", Protocol::Http1),
            ("PROPFIND / HTTP/1.1", Protocol::Http1),
            ("GET / HTTP/1.1", Protocol::Http1),
            ("PR", Protocol::Http1),
            ("", Protocol::Http1),
        ] {
            let mut pieces = piecemeal(sent);
            let (protocol, mut begun) = read(&mut pieces).await.unwrap();
            let mut all = String::new();
            begun.read_to_string(&mut all).await.unwrap();
            assert_eq!((protocol, all.as_str()), (expected, sent));
        }
    }

    #[tokio::test]
    async fn what_follows_the_first_bytes_comes_in_the_same_read() {
        let (_, mut begun) = read(&b"GET / HTTP/1.1\r\n"[..]).await.unwrap();
        let mut buffer = [0; 100];
        assert_eq!(begun.read(&mut buffer).await.unwrap(), 16);
    }

    /// Gives a byte a read.
    fn piecemeal(bytes: &str) -> impl AsyncRead + Unpin {
        let (mut near, far) = tokio::io::duplex(1);
        let bytes = bytes.as_bytes().to_vec();
        tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut near, &bytes).await });
        far
    }
}
