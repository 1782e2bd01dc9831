//! The parameters both endpoints share.

use super::fields::{Fields, invalid, wrong_type};
use crate::call::{Error, TokenId};
use crate::config::UnknownParameters;
use serde_json::Value;

/// How much text of which kind is wanted, and how it is to be sent; what the client left out is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Most tokens per choice; 0 only where the prompt is wanted back.
    pub max_tokens: Option<u32>,
    /// So many tokens come before anything ends a choice.
    pub min_tokens: u32,
    /// 0 to 2.
    pub temperature: Option<f32>,
    /// At least 1; 0 keeps all.
    pub top_k: Option<u32>,
    /// 0 to 1.
    pub top_p: Option<f32>,
    /// 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0, at most 10.
    pub repetition_penalty: Option<f32>,
    /// −2 to 2.
    pub frequency_penalty: Option<f32>,
    /// −2 to 2.
    pub presence_penalty: Option<f32>,
    /// −100 to 100 by token id; the ids haven't been checked against a vocabulary.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Any 64 bits.
    pub seed: Option<u64>,
    /// Up to 16 texts, none empty.
    pub stop: Vec<String>,
    /// Whether the model's own end of a text ends nothing.
    pub ignore_eos: bool,
    /// Choices per prompt, 1 to 128.
    pub n: u32,
    /// Log-probabilities, with those of up to 20 of the likeliest tokens.
    pub logprobs: Option<u32>,
    /// Whether choices begin with their prompt.
    pub echo: bool,
    /// Whom the client says it asks for.
    pub user: Option<String>,
    /// What prompts that are likely to begin alike have in common.
    pub cache_key: Option<String>,
    /// Whether the answer may wait until nobody else does.
    pub flex: bool,
    /// Whether events are sent as they come.
    pub stream: bool,
    /// Which chunks of a stream carry usage.
    pub usage: StreamUsage,
    /// Whether choices and chunks carry the ids of their tokens.
    pub return_token_ids: bool,
}

/// Which chunks of a stream carry usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamUsage {
    /// None.
    #[default]
    Never,
    /// One of its own, the last.
    Last,
    /// All, each with what was used so far: load tools ask for that.
    Every,
}

const MOST_CHOICES: i64 = 128;
const MOST_STOPS: usize = 16;
/// A request with more would take longer to shape than to compute.
const MOST_BIASES: usize = 1024;
/// As OpenAI's limit for chat.
pub(super) const MOST_LOGPROBS: i64 = 20;

// === impl Generation ===

impl Generation {
    pub(super) fn take(fields: &mut Fields, unknown: UnknownParameters) -> Result<Self, Error> {
        let mut number = |name, range| fields.number(name, range).map(|value| value.map(|value| value as f32));
        let (temperature, top_p, min_p) = (number("temperature", 0.0..=2.0)?, number("top_p", 0.0..=1.0)?, number("min_p", 0.0..=1.0)?);
        let frequency_penalty = number("frequency_penalty", -2.0..=2.0)?;
        let presence_penalty = number("presence_penalty", -2.0..=2.0)?;
        let repetition_penalty = number("repetition_penalty", 0.0..=10.0)?;
        if repetition_penalty == Some(0.0) {
            let message = "Invalid value for 'repetition_penalty': it has to be above 0; 1 changes nothing.";
            return Err(invalid("repetition_penalty".to_owned(), message.to_owned()));
        }
        let max_tokens = max_tokens(fields)?;
        let generation = Self {
            max_tokens,
            min_tokens: min_tokens(fields, max_tokens)?,
            temperature,
            top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| k.max(0) as u32),
            top_p,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logit_bias: logit_bias(fields)?,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
            stop: stop(fields)?,
            ignore_eos: fields.boolean("ignore_eos")?,
            n: fields.integer("n", 1..=MOST_CHOICES)?.map_or(1, |n| n as u32),
            logprobs: None,
            echo: false,
            user: fields.string("user")?,
            cache_key: fields.string("prompt_cache_key")?,
            flex: flex(fields)?,
            stream: fields.boolean("stream")?,
            usage: StreamUsage::Never,
            return_token_ids: fields.boolean("return_token_ids")?,
        };
        let usage = stream_usage(fields, generation.stream, unknown)?;
        take_harmless(fields)?;
        take_remote(fields);
        Ok(Self { usage, ..generation })
    }

    /// Refuses to generate nothing, where nothing else is asked for.
    pub(super) fn check_max_tokens(&self) -> Result<(), Error> {
        if self.max_tokens == Some(0) && !self.echo {
            let message = "Invalid value for 'max_tokens': 0 tokens are no answer. Ask for at least 1.";
            return Err(invalid("max_tokens".to_owned(), message.to_owned()));
        }
        Ok(())
    }
}

