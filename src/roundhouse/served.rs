//! What each model's requests are counted and rendered with.

use super::StartError;
use super::house::{Shards, Texts};
use crate::config::{Config, Model, Name, Tokenizer, Variant};
use crate::gateway::Served;
use crate::route::Rendering;
use crate::text::Text;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Each model's reference tokenizer, the configured one or that of its first shard, and for each of its variants the
/// tokenizer of its shards and the least of its backends' room.
pub(super) fn served(config: &Config, shards: &Shards, texts: &Texts) -> Result<BTreeMap<Name, Served>, StartError> {
    config.models.iter().map(|(name, model)| Ok((name.clone(), of(config, model, shards, texts)?))).collect()
}

fn of(config: &Config, model: &Model, shards: &Shards, texts: &Texts) -> Result<Served, StartError> {
    let first = || model.variants.values().flat_map(|variant| variant.backends.iter()).find_map(|name| shards.get(name));
    let text = configured(model, shards, texts).or_else(|| first().map(|shard| shard.text().clone()));
    let mut variants = BTreeMap::new();
    for (name, variant) in &model.variants {
        variants.insert(name.clone(), rendering(config, model, variant, &text, shards)?);
    }
    Ok(Served { text, variants })
}

fn rendering(
    config: &Config,
    model: &Model,
    variant: &Variant,
    reference: &Option<Arc<Text>>,
    shards: &Shards,
) -> Result<Rendering, StartError> {
    let mut first: Option<(&Name, &Arc<Text>)> = None;
    let (mut context, mut pool_tokens) = (u32::MAX, u32::MAX);
    for name in variant.backends.iter() {
        let Some(shard) = shards.get(name) else {
            let known = config.upstreams.get(name).and_then(|upstream| upstream.context);
            context = known.map_or(context, |known| context.min(known.get()));
            continue;
        };
        let (first, text) = *first.get_or_insert((name, shard.text()));
        if shard.text().digest() != text.digest() {
            return Err(StartError::Tokenizers { model: model.name.clone(), first: first.clone(), second: name.clone() });
        }
        context = context.min(shard.context());
        pool_tokens = pool_tokens.min(shard.pool_tokens());
    }
    // Remote servers alone: the model's own tokenizer counts for them.
    let text = first.map(|(_, text)| text.clone()).or_else(|| reference.clone());
    Ok(Rendering { text, context, pool_tokens, local: variant.backends.iter().all(|name| shards.contains_key(name)) })
}

/// The tokenizer the configuration names.
fn configured(model: &Model, shards: &Shards, texts: &Texts) -> Option<Arc<Text>> {
    match model.tokenizer.as_ref()? {
        Tokenizer::Shard(name) => Some(shards.get(name)?.text().clone()),
        Tokenizer::Weights(weights) => texts.get(weights).cloned(),
    }
}
