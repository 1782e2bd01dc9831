//! A variant's own call: its system message, its tokens, its sampling, as many tokens as it has room for.

use crate::call::{Asked, Call, Error, Extra, Message, Prompt, Route, Sampling, tokens};
use crate::config::{Endpoint, Name, SamplingDefaults, Variant};
use crate::text::Text;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How one variant reads prompts, and how long they may be.
#[derive(Clone)]
pub struct Rendering {
    /// Its tokenizer and chat template; `None` where only remote servers have them.
    pub text: Option<Arc<Text>>,
    /// Tokens one sequence may have; `u32::MAX` where nobody here knows.
    pub context: u32,
    /// Tokens the KV pool of its smallest backend holds; `u32::MAX` likewise.
    pub pool_tokens: u32,
    /// Whether engines of this process alone serve it: they tell each token and how likely it was.
    pub local: bool,
}

/// Those of all variants, by model.
#[derive(Clone, Default)]
pub struct Renderings(Arc<BTreeMap<Name, BTreeMap<Name, Rendering>>>);

/// Tokens that a chat template puts around a message, at most.
const TURN_TOKENS: usize = 16;
/// Tokens that a chat template puts around a conversation, at most: some have a system message of their own.
const TEMPLATE_TOKENS: usize = 128;
/// Text above this is tokenized on another thread: about a millisecond's work, which is as long as other requests may be
/// kept waiting.
pub const LARGE: usize = 16 << 10;
/// When it is worth another try while a variant isn't there yet.
const LOADING: Duration = Duration::from_secs(5);

// === impl Rendering ===

impl Rendering {
    /// Tokens that one sequence may have.
    pub fn limit(&self) -> u64 {
        self.context.min(self.pool_tokens).into()
    }
}

// === impl Renderings ===

impl Renderings {
    /// Of these models.
    pub fn new(models: BTreeMap<Name, BTreeMap<Name, Rendering>>) -> Self {
        Self(Arc::new(models))
    }

    /// Makes the call one for this variant; where it can't be, it stays as it is. Tokenizes where the variant has another
    /// tokenizer than the model or a system message; a lot of it on another thread.
    ///
    /// # Errors
    /// The variant can't take what was asked, or has no room for it.
    pub async fn render(&self, call: &mut Call, variant: &Name) -> Result<(), Error> {
        if call.asked.bytes <= LARGE || self.reads_alike(call, variant) {
            return self.render_here(call, variant);
        }
        let (renderings, variant, mut large) = (self.clone(), variant.clone(), call.clone());
        let rendering = tokio::task::spawn_blocking(move || renderings.render_here(&mut large, &variant).map(|()| large));
        *call = match rendering.await {
            Ok(rendered) => rendered?,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return Err(Error::Internal), // the runtime is shutting down
            },
        };
        Ok(())
    }

    /// Whether the tokens that were counted are the variant's own.
    pub(super) fn reads_alike(&self, call: &Call, variant: &Name) -> bool {
        let Some((configured, rendering)) = self.get(call, variant) else { return true };
        reads_alike(&call.asked, rendering) && system(&call.asked, configured).is_none()
    }

    /// As [`render`](Self::render), on this thread.
    pub(super) fn render_here(&self, call: &mut Call, variant: &Name) -> Result<(), Error> {
        let known = self.get(call, variant);
        let unknown = || Error::NoCapacity { model: call.model.name.to_string(), retry_after: LOADING };
        let (configured, rendering) = known.ok_or_else(unknown)?;
        let asked = call.asked.clone();
        let messages = match system(&asked, configured) {
            None => asked.messages.clone(),
            Some(system) => std::iter::once(system).chain(asked.messages.iter().cloned()).collect(),
        };
        let prompts = prompts(&asked, &messages, rendering, !call.sampling.logit_bias.is_empty())?;
        let most = match call.route {
            None => u32::MAX,
            Some(_) => call.sampling.max_tokens, // reserved for the variant before: a fallback may have no more
        };
        let max_tokens = fit(&asked, &prompts, rendering, call.model.default_max_tokens.get())?.min(most);
        let (backends, defaults) = (configured.backends.clone(), configured.sampling);
        let (fallback, shadow) = call.route.take().map(|before| (before.fallback, before.shadow)).unwrap_or_default();
        call.route = Some(Route { variant: variant.clone(), backends, fallback, shadow });
        (call.messages, call.prompts) = (messages, prompts);
        sample(Arc::make_mut(&mut call.sampling), &asked, defaults, max_tokens);
        Ok(())
    }

    /// Whether engines of this process alone serve the variant.
    pub(super) fn is_local(&self, call: &Call, variant: &Name) -> bool {
        self.get(call, variant).is_some_and(|(_, rendering)| rendering.local)
    }

    fn get<'a>(&'a self, call: &'a Call, variant: &Name) -> Option<(&'a Variant, &'a Rendering)> {
        Some((call.model.variants.get(variant)?, self.0.get(&call.model.name)?.get(variant)?))
    }
}

