//! The shapes of OpenAI's API. Requests are taken apart field by field, so that every error names the parameter it is
//! about; answers are written from the events of a [`Reply`](crate::call::Reply).

mod chat;
mod completion;
mod fields;
mod generation;
mod stream;
mod whole;

use crate::call::{Error, Usage};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

pub use chat::ChatRequest;
pub use completion::{CompletionRequest, Prompts};
pub use generation::Generation;
pub use stream::Chunks;
pub use whole::Whole;

/// Which endpoint's shapes an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// What every part of one answer repeats.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// `chatcmpl-…` or `cmpl-…`
    pub id: String,
    /// `chat.completion`, `chat.completion.chunk`, `text_completion`
    pub object: &'static str,
    /// Seconds since the epoch.
    pub created: u64,
    /// The configured name of the model.
    pub model: String,
    /// Equal for equal weights and configuration: the same seed then gives the same answer.
    pub system_fingerprint: Arc<str>,
}

/// `GET /v1/models`
#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    /// `list`
    pub object: &'static str,
    /// The models the caller may use.
    pub data: Vec<Model<'a>>,
}

/// `GET /v1/models/ID`
#[derive(Debug, Serialize)]
pub struct Model<'a> {
    /// The configured name.
    pub id: &'a str,
    /// `model`
    pub object: &'static str,
    /// Seconds since the epoch.
    pub created: u64,
    /// Who offers it.
    pub owned_by: &'static str,
}

/// The body of every error.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    /// The error itself.
    pub error: ErrorDetail<'a>,
}

/// What went wrong.
#[derive(Debug, Serialize)]
pub struct ErrorDetail<'a> {
    /// What is wrong and what to do.
    pub message: &'a str,
    /// The family, `invalid_request_error`.
    pub r#type: &'static str,
    /// The path of the parameter it is about.
    pub param: Option<&'a str>,
    /// The case, `invalid_value`.
    pub code: &'static str,
}

/// `usage` on the wire.
#[derive(Serialize)]
struct UsageBody {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: u32,
}

/// The body as JSON.
///
/// # Errors
/// `Invalid` with the place where it stops being JSON.
pub fn parse(body: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Invalid {
        param: None,
        message: format!("We could not parse the JSON body of your request: {error}. Send one JSON object."),
    })
}

// === impl UsageBody ===

impl From<&Usage> for UsageBody {
    fn from(usage: &Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
        }
    }
}

#[cfg(test)]
mod tests;
