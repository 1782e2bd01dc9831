//! What of a request only some remote servers understand.

use super::Error;
use serde_json::Value;

/// A part of a request that engines of this process make nothing of: tools, images, a parameter of one server alone. It goes
/// to a remote as its client wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct Extra {
    /// The parameter, `tools`; a message's path where the message itself holds it.
    pub name: String,
    /// The parameter as it was written; `None` where a [`Message`](super::Message) holds it.
    pub value: Option<Value>,
    /// Whether it is part of the API, so that any remote may know it; else only those that are configured to.
    pub known: bool,
    /// What the client hears where nobody takes it.
    pub refusal: Error,
}

/// Tokens of an image or a sound, at most: how many it has is known where the model is.
const MEDIA_TOKENS: usize = 4096;
/// The kinds of parts of a message that are no text.
const MEDIA: [&str; 6] = ["image_url", "input_image", "video_url", "audio_url", "input_audio", "file"];

// === impl Extra ===

impl Extra {
    /// How many tokens a model may read of it, at most.
    pub fn tokens(&self) -> usize {
        self.value.as_ref().map_or(0, tokens)
    }
}

/// How many tokens a model may read of a value, at most: no text has more of them than bytes.
pub fn tokens(value: &Value) -> usize {
    match value {
        Value::Object(part) if part.get("type").and_then(Value::as_str).is_some_and(|kind| MEDIA.contains(&kind)) => MEDIA_TOKENS,
        // A name has quotes and a colon around it, a value a comma behind it.
        Value::Object(map) => 2 + map.iter().map(|(name, value)| name.len() + 4 + tokens(value)).sum::<usize>(),
        Value::Array(values) => 2 + values.iter().map(|value| 1 + tokens(value)).sum::<usize>(),
        Value::String(text) => 2 + text.len(),
        scalar => scalar.to_string().len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_has_no_more_tokens_than_bytes_whatever_its_images_weigh() {
        let tools = json!([{"type": "function", "function": {"name": "weather", "strict": true, "parameters": {"a": [1, null]}}}]);
        let bytes = tools.to_string().len();
        assert!((bytes..bytes + 40).contains(&tokens(&tools)), "{} of {bytes}", tokens(&tools));
        let image = json!([{"type": "image_url", "image_url": {"url": "x".repeat(1 << 20)}}, {"type": "text", "text": "what is it?"}]);
        assert!((MEDIA_TOKENS..MEDIA_TOKENS + 100).contains(&tokens(&image)));
    }
}
