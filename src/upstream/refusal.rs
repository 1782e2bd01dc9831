//! The heads of answers that aren't event streams: who is to blame, and what the client hears.

use super::failure::{Ended, Failure};
use crate::api::openai::Remark;
use crate::call::{Call, Error};
use http::{HeaderMap, StatusCode, header};
use std::time::Duration;

/// When it is worth another try where the remote says nothing of it.
const LATER: Duration = Duration::from_secs(1);
/// Nobody waits longer, whatever a remote says.
const MUCH_LATER: Duration = Duration::from_secs(3600);
/// Characters of a remote's words that the client hears.
const WORDS: usize = 1000;

/// Whether an answer with this head is a stream of events.
pub(super) fn check_stream(headers: &HeaderMap) -> Result<(), Failure> {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase()).unwrap_or_default();
    let plain = headers.get(header::CONTENT_ENCODING).is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if plain && kind.starts_with(b"text/event-stream") { Ok(()) } else { Err(Failure::NotAStream) }
}

/// What a status other than 200 means for the call.
pub(super) fn refusal(status: StatusCode, headers: &HeaderMap, remark: Remark, call: &Call) -> Ended {
    match status {
        StatusCode::TOO_MANY_REQUESTS => {
            Ended::Refused(Error::Overloaded { model: call.model.name.to_string(), retry_after: retry_after(headers) })
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ended::Failed(Failure::Credentials(status.as_u16())),
        // A model or a path that isn't there, and methods, are a matter of our configuration, not of the request.
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => Ended::Refused(invalid(remark)),
        _ => Ended::Failed(Failure::Status(status.as_u16())),
    }
}

/// What an error means that came in the place of an answer's content.
pub(super) fn reported(remark: Remark, call: &Call) -> Ended {
    match remark.status.and_then(|status| StatusCode::from_u16(status).ok()) {
        Some(status) if !status.is_success() => refusal(status, &HeaderMap::new(), remark, call),
        _ if remark.code.as_deref() == Some("invalid_request_error") => Ended::Refused(invalid(remark)),
        _ => Ended::Failed(Failure::Reported),
    }
}

fn invalid(remark: Remark) -> Error {
    let message = match remark.message.is_empty() {
        true => "The backend refused this request and didn't say why. Check its parameters.".to_owned(),
        false => remark.message.chars().take(WORDS).collect(),
    };
    context_length(&message).unwrap_or(Error::Invalid { param: remark.param, message })
}

/// The refusal of a prompt that is too long, which clients know how to handle. Its message is the same everywhere: "This
/// model's maximum context length is N tokens. However, you requested M tokens (P in the messages, C in the completion)."
fn context_length(message: &str) -> Option<Error> {
    let (_, rest) = message.split_once("maximum context length is ")?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty()).map(str::parse::<u64>);
    let (limit, asked) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let (prompt_tokens, max_tokens) = match (numbers.next(), numbers.next()) {
        (Some(Ok(prompt)), Some(Ok(max))) if prompt + max == asked => (prompt, Some(max)),
        _ => (asked, None),
    };
    let param = if rest.contains("messages") { "messages" } else { "prompt" };
    Some(Error::ContextLength { param, limit, prompt_tokens, max_tokens })
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    let given = number("retry-after-ms").map(Duration::from_millis).or_else(|| number("retry-after").map(Duration::from_secs));
    given.unwrap_or(LATER).min(MUCH_LATER)
}
