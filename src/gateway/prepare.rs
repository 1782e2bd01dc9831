//! From a request's JSON to a [`Call`]: which model, which tokens, how many more, drawn how. Pure but for its clock and
//! its random seed, so that large requests can be prepared on another thread.

use crate::api::openai::{self, ChatRequest, CompletionRequest, Generation, Kind, Prompts, StreamUsage};
use crate::call::{Asked, Call, Error, Extra, Message, Prompt, Record, Sampling, Task, TokenId};
use crate::config::{Class, Config, Endpoint, Model, Name, Prices, Rule, UnknownParameters, Variant};
use crate::route::render::{self, Rendering, Renderings};
use crate::tenant::Holder;
use crate::text::Text;
use http::HeaderMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How a model's requests are read.
#[derive(Clone)]
pub struct Served {
    /// Its reference tokenizer and chat template; `None` where only remote servers have them: tokens are bounded by bytes
    /// then.
    pub text: Option<Arc<Text>>,
    /// How each of its variants reads them.
    pub variants: BTreeMap<Name, Rendering>,
}

/// Everything requests can ask for.
pub(super) struct Catalog {
    config: Arc<Config>,
    served: BTreeMap<Name, Served>,
    /// By model and variant.
    fingerprints: BTreeMap<Name, BTreeMap<Name, Arc<str>>>,
    /// The headers that rules look at, by model.
    headers: BTreeMap<Name, BTreeSet<Name>>,
    renderings: Renderings,
}

/// What the client wants to get back.
pub(super) struct Wanted {
    pub(super) kind: Kind,
    pub(super) stream: bool,
    pub(super) usage: StreamUsage,
    pub(super) token_ids: bool,
    pub(super) choices: usize,
    /// Of the model.
    pub(super) prices: Option<Prices>,
}

/// Choices of one request, prompts × n: each is a sequence.
const MOST_SEQUENCES: usize = 2048;
/// When it is worth another try while a model's tokenizer isn't there yet.
const LOADING: Duration = Duration::from_secs(5);

// === impl Catalog ===

impl Catalog {
    pub(super) fn new(config: Arc<Config>, served: BTreeMap<Name, Served>) -> Self {
        let of_variants = |model: &Model| {
            let variants = model.variants.iter();
            variants.map(|(name, variant)| (name.clone(), fingerprint(&config, variant))).collect()
        };
        let fingerprints = config.models.values().map(|model| (model.name.clone(), of_variants(model))).collect();
        let looked_at = |model: &Arc<Model>| (model.name.clone(), model.rules.iter().flat_map(Rule::headers).cloned().collect());
        let headers = config.models.values().map(looked_at).collect();
        let renderings = served.iter().map(|(model, served)| (model.clone(), served.variants.clone())).collect();
        Self { renderings: Renderings::new(renderings), config, served, fingerprints, headers }
    }

    /// How variants make calls their own.
    pub(super) fn renderings(&self) -> Renderings {
        self.renderings.clone()
    }

    /// Equal for equal weights, quantization and program.
    pub(super) fn fingerprint(&self, model: &Name, variant: &Name) -> Arc<str> {
        self.fingerprints.get(model).and_then(|variants| variants.get(variant)).cloned().unwrap_or_default()
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

    /// The call a request's body asks for, before a variant is chosen for it.
    pub(super) fn prepare(
        &self,
        kind: Kind,
        headers: &HeaderMap,
        body: &[u8],
        holder: Holder,
        record: Record,
    ) -> Result<(Call, Wanted), Error> {
        let (body, unknown) = (openai::parse(body)?, self.config.server.unknown_parameters);
        let (name, input, generation, extras) = match kind {
            Kind::Chat => {
                let ChatRequest { model, messages, generation, extras } = ChatRequest::parse(body, unknown)?;
                (model, Input::Chat(messages), generation, extras)
            }
            Kind::Completion => {
                let CompletionRequest { model, prompts, generation, extras } = CompletionRequest::parse(body, unknown)?;
                (model, Input::Completion(prompts), generation, extras)
            }
        };
        let model = self.model(&name, &holder)?.clone();
        record.lock().model = Some(model.name.clone());
        let served = self.served.get(&model.name);
        let served = served.ok_or_else(|| Error::NoCapacity { model: model.name.to_string(), retry_after: LOADING })?;
        let extras = self.passed(&model, extras)?;
        let bytes = input.bytes();
        let (messages, prompts) = input.tokenize(served, &extras)?;
        let choices = choices(prompts.len(), generation.n)?;
        if let Some(text) = &served.text {
            check_bias(&generation, text)?;
        }
        let wanted = Wanted {
            kind,
            stream: generation.stream,
            usage: generation.usage,
            token_ids: generation.return_token_ids,
            choices,
            prices: model.prices,
        };
        let class = if generation.flex { Class::Batch } else { holder.tenant.class };
        let Holder { tenant, key } = holder;
        let (messages, prompts): (Arc<[Message]>, Arc<[Prompt]>) = (messages.into(), prompts.into());
        let sampling = Arc::new(sampling(&generation)?);
        let mut asked = asked(generation, self.headers.get(&model.name), headers);
        (asked.messages, asked.prompts, asked.bytes) = (messages.clone(), prompts.clone(), bytes);
        asked.extras = extras.into();
        asked.endpoint = match kind {
            Kind::Chat => Endpoint::Chat,
            Kind::Completion => Endpoint::Completions,
        };
        let call = Call {
            record,
            tenant,
            key,
            model,
            class,
            task: Task::Generate,
            asked: Arc::new(asked),
            messages,
            prompts,
            sampling,
            route: None,
            deadline: None,
            first_by: None,
        };
        Ok((call, wanted))
    }

    /// Those of a request's extras that a remote server of the model takes.
    fn passed(&self, model: &Model, extras: Vec<Extra>) -> Result<Vec<Extra>, Error> {
        let backends = || model.variants.values().flat_map(|variant| variant.backends.iter());
        let mut passed = Vec::with_capacity(extras.len());
        for extra in extras {
            let mut remotes = backends().filter_map(|backend| self.config.upstreams.get(backend));
            if remotes.any(|remote| remote.takes(&extra.name, extra.known)) {
                passed.push(extra);
            } else if extra.known || self.config.server.unknown_parameters == UnknownParameters::Refuse {
                return Err(extra.refusal);
            }
        }
        Ok(passed)
    }
}

/// What is to be continued, before it is tokens.
enum Input {
    Chat(Vec<Message>),
    Completion(Prompts),
}

// === impl Input ===

impl Input {
    /// Of its text.
    fn bytes(&self) -> usize {
        match self {
            Input::Chat(messages) => messages.iter().map(|message| message.content.len()).sum(),
            Input::Completion(Prompts::Text(one)) => one.len(),
            Input::Completion(Prompts::Texts(many)) => many.iter().map(String::len).sum(),
            Input::Completion(Prompts::Ids(_) | Prompts::IdLists(_)) => 0,
        }
    }