fn min_tokens(fields: &mut Fields, max_tokens: Option<u32>) -> Result<u32, Error> {
    let min = fields.integer("min_tokens", 0..=i64::from(u32::MAX))?.unwrap_or_default() as u32;
    match max_tokens.filter(|max| *max < min) {
        Some(max) => {
            Err(invalid("min_tokens".to_owned(), format!("'min_tokens' is {min}, which is more than 'max_tokens', which is {max}.")))
        }
        None => Ok(min),
    }
}

/// `{"TOKEN ID": bias}`
fn logit_bias(fields: &mut Fields) -> Result<Vec<(TokenId, f32)>, Error> {
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(wrong_type("logit_bias".to_owned(), "an object", &other)),
    };
    if map.len() > MOST_BIASES {
        return Err(invalid("logit_bias".to_owned(), format!("'logit_bias' has {} tokens. Send at most {MOST_BIASES}.", map.len())));
    }
    let one = |(id, bias): (String, Value)| {
        let path = format!("logit_bias.{id}");
        let Ok(id) = id.parse::<TokenId>() else {
            return Err(invalid("logit_bias".to_owned(), "Invalid value for 'logit_bias': its keys have to be token ids.".to_owned()));
        };
        let Some(number) = bias.as_f64() else { return Err(wrong_type(path, "a number", &bias)) };
        if !(-100.0..=100.0).contains(&number) {
            return Err(invalid(path.clone(), format!("Invalid value for '{path}': {number} isn't between -100 and 100.")));
        }
        Ok((id, number as f32))
    };
    map.into_iter().map(one).collect()
}

/// `flex` is OpenAI's word for what may wait.
fn flex(fields: &mut Fields) -> Result<bool, Error> {
    match fields.string("service_tier")?.as_deref() {
        None | Some("auto" | "default") => Ok(false),
        Some("flex") => Ok(true),
        Some(_) => {
            let message = "'service_tier' isn't supported here with this value. Send 'auto', 'default' or 'flex', or leave it out.";
            Err(Error::Unsupported { param: "service_tier".to_owned(), message: message.to_owned() })
        }
    }
}

/// `max_completion_tokens` is the newer name of `max_tokens`; two different values would leave one of them broken.
fn max_tokens(fields: &mut Fields) -> Result<Option<u32>, Error> {
    let range = 0..=i64::from(u32::MAX);
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

fn stream_usage(fields: &mut Fields, stream: bool, unknown: UnknownParameters) -> Result<StreamUsage, Error> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(StreamUsage::Never) };
    if !stream {
        let message = "'stream_options' is only allowed when 'stream' is true. Leave it out: usage is part of every other answer.";
        return Err(invalid("stream_options".to_owned(), message.to_owned()));
    }
    let (include, every) = (options.boolean("include_usage")?, options.boolean("continuous_usage_stats")?);
    options.not_built("include_obfuscation", |value| value == false)?;
    options.finish(unknown)?;
    Ok(match (include, every) {
        (false, _) => StreamUsage::Never, // as vLLM reads it: the one refines the other
        (true, false) => StreamUsage::Last,
        (true, true) => StreamUsage::Every,
    })
}

/// Parameters that are taken and change nothing: they label the request at OpenAI's.
fn take_harmless(fields: &mut Fields) -> Result<(), Error> {
    fields.string("safety_identifier")?;
    fields.object("metadata")?;
    fields.boolean("parallel_tool_calls")?; // where there are no tools it says nothing
    fields.not_built("store", |value| value == false)
}

/// Parameters of the field that are known and not built here.
fn take_remote(fields: &mut Fields) {
    fields.remote("stop_token_ids", is_empty);
    fields.remote("bad_words", is_empty);
    fields.remote("include_stop_str_in_output", |value| value == false);
    fields.remote("skip_special_tokens", |value| value == true);
    fields.remote("spaces_between_special_tokens", |value| value == true);
    fields.remote("use_beam_search", |value| value == false);
    fields.remote("length_penalty", |value| value.as_f64() == Some(1.0));
}

pub(super) fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}
