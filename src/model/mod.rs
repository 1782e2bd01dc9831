//! Models: their weights, where those come from, how they are stored, and what is computed with them.

pub mod gguf;
pub mod quantize;
