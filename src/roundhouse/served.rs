//! What each model's requests are counted and rendered with.

use super::StartError;
use super::house::{Shards, Texts};
use crate::config::{Config, Model, Name, Tokenizer};
use crate::gateway::Served;
use crate::text::Text;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Each model's tokenizer, the configured one or that of its first shard, and the least of its backends' room.
pub(super) fn served(config: &Config, shards: &Shards, texts: &Texts) -> Result<BTreeMap<Name, Served>, StartError> {
    config.models.iter().map(|(name, model)| Ok((name.clone(), of(config, model, shards, texts)?))).collect()
}

fn of(config: &Config, model: &Model, shards: &Shards, texts: &Texts) -> Result<Served, StartError> {
    let mut tokenizer = configured(model, shards, texts);
    let (mut context, mut pool_tokens, mut token_ids) = (u32::MAX, u32::MAX, true);
    for name in model.variants.values().flat_map(|variant| variant.backends.iter()) {
        let Some(shard) = shards.get(name) else {
            let known = config.upstreams.get(name).and_then(|upstream| upstream.context);
            context = known.map_or(context, |known| context.min(known.get()));
            token_ids = false;
            continue;
        };
        let (first, text) = tokenizer.get_or_insert_with(|| (name.clone(), shard.text().clone()));
        if shard.text().digest() != text.digest() {
            return Err(StartError::Tokenizers { model: model.name.clone(), first: first.clone(), second: name.clone() });
        }
        context = context.min(shard.context());
        pool_tokens = pool_tokens.min(shard.pool_tokens());
    }
    Ok(Served { text: tokenizer.map(|(_, text)| text), context, pool_tokens, token_ids })
}

/// The tokenizer the configuration names, and what it is called there.
fn configured(model: &Model, shards: &Shards, texts: &Texts) -> Option<(Name, Arc<Text>)> {
    match model.tokenizer.as_ref()? {
        Tokenizer::Shard(name) => Some((name.clone(), shards.get(name)?.text().clone())),
        Tokenizer::Weights(weights) => Some((weights.to_string().into(), texts.get(weights)?.clone())),
    }
}
