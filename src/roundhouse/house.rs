//! What outlives a reload, and the reload itself: parse, check, build a new stack, swap.

use super::StartError;
use super::certified::Certified;
use super::engines::LoadEngine;
use super::fixed::fixed;
use super::loading::Loads;
use super::served::served;
use crate::admin::Reloaded;
use crate::backend::Backend;
use crate::clock::Clock;
use crate::config::{Config, ConfigError, Name, Weights};
use crate::gateway::{Parts, Stack};
use crate::metrics::Metrics;
use crate::route::Experiments;
use crate::shard::{Shard, Siblings};
use crate::tenant::{Accounts, Credentials, Keys};
use crate::text::Text;
use crate::upstream::Upstreams;
use arc_swap::ArcSwap;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) type Shards = BTreeMap<Name, Arc<Shard>>;
/// Tokenizers of models that are served elsewhere.
pub(super) type Texts = HashMap<Weights, Arc<Text>>;

/// Everything that is the same under all configurations of one process.
pub(super) struct Lasting {
    pub(super) clock: Clock,
    pub(super) metrics: Metrics,
    pub(super) accounts: Arc<Accounts>,
    pub(super) credentials: Credentials,
    pub(super) experiments: Arc<Experiments>,
    pub(super) upstreams: Upstreams,
    pub(super) tls: Certified,
    /// Makes engines; one reload at a time.
    pub(super) engines: Mutex<Box<dyn LoadEngine + Send>>,
    /// Shards that live, those of older configurations among them.
    pub(super) siblings: Siblings,
    /// Engines that are being made.
    pub(super) loads: Loads,
}

/// What is in memory for the present configuration.
pub(super) struct Present {
    pub(super) shards: Shards,
    pub(super) texts: Texts,
}

/// What lasts, and the stack of the present configuration.
pub(super) struct House {
    pub(super) lasting: Lasting,
    pub(super) present: ArcSwap<Present>,
    pub(super) stack: Arc<ArcSwap<Stack>>,
    pub(super) draining: Arc<AtomicBool>,
    /// Unix time of the start.
    pub(super) started: Duration,
    /// Where the configuration comes from; none for the built-in one.
    pub(super) file: Option<PathBuf>,
    /// Since when, in Unix time, the present configuration is served.
    pub(super) since: Mutex<Duration>,
    /// Held by whoever changes what is served: one at a time, the others wait.
    pub(super) changing: Mutex<()>,
}

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The server began without a file.
    #[error("the server was started without a configuration file, so there is nothing to read again")]
    NoFile,
    /// The file has nothing in it, as one that is being written.
    #[error("{}: the file is empty; what it said before stays in force", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// The file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Keys differ that a running server can't change.
    #[error("can't change without a restart: {}", keys.join(", "))]
    Fixed {
        /// Their paths.
        keys: Vec<String>,
    },
    /// There is no memory for a new shard beside the one that it is to replace.
    #[error("{error}; with `swap = \"drain-first\"` in shards.{shard} the present one is freed first")]
    NoRoom {
        /// The shard.
        shard: Name,
        /// What is missing.
        error: Box<StartError>,
    },
    /// What runs on a shard that has to make room didn't end in time; it serves on.
    #[error("shards.{shard}: what runs there didn't end within {} s, so that it could make room; it serves on", patience.as_secs_f32())]
    Busy {
        /// The shard.
        shard: Name,
        /// `server.drain`.
        patience: Duration,
    },
    /// The server is about to end.
    #[error("the server is stopping")]
    Stopping,
    /// A part doesn't fit.
    #[error(transparent)]
    Part(#[from] StartError),
}

// === impl House ===

impl House {
    /// Builds the first stack.
    pub(super) fn new(config: Arc<Config>, file: Option<PathBuf>, lasting: Lasting, present: Present) -> Result<Self, StartError> {
        lasting.metrics.config_version(config.version);
        let started = lasting.clock.unix();
        lasting.experiments.configure(&config);
        let stack = Arc::new(ArcSwap::from_pointee(lasting.stack(config, &present)?));
        lasting.show(&present);
        let (draining, since, present) = (Arc::default(), Mutex::new(started), ArcSwap::from_pointee(present));
        Ok(Self { lasting, present, stack, draining, started, file, since, changing: Mutex::default() })
    }

    /// Reads the file again and serves by it. Blocks on the file and the ledger; one reload at a time.
    pub(super) fn reload_file(&self) -> Result<Reloaded, ReloadError> {
        let reloaded = self.read().and_then(|config| self.reload(config));
        self.lasting.metrics.reloaded(match &reloaded {
            Ok(Reloaded { changed: true, .. }) => "changed",
            Ok(Reloaded { changed: false, .. }) => "unchanged",
            Err(_) => "refused",
        });
        match &reloaded {
            Ok(Reloaded { changed: true, version }) => tracing::info!(version, "serving by a new configuration"),
            Ok(_) => tracing::debug!("the configuration is the same"),
            Err(error) => tracing::error!("the configuration wasn't changed: {error}"),
        }
        reloaded
    }

    /// Serves by another configuration; requests in flight keep theirs to their end. Loads what is new, and blocks on that.
    pub(super) fn reload(&self, mut config: Config) -> Result<Reloaded, ReloadError> {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let present = self.stack.load().config.clone();
        config.version = present.version;
        // Certificates are renewed in their files, whatever the configuration says.
        if config == *present {
            self.lasting.tls.read_again(&config).map_err(StartError::from)?.serve();
            return Ok(Reloaded { version: present.version, changed: false });
        }
        let keys = fixed(&present, &config);
        if !keys.is_empty() {
            return Err(ReloadError::Fixed { keys });
        }
        config.version += 1;
        let certificates = self.lasting.tls.read_again(&config).map_err(StartError::from)?;
        let version = config.version;
        self.change(Arc::new(config), None)?;
        certificates.serve();
        self.lasting.metrics.config_version(version);
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = self.lasting.clock.unix();
        Ok(Reloaded { version, changed: true })
    }

    fn read(&self) -> Result<Config, ReloadError> {
        let file: &Path = self.file.as_deref().ok_or(ReloadError::NoFile)?;
        let text = std::fs::read_to_string(file).map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        // It would mean the built-in configuration, which nobody asks for by emptying a file.
        if text.trim().is_empty() {
            return Err(ReloadError::Empty { file: file.to_owned() });
        }
        Ok(Config::parse(&text, file)?)
    }
}

// === impl Lasting ===

impl Lasting {
    /// The stack of a configuration and what is in memory for it.
    pub(super) fn stack(&self, config: Arc<Config>, present: &Present) -> Result<Stack, StartError> {
        let served = served(&config, &present.shards, &present.texts)?;
        let shards = present.shards.iter().map(|(name, shard)| (name.clone(), shard.clone() as Arc<dyn Backend>));
        let upstreams = self.upstreams.configure(&config)?.into_iter().map(|(name, upstream)| (name, upstream as Arc<dyn Backend>));
        Ok(Stack::build(Parts {
            served,
            backends: shards.chain(upstreams).collect(),
            keys: Arc::new(Keys::new(config.clone(), &self.credentials)),
            accounts: self.accounts.clone(),
            experiments: self.experiments.clone(),
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
            config,
        }))
    }

    /// The metrics ask these shards from now on.
    pub(super) fn show(&self, present: &Present) {
        for (name, shard) in &present.shards {
            let asked = Arc::downgrade(shard);
            self.metrics.shard_state(name, move || Some(asked.upgrade()?.state().as_str()));
        }
    }
}
