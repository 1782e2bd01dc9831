//! The CPU device: weights packed for SIMD, a paged KV cache and the kernels on them, behind safe functions.
//!
//! A [`Device`] is one thread pool and one memory budget; shards on it take turns by steps ([`Device::turn`]) and a
//! [`Turn`] has every operation of a forward pass. Each operation gives the same bits whatever the batch, the tiling and
//! the number of threads: a sum belongs to one lane and runs in a fixed order. Most kernels are written once and compiled
//! for each instruction set (see `isa`); where an instruction set gets its own code, as in `avx2`, it gives the portable
//! path's bits too. The oracle of all of them is [`crate::reference`].

mod activation;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod device;
mod elementwise;
mod embed;
mod exp;
mod isa;
mod kv;
mod mapped;
mod matmul;
mod matrix;
mod pack;
mod pool;
mod portable;
mod rope;
mod sample;
mod scratch;
#[cfg(test)]
mod tests;

pub use device::{CpuError, Device, Reservation, Turn};
pub use kv::{KvCache, KvShape, Span};
pub use mapped::MappedFile;
pub use matrix::Matrix;
pub use pool::{be_nice, be_nicest};
pub use rope::RopeTable;
pub use sample::Draw;
pub use scratch::Scratch;
