//! A chunk of a stream that another server sends, read leniently: what it says more than is asked for is skipped, and
//! what it leaves out or says as `null` is the same.

use super::Kind;
use crate::call::Usage;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// What one event of a stream says.
#[derive(Debug, Default, PartialEq)]
pub struct Chunk {
    /// More of some choices.
    pub pieces: Vec<Piece>,
    /// What was used so far.
    pub counts: Option<Counts>,
    /// What went wrong, in the place of a chunk.
    pub remark: Option<Remark>,
}

/// More of one choice.
#[derive(Debug, Default, PartialEq)]
pub struct Piece {
    /// Which choice.
    pub index: u32,
    /// Its text, maybe none.
    pub text: String,
    /// What it has that isn't text, as it was said: reasoning, calls of tools.
    pub other: Map<String, Value>,
    /// Why the choice ends with it, as the server says.
    pub finish: Option<String>,
}

/// Figures of a `usage`, each where it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of all prompts.
    pub prompt_tokens: Option<u32>,
    /// Those of them that came from a cache.
    pub cached_tokens: Option<u32>,
    /// Generated tokens.
    pub completion_tokens: Option<u32>,
}

/// What another server says went wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remark {
    /// In words; empty where there are none.
    pub message: String,
    /// The parameter it is about.
    pub param: Option<String>,
    /// The case, `context_length_exceeded`.
    pub code: Option<String>,
    /// The HTTP status in the error itself, where it has one.
    pub status: Option<u16>,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default, deserialize_with = "or_default")]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<WireCounts>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<Value>,
    #[serde(default)]
    reasoning: Option<Value>,
    #[serde(default)]
    tool_calls: Option<Value>,
    #[serde(default)]
    function_call: Option<Value>,
    #[serde(default)]
    refusal: Option<Value>,
    #[serde(default)]
    audio: Option<Value>,
    #[serde(default)]
    annotations: Option<Value>,
}

#[derive(Deserialize)]
struct WireCounts {
    #[serde(default)]
    prompt_tokens: Option<u32>,
    #[serde(default)]
    completion_tokens: Option<u32>,
    #[serde(default)]
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

// === impl Chunk ===

impl Chunk {
    /// Reads the data of one event.
    ///
    /// # Errors
    /// It isn't JSON, or has the wrong types.
    pub fn parse(kind: Kind, data: &[u8]) -> Result<Self, serde_json::Error> {
        // llama.cpp begins the answer to several prompts with `null`.
        let Some(wire) = serde_json::from_slice::<Option<Wire>>(data)? else { return Ok(Self::default()) };
        Ok(Self {
            pieces: wire.choices.into_iter().map(|choice| choice.piece(kind)).collect(),
            counts: wire.usage.map(WireCounts::counts),
            remark: wire.error.map(Remark::of),
        })
    }
}

impl Choice {
    fn piece(self, kind: Kind) -> Piece {
        let Self { index, delta, text, finish_reason: finish } = self;
        if kind == Kind::Completion {
            return Piece { index, text: text.unwrap_or_default(), other: Map::new(), finish };
        }
        let Delta { content, reasoning_content, reasoning, tool_calls, function_call, refusal, audio, annotations } =
            delta.unwrap_or_default();
        let named = [
            ("reasoning_content", reasoning_content),
            ("reasoning", reasoning),
            ("tool_calls", tool_calls),
            ("function_call", function_call),
            ("refusal", refusal),
            ("audio", audio),
            ("annotations", annotations),
        ];
        let said = named.into_iter().filter_map(|(name, value)| Some((name, value.filter(says_something)?)));
        let other = said.map(|(name, value)| (name.to_owned(), value)).collect();
        Piece { index, text: content.unwrap_or_default(), other, finish }
    }
}

/// Some servers write every field into every chunk.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

// === impl Counts ===

impl Counts {
    /// Takes what is more: servers that split their usage over several events say 0 for what they said before, and those
    /// that repeat it count up.
    pub fn merge(&mut self, other: Counts) {
        self.prompt_tokens = self.prompt_tokens.max(other.prompt_tokens);
        self.cached_tokens = self.cached_tokens.max(other.cached_tokens);
        self.completion_tokens = self.completion_tokens.max(other.completion_tokens);
    }

    /// Both together.
    pub fn plus(self, other: Counts) -> Counts {
        let sum = |one: Option<u32>, two: Option<u32>| match (one, two) {
            (Some(one), Some(two)) => Some(one.saturating_add(two)),
            (one, two) => one.or(two),
        };
        Counts {
            prompt_tokens: sum(self.prompt_tokens, other.prompt_tokens),
            cached_tokens: sum(self.cached_tokens, other.cached_tokens),
            completion_tokens: sum(self.completion_tokens, other.completion_tokens),
        }
    }

    /// These, and those of `other` for figures that aren't there.
    pub fn or(self, other: Counts) -> Counts {
        Counts {
            prompt_tokens: self.prompt_tokens.or(other.prompt_tokens),
            cached_tokens: self.cached_tokens.or(other.cached_tokens),
            completion_tokens: self.completion_tokens.or(other.completion_tokens),
        }
    }

