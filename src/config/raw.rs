//! The file as written: every key optional, every value with its place, nothing checked against anything else.

pub(super) mod rule;

use super::money::Decimal;
use super::resolved::{Isa, KvDtype, Quantize, SharePrefixes, Swap, UnknownParameters};
use super::store::StoreUrl;
use super::units::{Address, Bytes, Hex32, Memory, SecretSource, Threads, Time};
use super::{Algorithm, Class, ClientAuth, Durability, Endpoint, LogFormat, Name, Network, OnStoreLoss, Per, Weights};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use toml::Spanned;
use toml::value::Datetime;

/// A value that may be left out.
pub(super) type Given<T> = Option<Spanned<T>>;

/// Tables by name.
pub(super) type Named<T> = BTreeMap<Spanned<Name>, T>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Raw {
    pub(super) server: Server,
    pub(super) admin: Admin,
    pub(super) log: Log,
    pub(super) auth: Auth,
    pub(super) store: Store,
    pub(super) billing: Billing,
    pub(super) devices: Devices,
    pub(super) shards: Option<Named<Shard>>,
    pub(super) upstreams: Option<Named<Upstream>>,
    pub(super) models: Option<Named<Model>>,
    pub(super) tenants: Named<Tenant>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Server {
    pub(super) listen: Given<Address>,
    pub(super) threads: Given<Threads>,
    pub(super) tls: Option<Spanned<Tls>>,
    pub(super) max_connections: Given<NonZeroU32>,
    pub(super) max_head: Given<Bytes>,
    pub(super) max_body: Given<Bytes>,
    pub(super) head_timeout: Given<Time>,
    pub(super) body_timeout: Given<Time>,
    pub(super) request_timeout: Given<Time>,
    pub(super) write_timeout: Given<Time>,
    pub(super) keep_alive: Given<Time>,
    pub(super) http2: Http2,
    pub(super) drain: Given<Time>,
    pub(super) unknown_parameters: Given<UnknownParameters>,
    pub(super) show_backend: Given<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admin {
    pub(super) listen: Given<Address>,
    pub(super) token: Given<SecretSource>,
    pub(super) tls: Option<Spanned<Tls>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Http2 {
    pub(super) max_streams: Given<NonZeroU32>,
    pub(super) ping: Given<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tls {
    pub(super) cert: Given<PathBuf>,
    pub(super) key: Given<PathBuf>,
    pub(super) client_ca: Given<PathBuf>,
    pub(super) client_auth: Given<ClientAuth>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Billing {
    pub(super) currency: Given<Name>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) format: Given<LogFormat>,
    pub(super) requests: Given<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Auth {
    pub(super) jwt: Vec<Spanned<Jwt>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Jwt {
    pub(super) issuer: Given<String>,
    pub(super) audience: Given<String>,
    pub(super) algorithms: Given<Vec<Algorithm>>,
    pub(super) url: Given<String>,
    pub(super) file: Given<PathBuf>,
    pub(super) tenant_claim: Given<String>,
    pub(super) key_claim: Given<String>,
    pub(super) leeway: Given<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Devices {
    pub(super) cpu: Device,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Device {
    pub(super) threads: Given<Threads>,
    pub(super) isa: Given<Isa>,
    pub(super) memory: Given<Memory>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Shard {
    pub(super) weights: Given<Weights>,
    pub(super) sha256: Given<Hex32>,
    pub(super) device: Given<Name>,
    pub(super) quantize: Given<Quantize>,
    pub(super) kv_cache: KvCache,
    pub(super) share_prefixes: Given<SharePrefixes>,
    pub(super) max_batch_tokens: Given<NonZeroU32>,
    pub(super) max_sequences: Given<NonZeroU32>,
    pub(super) max_waiting: Given<NonZeroU32>,
    pub(super) stuck_after: Given<Time>,
    pub(super) swap: Given<Swap>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct KvCache {
    pub(super) memory: Given<Bytes>,
    pub(super) dtype: Given<KvDtype>,
    pub(super) block_tokens: Given<NonZeroU32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Upstream {
    pub(super) url: Given<String>,
    pub(super) api_key: Given<SecretSource>,
    pub(super) model: Given<String>,
    pub(super) parameters: Vec<String>,
    pub(super) context: Given<NonZeroU32>,
    pub(super) timeouts: Timeouts,
    pub(super) max_connections: Given<NonZeroU32>,
    pub(super) health: Health,
    pub(super) retries: Retries,
    pub(super) tls: UpstreamTls,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Timeouts {
    pub(super) connect: Given<Time>,
    pub(super) first_token: Given<Time>,
    pub(super) idle: Given<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Health {
    pub(super) path: Given<String>,
    pub(super) interval: Given<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Retries {
    pub(super) attempts: Given<NonZeroU32>,
    pub(super) time: Given<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct UpstreamTls {
    pub(super) ca: Given<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Model {
    pub(super) aliases: Vec<Spanned<Name>>,
    pub(super) default_max_tokens: Given<NonZeroU32>,
    pub(super) request_timeout: Given<Time>,
    pub(super) prices: Option<Spanned<Prices>>,
    pub(super) tokenizer: Given<String>,
    pub(super) variants: Named<Variant>,
    pub(super) rules: Vec<Spanned<rule::Rule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Variant {
    pub(super) backends: Given<Vec<Spanned<Name>>>,
    pub(super) system: Given<String>,
    pub(super) sampling: Sampling,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Sampling {
    pub(super) temperature: Given<f32>,
    pub(super) top_k: Given<u32>,
    pub(super) top_p: Given<f32>,
    pub(super) min_p: Given<f32>,
    pub(super) repetition_penalty: Given<f32>,
    pub(super) frequency_penalty: Given<f32>,
    pub(super) presence_penalty: Given<f32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tenant {
    pub(super) weight: Given<NonZeroU32>,
    pub(super) class: Given<Class>,
    pub(super) models: Option<Vec<Spanned<Name>>>,
    pub(super) limits: Limits,
    pub(super) quota: Vec<Spanned<Quota>>,
    pub(super) count_cached: Given<bool>,
    pub(super) networks: Option<Vec<Network>>,
    pub(super) certificates: Vec<Spanned<String>>,
    pub(super) keys: Vec<Spanned<Key>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Key {
    pub(super) name: Given<Name>,
    pub(super) hash: Given<Hex32>,
    pub(super) models: Option<Vec<Spanned<Name>>>,
    pub(super) endpoints: Option<Vec<Endpoint>>,
    pub(super) networks: Option<Vec<Network>>,
    pub(super) expires: Given<Datetime>,
    pub(super) limits: Limits,
    pub(super) quota: Vec<Spanned<Quota>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    pub(super) requests_per_minute: Given<u32>,
    pub(super) tokens_per_minute: Given<u64>,
    pub(super) concurrent: Given<u32>,
    pub(super) tokens_per_request: Given<u64>,
    pub(super) models: Named<Limit>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limit {
    pub(super) requests_per_minute: Given<u32>,
    pub(super) tokens_per_minute: Given<u64>,
    pub(super) concurrent: Given<u32>,
    pub(super) tokens_per_request: Given<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Quota {
    pub(super) tokens: Given<u64>,
    pub(super) cost: Given<Decimal>,
    pub(super) per: Given<Per>,
    pub(super) timezone: Given<String>,
    pub(super) hard: Given<bool>,
    pub(super) model: Given<Name>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Prices {
    pub(super) input: Given<Decimal>,
    pub(super) cached_input: Given<Decimal>,
    pub(super) output: Given<Decimal>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Store {
    pub(super) ledger: Given<StoreUrl>,
    pub(super) limits: Given<StoreUrl>,
    pub(super) replicas: Given<NonZeroU32>,
    pub(super) durability: Given<Durability>,
    pub(super) on_store_loss: Given<OnStoreLoss>,
}
