//! An answer in one piece.

use super::logprobs::{ChatLogprobs, TextLogprobs};
use super::usage::UsageBody;
use super::{Head, Kind, deltas};
use crate::call::{Event, Finish, TokenId, TokenLogprob, Usage};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Gathers the events of one answer.
pub struct Whole {
    kind: Kind,
    token_ids: bool,
    choices: Vec<Gathered>,
}

#[derive(Default)]
struct Gathered {
    text: String,
    ids: Vec<TokenId>,
    logprobs: Vec<TokenLogprob>,
    /// What isn't text, by its name.
    other: Map<String, Value>,
    finish: Option<Finish>,
}

#[derive(Serialize)]
struct Body<'a, C> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<C>,
    usage: UsageBody,
}

#[derive(Serialize)]
struct ChatChoice<'a> {
    index: usize,
    message: Message<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    /// `None` where there is only something else.
    content: Option<&'a str>,
    refusal: Option<&'a Value>,
    #[serde(flatten)]
    other: BTreeMap<&'a str, &'a Value>,
}

#[derive(Serialize)]
struct TextChoice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<TextLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
}

// === impl Whole ===

impl Whole {
    /// An answer of `choices` choices, with the ids of their tokens where wanted.
    pub fn new(kind: Kind, choices: usize, token_ids: bool) -> Self {
        Self { kind, token_ids, choices: (0..choices).map(|_| Gathered::default()).collect() }
    }

    /// Adds an event. One of a choice that wasn't asked for is dropped.
    pub fn push(&mut self, event: Event) {
        match event {
            Event::Text { choice, text, ids, logprobs } => self.content(choice, &text, &ids, logprobs),
            Event::Echo { choice, text, ids, logprobs } => self.content(choice, &text, &ids, logprobs),
            Event::Finish { choice, reason } => {
                if let Some(gathered) = self.choices.get_mut(choice as usize) {
                    gathered.finish = Some(reason);
                }
            }
            Event::Other { choice, fields } => {
                if let Some(gathered) = self.choices.get_mut(choice as usize) {
                    deltas::join(&mut gathered.other, fields);
                }
            }
            Event::Usage(_) => {}
        }
    }

    fn content(&mut self, choice: u32, text: &str, ids: &[TokenId], mut logprobs: Vec<TokenLogprob>) {
        let Some(gathered) = self.choices.get_mut(choice as usize) else { return };
        gathered.text.push_str(text);
        gathered.logprobs.append(&mut logprobs);
        if self.token_ids {
            gathered.ids.extend_from_slice(ids);
        }
    }

    /// Whether every choice has ended.
    pub fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish.is_some())
    }

    /// The answer's body.
    pub fn json(&mut self, head: &Head, usage: &Usage) -> Vec<u8> {
        self.choices.iter_mut().for_each(|choice| deltas::finish(&mut choice.other));
        let choices = self.choices.iter().enumerate();
        let usage = UsageBody::new(usage, head.prices.as_ref());
        let body = match self.kind {
            Kind::Chat => {
                serde_json::to_vec(&Body { head, choices: choices.map(|(index, choice)| self.chat(index, choice)).collect(), usage })
            }
            Kind::Completion => {
                serde_json::to_vec(&Body { head, choices: choices.map(|(index, choice)| self.text(index, choice)).collect(), usage })
            }
        };
        body.expect("invariant: plain strings and numbers are JSON")
    }

    fn chat<'a>(&self, index: usize, choice: &'a Gathered) -> ChatChoice<'a> {
        ChatChoice {
            index,
            message: choice.message(),
            logprobs: ChatLogprobs::of(&choice.logprobs),
            finish_reason: choice.finish.map(Finish::as_str),
            token_ids: self.token_ids.then_some(&choice.ids),
        }
    }

    fn text<'a>(&self, index: usize, choice: &'a Gathered) -> TextChoice<'a> {
        TextChoice {
            index,
            text: &choice.text,
            logprobs: TextLogprobs::of(&choice.logprobs, &mut 0),
            finish_reason: choice.finish.map(Finish::as_str),
            token_ids: self.token_ids.then_some(&choice.ids),
        }
    }
}

// === impl Gathered ===

impl Gathered {
    fn message(&self) -> Message<'_> {
        let content = (!self.text.is_empty() || self.other.is_empty()).then_some(self.text.as_str());
        let other = self.other.iter().map(|(name, value)| (name.as_str(), value));
        let mut other: BTreeMap<_, _> = other.collect();
        Message { role: "assistant", content, refusal: other.remove("refusal"), other }
    }
}
