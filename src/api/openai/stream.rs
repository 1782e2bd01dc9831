//! A streamed answer: one chunk an event.

use super::logprobs::{ChatLogprobs, TextLogprobs};
use super::usage::UsageBody;
use super::{Head, Kind, StreamUsage};
use crate::api::sse;
use crate::call::{Event, Finish, TokenId, TokenLogprob, Usage};
use crate::config::Prices;
use bytes::{BufMut, BytesMut};
use serde::Serialize;
use serde_json::{Map, Value};

/// Writes the chunks of one answer. What all chunks repeat is serialized once.
pub struct Chunks {
    kind: Kind,
    /// `{"id":…,"system_fingerprint":…,"choices":[`
    open: Vec<u8>,
    usage: StreamUsage,
    /// As far as it is known.
    so_far: Usage,
    prices: Option<Prices>,
    token_ids: bool,
    /// Which choices have said their role.
    begun: Vec<bool>,
    /// Characters of each choice's tokens so far.
    offsets: Vec<usize>,
    /// Choices that haven't ended.
    running: usize,
}

#[derive(Serialize)]
struct ChatChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
}

#[derive(Serialize, Default)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

/// More of a choice that isn't text.
#[derive(Serialize)]
struct OtherChoice<'a> {
    index: u32,
    delta: &'a Map<String, Value>,
    logprobs: (),
    finish_reason: (),
}

#[derive(Serialize)]
struct TextChoice<'a> {
    index: u32,
    text: &'a str,
    logprobs: Option<TextLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
}

// === impl Chunks ===

impl Chunks {
    /// A writer for an answer of `choices` choices. `token_ids` adds the ids behind each chunk's text.
    pub fn new(kind: Kind, head: &Head, choices: usize, usage: StreamUsage, token_ids: bool) -> Self {
        let mut open = serde_json::to_vec(head).expect("invariant: plain strings and numbers are JSON");
        open.pop(); // the closing brace: choices follow
        open.extend_from_slice(b",\"choices\":[");
        Self {
            kind,
            open,
            usage,
            so_far: Usage::default(),
            prices: head.prices,
            token_ids,
            begun: vec![false; choices],
            offsets: vec![0; choices],
            running: choices,
        }
    }

    /// Appends what an event says; usage and text that is still held back say nothing, nor do choices that weren't asked
    /// for. True where content was written.
    pub fn write(&mut self, event: &Event, out: &mut BytesMut) -> bool {
        match event {
            Event::Text { choice, .. } | Event::Echo { choice, .. } | Event::Other { choice, .. } | Event::Finish { choice, .. }
                if *choice as usize >= self.begun.len() =>
            {
                false
            }
            Event::Text { choice, text, ids, logprobs } => {
                self.so_far.completion_tokens += ids.len() as u32;
                self.content(*choice, text, ids, logprobs, out)
            }
            Event::Echo { choice, text, ids, logprobs } => self.content(*choice, text, ids, logprobs, out),
            Event::Other { choice, fields } => {
                self.begin(*choice, out);
                self.chunk(&OtherChoice { index: *choice, delta: fields, logprobs: (), finish_reason: () }, out);
                true
            }
            Event::Finish { choice, reason } => {
                self.begin(*choice, out);
                self.choice(*choice, None, Some(*reason), None, &[], out);
                self.running = self.running.saturating_sub(1);
                false
            }
            Event::Usage(usage) => {
                // The first one says nothing of the output yet.
                let completion_tokens = usage.completion_tokens.max(self.so_far.completion_tokens);
                self.so_far = Usage { completion_tokens, ..*usage };
                false
            }
        }
    }

    /// Whether every choice has ended.
    pub fn is_complete(&self) -> bool {
        self.running == 0
    }

    /// Appends what ends a complete answer: its usage, where wanted, and `[DONE]`.
    pub fn end(&self, usage: &Usage, out: &mut BytesMut) {
        if self.usage != StreamUsage::Never {
            sse::event(out, |out| {
                out.extend_from_slice(&self.open);
                out.extend_from_slice(b"],\"usage\":");
                json(&UsageBody::new(usage, self.prices.as_ref()), out);
                out.extend_from_slice(b"}");
            });
        }
        out.extend_from_slice(sse::DONE);
    }

    /// True where there was something to say.
    fn content(&mut self, choice: u32, text: &str, ids: &[TokenId], logprobs: &[TokenLogprob], out: &mut BytesMut) -> bool {
        let ids = self.token_ids.then_some(ids);
        if text.is_empty() && logprobs.is_empty() && ids.is_none_or(<[TokenId]>::is_empty) {
            return false;
        }
        self.begin(choice, out);
        self.choice(choice, Some(text), None, ids, logprobs, out);
        true
    }

    /// A chat choice's first chunk says who speaks.
    fn begin(&mut self, choice: u32, out: &mut BytesMut) {
        let begun = self.begun.get_mut(choice as usize).map(|begun| std::mem::replace(begun, true));
        if self.kind == Kind::Chat && begun == Some(false) {
            let delta = Delta { role: Some("assistant"), content: Some("") };
            self.chunk(&ChatChoice { index: choice, delta, logprobs: None, finish_reason: None, token_ids: None }, out);
        }
    }

    fn choice(
        &mut self,
        index: u32,
        text: Option<&str>,
        finish: Option<Finish>,
        token_ids: Option<&[TokenId]>,
        logprobs: &[TokenLogprob],
        out: &mut BytesMut,
    ) {
        let finish_reason = finish.map(Finish::as_str);
        match self.kind {
            Kind::Chat => {
                let delta = Delta { role: None, content: text };
                self.chunk(&ChatChoice { index, delta, logprobs: ChatLogprobs::of(logprobs), finish_reason, token_ids }, out);
            }
            Kind::Completion => {
                let text = text.unwrap_or_default();
                let logprobs = self.offsets.get_mut(index as usize).and_then(|offset| TextLogprobs::of(logprobs, offset));
                self.chunk(&TextChoice { index, text, logprobs, finish_reason, token_ids }, out);
            }
        }
    }

    fn chunk(&self, choice: &impl Serialize, out: &mut BytesMut) {
        sse::event(out, |out| {
            out.extend_from_slice(&self.open);
            json(choice, out);
            match self.usage {
                StreamUsage::Never => out.extend_from_slice(b"]}"),
                StreamUsage::Last => out.extend_from_slice(b"],\"usage\":null}"),
                StreamUsage::Every => {
                    out.extend_from_slice(b"],\"usage\":");
                    json(&UsageBody::new(&self.so_far, self.prices.as_ref()), out);
                    out.extend_from_slice(b"}");
                }
            }
        });
    }
}

fn json(value: &impl Serialize, out: &mut BytesMut) {
    serde_json::to_writer(out.writer(), value).expect("invariant: plain strings and numbers are JSON, and memory takes them");
}
