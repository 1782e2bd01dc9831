//! Chat templates: Jinja as Hugging Face runs it, by minijinja. They come from model files, so what one may cost is
//! bounded.

use super::TextError;
use crate::clock::Clock;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, State, Value, context};
use serde::Serialize;
use std::borrow::Cow;
use std::io;

/// Instructions of one rendering, and its data in units of 64 bytes: enough for thousands of messages, at most a second.
const FUEL: u64 = 4_000_000;

/// A compiled chat template.
#[derive(Debug)]
pub(super) struct Template {
    environment: Environment<'static>,
    source: String,
    bos: Value,
    eos: Value,
}

/// A message as templates see it.
#[derive(Debug, Serialize)]
pub(super) struct Turn<'m> {
    pub(super) role: Cow<'m, str>,
    pub(super) content: Cow<'m, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<Cow<'m, str>>,
}

/// What a template said when it refused the messages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

const NAME: &str = "chat";

// === impl Template ===

impl Template {
    /// Compiles a template; `bos` and `eos` are the texts of those tokens, `clock` tells `strftime_now` the time.
    pub(super) fn new(source: &str, bos: &str, eos: &str, clock: Clock) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(TextError::Template)?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: &str| strftime(&clock, format));
        environment.add_template_owned(NAME, source.to_owned()).map_err(TextError::Template)?;
        Ok(Self { environment, source: source.to_owned(), bos: bos.into(), eos: eos.into() })
    }

    /// The template's source.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for these messages, up to where the model's answer begins.
    pub(super) fn render(&self, messages: &[Turn<'_>]) -> Result<String, TextError> {
        // As Hugging Face does, tools and documents are there and none.
        let context = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => true,
            bos_token => self.bos.clone(),
            eos_token => self.eos.clone(),
            tools => Value::from(()),
            documents => Value::from(()),
        };
        let rendered = self.environment.get_template(NAME).and_then(|template| template.render(context));
        rendered.map_err(|error| match refusal(&error) {
            Some(message) => TextError::Refused(message),
            None => TextError::Render(error),
        })
    }
}

/// What the template raised, if that is why it failed.
fn refusal(error: &Error) -> Option<String> {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        cause = error.source();
    }
    None
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(Raised(message)))
}

/// The time now (UTC) in C's `strftime` format.
fn strftime(clock: &Clock, format: &str) -> Result<String, Error> {
    let failed = |why: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {why}"));
    let since = jiff::SignedDuration::try_from(clock.unix()).map_err(|error| failed(error.to_string()))?;
    let now = jiff::Timestamp::from_duration(since).map_err(|error| failed(error.to_string()))?;
    jiff::fmt::strtime::format(format, now).map_err(|error| failed(error.to_string()))
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`: a space behind separators, nothing escaped for HTML.
fn to_json(state: &State, value: Value, arguments: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    if arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: only ensure_ascii=false is supported"));
    }
    arguments.assert_all_used()?;
    let indent = indent.map(|width| " ".repeat(width.min(64)));
    let mut json = Vec::new();
    let written = match &indent {
        Some(indent) => {
            let layout = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, layout))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, Spaced)),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, "tojson").with_source(error))?;
    state.consume_fuel(json.len() as u64 / 4)?; // what minijinja charges for its own
    String::from_utf8(json).map_err(|error| Error::new(ErrorKind::BadSerialization, "tojson").with_source(error))
}

/// JSON with a space behind each comma and colon.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests;
