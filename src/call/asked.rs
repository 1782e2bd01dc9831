//! What the client itself said, before a variant fills in the rest.

use super::{Extra, Message, Prompt};
use crate::config::{Endpoint, Name};
use std::sync::Arc;

/// A request as its client sent it: what rules look at, and what each variant makes its own prompt and sampling from.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Where it was sent to.
    pub endpoint: Endpoint,
    /// The conversation; empty for `/v1/completions`.
    pub messages: Arc<[Message]>,
    /// The prompts in tokens of the model's reference tokenizer.
    pub prompts: Arc<[Prompt]>,
    /// What of it only some remote servers understand.
    pub extras: Arc<[Extra]>,
    /// Bytes of its text, which is what tokenizing it takes its time for.
    pub bytes: usize,
    /// Most tokens per choice.
    pub max_tokens: Option<u32>,
    /// As in [`Sampling`](super::Sampling).
    pub temperature: Option<f32>,
    /// Likewise.
    pub top_k: Option<u32>,
    /// Likewise.
    pub top_p: Option<f32>,
    /// Likewise.
    pub min_p: Option<f32>,
    /// Likewise.
    pub repetition_penalty: Option<f32>,
    /// Likewise.
    pub frequency_penalty: Option<f32>,
    /// Likewise.
    pub presence_penalty: Option<f32>,
    /// Whether tokens' log-probabilities are wanted back, and those of how many of the likeliest ones.
    pub logprobs: Option<u32>,
    /// Whether the ids of tokens are wanted back.
    pub token_ids: bool,
    /// Its `prompt_cache_key`: prompts of one key are likely to begin alike.
    pub cache_key: Option<String>,
    /// Its `user`, where a rule of the model looks at it.
    pub user: Option<String>,
    /// Those of its headers that a rule of the model looks at, each value on its own.
    pub headers: Vec<(Name, String)>,
}

// === impl Asked ===

impl Default for Asked {
    /// Nothing: every value is the variant's.
    fn default() -> Self {
        Self {
            endpoint: Endpoint::Chat,
            messages: Arc::default(),
            prompts: Arc::default(),
            extras: Arc::default(),
            bytes: 0,
            max_tokens: None,
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            frequency_penalty: None,
            presence_penalty: None,
            logprobs: None,
            token_ids: false,
            cache_key: None,
            user: None,
            headers: Vec::new(),
        }
    }
}
