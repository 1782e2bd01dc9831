//! Every operation once, written to be read: what a weight's bytes mean and what each kernel computes.
//!
//! This is the judge of all kernels in tests, so it shares no code with them and never trades clarity for speed. Values
//! are f32; sums are carried in f64, so that a kernel is compared with (nearly) the exact result.

mod dequantize;
mod dtype;
mod operations;
mod sample;
#[cfg(test)]
mod tests;

pub use dequantize::dequantize;
pub use dtype::Dtype;
pub use operations::{attention, matmul, rms_norm, rope, silu_mul, softmax};
pub use sample::{Draw, bias, gumbel, log_probabilities, penalize, sample};
