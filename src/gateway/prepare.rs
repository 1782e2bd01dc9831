//! From a request's JSON to a [`Call`]: which model, which tokens, how many more, drawn how. Pure but for its clock and
//! its random seed, so that large requests can be prepared on another thread.

use crate::api::openai::{self, ChatRequest, CompletionRequest, Generation, Kind, Prompts, StreamUsage};
use crate::call::{Call, Error, Message, Prompt, Record, Sampling, Task, TokenId};
use crate::config::{Class, Config, Model, Name, Prices, SamplingDefaults};
use crate::tenant::Holder;
use crate::text::Text;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How a model's requests are tokenized and how long they may be.
#[derive(Clone)]
pub struct Served {
    /// Its tokenizer and chat template; `None` where only remote servers have them: tokens are bounded by bytes then.
    pub text: Option<Arc<Text>>,
    /// Tokens one sequence may have; `u32::MAX` where nobody here knows.
    pub context: u32,
    /// Tokens the KV pool of its smallest backend holds; `u32::MAX` likewise.
    pub pool_tokens: u32,
    /// Whether every backend tells the ids of its tokens.
    pub token_ids: bool,
}

/// Everything requests can ask for.
pub(super) struct Catalog {
    config: Arc<Config>,
    served: BTreeMap<Name, Served>,
    fingerprints: BTreeMap<Name, Arc<str>>,
}

/// What the client wants to get back.
pub(super) struct Wanted {
    pub(super) kind: Kind,
    pub(super) stream: bool,
    pub(super) usage: StreamUsage,
    pub(super) token_ids: bool,
    pub(super) choices: usize,
    pub(super) fingerprint: Arc<str>,
    /// Of the model.
    pub(super) prices: Option<Prices>,
}

/// Choices of one request, prompts × n: each is a sequence.
const MOST_SEQUENCES: usize = 2048;
/// Tokens that a chat template puts around a message, at most.
const TURN_TOKENS: usize = 16;
/// Tokens that a chat template puts around a conversation, at most: some have a system message of their own.
const TEMPLATE_TOKENS: usize = 128;
/// When it is worth another try while a model's tokenizer isn't there yet.
const LOADING: Duration = Duration::from_secs(5);

// === impl Catalog ===

impl Catalog {
    pub(super) fn new(config: Arc<Config>, served: BTreeMap<Name, Served>) -> Self {
        let fingerprints = config.models.values().map(|model| (model.name.clone(), fingerprint(&config, model))).collect();
        Self { config, served, fingerprints }
    }

    /// The model of this name or alias, if the holder may use it.
    pub(super) fn model(&self, name: &str, holder: &Holder) -> Result<&Arc<Model>, Error> {
        let model = self.config.model(name).filter(|model| holder.may_use(model));
        model.ok_or_else(|| Error::ModelNotFound { model: name.to_owned() })
    }

    /// The models the holder may use.
    pub(super) fn models<'a>(&'a self, holder: &'a Holder) -> impl Iterator<Item = &'a Arc<Model>> {
        self.config.models.values().filter(|model| holder.may_use(model))
    }

    /// The configuration all this is of.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The call a request's body asks for.
    pub(super) fn prepare(&self, kind: Kind, body: &[u8], holder: Holder, record: Record) -> Result<(Call, Wanted), Error> {
        let (body, unknown) = (openai::parse(body)?, self.config.server.unknown_parameters);
        let (name, asked, generation) = match kind {
            Kind::Chat => {
                let ChatRequest { model, messages, generation } = ChatRequest::parse(body, unknown)?;
                (model, Asked::Chat(messages), generation)
            }
            Kind::Completion => {
                let CompletionRequest { model, prompts, generation } = CompletionRequest::parse(body, unknown)?;
                (model, Asked::Completion(prompts), generation)
            }
        };
        let model = self.model(&name, &holder)?.clone();
        record.lock().model = Some(model.name.clone());
        let served = self.served.get(&model.name);
        let served = served.ok_or_else(|| Error::NoCapacity { model: model.name.to_string(), retry_after: LOADING })?;
        let (messages, prompts) = asked.tokenize(served)?;
        if generation.return_token_ids && !served.token_ids {
            let message = "'return_token_ids' isn't supported for this model: a remote server answers, and tells text only. Leave it out.";
            return Err(Error::Unsupported { param: "return_token_ids".to_owned(), message: message.to_owned() });
        }
        let choices = choices(prompts.len(), generation.n)?;
        if let Some(text) = &served.text {
            check_bias(&generation, text)?;
        }
        let sampling = sampling(&generation, &model, fit(kind, &prompts, &generation, &model, served)?)?;
        let wanted = Wanted {
            kind,
            stream: generation.stream,
            usage: generation.usage,
            token_ids: generation.return_token_ids,
            choices,
            fingerprint: self.fingerprints.get(&model.name).cloned().unwrap_or_default(),
            prices: model.prices,
        };
        let class = if generation.flex { Class::Batch } else { holder.tenant.class };
        let Holder { tenant, key } = holder;
        let (messages, prompts, sampling) = (messages.into(), prompts.into(), Arc::new(sampling));
        let call = Call {
            record,
            tenant,
            key,
            model,
            class,
            task: Task::Generate,
            messages,
            prompts,
            sampling,
            route: None,
            deadline: None,
            first_by: None,
        };
        Ok((call, wanted))
    }
}

