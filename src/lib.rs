//! Roundhouse: an LLM gateway, router and inference engine in one binary.
//!
//! # The map
//!
//! Modules live on floors and import only from lower ones (`tests/house_rules.rs` enforces that):
//!
//! | floor | modules | what |
//! |---|---|---|
//! | 8 | [`roundhouse`], [`cli`] | builds all parts in dependency order, starts and stops them; the command line |
//! | 7 | [`admin`] | the operators' port |
//! | 6 | [`gateway`] | the HTTP edge: listener, the tower stack, translation, streams, answers |
//! | 5 | [`layer`], [`route`] | one tower layer a file; which variant, which replica |
//! | 4 | [`shard`], [`upstream`], [`tenant`] | an engine on its own thread and a remote server as backends; keys and limits |
//! | 3 | [`model`] | weights, architectures, the runner that joins a model to a device |
//! | 2 | [`engine`], [`cpu`] | sequences, KV blocks, the scheduler; kernels and buffers of the CPU device |
//! | 1 | [`mod@reference`], [`text`], [`api`] | every operation in plain f32; tokenizer, template, detokenizer; wire types |
//! | 0 | [`clock`], [`config`], [`metrics`], [`outbound`], [`call`], [`backend`] | what everybody speaks |
//!
//! # The life of a request
//!
//! 1. A connection's thread reads a head and asks the current [`gateway::Stack`] for an answer; the request keeps that
//!    stack, and so one configuration, to its end.
//! 2. [`layer::Trace`] has made a [`call::Record`], which collects what the log line, the headers and the metrics need.
//! 3. [`layer::Authenticate`] finds the tenant in [`tenant::Keys`], by the key's hash, a token or a certificate.
//! 4. `translate` reads the body, renders and tokenizes it with the model's [`text::Text`], and makes a [`call::Call`]: HTTP
//!    ends here.
//! 5. [`route::Choose`] sets the variant by the model's [`rules`](route::rules), and makes the call one for it.
//! 6. [`layer::Limit`] takes from the tenant's and the key's limits; what it took rides in the reply's [`call::Lease`].
//!    [`layer::Deadline`] bounds its time, and [`layer::Admit`] refuses what no replica can begin within it.
//! 7. [`route::Router`] asks the ready replicas for a [`backend::Offer`] and calls the cheapest one.
//! 8. [`shard::Shard`] mails a sequence for each choice to its thread, whose loop is: take commands, [`engine::Engine::step`],
//!    tell, publish.
//! 9. A step is a printable [`engine::Plan`]; [`model::Runner`] computes it as one ragged batch on a [`cpu::Device`] and draws
//!    tokens.
//! 10. On the async side tokens become text [`call::Event`]s, which `gateway/stream` writes as SSE or JSON. Before the last byte
//!     the reply is closed, and everything held is given back.

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
pub mod outbound;

pub mod shard;
pub mod tenant;
pub mod upstream;

pub mod layer;
pub mod route;

pub mod gateway;

pub mod admin;

pub mod cli;
pub mod roundhouse;

#[cfg(test)]
#[path = "../tests/support/services.rs"]
#[expect(dead_code, reason = "unit tests use a part of it")]
mod services;
#[cfg(test)]
#[path = "../tests/support/tiny_model.rs"]
mod tiny_model;
