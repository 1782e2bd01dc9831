//! What operators can ask of the server; `roundhouse/` does it.

use crate::backend::State;
use crate::call::Error;
use crate::config::{Config, Name};
use crate::route::Experiments;
use crate::tenant::{Accounts, Keys};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A running server as operators see it.
pub trait Control: Send + Sync {
    /// The configuration that new requests get.
    fn config(&self) -> Arc<Config>;

    /// Who may come in under it.
    fn keys(&self) -> Arc<Keys>;

    /// What tenants may use and have used.
    fn accounts(&self) -> Arc<Accounts>;

    /// What variants did in experiments.
    fn experiments(&self) -> Arc<Experiments>;

    /// How everything stands now.
    fn status(&self) -> Status;

    /// Reads the configuration file again and serves by it. Blocks.
    ///
    /// # Errors
    /// Why nothing was changed, a line for each problem.
    fn reload(&self) -> Result<Reloaded, String>;

    /// Does something with a shard, and says where it stands then. A reload blocks.
    ///
    /// # Errors
    /// There is no such shard, or it can't be loaded.
    fn shard(&self, shard: &Name, deed: Deed) -> Result<State, Error>;
}

/// What can be done with a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It takes no new calls and finishes what it has.
    Drain,
    /// It takes calls again.
    Resume,
    /// Its weights are loaded again, as configured, and the new engine takes its place.
    Reload,
}

/// A reload that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// The version of the configuration that new requests get now.
    pub version: u64,
    /// Whether it is another one than before.
    pub changed: bool,
}

/// How a server stands.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The program's version.
    pub version: &'static str,
    /// Since the server began to serve.
    pub uptime_seconds: u64,
    /// Whether it takes no new requests and waits for those that run.
    pub draining: bool,
    /// The configuration that new requests get.
    pub config: ConfigStatus,
    /// Engines in this process.
    pub shards: BTreeMap<Name, ShardStatus>,
    /// Engines that are being loaded, each beside the one that it will replace.
    pub loading: BTreeMap<Name, LoadStatus>,
    /// Remote servers.
    pub upstreams: BTreeMap<Name, UpstreamStatus>,
    /// Models and who serves their variants.
    pub models: BTreeMap<Name, BTreeMap<Name, Vec<Name>>>,
    /// What tenants have in flight.
    pub tenants: BTreeMap<Name, TenantStatus>,
}

/// Which configuration is served.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigStatus {
    /// Counts from 1, one more with every change.
    pub version: u64,
    /// Since when, in seconds of Unix time.
    pub since: u64,
    /// Its file; none for the built-in one.
    pub file: Option<String>,
}

/// An engine.
#[derive(Clone, Debug, Serialize)]
pub struct ShardStatus {
    /// Whether it takes calls.
    #[serde(serialize_with = "state")]
    pub state: State,
    /// The device it runs on.
    pub device: Name,
    /// Where its weights came from, without credentials.
    pub weights: String,
    /// Identity of weights, quantization, KV type and kind of device, in hex; answers of equal digests are interchangeable.
    pub digest: String,
    /// Tokens one sequence may have.
    pub context: u32,
    /// Sequences in the running batch.
    pub running: u32,
    /// Sequences that wait for it.
    pub waiting: u32,
    /// KV blocks of the pool.
    pub blocks: u32,
    /// Those that no sequence holds.
    pub blocks_free: u32,
}

/// How far the loading of an engine is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoadStatus {
    /// What is being done now, as `loading smol-q8`.
    pub doing: String,
    /// Bytes of it that are done.
    pub bytes: u64,
    /// All of them, where that is known.
    pub total: Option<u64>,
}

/// A remote server.
#[derive(Clone, Debug, Serialize)]
pub struct UpstreamStatus {
    /// Whether it takes calls.
    #[serde(serialize_with = "state")]
    pub state: State,
    /// Where it is.
    pub url: String,
    /// Calls in flight there.
    pub in_flight: u32,
}

/// What a tenant has in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TenantStatus {
    /// Requests.
    pub requests: u64,
    /// Tokens they could use at most, prompts included.
    pub tokens: u64,
}

fn state<S: serde::Serializer>(state: &State, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(state)
}
