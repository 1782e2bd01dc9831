//! One answer on its way from a remote.

use super::failure::{Ended, Failure};
use super::pool::{self, Link};
use super::refusal::{check_stream, refusal};
use super::remote::{Place, Remote};
use super::request::Message;
use super::said::Said;
use crate::api::openai::Remark;
use crate::api::sse;
use crate::call::{Call, Error, Event};
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The events of one answer. Dropping it before its end cuts its connection, so that the remote stops its work.
///
/// `Open => Lingering => Over`: while lingering everything is said, but not yet that nothing follows; a connection that
/// says so soon can be used again.
pub(super) struct Answer {
    remote: Arc<Remote>,
    state: State,
    body: Incoming,
    reader: sse::Reader,
    said: Said,
    link: Option<Link>,
    place: Option<Place>,
    silence: Pin<Box<Sleep>>,
    /// When the last event came.
    heard: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Lingering,
    Over,
}

/// Bytes of one event. The largest that servers send are a few kilobytes: log-probabilities of a prompt.
const EVENT: usize = 1 << 20;
/// Bytes that are read of an answer that isn't a stream.
const REMARK: usize = 64 << 10;
/// How long the end of a complete answer is waited for.
const LINGER: Duration = Duration::from_millis(100);

// === impl Answer ===

impl Answer {
    /// Sends a call and waits for its answer's first content.
    ///
    /// # Errors
    /// The remote fails before, or refuses the call.
    pub(super) async fn begin(remote: &Arc<Remote>, call: Call) -> Result<Self, Ended> {
        let message = Message::of(&call, remote);
        let (response, link) = pool::send(remote, &message).await?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(refuse(head.status, &head.headers, body, link, remote, &call).await);
        }
        check_stream(&head.headers)?;
        let heard = Instant::now();
        let mut answer = Self {
            state: State::Open,
            body,
            reader: sse::Reader::new(EVENT),
            said: Said::new(call, remote.clone()),
            link: Some(link),
            place: None,
            silence: Box::pin(sleep_until(heard + remote.config.timeouts.idle)),
            heard,
            remote: remote.clone(),
        };
        while !answer.said.begun && answer.state != State::Over {
            let frame = answer.body.frame().await.transpose().map_err(Failure::Broke)?;
            answer.take(frame.map(|frame| frame.into_data().unwrap_or_default()))?;
        }
        Ok(answer)
    }

    /// The call's place, held to the answer's end.
    pub(super) fn hold(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// Takes more bytes of the body, or its end.
    fn take(&mut self, data: Option<Bytes>) -> Result<(), Ended> {
        let Some(data) = data else {
            if !self.said.is_complete() {
                return Err(Failure::Incomplete.into());
            }
            self.end(true);
            return Ok(());
        };
        if self.state == State::Lingering {
            return Ok(());
        }
        self.heard = Instant::now();
        let said = &mut self.said;
        self.reader.read(&data, |data| said.take(data))?;
        if said.done {
            if !said.is_complete() {
                return Err(Failure::Incomplete.into());
            }
            self.state = State::Lingering;
            self.silence.as_mut().reset(self.heard + LINGER);
        }
        Ok(())
    }

    /// Everything was said.
    fn end(&mut self, reusable: bool) {
        self.state = State::Over;
        self.said.end();
        if let Some(place) = self.place.take() {
            place.worked();
        }
        if let Some(link) = self.link.take().filter(|_| reusable) {
            link.give_back();
        }
    }

    /// The remote failed while it answered: the connection is cut.
    fn fail(&mut self, ended: Ended) -> Error {
        self.state = State::Over;
        self.link = None;
        let place = self.place.take();
        match ended {
            Ended::Failed(failure) => {
                if let Some(place) = place {
                    place.failed();
                }
                failure.error(&self.remote.config.name, &self.said.call().record)
            }
            Ended::Refused(error) => error,
        }
    }

    /// Ready when nothing has come for too long.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        ready!(self.silence.as_mut().poll(cx));
        let idle = self.remote.config.timeouts.idle;
        if self.state == State::Open && self.heard.elapsed() < idle {
            // The timer isn't moved on with every event, but when it rings.
            self.silence.as_mut().reset(self.heard + idle);
            return self.poll_silence(cx);
        }
        if !self.said.is_complete() {
            return Poll::Ready(Err(Failure::Silent(idle).into()));
        }
        self.end(false);
        Poll::Ready(Ok(()))
    }
}

impl Stream for Answer {
    type Item = Result<Event, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let answer = self.get_mut();
        loop {
            if let Some(event) = answer.said.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if answer.state == State::Over {
                return Poll::Ready(None);
            }
            let taken = match Pin::new(&mut answer.body).poll_frame(cx) {
                Poll::Ready(None) => answer.take(None),
                Poll::Ready(Some(Ok(frame))) => answer.take(Some(frame.into_data().unwrap_or_default())),
                // What follows a complete answer is nobody's concern.
                Poll::Ready(Some(Err(_))) if answer.state == State::Lingering => {
                    answer.end(false);
                    Ok(())
                }
                Poll::Ready(Some(Err(error))) => Err(Failure::Broke(error).into()),
                Poll::Pending => ready!(answer.poll_silence(cx)),
            };
            if let Err(ended) = taken {
                return Poll::Ready(Some(Err(answer.fail(ended))));
            }
        }
    }
}

/// Reads why the remote doesn't answer.
async fn refuse(status: StatusCode, headers: &HeaderMap, body: Incoming, link: Link, remote: &Remote, call: &Call) -> Ended {
    let remark = match Limited::new(body, REMARK).collect().await {
        Ok(body) => {
            link.give_back();
            remote.without_key(Remark::parse(&body.to_bytes()))
        }
        Err(_) => Remark::default(), // the status says enough
    };
    refusal(status, headers, remark, call)
}
