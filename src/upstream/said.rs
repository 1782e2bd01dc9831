//! The chunks of one answer become events.

use super::failure::{Ended, Failure};
use super::refusal::reported;
use super::remote::Remote;
use super::request::kind;
use crate::api::openai::{Chunk, Counts, Kind, Piece};
use crate::call::{Call, Event, Finish, Prompt, Usage};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a remote has said of one call so far.
pub(super) struct Said {
    call: Call,
    remote: Arc<Remote>,
    kind: Kind,
    pub(super) events: VecDeque<Event>,
    /// Which choices have ended.
    finished: Vec<bool>,
    /// Of the whole answer, as chunks without choices say.
    counts: Counts,
    /// Of each choice: llama.cpp says with each one's end what that one used.
    of_choices: Vec<Counts>,
    /// Pieces of text, each of them about a token.
    pieces: u32,
    /// Whether there was content, or an end without any.
    pub(super) begun: bool,
    /// `[DONE]`, or what stands for it.
    pub(super) done: bool,
}

const DONE: &[u8] = b"[DONE]";

// === impl Said ===

impl Said {
    pub(super) fn new(call: Call, remote: Arc<Remote>) -> Self {
        let choices = call.prompts.len() * call.sampling.n as usize;
        Self {
            kind: kind(&call),
            call,
            remote,
            events: VecDeque::new(),
            finished: vec![false; choices],
            counts: Counts::default(),
            of_choices: vec![Counts::default(); choices],
            pieces: 0,
            begun: false,
            done: false,
        }
    }

    /// Takes the data of one event.
    ///
    /// # Errors
    /// It is no chunk, or says that something went wrong.
    pub(super) fn take(&mut self, data: &[u8]) -> Result<(), Ended> {
        if self.done {
            return Ok(());
        }
        if data == DONE {
            self.done = true;
            return Ok(());
        }
        let Chunk { pieces, counts, remark } = Chunk::parse(self.kind, data).map_err(Failure::from)?;
        if let Some(remark) = remark {
            return Err(reported(self.remote.without_key(remark), &self.call));
        }
        if let Some(counts) = counts {
            let choice = pieces.first().and_then(|piece| self.of_choices.get_mut(piece.index as usize));
            choice.unwrap_or(&mut self.counts).merge(counts);
        }
        for piece in pieces {
            self.piece(piece)?;
        }
        Ok(())
    }

    fn piece(&mut self, piece: Piece) -> Result<(), Failure> {
        let Piece { index: choice, text, other, finish } = piece;
        // Of a choice that wasn't asked for, or that has ended.
        let Some(finished) = self.finished.get_mut(choice as usize).filter(|finished| !**finished) else { return Ok(()) };
        if !other.is_empty() {
            self.begun = true;
            self.pieces += 1;
            self.events.push_back(Event::Other { choice, fields: other });
        }
        if !text.is_empty() {
            self.begun = true;
            self.pieces += 1;
            self.events.push_back(Event::Text { choice, text, ids: Vec::new(), logprobs: Vec::new() });
        }
        if let Some(reason) = finish.filter(|reason| !reason.is_empty()) {
            self.begun = true;
            *finished = true;
            self.events.push_back(Event::Finish { choice, reason: reason_of(&reason)? });
        }
        Ok(())
    }

    /// Whether every choice has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.finished.iter().all(|finished| *finished)
    }

    /// The answer is complete: its usage is final.
    pub(super) fn end(&mut self) {
        let prompt_tokens = self.call.prompts.iter().map(Prompt::likely_tokens).sum();
        let estimate = Usage { prompt_tokens, completion_tokens: self.pieces, ..Usage::default() };
        let counts = self.total();
        let exact = counts.prompt_tokens.is_some() || self.call.prompts.iter().all(|prompt| prompt.exact);
        self.call.record.lock().estimated = !exact || counts.completion_tokens.is_none();
        self.events.push_back(Event::Usage(counts.usage(estimate)));
    }

    /// What was said of the whole answer, or else of its choices together; of a prompt only once, whatever its choices say.
    fn total(&self) -> Counts {
        let of_prompt = |choices: &[Counts]| {
            let mut counts = Counts::default();
            choices.iter().for_each(|choice| counts.merge(*choice));
            let each = choices.iter().fold(Counts::default(), |sum, choice| sum.plus(*choice));
            Counts { completion_tokens: each.completion_tokens, ..counts }
        };
        let prompts = self.of_choices.chunks(self.call.sampling.n.max(1) as usize);
        self.counts.or(prompts.map(of_prompt).fold(Counts::default(), Counts::plus))
    }

    pub(super) fn call(&self) -> &Call {
        &self.call
    }
}

/// Servers have words of their own beside OpenAI's.
fn reason_of(reason: &str) -> Result<Finish, Failure> {
    match reason {
        "length" | "max_tokens" => Ok(Finish::Length),
        "content_filter" => Ok(Finish::ContentFilter),
        "tool_calls" => Ok(Finish::ToolCalls),
        "function_call" => Ok(Finish::FunctionCall),
        "abort" | "cancelled" | "error" => Err(Failure::Reported),
        _ => Ok(Finish::Stop),
    }
}
