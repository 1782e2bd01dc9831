//! Roundhouse: an LLM gateway, router and inference engine in one binary.

pub mod backend;
pub mod call;
pub mod clock;
pub mod config;
pub mod metrics;

pub mod api;
pub mod reference;
pub mod text;

pub mod cpu;
pub mod engine;

pub mod model;

pub mod shard;
pub mod tenant;

pub mod layer;
pub mod route;

pub mod gateway;

pub mod admin;

pub mod cli;
pub mod roundhouse;

#[cfg(test)]
#[path = "../tests/support/tiny_model.rs"]
mod tiny_model;
