//! What is sent to a remote. Nothing of the client's request but what is asked for: its key and its headers stay here.

use super::failure::UpstreamError;
use super::remote::Remote;
use crate::api::openai::Kind;
use crate::call::{self, Call, Prompt, TokenId};
use crate::config;
use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::Full;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// What every message to one remote has.
pub(super) struct Endpoints {
    chat: PathAndQuery,
    completions: PathAndQuery,
    /// Its credentials among them.
    headers: HeaderMap,
}

/// One message, for whichever connection.
pub(super) struct Message {
    method: Method,
    path: PathAndQuery,
    headers: HeaderMap,
    body: Bytes,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(flatten)]
    input: Input<'a>,
    stream: bool,
    stream_options: StreamOptions,
    max_tokens: u32,
    temperature: f32,
    top_p: f32,
    n: u32,
    /// Servers take 64 bits with a sign.
    seed: i64,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(flatten)]
    shaping: Shaping,
    /// What the client wrote and only the remote understands.
    #[serde(flatten)]
    extras: BTreeMap<&'a str, &'a Value>,
}

/// What not every server knows is only sent where it is asked for.
#[derive(Serialize)]
struct Shaping {
    #[serde(skip_serializing_if = "is_zero")]
    min_tokens: u32,
    #[serde(skip_serializing_if = "is_zero")]
    top_k: u32,
    #[serde(skip_serializing_if = "is_default::<0>")]
    min_p: f32,
    #[serde(skip_serializing_if = "is_default::<1>")]
    repetition_penalty: f32,
    #[serde(skip_serializing_if = "is_default::<0>")]
    frequency_penalty: f32,
    #[serde(skip_serializing_if = "is_default::<0>")]
    presence_penalty: f32,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    logit_bias: BTreeMap<TokenId, f32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ignore_eos: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Input<'a> {
    Messages(Vec<Turn<'a>>),
    Prompt(Prompts<'a>),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Turn<'a> {
    Text {
        role: &'a str,
        content: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<&'a str>,
    },
    /// As its client wrote it.
    Whole(&'a Value),
}

#[derive(Serialize)]
#[serde(untagged)]
enum Prompts<'a> {
    Text(&'a str),
    Texts(Vec<&'a str>),
    Ids(&'a [TokenId]),
    IdLists(Vec<&'a [TokenId]>),
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

// === impl Endpoints ===

impl Endpoints {
    /// # Errors
    /// The address or the key can't be sent.
    pub(super) fn new(config: &config::Upstream) -> Result<Self, UpstreamError> {
        let unsendable = |key, message| UpstreamError::Unsendable { upstream: config.name.clone(), key, message };
        let path = |endpoint| config.url.path(endpoint).map_err(|error| unsendable("url", error.to_string()));
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(concat!("roundhouse/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = &config.api_key {
            // The error says nothing of the key itself.
            let mut value: HeaderValue =
                format!("Bearer {}", key.expose()).parse().map_err(|_| unsendable("api_key", "it isn't plain text".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(Self { chat: path("/chat/completions")?, completions: path("/completions")?, headers })
    }
}

// === impl Message ===

impl Message {
    /// What a call asks for.
    pub(super) fn of(call: &Call, remote: &Remote) -> Self {
        let Endpoints { chat, completions, headers } = &remote.endpoints;
        let path = if kind(call) == Kind::Chat { chat } else { completions };
        let mut headers = headers.clone();
        {
            let notes = call.record.lock();
            // Both were checked to be of few plain characters.
            headers.extend(notes.id.parse().ok().map(|id| (REQUEST_ID, id)));
            headers.extend(notes.traceparent.as_ref().and_then(|parent| parent.parse().ok()).map(|parent| (TRACEPARENT, parent)));
        }
        let model = remote.config.model.as_deref().unwrap_or(call.model.name.as_str());
        let body = serde_json::to_vec(&Body::of(call, model)).expect("invariant: plain strings and numbers are JSON");
        Self { method: Method::POST, path: path.clone(), headers, body: body.into() }
    }

    /// The question whether the remote is there.
    pub(super) fn health(remote: &Remote) -> Self {
        let mut headers = remote.endpoints.headers.clone();
        headers.remove(header::CONTENT_TYPE);
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        Self { method: Method::GET, path: remote.config.health.path.clone(), headers, body: Bytes::new() }
    }

    /// The message as a request of HTTP/1.1, or of HTTP/2.
    pub(super) fn request(&self, remote: &Remote, http2: bool) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        let url = &remote.config.url;
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = Some(self.path.clone());
        if http2 {
            uri.scheme = Some(Scheme::HTTPS); // it is only spoken where TLS has agreed on it
            uri.authority = Some(url.authority().clone());
        } else {
            let host = url.authority().as_str().parse().expect("invariant: an authority is visible ASCII");
            request.headers_mut().insert(header::HOST, host);
        }
        *request.uri_mut() = Uri::from_parts(uri).expect("invariant: a path alone, or with scheme and authority, is a URI");
        request
    }
}

/// Whose shapes are spoken.
pub(super) fn kind(call: &Call) -> Kind {
    if call.messages.is_empty() { Kind::Completion } else { Kind::Chat }
}

// === impl Body ===

impl<'a> Body<'a> {
    fn of(call: &'a Call, model: &'a str) -> Self {
        let call::Sampling { n, max_tokens, temperature, top_p, seed, ref stop, .. } = *call.sampling;
        Self {
            model,
            input: match kind(call) {
                Kind::Chat => Input::Messages(call.messages.iter().map(Turn::of).collect()),
                Kind::Completion => Input::Prompt(Prompts::of(&call.prompts)),
            },
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            max_tokens,
            temperature,
            top_p,
            n,
            seed: seed.cast_signed(),
            stop,
            shaping: Shaping::of(&call.sampling),
            extras: call.asked.extras.iter().filter_map(|extra| Some((extra.name.as_str(), extra.value.as_ref()?))).collect(),
        }
    }
}

impl Shaping {
    fn of(sampling: &call::Sampling) -> Self {
        let call::Sampling { min_tokens, top_k, min_p, ignore_eos, .. } = *sampling;
        let call::Sampling { repetition_penalty, frequency_penalty, presence_penalty, ref logit_bias, .. } = *sampling;
        let logit_bias = logit_bias.iter().copied().collect();
        Self { min_tokens, top_k, min_p, repetition_penalty, frequency_penalty, presence_penalty, logit_bias, ignore_eos }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_default<const DEFAULT: i8>(number: &f32) -> bool {
    *number == f32::from(DEFAULT)
}

impl<'a> Turn<'a> {
    fn of(message: &'a call::Message) -> Self {
        match &message.whole {
            None => Turn::Text { role: &message.role, content: &message.content, name: message.name.as_deref() },
            Some(whole) => Turn::Whole(whole),
        }
    }
}

impl<'a> Prompts<'a> {
    /// As text where the client wrote text, so that the remote's own tokenizer reads it; else as ids.
    fn of(prompts: &'a [Prompt]) -> Self {
        let texts: Option<Vec<_>> = prompts.iter().map(|prompt| prompt.text.as_deref()).collect();
        match (texts.as_deref(), prompts) {
            (Some([text]), _) => Prompts::Text(text),
            (Some(_), _) => Prompts::Texts(texts.unwrap_or_default()),
            (None, [one]) => Prompts::Ids(&one.ids),
            (None, many) => Prompts::IdLists(many.iter().map(|prompt| prompt.ids.as_ref()).collect()),
        }
    }
}
