//! Tenants as configured: their keys, limits and quotas.

use super::resolved::hex;
use super::scope::contain;
use super::{Moment, Name, Network, Quota, Scope};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;

/// A team with its keys and limits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tenant {
    /// Its name.
    pub name: Name,
    /// Its share of a busy shard, relative to other tenants'.
    pub weight: NonZeroU32,
    /// How urgent its requests are.
    pub class: Class,
    /// The models it may use; `None` is all.
    pub models: Option<Vec<Name>>,
    /// Limits on all its keys together.
    pub limits: Limits,
    /// Quotas of all its keys together.
    pub quotas: Vec<Quota>,
    /// Whether prompt tokens from the prefix cache count against limits and quotas in tokens.
    pub count_cached: bool,
    /// The networks it may come from; `None` is all.
    pub networks: Option<Vec<Network>>,
    /// Subjects of client certificates that stand for it without a key: a distinguished name as RFC 4514 writes it, or an
    /// alternative name with its kind, `DNS:…`, `URI:…`, `email:…` or `IP:…`.
    pub certificates: Vec<String>,
    /// Its keys.
    pub keys: Vec<Key>,
}

/// How urgent requests are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Somebody waits for the answer.
    #[default]
    Interactive,
    /// It may wait until nobody else does, though not for ever.
    Batch,
}

/// An API key; only its hash is known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Key {
    /// Its name, for logs and bills.
    pub name: Name,
    /// BLAKE3 of the secret; of the whole token where a token stands for a key, SHA-256 of a certificate likewise.
    #[serde(serialize_with = "hex")]
    pub hash: [u8; 32],
    /// What it may be used for.
    #[serde(flatten)]
    pub scope: Scope,
    /// From then on it is refused.
    pub expires: Option<Moment>,
    /// Limits on this key alone.
    pub limits: Limits,
    /// Quotas of this key alone.
    pub quotas: Vec<Quota>,
}

/// Limits on all models together, and on single models besides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "Flat")]
pub struct Limits {
    /// Whatever the model.
    #[serde(flatten)]
    pub all: Limit,
    /// On requests for one model.
    pub models: BTreeMap<Name, Limit>,
}

/// Limits; `None` is unlimited, zero is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limit {
    /// Requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Prompt and generated tokens per minute.
    pub tokens_per_minute: Option<u64>,
    /// Requests at work at once.
    pub concurrent: Option<u32>,
    /// Prompt and output tokens of one request.
    pub tokens_per_request: Option<u64>,
}

/// [`Limits`] as they are written: a name nobody knows would else be a limit that nobody enforces.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Flat {
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u64>,
    concurrent: Option<u32>,
    tokens_per_request: Option<u64>,
    models: BTreeMap<Name, Limit>,
}

// === impl Class ===

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

// === impl Limits ===

impl Limits {
    /// What each of so many may have of them, rounded down. What one request may have isn't shared.
    pub fn shared_by(&self, replicas: NonZeroU32) -> Self {
        let share = |limit: &Limit| Limit {
            requests_per_minute: limit.requests_per_minute.map(|limit| limit / replicas),
            tokens_per_minute: limit.tokens_per_minute.map(|limit| limit / u64::from(replicas.get())),
            concurrent: limit.concurrent.map(|limit| limit / replicas),
            tokens_per_request: limit.tokens_per_request,
        };
        Self { all: share(&self.all), models: self.models.iter().map(|(model, limit)| (model.clone(), share(limit))).collect() }
    }
}

impl From<Flat> for Limits {
    fn from(flat: Flat) -> Self {
        let Flat { requests_per_minute, tokens_per_minute, concurrent, tokens_per_request, models } = flat;
        Self { all: Limit { requests_per_minute, tokens_per_minute, concurrent, tokens_per_request }, models }
    }
}

// === impl Tenant ===

impl Tenant {
    /// A tenant without keys that may do anything.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            weight: NonZeroU32::MIN,
            class: Class::default(),
            models: None,
            limits: Limits::default(),
            quotas: Vec::new(),
            count_cached: true,
            networks: None,
            certificates: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Whether it may use `model`.
    pub fn may_use(&self, model: &Name) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(model))
    }

    /// Whether it may come from this address.
    pub fn may_come_from(&self, address: IpAddr) -> bool {
        contain(&self.networks, address)
    }
}

// === impl Key ===

impl Key {
    /// A key limited by nothing but its tenant.
    pub fn new(name: Name, hash: [u8; 32]) -> Self {
        Self { name, hash, scope: Scope::default(), expires: None, limits: Limits::default(), quotas: Vec::new() }
    }
}
