//! The resolved configuration: every default filled in, every reference checked, units in the types.

use super::server::{seconds, seconds_if_given};
use super::{Auth, Billing, Name, Prices, Rule, Secret, Server, Store, Tenant, Tls, Tokenizer, Upstream, Weights};
use serde::de::IntoDeserializer;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// A whole configuration; requests keep the one they began with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Counts from 1; every reload that is taken adds one.
    pub version: u64,
    /// `[server]`
    pub server: Server,
    /// `[admin]`
    pub admin: Admin,
    /// `[auth]`
    pub auth: Auth,
    /// `[log]`
    pub log: Log,
    /// `[store]`
    pub store: Store,
    /// `[billing]`
    pub billing: Billing,
    /// `[devices.NAME]`
    pub devices: BTreeMap<Name, Device>,
    /// `[shards.NAME]`
    pub shards: BTreeMap<Name, Arc<Shard>>,
    /// `[upstreams.NAME]`
    pub upstreams: BTreeMap<Name, Arc<Upstream>>,
    /// `[models.NAME]`
    pub models: BTreeMap<Name, Arc<Model>>,
    /// `[tenants.NAME]`
    pub tenants: BTreeMap<Name, Arc<Tenant>>,
}

/// What happens to request parameters nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownParameters {
    /// 400, naming the parameter.
    Refuse,
    /// They are dropped.
    Ignore,
}

/// The admin port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Admin {
    /// Where operators connect; loopback only unless there is a token.
    pub listen: SocketAddr,
    /// The bearer token they send.
    pub token: Option<Secret>,
    /// How connections are encrypted; `None` serves plain HTTP.
    pub tls: Option<Tls>,
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Log {
    /// How lines look.
    pub format: LogFormat,
    /// Whether each request leaves a line.
    pub requests: bool,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// A compute device, shared by the shards on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Compute threads.
    pub threads: usize,
    /// The instruction set its kernels use.
    pub isa: Isa,
    /// Bytes for weights and KV caches of all shards on it.
    pub memory: u64,
}

/// An instruction set of the CPU device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// The best one this machine has.
    Auto,
    /// AVX2, FMA and F16C.
    Avx2,
    /// Plain Rust, any machine.
    Portable,
}

/// An in-process engine: one model and quantization on one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shard {
    /// Its name.
    pub name: Name,
    /// Where its weights come from.
    pub weights: Weights,
    /// SHA-256 of the weights file, checked while loading.
    #[serde(serialize_with = "hex_if_given")]
    pub sha256: Option<[u8; 32]>,
    /// The device it runs on.
    pub device: Name,
    /// Requantization while loading.
    pub quantize: Quantize,
    /// Its KV cache.
    pub kv_cache: KvCache,
    /// Who may be served from whose cached prefixes.
    pub share_prefixes: SharePrefixes,
    /// Most tokens in one step.
    pub max_batch_tokens: u32,
    /// Most sequences running at once.
    pub max_sequences: u32,
    /// Most sequences that wait for their first step; over it requests are refused.
    pub max_waiting: u32,
    /// How long it may have work and get nowhere before it counts as stuck and isn't ready any more.
    #[serde(serialize_with = "seconds")]
    pub stuck_after: Duration,
    /// What becomes of it when a reload replaces it.
    pub swap: Swap,
}

/// How a shard gives way to the one that takes its place in a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Swap {
    /// It serves until the new one is warm: the device has to have memory for both.
    Beside,
    /// It finishes what it has and is freed before the new one is loaded; until then nobody serves in its place.
    DrainFirst,
}

/// How weights are stored in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantize {
    /// As the file has them.
    Keep,
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// 8-bit blocks of 32.
    Q8_0,
    /// 4-bit blocks of 32.
    Q4_0,
}

/// A shard's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvCache {
    /// Its size in bytes.
    pub memory: u64,
    /// The type of its elements.
    pub dtype: KvDtype,
    /// Tokens per block.
    pub block_tokens: NonZeroU32,
}

/// The type of a KV cache's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
}

/// Who may be served from whose cached prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SharePrefixes {
    /// Each tenant from its own only, so nobody can probe by timing what another has asked.
    Tenant,
    /// Everybody from everybody's.
    All,
}

/// A model as clients name it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// The name clients ask for.
    pub name: Name,
    /// Other names for it.
    pub aliases: Vec<Name>,
    /// `max_tokens` where the client gives none.
    pub default_max_tokens: NonZeroU32,
    /// From a request's head to the end of its answer; `None` leaves it to `server.request_timeout`.
    #[serde(serialize_with = "seconds_if_given")]
    pub request_timeout: Option<Duration>,
    /// What its tokens cost; `None` costs nothing and shows no cost.
    pub prices: Option<Prices>,
    /// What counts its tokens; `None`: its first shard, where it has one.
    pub tokenizer: Option<Tokenizer>,
    /// What serves it.
    pub variants: BTreeMap<Name, Variant>,
    /// Which of them; none where there is only one.
    pub rules: Vec<Rule>,
}

/// One way to serve a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Variant {
    /// Replicas, by name.
    pub backends: Arc<[Name]>,
    /// The system message of conversations that come without one.
    pub system: Option<Arc<str>>,
    /// Defaults for what clients leave out.
    pub sampling: SamplingDefaults,
}

/// Sampling where the client leaves it out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SamplingDefaults {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all tokens.
    pub top_p: f32,
    /// 0 keeps all tokens.
    pub min_p: f32,
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// 0 changes nothing.
    pub frequency_penalty: f32,
    /// 0 changes nothing.
    pub presence_penalty: f32,
}

impl Default for SamplingDefaults {
    /// The model's own probabilities.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, frequency_penalty: 0.0, presence_penalty: 0.0 }
    }
}

// === impl Config ===

impl Config {
    /// The model of this name or alias.
    pub fn model(&self, name: &str) -> Option<&Arc<Model>> {
        self.models.get(name).or_else(|| self.models.values().find(|model| model.aliases.iter().any(|alias| alias.as_str() == name)))
    }
}

// === impl Log ===

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::default(), requests: true }
    }
}

// === impl Serialize ===

pub(super) fn hex<S: Serializer>(hash: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&blake3::Hash::from_bytes(*hash).to_hex())
}

fn hex_if_given<S: Serializer>(hash: &Option<[u8; 32]>, serializer: S) -> Result<S::Ok, S::Error> {
    match hash {
        Some(hash) => hex(hash, serializer),
        None => serializer.serialize_none(),
    }
}

// === impl Display: a value as the file writes it ===

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Quantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for Quantize {
    type Err = serde::de::value::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::deserialize(text.into_deserializer())
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