/// The variant's system message, where the client has none of its own: a default like those of sampling.
fn system(asked: &Asked, variant: &Variant) -> Option<Message> {
    let system = variant.system.as_ref()?;
    let wanted = !asked.messages.is_empty() && asked.messages.iter().all(|message| message.role != "system");
    wanted.then(|| Message::new("system", system.as_ref()))
}

fn reads_alike(asked: &Asked, rendering: &Rendering) -> bool {
    let Some(text) = &rendering.text else { return true };
    asked.prompts.iter().all(|prompt| prompt.tokenizer.is_none_or(|tokenizer| tokenizer == text.digest()))
}

fn prompts(asked: &Asked, messages: &Arc<[Message]>, rendering: &Rendering, biased: bool) -> Result<Arc<[Prompt]>, Error> {
    let alike = reads_alike(asked, rendering);
    if alike && Arc::ptr_eq(messages, &asked.messages) {
        return Ok(asked.prompts.clone());
    }
    let chat_of_extras = asked.endpoint == Endpoint::Chat && !asked.extras.is_empty();
    let Some(text) = rendering.text.as_ref().filter(|_| !chat_of_extras) else { return Ok([bound(messages, &asked.extras)].into()) };
    if biased && !alike {
        return Err(foreign_ids("logit_bias"));
    }
    if asked.endpoint == Endpoint::Chat {
        return Ok([chat(messages, text, rendering.limit())?].into());
    }
    let each = asked.prompts.iter().map(|prompt| match &prompt.text {
        Some(one) => completion(one, "prompt", text, rendering.limit()),
        None => Err(foreign_ids("prompt")),
    });
    each.collect()
}

fn foreign_ids(param: &str) -> Error {
    let message =
        format!("'{param}' has token ids, and the variant of the model that this request goes to has another tokenizer. Send text.");
    Error::Unsupported { param: param.to_owned(), message }
}

fn sample(sampling: &mut Sampling, asked: &Asked, defaults: SamplingDefaults, max_tokens: u32) {
    sampling.max_tokens = max_tokens;
    sampling.min_tokens = sampling.min_tokens.min(max_tokens);
    sampling.logprobs = asked.logprobs;
    sampling.temperature = asked.temperature.unwrap_or(defaults.temperature);
    sampling.top_k = asked.top_k.unwrap_or(defaults.top_k);
    sampling.top_p = asked.top_p.unwrap_or(defaults.top_p);
    sampling.min_p = asked.min_p.unwrap_or(defaults.min_p);
    sampling.repetition_penalty = asked.repetition_penalty.unwrap_or(defaults.repetition_penalty);
    sampling.frequency_penalty = asked.frequency_penalty.unwrap_or(defaults.frequency_penalty);
    sampling.presence_penalty = asked.presence_penalty.unwrap_or(defaults.presence_penalty);
}

