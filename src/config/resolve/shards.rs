//! `[shards]` and `[models]`.

use super::rules::Rules;
use super::{Resolver, or, or_nearest};
use crate::config::problem::join;
use crate::config::raw::{self, Given, Named};
use crate::config::units::{Bytes, Time};
use crate::config::{
    Device, KvCache, KvDtype, Model, Name, Quantize, SamplingDefaults, Shard, SharePrefixes, Swap, Upstream, Variant, Weights,
};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use toml::Spanned;

const KV_MEMORY: u64 = 512 << 20;
const BLOCK_TOKENS: NonZeroU32 = NonZeroU32::new(16).expect("16 isn't 0");
const BATCH_TOKENS: NonZeroU32 = NonZeroU32::new(512).expect("512 isn't 0");
const SEQUENCES: NonZeroU32 = NonZeroU32::new(64).expect("64 isn't 0");
/// Sixteen full batches.
const WAITING: NonZeroU32 = NonZeroU32::new(1024).expect("1024 isn't 0");
/// Longer than the longest step of a large model on a slow machine.
const STUCK_AFTER: Duration = Duration::from_secs(30);
const MAX_TOKENS: NonZeroU32 = NonZeroU32::new(1024).expect("1024 isn't 0");

/// What variants can name.
pub(super) struct Backends<'a> {
    pub(super) shards: &'a BTreeMap<Name, Arc<Shard>>,
    pub(super) upstreams: &'a BTreeMap<Name, Arc<Upstream>>,
}

/// What serves where a file names neither shards nor models.
pub(super) fn built_in() -> (BTreeMap<Name, Arc<Shard>>, BTreeMap<Name, Arc<Model>>) {
    let weights = Weights::built_in();
    let sha256 = weights.known_sha256().copied();
    let shard = shard("smol-q4".into(), weights, sha256, raw::Shard::default());
    let variant = Variant { backends: Arc::from([shard.name.clone()]), system: None, sampling: SamplingDefaults::default() };
    let model = Model {
        name: "smollm2-135m".into(),
        aliases: vec!["default".into()],
        default_max_tokens: MAX_TOKENS,
        request_timeout: None,
        prices: None,
        tokenizer: None,
        variants: BTreeMap::from([("q4".into(), variant)]),
        rules: Vec::new(),
    };
    (BTreeMap::from([(shard.name.clone(), Arc::new(shard))]), BTreeMap::from([(model.name.clone(), Arc::new(model))]))
}

fn shard(name: Name, weights: Weights, sha256: Option<[u8; 32]>, raw: raw::Shard) -> Shard {
    Shard {
        name,
        weights,
        sha256,
        device: or(raw.device, "cpu".into()),
        quantize: or(raw.quantize, Quantize::Keep),
        kv_cache: KvCache {
            memory: or(raw.kv_cache.memory, Bytes(KV_MEMORY)).0,
            dtype: or(raw.kv_cache.dtype, KvDtype::F16),
            block_tokens: or(raw.kv_cache.block_tokens, BLOCK_TOKENS),
        },
        share_prefixes: or(raw.share_prefixes, SharePrefixes::Tenant),
        max_batch_tokens: or(raw.max_batch_tokens, BATCH_TOKENS).get(),
        max_sequences: or(raw.max_sequences, SEQUENCES).get(),
        max_waiting: or(raw.max_waiting, WAITING).get(),
        stuck_after: or(raw.stuck_after, Time(STUCK_AFTER)).0,
        swap: or(raw.swap, Swap::Beside),
    }
}

// === impl Backends ===

impl Backends<'_> {
    fn has(&self, name: &Name) -> bool {
        self.shards.contains_key(name) || self.upstreams.contains_key(name)
    }
}

