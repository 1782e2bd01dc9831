//! The one language spoken below the HTTP edge: what is asked (`Call`), what comes back (`Reply` of `Event`s), what is
//! noted on the way (`Record`) and what must be given back at its end (`Lease`).

mod asked;
mod error;
mod extra;
mod peer;
mod record;
mod reply;

use crate::config;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Instant;

pub use asked::Asked;
pub use error::{Error, Limited};
pub use extra::{Extra, tokens};
pub use peer::{Certificate, Peer};
pub use record::{Considered, Fields, Level, Record};
pub use reply::{Lease, Outcome, Release, Reply};

/// An index into a model's vocabulary. An alias, not a newtype: whole slices of ids go to tokenizers and kernels.
pub type TokenId = u32;

/// The identity of a tokenizer: two equal digests give equal ids for equal text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 16]);

/// One request below the edge, whoever sent it and in whatever wire format.
#[derive(Clone, Debug)]
pub struct Call {
    /// Collects what the log line, the headers and the metrics need.
    pub record: Record,
    /// Who asks.
    pub tenant: Arc<config::Tenant>,
    /// By which key.
    pub key: Arc<config::Key>,
    /// How urgent it is: the tenant's class, or batch where the request says so.
    pub class: config::Class,
    /// What is asked for, by its configured name.
    pub model: Arc<config::Model>,
    /// What is to be done with the prompts.
    pub task: Task,
    /// What the client itself said. What follows is the variant's making of it.
    pub asked: Arc<Asked>,
    /// The conversation; empty for `/v1/completions`.
    pub messages: Arc<[Message]>,
    /// Prompts as token ids. A choice's index is `prompt × n + i`; prompt tokens are counted once per prompt.
    pub prompts: Arc<[Prompt]>,
    /// How tokens are drawn and when to stop.
    pub sampling: Arc<Sampling>,
    /// Which variant and backends serve it; set by `choose`.
    pub route: Option<Route>,
    /// When its whole answer has to be there: at first the client's own bound, if it told one; set by `deadline`.
    pub deadline: Option<Instant>,
    /// When the first of its answer has to be there, where that is sooner; likewise.
    pub first_by: Option<Instant>,
}

/// What a backend does with a call's prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Continue each prompt.
    Generate,
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or whatever the model's template knows.
    pub role: String,
    /// The text; several text parts are joined by newlines.
    pub content: String,
    /// The speaker's name, where the client gave one.
    pub name: Option<String>,
    /// The message as the client wrote it, where it has more than text: a remote server may understand it.
    pub whole: Option<Arc<Value>>,
}

/// One prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its tokens; none where nobody here has the model's tokenizer.
    pub ids: Arc<[TokenId]>,
    /// The tokenizer that made them, where one did.
    pub tokenizer: Option<Digest>,
    /// A completion's prompt as the client wrote it, to be said again or for backends with a tokenizer of their own. `None`
    /// for messages and for prompts that came as ids.
    pub text: Option<Arc<str>>,
    /// How many tokens it has: exactly, or at most.
    pub tokens: u32,
    /// Whether `tokens` is exact. If not it is an upper bound, and usage that a backend reports takes its place.
    pub exact: bool,
}

/// How tokens are drawn and when to stop, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Choices per prompt, at least 1.
    pub n: u32,
    /// Most tokens per choice, already bounded by the context; 0 only with `echo`.
    pub max_tokens: u32,
    /// So many tokens come before a stop token or a stop text ends a choice.
    pub min_tokens: u32,
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely compared with the likeliest one; 0 keeps all.
    pub min_p: f32,
    /// Makes tokens of the prompt and the output less likely; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Makes tokens less likely for each time they are in the output; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Makes tokens of the output less likely; 0 changes nothing.
    pub presence_penalty: f32,
    /// Added to single tokens' logits.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// With choice index and position the only source of randomness.
    pub seed: u64,
    /// Texts that end a choice and are not part of it.
    pub stop: Vec<String>,
    /// Whether the model's stop tokens end nothing.
    pub ignore_eos: bool,
    /// Whether tokens come with their log-probabilities, and with those of how many of the likeliest ones.
    pub logprobs: Option<u32>,
    /// Whether choices begin with their prompt.
    pub echo: bool,
}

/// How likely the model found a token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// What the token adds to a text; a control token's name.
    pub bytes: Box<[u8]>,
    /// The natural logarithm of its probability; none for a prompt's first token.
    pub logprob: Option<f32>,
    /// The likeliest tokens and theirs, likeliest first.
    pub top: Box<[(Box<[u8]>, f32)]>,
}

