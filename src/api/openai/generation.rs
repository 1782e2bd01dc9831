//! The parameters both endpoints share.

use super::fields::{Fields, invalid, wrong_type};
use crate::call::Error;
use crate::config::UnknownParameters;
use serde_json::Value;

/// How much text of which kind is wanted, and how it is to be sent; what the client left out is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Most tokens per choice, at least 1.
    pub max_tokens: Option<u32>,
    /// 0 to 2.
    pub temperature: Option<f32>,
    /// 0 to 1.
    pub top_p: Option<f32>,
    /// Any 64 bits.
    pub seed: Option<u64>,
    /// Up to 16 texts, none empty.
    pub stop: Vec<String>,
    /// Choices per prompt, 1 to 128.
    pub n: u32,
    /// Whether events are sent as they come.
    pub stream: bool,
    /// Whether a stream ends with its usage.
    pub include_usage: bool,
    /// Whether choices and chunks carry the ids of their tokens.
    pub return_token_ids: bool,
}

const MOST_CHOICES: i64 = 128;
const MOST_STOPS: usize = 16;

// === impl Generation ===

impl Generation {
    pub(super) fn take(fields: &mut Fields, unknown: UnknownParameters) -> Result<Self, Error> {
        let generation = Self {
            max_tokens: max_tokens(fields)?,
            temperature: fields.number("temperature", 0.0..=2.0)?.map(|value| value as f32),
            top_p: fields.number("top_p", 0.0..=1.0)?.map(|value| value as f32),
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
            stop: stop(fields)?,
            n: fields.integer("n", 1..=MOST_CHOICES)?.map_or(1, |n| n as u32),
            stream: fields.boolean("stream")?,
            include_usage: false,
            return_token_ids: fields.boolean("return_token_ids")?,
        };
        let include_usage = include_usage(fields, generation.stream, unknown)?;
        take_harmless(fields)?;
        take_not_built(fields)?;
        Ok(Self { include_usage, ..generation })
    }
}

/// `max_completion_tokens` is the newer name of `max_tokens`; two different values would leave one of them broken.
fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, Error> {
    let range = 1..=i64::from(u32::MAX);
    let (old, new) = (fields.integer("max_tokens", range.clone())?, fields.integer("max_completion_tokens", range)?);
    match (old, new) {
        (Some(old), Some(new)) if old != new => Err(invalid(
            "max_tokens".to_owned(),
            format!("'max_tokens' is {old} and 'max_completion_tokens' is {new}. Send only 'max_completion_tokens'."),
        )),
        (old, new) => Ok(new.or(old).map(|tokens| tokens as u32)),
    }
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Error> {
    let stops = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![("stop".to_owned(), text)],
        Some(Value::Array(texts)) => texts.into_iter().enumerate().map(listed_stop).collect::<Result<_, _>>()?,
        Some(other) => return Err(wrong_type("stop".to_owned(), "a string or an array of strings", &other)),
    };
    if stops.len() > MOST_STOPS {
        return Err(invalid("stop".to_owned(), format!("'stop' has {} texts. Send at most {MOST_STOPS}.", stops.len())));
    }
    match stops.iter().find(|(_, text)| text.is_empty()) {
        Some((path, _)) => Err(invalid(path.clone(), format!("'{path}' is empty, which would stop every answer at once. Leave it out."))),
        None => Ok(stops.into_iter().map(|(_, text)| text).collect()),
    }
}

fn listed_stop((index, text): (usize, Value)) -> Result<(String, String), Error> {
    let path = format!("stop[{index}]");
    match text {
        Value::String(text) => Ok((path, text)),
        other => Err(wrong_type(path, "a string", &other)),
    }
}

fn include_usage(fields: &mut Fields, stream: bool, unknown: UnknownParameters) -> Result<bool, Error> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        let message = "'stream_options' is only allowed when 'stream' is true. Leave it out: usage is part of every other answer.";
        return Err(invalid("stream_options".to_owned(), message.to_owned()));
    }
    let include = options.boolean("include_usage")?;
    options.not_built("include_obfuscation", |value| value == false)?;
    options.finish(unknown)?;
    Ok(include)
}

/// Parameters that are taken and change nothing: they label the request at OpenAI's.
fn take_harmless(fields: &mut Fields) -> Result<(), Error> {
    for label in ["user", "safety_identifier", "prompt_cache_key"] {
        fields.string(label)?;
    }
    fields.object("metadata")?;
    fields.boolean("parallel_tool_calls")?; // says something about tools, of which there are none
    fields.not_built("store", |value| value == false)?;
    fields.not_built("service_tier", |value| value == "auto" || value == "default")
}

/// Parameters of the field that are known here and not built.
fn take_not_built(fields: &mut Fields) -> Result<(), Error> {
    let zero: fn(&Value) -> bool = |value| value.as_f64() == Some(0.0);
    let one: fn(&Value) -> bool = |value| value.as_f64() == Some(1.0);
    fields.not_built("frequency_penalty", zero)?;
    fields.not_built("presence_penalty", zero)?;
    fields.not_built("repetition_penalty", one)?;
    fields.not_built("min_p", zero)?;
    fields.not_built("top_k", |value| matches!(value.as_i64(), Some(-1 | 0)))?;
    fields.not_built("logit_bias", |value| value.as_object().is_some_and(serde_json::Map::is_empty))
}
