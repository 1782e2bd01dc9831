//! New shards in the place of old ones, while requests are served: load, warm, swap, and let the old ones go.

use super::StartError;
use super::engines::{Engine, start_shard};
use super::house::{House, Lasting, Present, ReloadError, Shards, Texts};
use super::loading::Loading;
use crate::config::{self, Config, Name, Swap, Tokenizer};
use crate::cpu::{self, CpuError};
use crate::engine::DeviceError;
use crate::model::LoadError;
use crate::model::source::Progress;
use crate::shard::Shard;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

// === impl House ===

impl House {
    /// Serves by this configuration: loads the shards that are new or differ, and that of the name `again`, and lets those
    /// go that are gone. The caller changes nothing else meanwhile.
    ///
    /// # Errors
    /// Something can't be loaded or doesn't fit; then everything is as it was, and what was loaded is freed.
    pub(super) fn change(&self, config: Arc<Config>, again: Option<&Name>) -> Result<(), ReloadError> {
        let mut left = Vec::new();
        let changed = self.load(&config, again, &mut left).and_then(|present| self.swap(config, present));
        if changed.is_err() {
            self.restore(left);
        }
        changed
    }

    /// Everything that `config` needs, what is there already included. Names of shards that had to make room go to `left`.
    fn load(&self, config: &Config, again: Option<&Name>, left: &mut Vec<Name>) -> Result<Present, ReloadError> {
        let (before, old) = (self.stack.load().config.clone(), self.present.load_full());
        let mut texts = old.texts.clone();
        self.lasting.load_texts(config, &mut texts)?;
        let mut shards = Shards::new();
        let mut to_load = Vec::new();
        for (name, shard) in &config.shards {
            let kept = before.shards.get(name).filter(|before| is_same(before, shard) && again != Some(name));
            match kept.and_then(|_| old.shards.get(name)) {
                Some(kept) => drop(shards.insert(name.clone(), kept.clone())),
                None => to_load.push(shard),
            }
        }
        to_load.sort_by_key(|shard| shard.swap == Swap::DrainFirst); // nobody makes room in vain if another can't be loaded
        for shard in to_load {
            if self.draining.load(Relaxed) {
                return Err(ReloadError::Stopping);
            }
            let replaced = old.shards.get(&shard.name);
            if let Some(replaced) = replaced.filter(|_| shard.swap == Swap::DrainFirst) {
                let patience = before.server.drain;
                let listed = self.lasting.loads.list(&shard.name);
                listed.loading.start(None, &format!("draining {}", shard.name));
                if !replaced.leave(patience) {
                    return Err(ReloadError::Busy { shard: shard.name.clone(), patience });
                }
                left.push(shard.name.clone());
            }
            let new = self.lasting.load(shard, true).map_err(|error| without_room(error, shard, replaced.is_some()))?;
            if replaced.is_some_and(|replaced| replaced.is_drained()) {
                new.drain();
            }
            shards.insert(shard.name.clone(), new);
        }
        Ok(Present { shards, texts })
    }

    /// From the next request on `config` is served, by these.
    fn swap(&self, config: Arc<Config>, present: Present) -> Result<(), ReloadError> {
        if self.draining.load(Relaxed) {
            return Err(ReloadError::Stopping);
        }
        // New quotas know what was used before any request meets them.
        self.lasting.accounts.configure(&config).map_err(StartError::from)?;
        let stack = self.lasting.stack(config, &present)?;
        self.lasting.experiments.configure(&stack.config);
        self.lasting.show(&present);
        let present = Arc::new(present);
        self.stack.store(Arc::new(stack));
        let old = self.present.swap(present.clone());
        for (name, shard) in &old.shards {
            match present.shards.get(name) {
                Some(same) if Arc::ptr_eq(same, shard) => {}
                Some(new) => {
                    tracing::info!(shard = %name, "a new engine has taken the shard's place; the old one finishes what it has");
                    shard.give_way(new);
                }
                None => tracing::info!(shard = %name, "the shard is dropped; it finishes what it has"),
            }
        }
        Ok(())
    }

    /// Loads again what left to make room for something that didn't come.
    fn restore(&self, left: Vec<Name>) {
        if left.is_empty() || self.draining.load(Relaxed) {
            return;
        }
        let (config, old) = (self.stack.load().config.clone(), self.present.load_full());
        let mut shards = old.shards.clone();
        for name in left {
            let Some(shard) = config.shards.get(&name) else { continue };
            match self.lasting.load(shard, true) {
                Ok(restored) => drop(shards.insert(name, restored)),
                Err(error) => {
                    tracing::error!(shard = %name, "the shard is lost: it made room for another, and can't be loaded again: {error}");
                    if let Some(lost) = old.shards.get(&name) {
                        lost.lose();
                    }
                }
            }
        }
        if let Err(error) = self.swap(config, Present { shards, texts: old.texts.clone() }) {
            tracing::error!("what was served before can't be restored: {error}");
        }
    }
}

// === impl Lasting ===

impl Lasting {
    /// Loads a shard and starts it; `warm` also runs its first step. Blocks, and computes on threads of its own, so that
    /// it doesn't matter on which one it is called.
    pub(super) fn load(&self, shard: &config::Shard, warm: bool) -> Result<Arc<Shard>, StartError> {
        let listed = self.loads.list(&shard.name);
        let lost = |what: &str| StartError::Shard { shard: shard.name.clone(), error: DeviceError(what.to_owned()) };
        std::thread::scope(|scope| {
            let started = scope.spawn(|| {
                let engine = scope.spawn(|| self.load_engine(shard, warm, &listed.loading)).join();
                let engine = engine.map_err(|_| lost("loading it panicked"))??;
                let started = start_shard(shard, engine, &self.siblings, &self.metrics, &self.clock)?;
                if warm {
                    listed.loading.start(None, &format!("warming {}", shard.name));
                    started.warm().map_err(|error| StartError::Shard { shard: shard.name.clone(), error })?;
                }
                Ok(started)
            });
            started.join().map_err(|_| lost("starting it panicked"))?
        })
    }

    /// The engine; while others serve (`aside`) so that their steps go first.
    fn load_engine(&self, shard: &config::Shard, aside: bool, loading: &Loading) -> Result<Engine, StartError> {
        if aside {
            cpu::be_nicest();
        }
        self.engines.lock().unwrap_or_else(PoisonError::into_inner).load(shard, loading)
    }

    /// Loads those tokenizers of models served elsewhere that aren't there yet.
    pub(super) fn load_texts(&self, config: &Config, texts: &mut Texts) -> Result<(), StartError> {
        for (name, model) in &config.models {
            if let Some(Tokenizer::Weights(weights)) = &model.tokenizer
                && !texts.contains_key(weights)
            {
                let text = self.engines.lock().unwrap_or_else(PoisonError::into_inner).tokenizer(name, weights)?;
                texts.insert(weights.clone(), text);
            }
        }
        Ok(())
    }
}

/// Whether the engine of one serves for the other, too.
fn is_same(before: &config::Shard, now: &config::Shard) -> bool {
    config::Shard { swap: now.swap, ..before.clone() } == *now
}

/// Says what would help where memory is missing.
fn without_room(error: StartError, shard: &config::Shard, replaces: bool) -> ReloadError {
    let memory = matches!(&error, StartError::Model { error: LoadError::Device(CpuError::Memory { .. }), .. });
    match memory && replaces && shard.swap == Swap::Beside {
        true => ReloadError::NoRoom { shard: shard.name.clone(), error: Box::new(error) },
        false => error.into(),
    }
}