/// Where a call goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The variant that serves it: the one that its rule chose, or a fallback.
    pub variant: config::Name,
    /// Its replicas.
    pub backends: Arc<[config::Name]>,
    /// Variants to try in this order where the chosen one can't answer.
    pub fallback: Arc<[config::Name]>,
    /// The variant that gets a copy, only to be measured.
    pub shadow: Option<Shadow>,
}

/// Where a copy of a call goes, and what it is counted as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// The variant.
    pub variant: config::Name,
    /// The experiment that counts it.
    pub experiment: config::Name,
    /// The call's sticky unit there.
    pub unit: u64,
}

/// One thing a backend says.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// More text of one choice and the tokens it came from. Text held back for a stop string or an incomplete character
    /// arrives with a later token, so `text` may be empty while `ids` is not.
    Text {
        /// Which choice.
        choice: u32,
        /// The text, valid UTF-8.
        text: String,
        /// The tokens behind it.
        ids: Vec<TokenId>,
        /// Of these tokens, where wanted; else empty.
        logprobs: Vec<TokenLogprob>,
    },
    /// The prompt of a choice, before all its text, where it is wanted back.
    Echo {
        /// Which choice.
        choice: u32,
        /// The prompt as the client sent it, or what its tokens say.
        text: String,
        /// Its tokens.
        ids: Arc<[TokenId]>,
        /// Of all its tokens, where wanted; else empty.
        logprobs: Vec<TokenLogprob>,
    },
    /// More of one choice that isn't text, as a remote server says it: calls of tools, reasoning.
    Other {
        /// Which choice.
        choice: u32,
        /// Fields of the API's `delta`.
        fields: Map<String, Value>,
    },
    /// Tokens and device time so far; the last one is final. A later one replaces an earlier one.
    Usage(Usage),
    /// A choice has ended. After every choice ended and the final usage the stream ends.
    Finish {
        /// Which choice.
        choice: u32,
        /// Why.
        reason: Finish,
    },
}

/// What a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, once per prompt.
    pub prompt_tokens: u32,
    /// Those of them whose K/V came from the prefix cache.
    pub cached_tokens: u32,
    /// Generated tokens: end-of-sequence not counted, tokens of a stop string counted.
    pub completion_tokens: u32,
    /// The request's share of the device's busy time.
    pub device_time: std::time::Duration,
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// The model ended it, or a stop string did.
    Stop,
    /// `max_tokens` or the context was reached.
    Length,
    /// A filter of a remote server took the rest.
    ContentFilter,
    /// The model of a remote server calls tools.
    ToolCalls,
    /// Likewise, as it was called before there were tools.
    FunctionCall,
}

// === impl Message ===

impl Message {
    /// A turn of text by nobody in particular.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), name: None, whole: None }
    }
}

// === impl Prompt ===

impl Prompt {
    /// A prompt of these tokens.
    pub fn new(ids: impl Into<Arc<[TokenId]>>, tokenizer: Digest) -> Self {
        let ids = ids.into();
        Self { tokens: ids.len() as u32, ids, tokenizer: Some(tokenizer), text: None, exact: true }
    }

    /// A prompt of at most so many tokens, which only its backend can count.
    pub fn uncounted(at_most: u32) -> Self {
        Self { ids: Arc::default(), tokenizer: None, text: None, tokens: at_most, exact: false }
    }

    /// How many tokens it most likely has: a token has about four bytes, and bounds are in bytes.
    pub fn likely_tokens(&self) -> u32 {
        if self.exact { self.tokens } else { self.tokens.div_ceil(4) }
    }
}

// === impl Sampling ===

impl Default for Sampling {
    /// One choice of one token, drawn by the model's own probabilities.
    fn default() -> Self {
        Self {
            n: 1,
            max_tokens: 1,
            min_tokens: 0,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            stop: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            echo: false,
        }
    }
}

// === impl Usage ===

impl Usage {
    /// What it costs.
    pub fn cost(&self, prices: &config::Prices) -> config::Money {
        let cached = u64::from(self.cached_tokens.min(self.prompt_tokens));
        let computed = u64::from(self.prompt_tokens) - cached;
        let prompt = prices.input.times(computed).plus(prices.cached_input.times(cached));
        prompt.plus(prices.output.times(self.completion_tokens.into()))
    }
}

// === impl Finish ===

impl Finish {
    /// As clients read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ContentFilter => "content_filter",
            Finish::ToolCalls => "tool_calls",
            Finish::FunctionCall => "function_call",
        }
    }
}
