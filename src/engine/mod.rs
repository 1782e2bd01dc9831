//! The engine of one shard, pure: sequences, KV blocks and a scheduler that plans steps for an [`Executor`].
//!
//! No tokio, HTTP, device, tokenizer or clock in here; time enters as `step(now)`. Five nouns, to be read in this order:
//!
//! 1. `Sequence` (`sequence.rs`): the tokens of one choice and how far they are computed.
//! 2. `BlockPool` (`pool.rs`, with `chain.rs` and `lru.rs`): who holds which KV block, and which prompt prefixes are cached.
//! 3. `Scheduler` (`scheduler.rs`, with `shares.rs`): who gets how many tokens of the next step.
//! 4. [`Plan`] and [`Executor`] (`plan.rs`, `executor.rs`): one step's work, and the device that does it. `fake.rs` is a device
//!    without a model.
//! 5. [`Engine`] (`step.rs`): plan, launch, collect, commit.

mod chain;
mod executor;
pub mod fake;
mod lru;
mod plan;
mod pool;
mod sampling;
mod scheduler;
mod sequence;
mod shares;
mod step;
#[cfg(test)]
mod tests;

pub use chain::{Chain, Key};
pub use executor::{DeviceError, Executor, Limits, Sampled, Ticket};
pub use plan::{Input, Mask, Plan, Row, Start};
pub use pool::BlockChange;
pub use sampling::{Logprob, Sampling, Shaping};
pub use sequence::{Salt, Submission};
pub use shares::Party;
pub use step::{Ended, Engine, Live, Settings, Stepped};

/// Names one sequence (one choice of one request) for its whole life; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// Names one KV block of the pool, `0..Limits::blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);
