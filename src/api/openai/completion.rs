//! `POST /v1/completions`: what is asked.

use super::Generation;
use super::fields::{Fields, integer, invalid, wrong_type};
use super::generation::MOST_LOGPROBS;
use crate::call::{Error, Extra, TokenId};
use crate::config::UnknownParameters;
use serde_json::Value;

/// A completion request whose every field was checked, but for token ids against the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// As the client named it.
    pub model: String,
    /// What is to be continued.
    pub prompts: Prompts,
    /// What both endpoints share.
    pub generation: Generation,
    /// What only some remote servers understand.
    pub extras: Vec<Extra>,
}

/// One or many prompts, none of them empty.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompts {
    /// `"…"`
    Text(String),
    /// `["…", "…"]`
    Texts(Vec<String>),
    /// `[1, 2]`
    Ids(Vec<TokenId>),
    /// `[[1, 2], [3]]`
    IdLists(Vec<Vec<TokenId>>),
}

/// As OpenAI's limit.
const MOST_PROMPTS: usize = 2048;

// === impl CompletionRequest ===

impl CompletionRequest {
    /// Takes a request apart.
    ///
    /// # Errors
    /// `Invalid` and `Unsupported` name the parameter's path.
    pub fn parse(body: Value, unknown: UnknownParameters) -> Result<Self, Error> {
        let mut fields = Fields::of(body, String::new())?;
        let model = fields.need_string("model")?;
        let prompts = Prompts::of(fields.need("prompt")?)?;
        let mut generation = Generation::take(&mut fields, unknown)?;
        generation.echo = fields.boolean("echo")?;
        generation.logprobs = fields.integer("logprobs", 0..=MOST_LOGPROBS)?.map(|top| top as u32);
        generation.check_max_tokens()?;
        fields.remote("best_of", |value| value == 1);
        fields.remote("suffix", |value| value == "");
        Ok(Self { model, prompts, generation, extras: fields.rest() })
    }
}

// === impl Prompts ===

impl Prompts {
    fn of(value: Value) -> Result<Self, Error> {
        let items = match value {
            Value::String(text) => return filled("prompt".to_owned(), text).map(Prompts::Text),
            Value::Array(items) => items,
            other => return Err(wrong_type("prompt".to_owned(), "a string or an array", &other)),
        };
        let Some(first) = items.first() else { return Err(empty("prompt".to_owned())) };
        if first.is_number() {
            return ids("prompt", &items).map(Prompts::Ids);
        }
        if items.len() > MOST_PROMPTS {
            let message = format!("'prompt' has {} prompts. Send at most {MOST_PROMPTS}.", items.len());
            return Err(invalid("prompt".to_owned(), message));
        }
        if first.is_array() {
            return items.iter().enumerate().map(listed_ids).collect::<Result<_, _>>().map(Prompts::IdLists);
        }
        items.into_iter().enumerate().map(listed_text).collect::<Result<_, _>>().map(Prompts::Texts)
    }
}

fn listed_text((index, item): (usize, Value)) -> Result<String, Error> {
    let path = format!("prompt[{index}]");
    match item {
        Value::String(text) => filled(path, text),
        other => Err(wrong_type(path, "a string", &other)),
    }
}

fn listed_ids((index, item): (usize, &Value)) -> Result<Vec<TokenId>, Error> {
    let path = format!("prompt[{index}]");
    match item {
        Value::Array(items) => ids(&path, items),
        other => Err(wrong_type(path, "an array of token ids", other)),
    }
}

fn ids(path: &str, items: &[Value]) -> Result<Vec<TokenId>, Error> {
    if items.is_empty() {
        return Err(empty(path.to_owned()));
    }
    let id = |(index, item): (usize, &Value)| match item.as_u64().and_then(|id| TokenId::try_from(id).ok()) {
        Some(id) => Ok(id),
        // The path is only written where it is needed: prompts have many ids.
        None => integer(&format!("{path}[{index}]"), item, 0..=i64::from(TokenId::MAX)).map(|id| id as TokenId),
    };
    items.iter().enumerate().map(id).collect()
}

fn filled(path: String, text: String) -> Result<String, Error> {
    if text.is_empty() { Err(empty(path)) } else { Ok(text) }
}

fn empty(path: String) -> Error {
    let message = format!("'{path}' is empty. Send at least one character or token to continue.");
    invalid(path, message)
}
