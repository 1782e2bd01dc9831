//! From a shard's configuration to a running shard: weights fetched, loaded on their device, the thread started.

use super::StartError;
use crate::clock::Clock;
use crate::config::{self, Config, Environment, Name, Weights};
use crate::cpu::Device;
use crate::engine::{Limits, Settings};
use crate::metrics::Metrics;
use crate::model;
use crate::model::source::{Progress, Sources};
use crate::shard::{self, BuildExecutor, Shard, Siblings};
use crate::text::Text;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An engine that is loaded but not running.
pub struct Engine {
    /// The model's tokenizer and template.
    pub text: Arc<Text>,
    /// What its executor will hold.
    pub limits: Limits,
    /// Identity of weights, quantization, KV type and kind of device.
    pub digest: [u8; 16],
    /// Makes the executor on the shard's thread.
    pub build: BuildExecutor,
}

/// Loads the engine of a shard. The seam where tests hand in a fake executor.
pub trait LoadEngine {
    /// Loads it; `progress` hears how far that is.
    ///
    /// # Errors
    /// Its weights can't be had or don't fit.
    fn load(&mut self, shard: &config::Shard, progress: &dyn Progress) -> Result<Engine, StartError>;

    /// Loads a tokenizer and its chat template alone, for a model that is served elsewhere.
    ///
    /// # Errors
    /// The file can't be had or has no tokenizer.
    fn tokenizer(&mut self, model: &Name, weights: &Weights) -> Result<Arc<Text>, StartError>;
}

/// Loads real models: weights from their sources, onto the configured devices.
pub struct Models<'a> {
    sources: Sources,
    devices: BTreeMap<Name, Arc<Device>>,
    progress: &'a (dyn Progress + Sync),
}

/// Tells both.
struct Both<'a>(&'a dyn Progress, &'a dyn Progress);

// === impl Models ===

impl<'a> Models<'a> {
    /// Opens the configured devices. `progress` hears of downloads.
    ///
    /// # Errors
    /// A device asks for an instruction set this machine doesn't have.
    pub fn new(config: &Config, environment: &Environment, progress: &'a (dyn Progress + Sync)) -> Result<Self, StartError> {
        let open = |(name, device): (&Name, &config::Device)| match Device::new(device) {
            Ok(device) => Ok((name.clone(), device)),
            Err(error) => Err(StartError::Device { device: name.clone(), error }),
        };
        Ok(Self { sources: Sources::new(environment), devices: config.devices.iter().map(open).collect::<Result<_, _>>()?, progress })
    }
}

impl LoadEngine for Models<'_> {
    fn load(&mut self, shard: &config::Shard, progress: &dyn Progress) -> Result<Engine, StartError> {
        let name = || shard.name.clone();
        let path = self.sources.fetch(&shard.weights, shard.sha256.as_ref(), &Both(self.progress, progress));
        let path = path.map_err(|error| StartError::Weights { shard: name(), error })?;
        let device = self.devices.get(&shard.device).expect("the configuration's references are checked");
        let loaded = model::load(shard, &path, device, progress).map_err(|error| StartError::Model { shard: name(), error })?;
        Ok(Engine {
            text: loaded.text.clone(),
            limits: loaded.limits,
            digest: loaded.digest,
            build: Box::new(move || Ok(Box::new(loaded.into_executor()))),
        })
    }

    fn tokenizer(&mut self, model: &Name, weights: &Weights) -> Result<Arc<Text>, StartError> {
        let file = self.sources.fetch(weights, weights.known_sha256(), self.progress);
        let file = file.map_err(|error| StartError::TokenizerSource { model: model.clone(), error })?;
        model::tokenizer(&file).map_err(|error| StartError::Tokenizer { model: model.clone(), error })
    }
}

// === impl Both ===

impl Progress for Both<'_> {
    fn start(&self, total: Option<u64>, what: &str) {
        self.0.start(total, what);
        self.1.start(total, what);
    }

    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
        self.1.advance(bytes);
    }

    fn done(&self) {
        self.0.done();
        self.1.done();
    }
}

/// Starts the thread of a loaded engine.
pub(super) fn start_shard(
    shard: &config::Shard,
    engine: Engine,
    siblings: &Siblings,
    metrics: &Metrics,
    clock: &Clock,
) -> Result<Arc<Shard>, StartError> {
    let mut hash_key = [0; 32];
    // A key of this shard's life: nobody outside can construct prompts whose blocks collide.
    getrandom::fill(&mut hash_key).map_err(|error| StartError::Random(error.to_string()))?;
    let Engine { text, limits, digest, build } = engine;
    let settings = Settings { model: digest, hash_key, stop_tokens: text.stop_tokens().into() };
    let parts = shard::Parts {
        name: shard.name.clone(),
        text,
        limits,
        settings,
        share_prefixes: shard.share_prefixes,
        max_waiting: shard.max_waiting,
        stuck_after: shard.stuck_after,
        siblings: siblings.clone(),
        build,
        metrics: metrics.shard(&shard.name),
        clock: clock.clone(),
    };
    Shard::start(parts).map_err(|error| StartError::Shard { shard: shard.name.clone(), error })
}
