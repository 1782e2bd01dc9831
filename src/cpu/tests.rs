//! Every kernel against [`crate::reference`], and its bits against itself.

mod attention;
mod device;
mod matmul;
mod operations;
mod sample;

use super::isa::Path;
use super::{Device, Matrix};
use crate::config::{self, Isa};
use crate::reference::Dtype;
use std::sync::Arc;

/// A device with plenty of memory.
fn device(isa: Isa, threads: usize) -> Arc<Device> {
    Device::new(&config::Device { threads, isa, memory: 1 << 30 }).expect("a device")
}

/// Every instruction set of this machine with 1 and with 2 threads.
fn devices() -> Vec<Arc<Device>> {
    let isas = [Isa::Portable, Isa::Avx2].into_iter().filter(|&isa| Path::choose(isa).is_ok());
    isas.flat_map(|isa| [1, 2].map(|threads| device(isa, threads))).collect()
}

/// A small deterministic source of numbers.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn byte(&mut self) -> u8 {
        self.bits() as u8
    }

    /// In −1..1.
    fn float(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 30) as f32 - 1.0
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }

    /// Raw weights of `dtype`: any levels, scales of a reasonable size and either sign.
    fn weights(&mut self, dtype: Dtype, elements: usize) -> Vec<u8> {
        let mut raw = Vec::new();
        for _ in 0..elements / dtype.block_elements() {
            let at = raw.len();
            raw.extend((0..dtype.block_bytes()).map(|_| self.byte()));
            let block = &mut raw[at..];
            let halves: &[usize] = match dtype {
                Dtype::F32 => {
                    block.copy_from_slice(&self.float().to_le_bytes());
                    &[]
                }
                Dtype::BF16 => {
                    block.copy_from_slice(&half::bf16::from_f32(self.float()).to_le_bytes());
                    &[]
                }
                Dtype::F16 | Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 => &[0],
                Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
                Dtype::Q6K => &[208],
            };
            for &at in halves {
                block[at..at + 2].copy_from_slice(&half::f16::from_f32(self.float() * 0.1).to_le_bytes());
            }
        }
        raw
    }
}

/// Raw weights, packed, and as floats.
fn matrix(dtype: Dtype, rows: usize, columns: usize, random: &mut Random) -> (Matrix, Vec<f32>) {
    let raw = random.weights(dtype, rows * columns);
    let mut floats = vec![0.0; rows * columns];
    crate::reference::dequantize(dtype, &raw, &mut floats);
    (Matrix::pack(dtype, rows, columns, &raw, None).expect("a matrix"), floats)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Asserts that the two are within `tolerance` of each other everywhere; NaN is within nothing.
fn assert_close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance, "element {i}: {got} instead of {want}");
    }
}
