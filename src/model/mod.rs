//! Models: their weights, where those come from, how they are stored, and what is computed with them.

mod cpu;
pub mod gguf;
mod llama;
mod load;
pub mod quantize;
mod runner;
mod shaping;
pub mod source;
mod step;

pub use llama::Shape;
pub use load::{LoadError, Loaded, load, tokenizer};
pub use runner::Runner;
pub use step::Batch;
