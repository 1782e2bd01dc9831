//! One engine as a [`Backend`](crate::backend::Backend): its thread, its mailbox, its published state; detokenizing and
//! stop strings on the async side.
//!
//! ```text
//! Shard::call ──door──► Submit ──► mailbox ──► thread: engine.step() ──Token, Ended──► Answer: detokenize, match stops ──► Reply
//!      └─ reply dropped ──Cancel──►
//! ```
//!
//! Where the thread dies in the middle, the answer goes on at an equal shard among its [`Siblings`]; where another shard takes
//! this one's place, what has not begun is given back and begins there.

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