/// Most tokens each choice may get: what was asked for, or what is left of the context.
fn fit(asked: &Asked, prompts: &[Prompt], rendering: &Rendering, default: u32) -> Result<u32, Error> {
    let limit = rendering.limit();
    // A bound refuses nothing: whoever has the tokenizer does.
    let exact = prompts.iter().filter(|prompt| prompt.exact);
    let prompt_tokens = exact.map(|prompt| u64::from(prompt.tokens)).max().unwrap_or_default();
    let param = if asked.endpoint == Endpoint::Chat { "messages" } else { "prompt" };
    let too_long = |max_tokens| Err(Error::ContextLength { param, limit, prompt_tokens, max_tokens });
    match asked.max_tokens.map(u64::from) {
        _ if prompt_tokens >= limit => too_long(None), // no room for a single token
        Some(max) if prompt_tokens + max > limit => too_long(Some(max)),
        Some(max) => Ok(max as u32),
        None => Ok((limit - prompt_tokens).min(u64::from(default)) as u32),
    }
}

// === prompts, for whoever counts them first ===

/// A conversation's prompt.
///
/// # Errors
/// It can't fit `limit`, there is no chat template, or the template refuses it.
pub fn chat(messages: &[Message], text: &Text, limit: u64) -> Result<Prompt, Error> {
    let bytes = messages.iter().map(|message| message.content.len()).sum();
    may_fit("messages", bytes, text, limit)?;
    if !text.has_template() {
        let message = "This model has no chat template, so it can't answer messages. Use /v1/completions.";
        return Err(Error::Invalid { param: Some("model".to_owned()), message: message.to_owned() });
    }
    let ids = text.encode_chat(messages);
    let ids = ids.map_err(|error| Error::Invalid { param: Some("messages".to_owned()), message: error.to_string() })?;
    check(Prompt::new(ids, text.digest()), "messages")
}

/// The prompt of a text to be continued, found at `path` of the request.
///
/// # Errors
/// It can't fit `limit`, or is empty.
pub fn completion(one: &Arc<str>, path: &str, text: &Text, limit: u64) -> Result<Prompt, Error> {
    may_fit("prompt", one.len(), text, limit)?;
    check(Prompt { text: Some(one.clone()), ..Prompt::new(text.encode(one), text.digest()) }, path)
}

/// A prompt of at least one token.
///
/// # Errors
/// It has none.
pub fn check(prompt: Prompt, path: &str) -> Result<Prompt, Error> {
    if prompt.ids.is_empty() {
        return Err(Error::Invalid { param: Some(path.to_owned()), message: format!("'{path}' has no tokens. Send at least one.") });
    }
    Ok(prompt)
}

/// Where nobody here can count: without a tokenizer, or with what only a remote server reads. No text has more tokens than
/// bytes.
pub fn bound(messages: &[Message], extras: &[Extra]) -> Prompt {
    let turn = |message: &Message| match &message.whole {
        None => message.content.len() + message.role.len() + message.name.as_ref().map_or(0, String::len),
        Some(whole) => tokens(whole),
    };
    let bytes: usize = messages.iter().map(|message| turn(message) + TURN_TOKENS).sum();
    let extra: usize = extras.iter().map(Extra::tokens).sum();
    Prompt::uncounted(u32::try_from(bytes + extra + TEMPLATE_TOKENS).unwrap_or(u32::MAX))
}

/// Refuses before it is tokenized what can't fit whatever its tokens are.
fn may_fit(param: &'static str, bytes: usize, text: &Text, limit: u64) -> Result<(), Error> {
    let least = (bytes / text.longest_token_bytes().max(1)) as u64;
    if least > limit { Err(Error::ContextLength { param, limit, prompt_tokens: least, max_tokens: None }) } else { Ok(()) }
}
