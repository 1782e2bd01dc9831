//! Log-probabilities in the shapes of both endpoints.

use crate::call::TokenLogprob;
use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use std::borrow::Cow;

/// `logprobs` of a chat choice.
#[derive(Serialize)]
pub(super) struct ChatLogprobs<'a> {
    content: Vec<ChatToken<'a>>,
    refusal: (),
}

#[derive(Serialize)]
struct ChatToken<'a> {
    token: Cow<'a, str>,
    logprob: f32,
    bytes: &'a [u8],
    top_logprobs: Vec<TopToken<'a>>,
}

#[derive(Serialize)]
struct TopToken<'a> {
    token: Cow<'a, str>,
    logprob: f32,
    bytes: &'a [u8],
}

/// `logprobs` of a completion's choice.
#[derive(Serialize)]
pub(super) struct TextLogprobs<'a> {
    tokens: Tokens<'a>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Top<'a>>>,
    /// In characters, from the start of the choice's text.
    text_offset: Vec<usize>,
}

struct Tokens<'a>(&'a [TokenLogprob]);

/// The likeliest tokens and the token itself, by their texts.
struct Top<'a>(&'a TokenLogprob);

/// What JSON has no number for; OpenAI's stand-in for "very unlikely".
const IMPOSSIBLE: f32 = -9999.0;

// === impl ChatLogprobs ===

impl<'a> ChatLogprobs<'a> {
    /// `None` where there are none.
    pub(super) fn of(tokens: &'a [TokenLogprob]) -> Option<Self> {
        let token = |token: &'a TokenLogprob| ChatToken {
            token: text(&token.bytes),
            logprob: number(token.logprob.unwrap_or_default()),
            bytes: &token.bytes,
            top_logprobs: token
                .top
                .iter()
                .map(|(bytes, logprob)| TopToken { token: text(bytes), logprob: number(*logprob), bytes })
                .collect(),
        };
        (!tokens.is_empty()).then(|| Self { content: tokens.iter().map(token).collect(), refusal: () })
    }
}

// === impl TextLogprobs ===

impl<'a> TextLogprobs<'a> {
    /// `None` where there are none. `offset` is where the first one begins, and becomes where the next one will.
    pub(super) fn of(tokens: &'a [TokenLogprob], offset: &mut usize) -> Option<Self> {
        let begin = |token: &TokenLogprob| {
            // Characters begin with a byte that continues none.
            let characters = token.bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
            std::mem::replace(offset, *offset + characters)
        };
        let text_offset: Vec<_> = tokens.iter().map(begin).collect();
        (!tokens.is_empty()).then(|| Self {
            tokens: Tokens(tokens),
            token_logprobs: tokens.iter().map(|token| token.logprob.map(number)).collect(),
            top_logprobs: tokens.iter().map(|token| token.logprob.map(|_| Top(token))).collect(),
            text_offset,
        })
    }
}

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tokens = serializer.serialize_seq(Some(self.0.len()))?;
        for token in self.0 {
            tokens.serialize_element(&text(&token.bytes))?;
        }
        tokens.end()
    }
}

impl Serialize for Top<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut top = serializer.serialize_map(None)?;
        let token = self.0;
        for (bytes, logprob) in &token.top {
            top.serialize_entry(&text(bytes), &number(*logprob))?;
        }
        if !token.top.iter().any(|(bytes, _)| *bytes == token.bytes) {
            top.serialize_entry(&text(&token.bytes), &number(token.logprob.unwrap_or_default()))?;
        }
        top.end()
    }
}

/// A token's text, or its bytes as OpenAI spells them where they are only a part of a character: `bytes:\xf0\x9f`.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => format!("bytes:{}", bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>()).into(),
    }
}

fn number(logprob: f32) -> f32 {
    logprob.max(IMPOSSIBLE)
}
