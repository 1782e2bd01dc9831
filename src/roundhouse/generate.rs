//! One prompt through one engine, without a server.

use super::StartError;
use super::engines::{LoadEngine, start_shard};
use super::loading::Loading;
use crate::backend::Backend;
use crate::call::{Call, Error, Event, Message, Outcome, Prompt, Record, Sampling, Task, Usage};
use crate::clock::Clock;
use crate::config::{self, Config, Name};
use crate::metrics::Metrics;
use crate::shard::Siblings;
use crate::text::TextError;
use std::sync::Arc;

/// What is to be generated.
#[derive(Clone, Debug)]
pub struct Generate {
    /// The model by its configured name or alias.
    pub model: String,
    /// The user's message, or with `raw` the text to continue.
    pub prompt: String,
    /// Without the model's chat template.
    pub raw: bool,
    /// Most tokens; the model's default without.
    pub max_tokens: Option<u32>,
    /// 0 takes the likeliest token; the variant's default without.
    pub temperature: Option<f32>,
    /// Keeps the smallest set of tokens whose probability reaches this; the variant's default without.
    pub top_p: Option<f32>,
    /// The same seed gives the same text; random without.
    pub seed: Option<u64>,
}

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The model isn't configured.
    #[error("no model `{0}` is configured")]
    NoModel(String),
    /// Its engine doesn't start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Its chat template refuses the prompt.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The engine refuses or fails.
    #[error(transparent)]
    Call(#[from] Error),
    /// No randomness for a seed, no runtime.
    #[error("the system refuses: {0}")]
    System(String),
}

/// Generates and hands every piece of text to `on_text` as it comes; returns what was used.
///
/// # Errors
/// The model isn't there, doesn't start or refuses the request.
pub fn generate(
    config: &Config,
    engines: &mut dyn LoadEngine,
    request: &Generate,
    mut on_text: impl FnMut(&str),
) -> Result<Usage, GenerateError> {
    let model = config.model(&request.model).ok_or_else(|| GenerateError::NoModel(request.model.clone()))?;
    let variant = model.variants.values().next().ok_or_else(|| GenerateError::NoModel(request.model.clone()))?;
    let shard = variant.backends.iter().find_map(|backend| config.shards.get(backend));
    let shard = shard.ok_or_else(|| GenerateError::NoModel(request.model.clone()))?;
    let clock = Clock::system();
    let engine = engines.load(shard, &Loading::default())?;
    let shard = start_shard(shard, engine, &Siblings::default(), &Metrics::new(), &clock)?;
    let turn = |role: &str, content: &str| Message::new(role, content);
    let system = variant.system.iter().map(|system| turn("system", system));
    let messages: Vec<_> = system.chain([turn("user", &request.prompt)]).collect();
    let ids = if request.raw { shard.text().encode(&request.prompt) } else { shard.text().encode_chat(&messages)? };
    let room = shard.context().min(shard.pool_tokens()).saturating_sub(ids.len() as u32).max(1);
    let sampling = Sampling {
        max_tokens: request.max_tokens.unwrap_or(model.default_max_tokens.get().min(room)),
        temperature: request.temperature.unwrap_or(variant.sampling.temperature),
        top_p: request.top_p.unwrap_or(variant.sampling.top_p),
        seed: match request.seed {
            Some(seed) => seed,
            None => getrandom::u64().map_err(|error| GenerateError::System(error.to_string()))?,
        },
        ..Sampling::default()
    };
    let call = Call {
        record: Record::new("generate".into(), clock.now(), config.version),
        tenant: Arc::new(config::Tenant::new(Name::from("local"))),
        class: config::Class::default(),
        key: Arc::new(config::Key::new(Name::from("local"), [0; 32])),
        model: model.clone(),
        task: Task::Generate,
        asked: Arc::default(),
        messages: Arc::new([]),
        prompts: Arc::new([Prompt::new(ids, shard.text().digest())]),
        sampling: Arc::new(sampling),
        route: None,
        deadline: None,
        first_by: None,
    };
    shard.supports(&call)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| GenerateError::System(error.to_string()))?;
    runtime.block_on(async {
        let mut reply = shard.call(call).await?;
        while let Some(event) = reply.next().await {
            if let Event::Text { text, .. } = event? {
                on_text(&text);
            }
        }
        let usage = reply.usage();
        reply.close(Outcome::Done).await;
        Ok(usage)
    })
}