impl Resolver<'_> {
    pub(super) fn shards(&mut self, raw: Named<raw::Shard>, devices: &BTreeMap<Name, Device>) -> BTreeMap<Name, Arc<Shard>> {
        let mut shards = BTreeMap::new();
        let mut kv_caches: BTreeMap<Name, u64> = BTreeMap::new();
        for (name, mut raw) in raw {
            let path = join("shards", name.get_ref().as_str());
            self.name(&name, &path);
            if let Some(at_once) = raw.stuck_after.as_ref().filter(|time| time.get_ref().0.is_zero()) {
                self.refuse(at_once.span(), &join(&path, "stuck_after"), "this has to be longer than 0s");
            }
            let memory = raw.kv_cache.memory.as_ref().map_or(name.span(), Spanned::span);
            let device = raw.device.as_ref().map_or(name.span(), Spanned::span);
            // A configuration with problems is thrown away, so any source will do to go on with.
            let weights = self.required(raw.weights.take(), &name.span(), &path, "weights").unwrap_or(Weights::File("".into()));
            let sha256 = raw.sha256.take().map(|hash| hash.into_inner().0);
            let shard = shard(name.into_inner(), weights.relative_to(self.folder), sha256, raw);
            let kv_path = join(&join(&path, "kv_cache"), "memory");
            if shard.kv_cache.memory == 0 {
                self.refuse(memory.clone(), &kv_path, "no KV block fits into 0 bytes");
            }
            match devices.get(&shard.device) {
                None => self.refuse(device, &join(&path, "device"), or_nearest("device", &shard.device, devices.keys())),
                Some(device) => {
                    let used = kv_caches.entry(shard.device.clone()).or_default();
                    *used = used.saturating_add(shard.kv_cache.memory);
                    if *used > device.memory {
                        let (used, all) = (*used, device.memory);
                        let message = format!("the KV caches up to this one take {used} bytes of the {all} of device `{}`", shard.device);
                        self.refuse(memory, &kv_path, message);
                    }
                }
            }
            shards.insert(shard.name.clone(), Arc::new(shard));
        }
        shards
    }

    pub(super) fn models(
        &mut self,
        raw: Named<raw::Model>,
        backends: &Backends<'_>,
        given: &[(&'static str, Spanned<Name>)],
        known: &mut Rules,
    ) -> BTreeMap<Name, Arc<Model>> {
        let mut names: BTreeSet<Name> = raw.keys().map(|name| name.get_ref().clone()).collect();
        let mut models = BTreeMap::new();
        let mut used = BTreeSet::new();
        for (name, raw) in raw {
            let path = join("models", name.get_ref().as_str());
            self.name(&name, &path);
            let aliases = self.aliases(raw.aliases, &path, &mut names);
            let given: Vec<_> = raw.variants.keys().cloned().collect();
            let variants = self.variants(raw.variants, &name, &path, backends);
            let rules = self.rules(raw.rules, &path, &variants, &given, known);
            used.extend(variants.values().flat_map(|variant| variant.backends.iter().cloned()));
            let default_max_tokens = or(raw.default_max_tokens, MAX_TOKENS);
            let key = join(&path, "request_timeout");
            let request_timeout = raw.request_timeout.map(|time| self.time(Some(time), Duration::ZERO, &key));
            let prices = raw.prices.map(|raw| self.prices(raw, &join(&path, "prices")));
            let tokenizer = self.tokenizer(raw.tokenizer, backends.shards, &join(&path, "tokenizer"));
            let name = name.into_inner();
            let model = Model { name, aliases, default_max_tokens, request_timeout, prices, tokenizer, variants, rules };
            models.insert(model.name.clone(), Arc::new(model));
        }
        for (kind, name) in given.iter().filter(|(_, name)| !used.contains(name.get_ref())) {
            let path = join(&format!("{kind}s"), name.get_ref().as_str());
            self.refuse(name.span(), &path, format!("no model has this {kind} among its backends, so nobody could reach it"));
        }
        models
    }

    fn aliases(&mut self, raw: Vec<Spanned<Name>>, path: &str, names: &mut BTreeSet<Name>) -> Vec<Name> {
        let mut aliases = Vec::new();
        for (index, alias) in raw.into_iter().enumerate() {
            let path = format!("{path}.aliases[{index}]");
            self.name(&alias, &path);
            if !names.insert(alias.get_ref().clone()) {
                self.refuse(alias.span(), &path, format!("`{}` is the name or an alias of a model already", alias.get_ref()));
            }
            aliases.push(alias.into_inner());
        }
        aliases
    }

    fn variants(
        &mut self,
        raw: Named<raw::Variant>,
        model: &Spanned<Name>,
        path: &str,
        served_by: &Backends<'_>,
    ) -> BTreeMap<Name, Variant> {
        let path = join(path, "variants");
        if raw.is_empty() && !self.broken.iter().any(|broken| broken.starts_with(&path)) {
            self.refuse(model.span(), &path, "a model needs a variant: `variants.NAME = { backends = [\"SHARD\"] }`");
        }
        let mut variants = BTreeMap::new();
        for (name, raw) in raw {
            let path = join(&path, name.get_ref().as_str());
            self.name(&name, &path);
            let backends = self.backends(raw.backends, &name, &path, served_by);
            let sampling = self.sampling(raw.sampling, &join(&path, "sampling"));
            if let Some(empty) = raw.system.as_ref().filter(|system| system.get_ref().is_empty()) {
                self.refuse(empty.span(), &join(&path, "system"), "this says nothing; leave it out");
            }
            let system = raw.system.map(|system| system.into_inner().into());
            variants.insert(name.into_inner(), Variant { backends, system, sampling });
        }
        variants
    }

    fn backends(
        &mut self,
        raw: raw::Given<Vec<Spanned<Name>>>,
        variant: &Spanned<Name>,
        path: &str,
        served_by: &Backends<'_>,
    ) -> Arc<[Name]> {
        let span = raw.as_ref().map_or(variant.span(), Spanned::span);
        let given = raw.is_some();
        let names = self.required(raw, &variant.span(), path, "backends").unwrap_or_default();
        let path = join(path, "backends");
        if given && names.is_empty() {
            self.refuse(span, &path, "a variant needs at least one backend");
        }
        let mut seen = BTreeSet::new();
        for (index, name) in names.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let broken = |kind| self.broken.contains(&join(kind, name.get_ref().as_str()));
            if !served_by.has(name.get_ref()) && !broken("shards") && !broken("upstreams") {
                let (shards, upstreams) = (served_by.shards.keys(), served_by.upstreams.keys());
                let kind = if upstreams.len() == 0 { "shard" } else { "shard or upstream" };
                self.refuse(name.span(), &path, or_nearest(kind, name.get_ref(), shards.chain(upstreams)));
            }
            if !seen.insert(name.get_ref()) {
                self.refuse(name.span(), &path, format!("`{}` is in this list already", name.get_ref()));
            }
        }
        names.into_iter().map(Spanned::into_inner).collect()
    }

    fn sampling(&mut self, raw: raw::Sampling, path: &str) -> SamplingDefaults {
        let mut number = |given: Given<f32>, default: f32, key: &str, good: fn(f32) -> bool, what: &str| {
            if let Some(given) = given.as_ref().filter(|given| !good(*given.get_ref())) {
                self.refuse(given.span(), &join(path, key), what);
            }
            or(given, default)
        };
        let default = SamplingDefaults::default();
        let penalty: fn(f32) -> bool = |value| (-2.0..=2.0).contains(&value);
        SamplingDefaults {
            temperature: number(
                raw.temperature,
                default.temperature,
                "temperature",
                |value| (0.0..=2.0).contains(&value),
                "a temperature lies between 0 and 2",
            ),
            top_k: or(raw.top_k, default.top_k),
            top_p: number(raw.top_p, default.top_p, "top_p", |value| value > 0.0 && value <= 1.0, "top_p lies above 0 and is at most 1"),
            min_p: number(raw.min_p, default.min_p, "min_p", |value| (0.0..=1.0).contains(&value), "min_p lies between 0 and 1"),
            repetition_penalty: number(
                raw.repetition_penalty,
                default.repetition_penalty,
                "repetition_penalty",
                |value| value > 0.0 && value <= 10.0,
                "a repetition penalty lies above 0 and is at most 10",
            ),
            frequency_penalty: number(raw.frequency_penalty, 0.0, "frequency_penalty", penalty, "a penalty lies between -2 and 2"),
            presence_penalty: number(raw.presence_penalty, 0.0, "presence_penalty", penalty, "a penalty lies between -2 and 2"),
        }
    }
}
