//! The async side of one call: tokens from the shard's thread become text events.

use super::thread::{Command, Said};
use crate::call::{Error, Event, Finish, Prompt, TokenId, Usage};
use crate::config::Name;
use crate::engine::SeqId;
use crate::text::{Detokenizer, StopStrings, Text};
use futures_util::Stream;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use tokio::sync::mpsc::UnboundedReceiver;

/// The events of one call. Dropping it cancels what still runs within one engine step.
///
/// Events that wait here are bounded by the call's own output: `max_tokens` of each choice.
pub(super) struct Answer {
    backend: Name,
    said: UnboundedReceiver<Said>,
    mailbox: mpsc::Sender<Command>,
    /// Choices that have not ended.
    running: HashMap<SeqId, Sequence>,
    /// Cached tokens of each prompt, once its first choice has started.
    cached: Vec<Option<u32>>,
    usage: Usage,
    events: VecDeque<Event>,
    lost: bool,
}

/// One choice in progress.
pub(super) struct Sequence {
    choice: u32,
    prompt: usize,
    prompt_tokens: u32,
    detokenizer: Detokenizer,
    stops: StopStrings,
    /// Text decoded from a token, before stop strings are looked for.
    decoded: String,
}

// === impl Sequence ===

impl Sequence {
    pub(super) fn new(choice: u32, prompt: usize, of: &Prompt, text: &Arc<Text>, stops: &[String]) -> Self {
        Self {
            choice,
            prompt,
            prompt_tokens: of.ids.len() as u32,
            detokenizer: text.detokenizer(),
            stops: StopStrings::new(stops),
            decoded: String::new(),
        }
    }

    /// The text that `id` lets out, and whether a stop string is complete.
    fn push(&mut self, id: TokenId) -> (String, bool) {
        let mut text = String::new();
        self.decoded.clear();
        self.detokenizer.push(id, &mut self.decoded);
        let stopped = self.stops.push(&self.decoded, &mut text);
        (text, stopped)
    }

    /// The text held back so far, at the sequence's end, and whether it completes a stop string after all.
    fn finish(&mut self) -> (String, bool) {
        let mut text = String::new();
        self.decoded.clear();
        self.detokenizer.finish(&mut self.decoded);
        let stopped = self.stops.push(&self.decoded, &mut text);
        if !stopped {
            self.stops.finish(&mut text);
        }
        (text, stopped)
    }
}

// === impl Answer ===

impl Answer {
    pub(super) fn new(backend: Name, said: UnboundedReceiver<Said>, mailbox: mpsc::Sender<Command>) -> Self {
        Self {
            backend,
            said,
            mailbox,
            running: HashMap::new(),
            cached: Vec::new(),
            usage: Usage::default(),
            events: VecDeque::new(),
            lost: false,
        }
    }

    /// Expects the events of `seq`.
    pub(super) fn expect(&mut self, seq: SeqId, sequence: Sequence) {
        if sequence.prompt == self.cached.len() {
            self.cached.push(None);
            self.usage.prompt_tokens += sequence.prompt_tokens;
        }
        self.running.insert(seq, sequence);
    }

    /// Waits until there is content (or an end without any), so that until then the call may go elsewhere.
    ///
    /// # Errors
    /// The shard was lost before it said anything.
    pub(super) async fn first_content(&mut self) -> Result<(), Error> {
        while self.events.is_empty() && !self.running.is_empty() {
            match self.said.recv().await {
                Some(said) => self.take(said),
                None => return Err(self.loss()),
            }
        }
        self.events.push_front(Event::Usage(Usage { completion_tokens: 0, ..self.usage }));
        Ok(())
    }

    fn loss(&mut self) -> Error {
        self.lost = true;
        Error::ShardLost { backend: self.backend.to_string() }
    }

    fn take(&mut self, said: Said) {
        match said {
            Said::Started { seq, cached_tokens } => self.started(seq, cached_tokens),
            Said::Token { seq, id } => self.token(seq, id),
            Said::Ended { seq, reason, device_time } => {
                self.usage.device_time += device_time;
                self.ended(seq, reason);
            }
        }
    }

    /// A prompt's cached tokens are those of its first choice to start: the others hit what that one computed.
    fn started(&mut self, seq: SeqId, cached_tokens: u32) {
        if let Some(sequence) = self.running.get(&seq) {
            let cached = &mut self.cached[sequence.prompt];
            if cached.is_none() {
                *cached = Some(cached_tokens);
                self.usage.cached_tokens += cached_tokens;
            }
        }
    }

    fn token(&mut self, seq: SeqId, id: TokenId) {
        // The engine runs ahead of a stop string by a step: such tokens belong to nobody.
        let Some(sequence) = self.running.get_mut(&seq) else { return };
        let (text, stopped) = sequence.push(id);
        let choice = sequence.choice;
        self.usage.completion_tokens += 1;
        self.events.push_back(Event::Text { choice, text, ids: vec![id] });
        if stopped {
            self.running.remove(&seq);
            self.cancel(seq);
            self.finish(choice, Finish::Stop);
        }
    }

    fn ended(&mut self, seq: SeqId, reason: Finish) {
        let Some(mut sequence) = self.running.remove(&seq) else { return };
        let (text, stopped) = sequence.finish();
        if !text.is_empty() {
            self.events.push_back(Event::Text { choice: sequence.choice, text, ids: Vec::new() });
        }
        self.finish(sequence.choice, if stopped { Finish::Stop } else { reason });
    }

    fn finish(&mut self, choice: u32, reason: Finish) {
        self.events.push_back(Event::Finish { choice, reason });
        if self.running.is_empty() {
            self.events.push_back(Event::Usage(self.usage));
        }
    }

    fn cancel(&self, seq: SeqId) {
        // A closed mailbox is a lost shard, where nothing runs any more.
        let _ = self.mailbox.send(Command::Cancel(seq));
    }
}

impl Stream for Answer {
    type Item = Result<Event, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let answer = self.get_mut();
        loop {
            if let Some(event) = answer.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if answer.running.is_empty() || answer.lost {
                return Poll::Ready(None);
            }
            match answer.said.poll_recv(cx) {
                Poll::Ready(Some(said)) => answer.take(said),
                Poll::Ready(None) => return Poll::Ready(Some(Err(answer.loss()))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        for seq in self.running.keys() {
            self.cancel(*seq);
        }
    }
}