/// What is to be continued, before it is tokens.
enum Asked {
    Chat(Vec<Message>),
    Completion(Prompts),
}

// === impl Asked ===

impl Asked {
    fn tokenize(self, served: &Served) -> Result<(Vec<Message>, Vec<Prompt>), Error> {
        let Some(text) = &served.text else { return self.bound() };
        match self {
            Asked::Chat(messages) => {
                let bytes = messages.iter().map(|message| message.content.len()).sum();
                may_fit(Kind::Chat, bytes, text, limit(served))?;
                if !text.has_template() {
                    let message = "This model has no chat template, so it can't answer messages. Use /v1/completions.";
                    return Err(Error::Invalid { param: Some("model".to_owned()), message: message.to_owned() });
                }
                let ids = text.encode_chat(&messages);
                let ids = ids.map_err(|error| Error::Invalid { param: Some("messages".to_owned()), message: error.to_string() })?;
                Ok((messages, vec![prompt(ids, "messages", text)?]))
            }
            Asked::Completion(prompts) => {
                let encode = |one: String, path: &str| encode(one, path, text, limit(served));
                let prompts = match prompts {
                    Prompts::Text(one) => vec![encode(one, "prompt")?],
                    Prompts::Texts(many) => listed(many, encode)?,
                    Prompts::Ids(one) => vec![check_ids(one, "prompt", text)?],
                    Prompts::IdLists(many) => listed(many, |one, path| check_ids(one, path, text))?,
                };
                Ok((Vec::new(), prompts))
            }
        }
    }

    /// Without a tokenizer: no text has more tokens than bytes.
    fn bound(self) -> Result<(Vec<Message>, Vec<Prompt>), Error> {
        let bound = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let text = |one: String| Prompt { text: Some(one.as_str().into()), ..Prompt::uncounted(bound(one.len())) };
        let ids = |ids: Vec<TokenId>| Prompt { tokens: bound(ids.len()), ids: ids.into(), exact: true, ..Prompt::uncounted(0) };
        match self {
            Asked::Chat(messages) => {
                let turn = |message: &Message| message.content.len() + message.role.len() + message.name.as_ref().map_or(0, String::len);
                let bytes: usize = messages.iter().map(|message| turn(message) + TURN_TOKENS).sum();
                Ok((messages, vec![Prompt::uncounted(bound(bytes + TEMPLATE_TOKENS))]))
            }
            Asked::Completion(prompts) => {
                let prompts = match prompts {
                    Prompts::Text(one) => vec![text(one)],
                    Prompts::Texts(many) => many.into_iter().map(text).collect(),
                    Prompts::Ids(one) => vec![ids(one)],
                    Prompts::IdLists(many) => many.into_iter().map(ids).collect(),
                };
                Ok((Vec::new(), prompts))
            }
        }
    }
}

fn listed<T>(many: Vec<T>, each: impl Fn(T, &str) -> Result<Prompt, Error>) -> Result<Vec<Prompt>, Error> {
    many.into_iter().enumerate().map(|(index, one)| each(one, &format!("prompt[{index}]"))).collect()
}

fn encode(one: String, path: &str, text: &Text, limit: u64) -> Result<Prompt, Error> {
    may_fit(Kind::Completion, one.len(), text, limit)?;
    let prompt = prompt(text.encode(&one), path, text)?;
    Ok(Prompt { text: Some(one.into()), ..prompt })
}

fn check_bias(generation: &Generation, text: &Text) -> Result<(), Error> {
    let size = text.vocabulary_size();
    match generation.logit_bias.iter().find(|(id, _)| *id >= size) {
        None => Ok(()),
        Some((id, _)) => {
            let path = format!("logit_bias.{id}");
            let message =
                format!("Invalid value for '{path}': the vocabulary has no token {id}; ids go from 0 to {}.", size.saturating_sub(1));
            Err(Error::Invalid { param: Some(path), message })
        }
    }
}

