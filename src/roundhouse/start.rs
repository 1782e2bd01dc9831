//! Assembles a server from its parts, bottom up, and takes it down again.

use super::certified::Certified;
use super::engines::{LoadEngine, start_shard};
use super::house::{House, Lasting, ReloadError, Shards, Texts};
use super::watch::{Stop, watch};
use super::{Listeners, StartError};
use crate::admin::{Admin, Reloaded};
use crate::clock::Clock;
use crate::config::{Config, Name, Tokenizer};
use crate::gateway::Gateway;
use crate::metrics::Metrics;
use crate::route::Experiments;
use crate::shard::Shard;
use crate::tenant::{Accounts, Credentials};
use crate::upstream::{Upstream, Upstreams};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// A running server.
pub struct Running {
    // The order matters where it is dropped: nobody reloads what is being taken down.
    watch: Option<Stop>,
    gateway: Gateway,
    admin: Admin,
    house: Arc<House>,
}

/// Builds every part of the configuration and begins to serve on `listeners`. Where the configuration came from a `file`,
/// that is watched and read again when it changes.
///
/// # Errors
/// A shard doesn't load, or replicas of a model don't fit together.
pub fn start(
    config: Arc<Config>,
    file: Option<PathBuf>,
    engines: &mut dyn LoadEngine,
    listeners: Listeners,
) -> Result<Running, StartError> {
    let (clock, metrics) = (Clock::system(), Metrics::new());
    let accounts = Arc::new(Accounts::open(&config.store, clock.clone(), &metrics)?); // before weights are loaded: another process may have the file
    accounts.configure(&config)?;
    let credentials = Credentials::open(&config.store, clock.clone())?;
    let tls = Certified::read(&config)?;
    let mut shards = Shards::new();
    for (name, shard) in &config.shards {
        shards.insert(name.clone(), start_shard(shard, engines, &metrics, &clock)?);
    }
    let texts = load_texts(&config, engines)?;
    let upstreams = Upstreams::new(metrics.clone(), clock.clone());
    let drain = config.server.drain;
    let experiments = Arc::new(Experiments::new(metrics.clone(), clock.clone()));
    let (public, private) = (tls.public.clone(), tls.admin.clone());
    let house = Arc::new(House::new(
        config,
        file.clone(),
        Lasting { clock, metrics: metrics.clone(), accounts, credentials, experiments, shards, upstreams, texts, tls },
    )?);
    let system = |what| move |error| StartError::System { what, error };
    let gateway =
        Gateway::open(listeners.public, public, house.stack.clone(), house.draining.clone(), drain).map_err(system("the gateway"))?;
    let admin = Admin::open(listeners.admin, private, metrics, house.clone()).map_err(system("the admin port"))?;
    let watch = file.map(|file| watch(house.clone(), file)).transpose().map_err(system("the watch on the configuration"))?;
    Ok(Running { watch, gateway, admin, house })
}

/// The tokenizers of models that are served elsewhere.
fn load_texts(config: &Config, engines: &mut dyn LoadEngine) -> Result<Texts, StartError> {
    let mut texts = Texts::new();
    for (name, model) in &config.models {
        if let Some(Tokenizer::Weights(weights)) = &model.tokenizer
            && !texts.contains_key(weights)
        {
            texts.insert(weights.clone(), engines.tokenizer(name, weights)?);
        }
    }
    Ok(texts)
}

// === impl Running ===

impl Running {
    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.gateway.address()
    }

    /// Where operators connect.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// A shard by its configured name.
    pub fn shard(&self, name: &Name) -> Option<&Arc<Shard>> {
        self.house.lasting.shards.get(name)
    }

    /// All shards.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.house.lasting.shards.values()
    }

    /// An upstream of the present configuration by its name.
    pub fn upstream(&self, name: &Name) -> Option<Arc<Upstream>> {
        self.house.lasting.upstreams.present().remove(name)
    }

    /// Serves by another configuration, from the next request on.
    ///
    /// # Errors
    /// It changes what can't change without a restart, or its parts don't fit together; then nothing changed.
    pub fn reload(&self, config: Config) -> Result<Reloaded, ReloadError> {
        self.house.reload(config)
    }

    /// Reads the configuration file again and serves by it. What came of it is logged and counted.
    ///
    /// # Errors
    /// As [`reload`](Self::reload), or the file can't be read or is wrong.
    pub fn reload_file(&self) -> Result<Reloaded, ReloadError> {
        self.house.reload_file()
    }

    /// Stops accepting and waits until what runs has ended, `server.drain` at most. Operators can watch it to its end.
    pub fn stop(self) {
        drop(self.watch);
        self.gateway.close();
        self.admin.close();
    }
}
