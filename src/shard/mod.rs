//! One engine as a [`Backend`](crate::backend::Backend): its thread, its mailbox, its published state; detokenizing and
//! stop strings on the async side.
//!
//! ```text
//! Shard::call ──door──► Submit ──► mailbox ──► thread: engine.step() ──Token, Ended──► Answer: detokenize, match stops ──► Reply
//!      └─ reply dropped ──Cancel──►
//! ```

mod answer;
mod door;
mod handle;
mod live;
mod pace;
mod prefixes;
mod sequence;
mod siblings;
mod standing;
mod submit;
mod swap;
#[cfg(test)]
mod tests;
mod thread;

pub use handle::{BuildExecutor, Parts, Shard};
pub use siblings::Siblings;
