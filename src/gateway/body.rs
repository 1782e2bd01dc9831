//! What an answer consists of.

use super::stream::Events;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of an answer.
pub enum Body {
    /// All of it at once; `None` when it has been sent, or there is none.
    Full(Option<Bytes>),
    /// A stream of events.
    Events(Box<Events>),
}

// === impl Body ===

impl Body {
    /// No body at all.
    pub fn empty() -> Self {
        Body::Full(None)
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Body::Full(Some(bytes.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match self.get_mut() {
            Body::Full(bytes) => Poll::Ready(bytes.take()),
            Body::Events(events) => events.poll(cx),
        };
        bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Events(_) => SizeHint::default(),
        }
    }
}
