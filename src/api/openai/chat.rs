//! `POST /v1/chat/completions`: what is asked.

use super::Generation;
use super::fields::{Fields, invalid, wrong_type};
use super::generation::{MOST_LOGPROBS, is_empty};
use crate::call::{Error, Extra, Message};
use crate::config::UnknownParameters;
use serde_json::Value;
use std::sync::Arc;

/// A chat request whose every field was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// As the client named it.
    pub model: String,
    /// At least one.
    pub messages: Vec<Message>,
    /// What both endpoints share.
    pub generation: Generation,
    /// What only some remote servers understand.
    pub extras: Vec<Extra>,
}

/// Roles of messages. `developer` is what newer clients call `system`; templates know only the latter.
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

// === impl ChatRequest ===

impl ChatRequest {
    /// Takes a request apart.
    ///
    /// # Errors
    /// `Invalid` and `Unsupported` name the parameter's path.
    pub fn parse(body: Value, unknown: UnknownParameters) -> Result<Self, Error> {
        let mut fields = Fields::of(body, String::new())?;
        let model = fields.need_string("model")?;
        let messages = match fields.need("messages")? {
            Value::Array(messages) => messages,
            other => return Err(wrong_type("messages".to_owned(), "an array", &other)),
        };
        if messages.is_empty() {
            return Err(invalid("messages".to_owned(), "'messages' is empty. Send at least one message.".to_owned()));
        }
        let mut extras = Vec::new();
        let each = messages.into_iter().enumerate().map(|(index, value)| any_message(index, value, unknown, &mut extras));
        let messages = each.collect::<Result<_, _>>()?;
        take_tools(&mut fields);
        let mut generation = Generation::take(&mut fields, unknown)?;
        generation.check_max_tokens()?;
        generation.logprobs = logprobs(&mut fields)?;
        take_remote(&mut fields);
        extras.append(&mut fields.rest());
        Ok(Self { model, messages, generation, extras })
    }
}

/// A message of text; or one that has more, which is an extra of the request.
fn any_message(index: usize, value: Value, unknown: UnknownParameters, extras: &mut Vec<Extra>) -> Result<Message, Error> {
    if is_text(&value) {
        return message(index, value, unknown);
    }
    match message(index, value.clone(), unknown) {
        Err(refusal @ Error::Unsupported { .. }) => {
            let role = value["role"].as_str().unwrap_or_default().to_owned();
            let texts = match &value["content"] {
                Value::String(text) => text.clone(),
                Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
                _ => String::new(),
            };
            extras.push(Extra { name: format!("messages[{index}]"), value: None, known: true, refusal });
            Ok(Message { whole: Some(Arc::new(value)), ..Message::new(role, texts) })
        }
        read => read,
    }
}

/// Whether a message has nothing that would make it an extra, seen at a glance.
fn is_text(value: &Value) -> bool {
    let Value::Object(message) = value else { return true };
    message.keys().all(|key| matches!(key.as_str(), "role" | "content" | "name"))
        && message.get("content").is_some_and(Value::is_string)
        && message.get("role").and_then(Value::as_str).is_some_and(|role| ROLES.contains(&role))
}

fn message(index: usize, value: Value, unknown: UnknownParameters) -> Result<Message, Error> {
    let mut fields = Fields::of(value, format!("messages[{index}]"))?;
    let role = fields.need_string("role")?;
    if matches!(role.as_str(), "tool" | "function") {
        let param = fields.path("role");
        return Err(Error::Unsupported { message: format!("'{param}' is '{role}', and tools aren't supported here."), param });
    }
    if !ROLES.contains(&role.as_str()) {
        let path = fields.path("role");
        let message = format!("Invalid value for '{path}'. Supported values are: {}.", ROLES.map(|role| format!("'{role}'")).join(", "));
        return Err(invalid(path, message));
    }
    let role = if role == "developer" { "system".to_owned() } else { role };
    // What assistants' messages carry when a client sends an earlier answer back.
    for empty in ["tool_calls", "annotations"] {
        fields.not_built(empty, is_empty)?;
    }
    for absent in ["function_call", "audio", "refusal"] {
        fields.not_built(absent, |_| false)?;
    }
    let content = match fields.need("content")? {
        Value::String(text) => text,
        Value::Array(parts) => text_parts(&fields.path("content"), parts, unknown)?,
        other => return Err(wrong_type(fields.path("content"), "a string or an array of text parts", &other)),
    };
    let name = fields.string("name")?;
    fields.finish(unknown)?;
    Ok(Message { name, ..Message::new(role, content) })
}

/// Several parts read as paragraphs of one text.
fn text_parts(path: &str, parts: Vec<Value>, unknown: UnknownParameters) -> Result<String, Error> {
    if parts.is_empty() {
        return Err(invalid(path.to_owned(), format!("'{path}' is empty. Send a string or at least one text part.")));
    }
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::of(part, format!("{path}[{index}]"))?;
        let kind = fields.need_string("type")?;
        if kind != "text" {
            let param = fields.path("type");
            return Err(Error::Unsupported { message: format!("'{param}' must be 'text': other content isn't supported here."), param });
        }
        texts.push(fields.need_string("text")?);
        fields.finish(unknown)?;
    }
    Ok(texts.join("\n"))
}

/// `logprobs` says whether, `top_logprobs` how many more.
fn logprobs(fields: &mut Fields) -> Result<Option<u32>, Error> {
    let (wanted, top) = (fields.boolean("logprobs")?, fields.integer("top_logprobs", 0..=MOST_LOGPROBS)?);
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or_default() as u32)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            let message = "'top_logprobs' needs 'logprobs' to be true.";
            Err(invalid("top_logprobs".to_owned(), message.to_owned()))
        }
    }
}

/// Tools, and what is said of how to call them: without any that says nothing.
fn take_tools(fields: &mut Fields) {
    let says_nothing: fn(&Value) -> bool = |value| value == "none" || value == "auto";
    let neutral = |tools: bool| -> fn(&Value) -> bool { if tools { |_| false } else { says_nothing } };
    let tools = fields.remote("tools", is_empty);
    fields.remote("tool_choice", neutral(tools));
    if tools {
        fields.remote("parallel_tool_calls", |_| false);
    }
    let functions = fields.remote("functions", is_empty);
    fields.remote("function_call", neutral(functions));
}

/// What chat alone has that is known and not built here.
fn take_remote(fields: &mut Fields) {
    fields.remote("response_format", |value| value["type"] == "text");
    fields.remote("modalities", |value| value.as_array().is_some_and(|all| all.iter().all(|one| one == "text")));
    for unavailable in ["audio", "prediction", "reasoning_effort", "verbosity", "web_search_options"] {
        fields.remote(unavailable, |_| false);
    }
}
