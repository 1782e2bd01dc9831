//! What outlives a reload, and the reload itself: parse, check, build a new stack, swap.

use super::StartError;
use super::certified::Certified;
use super::fixed::fixed;
use super::served::served;
use crate::admin::Reloaded;
use crate::backend::Backend;
use crate::clock::Clock;
use crate::config::{Config, ConfigError, Name, Weights};
use crate::gateway::{Parts, Stack};
use crate::metrics::Metrics;
use crate::route::Experiments;
use crate::shard::Shard;
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
    pub(super) shards: Shards,
    pub(super) upstreams: Upstreams,
    pub(super) texts: Texts,
    pub(super) tls: Certified,
}

/// What lasts, and the stack of the present configuration.
pub(super) struct House {
    pub(super) lasting: Lasting,
    pub(super) stack: Arc<ArcSwap<Stack>>,
    pub(super) draining: Arc<AtomicBool>,
    /// Unix time of the start.
    pub(super) started: Duration,
    /// Where the configuration comes from; none for the built-in one.
    pub(super) file: Option<PathBuf>,
    /// Held while a configuration is being swapped; since when, in Unix time, the present one is served.
    pub(super) since: Mutex<Duration>,
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
    /// A part doesn't fit.
    #[error(transparent)]
    Part(#[from] StartError),
}

// === impl House ===

impl House {
    /// Builds the first stack.
    pub(super) fn new(config: Arc<Config>, file: Option<PathBuf>, lasting: Lasting) -> Result<Self, StartError> {
        lasting.metrics.config_version(config.version);
        let started = lasting.clock.unix();
        lasting.experiments.configure(&config);
        let stack = Arc::new(ArcSwap::from_pointee(lasting.stack(config)?));
        let (draining, since) = (Arc::new(AtomicBool::new(false)), Mutex::new(started));
        Ok(Self { lasting, stack, draining, started, file, since })
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

    /// Serves by another configuration; requests in flight keep theirs to their end.
    pub(super) fn reload(&self, mut config: Config) -> Result<Reloaded, ReloadError> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
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
        // New quotas know what was used before any request meets them.
        self.lasting.accounts.configure(&config).map_err(StartError::from)?;
        let config = Arc::new(config);
        let version = config.version;
        let stack = self.lasting.stack(config)?;
        self.lasting.experiments.configure(&stack.config);
        certificates.serve();
        self.stack.store(Arc::new(stack));
        self.lasting.metrics.config_version(version);
        *since = self.lasting.clock.unix();
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
    fn stack(&self, config: Arc<Config>) -> Result<Stack, StartError> {
        let served = served(&config, &self.shards, &self.texts)?;
        let shards = self.shards.iter().map(|(name, shard)| (name.clone(), shard.clone() as Arc<dyn Backend>));
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
}
