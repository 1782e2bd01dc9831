//! The engine of one shard, pure: sequences, KV blocks and a scheduler that plans steps for an [`Executor`].
//!
//! No tokio, HTTP, device, tokenizer or clock in here; time enters as `step(now)`.

mod executor;
mod plan;

pub use executor::{DeviceError, Executor, Limits, Sampled, Ticket};
pub use plan::{Input, Mask, Plan, Row, Start};

/// Names one sequence (one choice of one request) for its whole life; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// Names one KV block of the pool, `0..Limits::blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// How one sequence's tokens are drawn. The draw depends on these, the position and the logits, on nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token, the lowest id among equals.
    pub temperature: f32,
    /// Keeps the smallest set of tokens whose probability reaches this.
    pub top_p: f32,
    /// The request's seed.
    pub seed: u64,
    /// The choice's index, so that n choices of one seed differ.
    pub choice: u32,
}