fn check_ids(ids: Vec<TokenId>, path: &str, text: &Text) -> Result<Prompt, Error> {
    let size = text.vocabulary_size();
    if let Some((index, id)) = ids.iter().enumerate().find(|(_, id)| **id >= size) {
        let path = format!("{path}[{index}]");
        let message = format!("Invalid value for '{path}': the vocabulary has no token {id}; ids go from 0 to {}.", size.saturating_sub(1));
        return Err(Error::Invalid { param: Some(path), message });
    }
    prompt(ids, path, text)
}

fn prompt(ids: Vec<TokenId>, path: &str, text: &Text) -> Result<Prompt, Error> {
    if ids.is_empty() {
        return Err(Error::Invalid { param: Some(path.to_owned()), message: format!("'{path}' has no tokens. Send at least one.") });
    }
    Ok(Prompt::new(ids, text.digest()))
}

/// Refuses before it is tokenized what can't fit whatever its tokens are.
fn may_fit(kind: Kind, bytes: usize, text: &Text, limit: u64) -> Result<(), Error> {
    let least = (bytes / text.longest_token_bytes().max(1)) as u64;
    if least > limit { Err(Error::ContextLength { param: param(kind), limit, prompt_tokens: least, max_tokens: None }) } else { Ok(()) }
}

/// Most tokens each choice may get: what was asked for, or what is left of the context.
fn fit(kind: Kind, prompts: &[Prompt], generation: &Generation, model: &Model, served: &Served) -> Result<u32, Error> {
    let limit = limit(served);
    // A bound refuses nothing: whoever has the tokenizer does.
    let exact = prompts.iter().filter(|prompt| prompt.exact);
    let prompt_tokens = exact.map(|prompt| u64::from(prompt.tokens)).max().unwrap_or_default();
    let too_long = |max_tokens| Err(Error::ContextLength { param: param(kind), limit, prompt_tokens, max_tokens });
    match generation.max_tokens.map(u64::from) {
        _ if prompt_tokens >= limit => too_long(None), // no room for a single token
        Some(max) if prompt_tokens + max > limit => too_long(Some(max)),
        Some(max) => Ok(max as u32),
        None => Ok((limit - prompt_tokens).min(u64::from(model.default_max_tokens.get())) as u32),
    }
}

fn limit(served: &Served) -> u64 {
    served.context.min(served.pool_tokens).into()
}

fn param(kind: Kind) -> &'static str {
    match kind {
        Kind::Chat => "messages",
        Kind::Completion => "prompt",
    }
}

fn choices(prompts: usize, n: u32) -> Result<usize, Error> {
    let choices = prompts * n as usize;
    if choices > MOST_SEQUENCES {
        let message = format!("{prompts} prompts with 'n' = {n} are {choices} choices. Ask for at most {MOST_SEQUENCES} in one request.");
        return Err(Error::Invalid { param: Some("n".to_owned()), message });
    }
    Ok(choices)
}

fn sampling(generation: &Generation, model: &Model, max_tokens: u32) -> Result<Sampling, Error> {
    let defaults = model.variants.values().next().map_or_else(SamplingDefaults::default, |variant| variant.sampling);
    let seed = match generation.seed {
        Some(seed) => seed,
        None => getrandom::u64().map_err(|error| {
            tracing::error!(%error, "the system gives no random numbers");
            Error::Internal
        })?,
    };
    Ok(Sampling {
        n: generation.n,
        max_tokens,
        min_tokens: generation.min_tokens.min(max_tokens),
        temperature: generation.temperature.unwrap_or(defaults.temperature),
        top_k: generation.top_k.unwrap_or(defaults.top_k),
        top_p: generation.top_p.unwrap_or(defaults.top_p),
        min_p: generation.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: generation.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        frequency_penalty: generation.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        presence_penalty: generation.presence_penalty.unwrap_or(defaults.presence_penalty),
        logit_bias: generation.logit_bias.clone(),
        seed,
        stop: generation.stop.clone(),
        ignore_eos: generation.ignore_eos,
        logprobs: generation.logprobs,
        echo: generation.echo,
    })
}

/// Equal for equal weights, quantization and program: the same seed then gives the same answer.
fn fingerprint(config: &Config, model: &Model) -> Arc<str> {
    let mut hash = blake3::Hasher::new();
    hash.update(env!("CARGO_PKG_VERSION").as_bytes());
    for backend in model.variants.values().flat_map(|variant| variant.backends.iter()) {
        if let Some(shard) = config.shards.get(backend) {
            hash.update(format!("{:?} {:?} {:?} {:?}\n", shard.weights, shard.sha256, shard.quantize, shard.kv_cache.dtype).as_bytes());
        }
    }
    format!("fp_{}", &hash.finalize().to_hex()[..12]).into()
}
