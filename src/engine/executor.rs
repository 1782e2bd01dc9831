//! The seam between the engine and a device.

use super::{Logprob, Plan};
use crate::call::TokenId;
use std::time::Duration;

/// What an executor can hold and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// KV blocks in the pool.
    pub blocks: u32,
    /// Tokens per block.
    pub block_tokens: u32,
    /// Most tokens in one step.
    pub max_batch_tokens: u32,
    /// Most sequences alive on the device at once.
    pub max_sequences: u32,
    /// Most tokens of one sequence, prompt and output together.
    pub max_context: u32,
}

/// A step in progress on the device.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a launched step has to be collected"]
pub struct Ticket(pub u64);

/// What a step drew, row after row: `Row::sample` ids for each row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// The ids drawn.
    pub ids: Vec<TokenId>,
    /// Row after row: one for each token of `Row::score`, then one for each token drawn where its sequence wants them.
    pub logprobs: Vec<Logprob>,
    /// How long the device was busy with the step.
    pub device_time: Duration,
}

/// A device's failure; the shard is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// Runs planned steps on a device. Built and used on the shard's own thread.
pub trait Executor {
    /// What it can hold and do; constant.
    fn limits(&self) -> Limits;

    /// Starts a step.
    ///
    /// # Errors
    /// The device failed; the executor can't be used any more.
    fn launch(&mut self, plan: &Plan) -> Result<Ticket, DeviceError>;

    /// Waits for a step, in the order of launches, and replaces `into` by what it drew.
    ///
    /// # Errors
    /// The device failed; the executor can't be used any more.
    fn collect(&mut self, ticket: Ticket, into: &mut Sampled) -> Result<(), DeviceError>;
}