    /// The usage they report, with those of `estimate` for figures that aren't there.
    pub fn usage(&self, estimate: Usage) -> Usage {
        let prompt_tokens = self.prompt_tokens.filter(|tokens| *tokens > 0).unwrap_or(estimate.prompt_tokens);
        Usage {
            prompt_tokens,
            cached_tokens: self.cached_tokens.unwrap_or(estimate.cached_tokens).min(prompt_tokens),
            completion_tokens: self.completion_tokens.unwrap_or(estimate.completion_tokens),
            ..estimate
        }
    }
}

impl WireCounts {
    fn counts(self) -> Counts {
        let cached_tokens = self.prompt_tokens_details.and_then(|details| details.cached_tokens);
        Counts { prompt_tokens: self.prompt_tokens, cached_tokens, completion_tokens: self.completion_tokens }
    }
}

// === impl Remark ===

impl Remark {
    /// What an answer's body says went wrong; nothing where it says that in another form.
    pub fn parse(body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            // Some servers leave out the envelope.
            Ok(mut body) => Self::of(if body["error"].is_null() { body } else { body["error"].take() }),
            Err(_) => Self::default(),
        }
    }

    fn of(error: Value) -> Self {
        if let Value::String(message) = error {
            return Self { message, ..Self::default() };
        }
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        let message = text("message").or_else(|| text("detail")).unwrap_or_default();
        let status = error["code"].as_u64().or(error["status"].as_u64()).and_then(|status| u16::try_from(status).ok());
        Self { message, param: text("param"), code: text("code").or_else(|| text("type")), status }
    }
}

// === impl Deserialize ===

fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

    use super::*;
    use serde_json::json;

    fn chat(data: &str) -> Chunk {
        Chunk::parse(Kind::Chat, data.as_bytes()).unwrap()
    }

    #[test]
    fn a_chat_chunk_has_text_an_end_or_neither() {
        let chunk = chat(
            r#"{"id":"x","choices":[{"index":1,"delta":{"role":"assistant","content":"a\n[DONE]"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        );
        assert_eq!(chunk.pieces, [Piece { index: 1, text: "a\n[DONE]".into(), ..Piece::default() }]);
        let end = chat(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#);
        assert_eq!(end.pieces, [Piece { finish: Some("length".into()), ..Piece::default() }]);
        for nothing in [r#"{"choices":[]}"#, r#"{"choices":null}"#, "{}", "null"] {
            assert_eq!(chat(nothing), Chunk::default());
        }
        let reasoning = chat(r#"{"choices":[{"index":0,"delta":{"content":null,"reasoning_content":"hm"}}]}"#);
        assert_eq!(Value::from(reasoning.pieces[0].other.clone()), json!({"reasoning_content": "hm"}));
        assert!(reasoning.pieces[0].text.is_empty());
        let nothing = chat(r#"{"choices":[{"delta":{"content":"a","tool_calls":[],"reasoning":null,"refusal":""}}]}"#);
        assert_eq!(nothing.pieces, [Piece { text: "a".into(), ..Piece::default() }]);
    }

    #[test]
    fn a_completion_chunk_has_its_text_in_the_choice() {
        let chunk = Chunk::parse(Kind::Completion, br#"{"choices":[{"index":2,"text":"b","finish_reason":"stop"}]}"#).unwrap();
        assert_eq!(chunk.pieces, [Piece { index: 2, text: "b".into(), other: Map::new(), finish: Some("stop".into()) }]);
    }

    #[test]
    fn usage_split_over_two_events_is_merged_by_field() {
        let mut counts =
            chat(r#"{"usage":{"prompt_tokens":12,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":8}}}"#).counts.unwrap();
        counts.merge(chat(r#"{"usage":{"prompt_tokens":0,"completion_tokens":7}}"#).counts.unwrap());
        let usage = counts.usage(Usage { prompt_tokens: 99, completion_tokens: 99, ..Usage::default() });
        assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (12, 8, 7));
    }

    #[test]
    fn what_nobody_reports_is_estimated() {
        let estimate = Usage { prompt_tokens: 9, completion_tokens: 4, ..Usage::default() };
        assert_eq!(Counts::default().usage(estimate), estimate);
    }

    #[test]
    fn errors_are_read_in_the_forms_that_servers_use() {
        let remark = chat(r#"{"error":{"message":"no","type":"BadRequestError","param":"n","code":400}}"#).remark.unwrap();
        assert_eq!((remark.message.as_str(), remark.param.as_deref(), remark.status), ("no", Some("n"), Some(400)));
        assert_eq!(Remark::parse(br#"{"object":"error","message":"no","code":404}"#).status, Some(404));
        assert_eq!(Remark::parse(br#"{"error":"no"}"#).message, "no");
        assert_eq!(Remark::parse(br#"{"detail":"no"}"#).message, "no");
        assert_eq!(Remark::parse(b"<html>"), Remark::default());
    }

    #[test]
    fn garbage_is_refused() {
        for garbage in ["", "{", "[DONE", r#"{"choices":[{"index":-1}]}"#, r#"{"choices":{}}"#] {
            assert!(Chunk::parse(Kind::Chat, garbage.as_bytes()).is_err(), "{garbage}");
        }
    }
}
