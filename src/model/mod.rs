//! Models: their weights, where those come from, how they are stored, and what is computed with them.

pub mod gguf;
mod llama;
mod load;
pub mod quantize;
mod runner;
mod shaping;
pub mod source;

pub use llama::{Activations, Batch, Llama, Shape};
pub use load::{LoadError, Loaded, load, tokenizer};
pub use runner::Runner;