    fn tokenize(self, served: &Served, extras: &[Extra]) -> Result<(Vec<Message>, Vec<Prompt>), Error> {
        let Some(text) = &served.text else { return self.bound(extras) };
        match self {
            Input::Chat(_) if !extras.is_empty() => self.bound(extras), // the template here knows nothing of them
            Input::Chat(messages) => {
                let prompt = render::chat(&messages, text, limit(served))?;
                Ok((messages, vec![prompt]))
            }
            Input::Completion(prompts) => {
                let encode = |one: String, path: &str| render::completion(&one.into(), path, text, limit(served));
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
    fn bound(self, extras: &[Extra]) -> Result<(Vec<Message>, Vec<Prompt>), Error> {
        let bound = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let text = |one: String| Prompt { text: Some(one.as_str().into()), ..Prompt::uncounted(bound(one.len())) };
        let ids = |ids: Vec<TokenId>| Prompt { tokens: bound(ids.len()), ids: ids.into(), exact: true, ..Prompt::uncounted(0) };
        match self {
            Input::Chat(messages) => {
                let prompt = render::bound(&messages, extras);
                Ok((messages, vec![prompt]))
            }
            Input::Completion(prompts) => {
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
    render::check(Prompt::new(ids, text.digest()), path)
}

/// What the roomiest variant takes; the chosen one may have less room.
fn limit(served: &Served) -> u64 {
    served.variants.values().map(Rendering::limit).max().unwrap_or(u32::MAX.into())
}

/// What the client said, and of its headers what rules look at.
fn asked(generation: Generation, names: Option<&BTreeSet<Name>>, headers: &HeaderMap) -> Asked {
    let values = |name: &Name| {
        let values = headers.get_all(name.as_str()).iter().filter_map(|value| Some((name.clone(), value.to_str().ok()?.to_owned())));
        values.collect::<Vec<_>>()
    };
    Asked {
        max_tokens: generation.max_tokens,
        temperature: generation.temperature,
        top_k: generation.top_k,
        top_p: generation.top_p,
        min_p: generation.min_p,
        repetition_penalty: generation.repetition_penalty,
        frequency_penalty: generation.frequency_penalty,
        presence_penalty: generation.presence_penalty,
        logprobs: generation.logprobs,
        token_ids: generation.return_token_ids,
        cache_key: generation.cache_key,
        user: generation.user,
        headers: names.into_iter().flatten().flat_map(values).collect(),
        ..Asked::default()
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

/// How tokens are drawn, as far as no variant has a say in it.
fn sampling(generation: &Generation) -> Result<Sampling, Error> {
    let seed = match generation.seed {
        Some(seed) => seed,
        None => getrandom::u64().map_err(|error| {
            tracing::error!(%error, "the system gives no random numbers");
            Error::Internal
        })?,
    };
    Ok(Sampling {
        n: generation.n,
        min_tokens: generation.min_tokens,
        logit_bias: generation.logit_bias.clone(),
        seed,
        stop: generation.stop.clone(),
        ignore_eos: generation.ignore_eos,
        logprobs: generation.logprobs,
        echo: generation.echo,
        ..Sampling::default()
    })
}

/// Equal for equal weights, quantization, system message and program: the same seed then gives the same answer.
fn fingerprint(config: &Config, variant: &Variant) -> Arc<str> {
    let mut hash = blake3::Hasher::new();
    hash.update(env!("CARGO_PKG_VERSION").as_bytes());
    for shard in variant.backends.iter().filter_map(|backend| config.shards.get(backend)) {
        hash.update(format!("{:?} {:?} {:?} {:?}\n", shard.weights, shard.sha256, shard.quantize, shard.kv_cache.dtype).as_bytes());
    }
    hash.update(variant.system.as_deref().unwrap_or_default().as_bytes());
    format!("fp_{}", &hash.finalize().to_hex()[..12]).into()
}
