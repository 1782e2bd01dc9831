//! The async side of one call: tokens from the shard's thread become text events.

use super::handle::Shard;
use super::sequence::Sequence;
use super::siblings::Siblings;
use super::thread::{Command, Said};
use crate::call::{Call, Error, Event, Finish, TokenId, Usage};
use crate::config::Name;
use crate::engine::{Logprob, SeqId};
use futures_util::Stream;
use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};
use tokio::sync::mpsc::UnboundedReceiver;

/// The events of one call. Dropping it cancels what still runs within one engine step.
///
/// Events that wait here are bounded by the call's own output: `max_tokens` of each choice.
pub(super) struct Answer {
    backend: Name,
    said: UnboundedReceiver<Said>,
    mailbox: mpsc::Sender<Command>,
    /// What is answered. Its record gets what was used and not reported, where the client leaves in the middle.
    pub(super) call: Call,
    siblings: Siblings,
    /// Of the shard; one of the same can go on.
    digest: [u8; 16],
    /// How often another shard has gone on with it.
    moves: u32,
    /// Choices that have not ended.
    pub(super) running: HashMap<SeqId, Sequence>,
    /// Sequences of choices that a stop string ended, until the shard says what their last step took.
    stopped: HashSet<SeqId>,
    /// Cached tokens of each prompt, once its first choice has started.
    cached: Vec<Option<u32>>,
    usage: Usage,
    events: VecDeque<Event>,
    lost: bool,
}

/// How often other shards go on with one answer. A request that brings down whoever computes it mustn't bring down all.
const MOST_MOVES: u32 = 2;

// === impl Answer ===

impl Answer {
    pub(super) fn new(shard: &Shard, said: UnboundedReceiver<Said>, call: Call) -> Self {
        // A backend that was lost at this call has had its share of a device, too.
        let device_time = call.record.lock().usage.device_time;
        Self {
            backend: shard.name.clone(),
            said,
            mailbox: shard.mailbox.clone(),
            call,
            siblings: shard.siblings.clone(),
            digest: shard.digest,
            moves: 0,
            running: HashMap::new(),
            stopped: HashSet::new(),
            cached: Vec::new(),
            usage: Usage { device_time, ..Usage::default() },
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

    /// Where the shard is lost in the middle, an equal one goes on: what it draws depends on the tokens so far, the seed and
    /// the position, so the client sees nothing but a pause. False where there is none, or none any more.
    fn go_on(&mut self) -> bool {
        if self.moves == MOST_MOVES {
            return false;
        }
        let Some(next) = self.siblings.equal(self.digest, &self.call) else { return false };
        self.moves += 1;
        next.take_over(self);
        true
    }

    /// From now on `shard` says what becomes of these choices.
    pub(super) fn move_to(&mut self, shard: &Shard, said: UnboundedReceiver<Said>, running: HashMap<SeqId, Sequence>) {
        self.stopped.clear(); // their ends are known; what their last step took nobody will say
        let lost = std::mem::replace(&mut self.backend, shard.name.clone());
        let mut notes = self.call.record.lock();
        notes.failed.push((lost, "was lost".to_owned()));
        notes.attempts += 1;
        notes.backend = Some(shard.name.clone());
        drop(notes);
        (self.said, self.mailbox, self.running) = (said, shard.mailbox.clone(), running);
    }

    fn loss(&mut self) -> Error {
        self.lost = true;
        Error::ShardLost { backend: self.backend.to_string() }
    }

    fn take(&mut self, said: Said) {
        self.usage.device_time += said.device_time();
        match said {
            Said::Started { seq, cached_tokens } => self.started(seq, cached_tokens),
            Said::Computed { .. } => {}
            Said::Scored { seq, logprob } => {
                let echo = self.running.get_mut(&seq).and_then(|sequence| sequence.scored(&logprob));
                self.events.extend(echo);
            }
            Said::Token { seq, id, logprob, .. } => self.token(seq, id, logprob.as_ref()),
            Said::Ended { seq, reason, .. } => self.ended(seq, reason),
            Said::Cancelled { seq, .. } => self.left(seq),
        }
    }

    /// A prompt's cached tokens are those of its first choice to start: the others hit what that one computed.
    fn started(&mut self, seq: SeqId, cached_tokens: u32) {
        if let Some(sequence) = self.running.get_mut(&seq) {
            let cached = &mut self.cached[sequence.prompt];
            if cached.is_none() {
                *cached = Some(cached_tokens);
                self.usage.cached_tokens += cached_tokens;
            }
            self.events.extend(sequence.started());
        }
    }

    fn token(&mut self, seq: SeqId, id: TokenId, logprob: Option<&Logprob>) {
        // The engine runs ahead of a stop string by a step: such tokens belong to nobody.
        let Some(sequence) = self.running.get_mut(&seq) else { return };
        if sequence.is_prompt_only() {
            return;
        }
        let (text, stopped) = sequence.push(id);
        let choice = sequence.choice;
        let logprobs = logprob.map(|logprob| sequence.logprob(logprob)).into_iter().collect();
        self.usage.completion_tokens += 1;
        self.events.push_back(Event::Text { choice, text, ids: vec![id], logprobs });
        if stopped {
            self.running.remove(&seq);
            self.stopped.insert(seq);
            self.cancel(seq);
            self.finish(choice, Finish::Stop);
        }
    }

    fn ended(&mut self, seq: SeqId, reason: Finish) {
        let Some(mut sequence) = self.running.remove(&seq) else { return self.left(seq) };
        let (text, stopped) = sequence.finish();
        let reason = if sequence.is_prompt_only() { Finish::Length } else { reason };
        if !text.is_empty() {
            self.events.push_back(Event::Text { choice: sequence.choice, text, ids: Vec::new(), logprobs: Vec::new() });
        }
        self.finish(sequence.choice, if stopped { Finish::Stop } else { reason });
    }

    fn finish(&mut self, choice: u32, reason: Finish) {
        self.events.push_back(Event::Finish { choice, reason });
        if self.is_over() {
            self.events.push_back(Event::Usage(self.usage));
        }
    }

    /// A sequence of a choice that a stop string has ended is gone.
    fn left(&mut self, seq: SeqId) {
        if self.stopped.remove(&seq) && self.is_over() {
            self.events.push_back(Event::Usage(self.usage));
        }
    }

    /// Whether nothing more is to come.
    fn is_over(&self) -> bool {
        self.running.is_empty() && self.stopped.is_empty()
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
            if answer.is_over() || answer.lost {
                return Poll::Ready(None);
            }
            match answer.said.poll_recv(cx) {
                Poll::Ready(Some(said)) => answer.take(said),
                // Every choice has its end: nothing is missing but a step's time.
                Poll::Ready(None) if answer.running.is_empty() => {
                    answer.stopped.clear();
                    answer.events.push_back(Event::Usage(answer.usage));
                }
                Poll::Ready(None) if answer.go_on() => {}
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
        while let Ok(said) = self.said.try_recv() {
            self.usage.device_time += said.device_time();
        }
        self.call.record.lock().usage.device_time = self.usage.device_time;
    }
}
