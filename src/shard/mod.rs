//! One engine as a [`Backend`](crate::backend::Backend): its thread, its mailbox, its published state; detokenizing and
//! stop strings on the async side.
//!
//! ```text
//! Shard::call ──Submit──► mailbox ──► thread: engine.step() ──Token, Ended──► Answer: detokenize, match stops ──► Reply
//!      └─ reply dropped ──Cancel──►
//! ```

mod answer;
mod handle;
mod live;
mod sequence;
mod thread;

pub use handle::{BuildExecutor, Parts, Shard};
