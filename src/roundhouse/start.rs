//! Assembles a server from its parts, bottom up, and takes it down again.

use super::certified::Certified;
use super::engines::{LoadEngine, start_shard};
use super::{Listeners, StartError};
use crate::admin::Admin;
use crate::backend::Backend;
use crate::clock::Clock;
use crate::config::{Config, Model, Name};
use crate::gateway::{Gateway, Parts, Served, Stack};
use crate::metrics::Metrics;
use crate::shard::Shard;
use crate::tenant::{Accounts, Credentials, Keys};
use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long requests that are open at a stop may take to finish.
const DRAIN: Duration = Duration::from_secs(30);

type Shards = BTreeMap<Name, Arc<Shard>>;

/// A running server.
pub struct Running {
    gateway: Gateway,
    admin: Admin,
    shards: Shards,
}

/// Builds every part of the configuration and begins to serve on `listeners`.
///
/// # Errors
/// A shard doesn't load, or replicas of a model don't fit together.
pub fn start(config: Arc<Config>, engines: &mut dyn LoadEngine, listeners: Listeners) -> Result<Running, StartError> {
    let (clock, metrics) = (Clock::system(), Metrics::new());
    let accounts = Arc::new(Accounts::open(&config.store, clock.clone())?); // before weights are loaded: another process may have the file
    accounts.configure(&config)?;
    let credentials = Credentials::open(&config.store, clock.clone())?;
    let tls = Certified::read(&config)?;
    let mut shards = Shards::new();
    for (name, shard) in &config.shards {
        shards.insert(name.clone(), start_shard(shard, engines, &metrics, &clock)?);
    }
    let backend = |(name, shard): (&Name, &Arc<Shard>)| (name.clone(), shard.clone() as Arc<dyn Backend>);
    metrics.config_version(config.version);
    let stack = Stack::build(Parts {
        served: served(&config, &shards)?,
        backends: shards.iter().map(backend).collect(),
        keys: Arc::new(Keys::new(config.clone(), &credentials)),
        accounts,
        metrics: metrics.clone(),
        clock,
        config: config.clone(),
    });
    let stack = Arc::new(ArcSwap::from_pointee(stack));
    let system = |what| move |error| StartError::System { what, error };
    let gateway = Gateway::open(listeners.public, tls.public, stack, DRAIN).map_err(system("the gateway"))?;
    let (token, bounds) = (config.admin.token.clone(), Arc::new(move || config.clone()));
    let admin = Admin::open(listeners.admin, tls.admin, bounds, metrics, token).map_err(system("the admin port"))?;
    Ok(Running { gateway, admin, shards })
}

/// What each model's requests are counted and rendered with: the tokenizer of its first backend, the least of its replicas' room.
fn served(config: &Config, shards: &Shards) -> Result<BTreeMap<Name, Served>, StartError> {
    let of = |(name, model): (&Name, &Arc<Model>)| {
        let mut backends = model.variants.values().flat_map(|variant| variant.backends.iter()).map(|name| (name, &shards[name]));
        let (first, shard) = backends.next().expect("a resolved model has a backend");
        let mut served = Served { text: shard.text().clone(), context: shard.context(), pool_tokens: shard.pool_tokens() };
        for (second, shard) in backends {
            if shard.text().digest() != served.text.digest() {
                return Err(StartError::Tokenizers { model: name.clone(), first: first.clone(), second: second.clone() });
            }
            served.context = served.context.min(shard.context());
            served.pool_tokens = served.pool_tokens.min(shard.pool_tokens());
        }
        Ok((name.clone(), served))
    };
    config.models.iter().map(of).collect()
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
        self.shards.get(name)
    }

    /// All shards.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.shards.values()
    }

    /// Stops accepting and waits until what runs has ended, thirty seconds at most. Operators can watch it to its end.
    pub fn stop(self) {
        self.gateway.close();
        self.admin.close();
    }
}
