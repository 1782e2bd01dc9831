//! Activations as the weight's type wants them, whatever the batch: int8 in blocks of 32 or 256, or plain floats.

use super::Turn;
use super::isa::per_path;
use super::scratch::Scratch;
use crate::reference::Dtype;

/// Activations for the formats with blocks of 32.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Block32 {
    /// Levels −127..=127; a value is level × scale.
    pub(super) q: [i8; 32],
    pub(super) scale: f32,
    /// Σ q.
    pub(super) sum: i32,
    /// scale × Σ q, what a weight's minimum is multiplied by.
    pub(super) scaled_sum: f32,
}

/// Activations for the K-quants.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Block256 {
    /// Levels −127..=127; a value is level × scale.
    pub(super) q: [i8; 256],
    pub(super) scale: f32,
    /// Of 16 levels each: the sums of those with index 0 or 1 and of those with index 2 or 3 modulo 4.
    pub(super) sums16: [[i16; 2]; 16],
    /// Of 32 levels each.
    pub(super) sums32: [i16; 8],
}

/// A batch of activations, row after row.
#[derive(Clone, Copy)]
pub(super) enum Activations<'a> {
    Floats(&'a [f32]),
    Blocks32(&'a [Block32]),
    Blocks256(&'a [Block256]),
}

/// Below this a block counts as zeros, so that 127 / max stays finite.
const TINY: f32 = 1e-30;

/// 1.5 · 2^23: adding and taking it away rounds to the nearest integer, ties to even, and leaves that integer in the bits.
const ROUND: f32 = 12_582_912.0;

// === impl Block32 ===

impl Block32 {
    pub(super) const ZERO: Self = Self { q: [0; 32], scale: 0.0, sum: 0, scaled_sum: 0.0 };
}

// === impl Block256 ===

impl Block256 {
    pub(super) const ZERO: Self = Self { q: [0; 256], scale: 0.0, sums16: [[0; 2]; 16], sums32: [0; 8] };
}

impl Turn<'_> {
    /// Brings `x`, rows of `columns`, into the form that weights of `dtype` want.
    pub(super) fn activations<'a>(&self, dtype: Dtype, x: &'a [f32], columns: usize, scratch: &'a mut Scratch) -> Activations<'a> {
        let path = self.path();
        match dtype.block_elements() {
            1 => Activations::Floats(x),
            32 => {
                let blocks = grown(&mut scratch.blocks32, x.len() / 32, Block32::ZERO);
                self.quantize(x, blocks, columns / 32, |x, out| quantize32(path, x, out));
                Activations::Blocks32(blocks)
            }
            _ => {
                let blocks = grown(&mut scratch.blocks256, x.len() / 256, Block256::ZERO);
                self.quantize(x, blocks, columns / 256, |x, out| quantize256(path, x, out));
                Activations::Blocks256(blocks)
            }
        }
    }

    fn quantize<B: Send>(&self, x: &[f32], out: &mut [B], row: usize, job: impl Fn(&[f32], &mut [B]) + Sync) {
        let block = x.len() / out.len();
        self.rows(out, row, x.len(), &|rows, out| job(&x[rows.start * row * block..rows.end * row * block], out));
    }
}

/// The first `len` elements of a buffer that only ever grows.
pub(super) fn grown<T: Clone>(buffer: &mut Vec<T>, len: usize, fill: T) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, fill);
    }
    &mut buffer[..len]
}

/// The largest magnitude, in 8 lanes; NaN is passed over.
#[inline(always)]
fn largest<const N: usize>(x: &[f32; N]) -> f32 {
    let mut top = [0f32; 8];
    for x in x.as_chunks::<8>().0 {
        for (top, x) in top.iter_mut().zip(x) {
            let x = x.abs();
            *top = if x > *top { x } else { *top };
        }
    }
    top.into_iter().fold(0.0, |a, b| if b > a { b } else { a })
}

/// Levels of one block and their scale.
#[inline(always)]
fn levels<const N: usize>(x: &[f32; N], q: &mut [i8; N]) -> f32 {
    let top = largest(x);
    let (scale, inverse) = if top > TINY { (top / 127.0, 127.0 / top) } else { (0.0, 0.0) };
    for (q, &x) in q.iter_mut().zip(x) {
        // |x · inverse| ≤ 127.00002, so the low byte of the rounded bits is the level. NaN gives some level, harmlessly:
        // a block with an infinity has an infinite scale, and one with NaN alone can't be right anyway.
        *q = (x * inverse + ROUND).to_bits() as i8;
    }
    scale
}

per_path! {
    /// Quantizes `x`, whole blocks, to `out`.
    fn quantize32(x: &[f32], out: &mut [Block32]) {
        for (x, out) in x.as_chunks::<32>().0.iter().zip(out) {
            out.scale = levels(x, &mut out.q);
            // At most 32 · 127; wrapping, like the other sums of levels here, because overflow checks would cost the vectors.
            out.sum = out.q.iter().fold(0, |sum: i32, &q| sum.wrapping_add(i32::from(q)));
            out.scaled_sum = out.scale * out.sum as f32;
        }
    }
}

per_path! {
    /// Quantizes `x`, whole blocks, to `out`.
    fn quantize256(x: &[f32], out: &mut [Block256]) {
        for (x, out) in x.as_chunks::<256>().0.iter().zip(out) {
            out.scale = levels(x, &mut out.q);
            for (q, sums) in out.q.as_chunks::<16>().0.iter().zip(&mut out.sums16) {
                *sums = [0; 2];
                for q in q.as_chunks::<4>().0 {
                    sums[0] = sums[0].wrapping_add(i16::from(q[0])).wrapping_add(i16::from(q[1]));
                    sums[1] = sums[1].wrapping_add(i16::from(q[2])).wrapping_add(i16::from(q[3]));
                }
            }
            for (sum, parts) in out.sums32.iter_mut().zip(out.sums16.as_chunks::<2>().0) {
                *sum = parts[0][0] + parts[0][1] + parts[1][0] + parts[1][1];
            }
        }
    }
}
