//! Assembles a server from its parts, bottom up, and takes it down again.

use super::certified::Certified;
use super::engines::LoadEngine;
use super::house::{House, Lasting, Present, ReloadError, Shards, Texts};
use super::loading::Loads;
use super::watch::{Stop, watch};
use super::{Listeners, StartError};
use crate::admin::{Admin, Reloaded};
use crate::clock::Clock;
use crate::config::{Config, Name};
use crate::gateway::Gateway;
use crate::metrics::Metrics;
use crate::route::Experiments;
use crate::shard::{Shard, Siblings};
use crate::tenant::{Accounts, Credentials};
use crate::upstream::{Upstream, Upstreams};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

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
    engines: Box<dyn LoadEngine + Send>,
    listeners: Listeners,
) -> Result<Running, StartError> {
    let (clock, metrics) = (Clock::system(), Metrics::new());
    let accounts = Arc::new(Accounts::open(&config.store, clock.clone(), &metrics)?); // before weights are loaded: another process may have the file
    accounts.configure(&config)?;
    let credentials = Credentials::open(&config.store, clock.clone())?;
    let tls = Certified::read(&config)?;
    let upstreams = Upstreams::new(metrics.clone(), clock.clone());
    let drain = config.server.drain;
    let experiments = Arc::new(Experiments::new(metrics.clone(), clock.clone()));
    let (public, private) = (tls.public.clone(), tls.admin.clone());
    let (engines, loads) = (Mutex::new(engines), Loads::default());
    let lasting = Lasting {
        clock,
        metrics: metrics.clone(),
        accounts,
        credentials,
        experiments,
        upstreams,
        tls,
        engines,
        siblings: Siblings::default(),
        loads,
    };
    let mut present = Present { shards: Shards::new(), texts: Texts::new() };
    for (name, shard) in &config.shards {
        present.shards.insert(name.clone(), lasting.load(shard, false)?);
    }
    lasting.load_texts(&config, &mut present.texts)?;
    let house = Arc::new(House::new(config, file.clone(), lasting, present)?);
    let system = |what| move |error| StartError::System { what, error };
    let gateway =
        Gateway::open(listeners.public, public, house.stack.clone(), house.draining.clone(), drain).map_err(system("the gateway"))?;
    let admin = Admin::open(listeners.admin, private, metrics, house.clone()).map_err(system("the admin port"))?;
    let watch = file.map(|file| watch(house.clone(), file)).transpose().map_err(system("the watch on the configuration"))?;
    Ok(Running { watch, gateway, admin, house })
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
    pub fn shard(&self, name: &Name) -> Option<Arc<Shard>> {
        self.house.present.load().shards.get(name).cloned()
    }

    /// All shards of the present configuration.
    pub fn shards(&self) -> impl Iterator<Item = Arc<Shard>> {
        self.house.present.load().shards.values().cloned().collect::<Vec<_>>().into_iter()
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

    /// Does [`reload_file`](Self::reload_file) on a thread of its own.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn reload_aside(&self) -> std::io::Result<()> {
        let house = self.house.clone();
        let reload = move || drop(house.reload_file()); // what came of it is in the log
        std::thread::Builder::new().name("reload".to_owned()).spawn(reload).map(drop)
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
