//! The shapes of OpenAI's API. Requests are taken apart field by field, so that every error names the parameter it is
//! about; answers are written from the events of a [`Reply`](crate::call::Reply).

mod chat;
mod chunk;
mod completion;
mod deltas;
mod fields;
mod generation;
mod logprobs;
mod models;
mod stream;
mod usage;
mod whole;

use crate::call::Error;
use crate::config::Prices;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

pub use chat::ChatRequest;
pub use chunk::{Chunk, Counts, Piece, Remark};
pub use completion::{CompletionRequest, Prompts};
pub use generation::{Generation, StreamUsage};
pub use models::{Model, ModelList};
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
    /// What the model's tokens cost; where it is known, usage says what the answer cost and how long it kept its device busy.
    #[serde(skip)]
    pub prices: Option<Prices>,
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

#[cfg(test)]
mod tests;
