//! Matrix products: `out[m, rows] = x[m, columns] · weightᵀ`.
//!
//! Threads take contiguous shares of the weight's panels; within a share, a stretch of activation rows that stays in the
//! L2 cache meets one panel after the other, and each panel, staying in L1, meets the stretch in tiles of up to four rows.
//! A tile's lane is one weight row and one activation row, so no shape can change a bit.

use super::activation::{Activations, Block32, Block256};
#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::isa::Path;
use super::matrix::{Matrix, PANEL, Panel};
use super::pool::{Pieces, share_of};
use super::portable::{self, Sums};
use super::{Scratch, Turn};
use crate::reference::Dtype;

/// Activation rows of one tile.
const TILE: usize = 4;

/// Bytes of activations that stay cached while panels pass over them.
const STRETCH_BYTES: usize = 192 << 10;

impl Turn<'_> {
    /// `out[m, rows] = x[m, columns] · weightᵀ`.
    ///
    /// Quantized weights meet activations quantized to int8, float weights meet floats: by the weight's type only, so a
    /// row's bits depend on neither `m` nor the threads.
    ///
    /// # Panics
    /// If `x` isn't whole rows of `weight.columns()` or `out` isn't as many rows of `weight.rows()`.
    pub fn matmul(&self, x: &[f32], weight: &Matrix, scratch: &mut Scratch, out: &mut [f32]) {
        let m = if weight.columns() == 0 { 0 } else { x.len() / weight.columns() };
        assert_eq!(x.len(), m * weight.columns(), "matmul: x has whole rows of {} columns", weight.columns());
        assert_eq!(out.len(), m * weight.rows(), "matmul: out is [{m}, {}]", weight.rows());
        if out.is_empty() {
            return;
        }
        let (path, threads) = (self.path(), self.threads());
        let activations = self.activations(weight.dtype(), x, weight.columns(), scratch);
        let stretch = (STRETCH_BYTES / activations.row_bytes(m)).next_multiple_of(TILE).max(TILE);
        let pieces = Pieces::new(out);
        self.run(&|share| {
            let panels = share_of(weight.panels(), 1, share, threads);
            for first in (0..m).step_by(stretch) {
                let end = (first + stretch).min(m);
                for p in panels.clone() {
                    for row in (first..end).step_by(TILE) {
                        let rows = TILE.min(end - row);
                        let sums = tile(path, weight.dtype(), weight.panel(p), activations, m, row, rows);
                        store(&sums[..rows], weight, p, row, &pieces);
                    }
                }
            }
        });
    }
}

/// Writes a tile's sums to rows `row..` of the output.
fn store(sums: &[Sums], weight: &Matrix, panel: usize, row: usize, out: &Pieces<'_, f32>) {
    let lanes = PANEL.min(weight.rows() - panel * PANEL);
    for (i, sums) in sums.iter().enumerate() {
        let at = (row + i) * weight.rows() + panel * PANEL;
        // SAFETY: a panel belongs to one thread, and panels are disjoint columns of the output.
        unsafe { out.get(at..at + lanes) }.copy_from_slice(&sums[..lanes]);
    }
}

/// The products of one panel with activation rows `row..row + rows` of `m`.
fn tile(path: Path, dtype: Dtype, panel: Panel<'_>, x: Activations<'_>, m: usize, row: usize, rows: usize) -> [Sums; TILE] {
    match rows {
        1 => widened(tile_of::<1>(path, dtype, panel, x, m, row)),
        2 => widened(tile_of::<2>(path, dtype, panel, x, m, row)),
        3 => widened(tile_of::<3>(path, dtype, panel, x, m, row)),
        _ => tile_of::<TILE>(path, dtype, panel, x, m, row),
    }
}

fn widened<const C: usize>(sums: [Sums; C]) -> [Sums; TILE] {
    let mut all = [[0.0; PANEL]; TILE];
    all[..C].copy_from_slice(&sums);
    all
}

fn tile_of<const C: usize>(path: Path, dtype: Dtype, panel: Panel<'_>, x: Activations<'_>, m: usize, row: usize) -> [Sums; C] {
    match (dtype, x) {
        (Dtype::F32, Activations::Floats(x)) => tile_float::<4, C>(path, panel, some_rows(x, m, row)),
        (Dtype::F16, Activations::Floats(x)) => tile_float::<2, C>(path, panel, some_rows(x, m, row)),
        (Dtype::BF16, Activations::Floats(x)) => tile_float::<0, C>(path, panel, some_rows(x, m, row)),
        (Dtype::Q4_0, Activations::Blocks32(x)) => tile32::<4, false, C>(path, panel, some_rows(x, m, row)),
        (Dtype::Q4_1, Activations::Blocks32(x)) => tile32::<4, true, C>(path, panel, some_rows(x, m, row)),
        (Dtype::Q5_0, Activations::Blocks32(x)) => tile32::<5, false, C>(path, panel, some_rows(x, m, row)),
        (Dtype::Q5_1, Activations::Blocks32(x)) => tile32::<5, true, C>(path, panel, some_rows(x, m, row)),
        (Dtype::Q8_0, Activations::Blocks32(x)) => tile32::<8, false, C>(path, panel, some_rows(x, m, row)),
        (Dtype::Q4K, Activations::Blocks256(x)) => tile256::<4, C>(path, panel, some_rows(x, m, row)),
        (Dtype::Q5K, Activations::Blocks256(x)) => tile256::<5, C>(path, panel, some_rows(x, m, row)),
        (Dtype::Q6K, Activations::Blocks256(x)) => tile256::<6, C>(path, panel, some_rows(x, m, row)),
        _ => unreachable!("the activations' form follows from the weight's type"),
    }
}

/// `C` rows from `row` on, of `m` equal rows.
fn some_rows<T, const C: usize>(x: &[T], m: usize, row: usize) -> [&[T]; C] {
    let width = x.len() / m;
    std::array::from_fn(|c| &x[(row + c) * width..][..width])
}

/// Defines a tile kernel's choice between the paths.
macro_rules! tile_per_path {
    ($name:ident, $block:ty, $($generic:ident: $kind:ty),*) => {
        fn $name<$(const $generic: $kind,)* const C: usize>(path: Path, panel: Panel<'_>, x: [&[$block]; C]) -> [Sums; C] {
            match path {
                // SAFETY: `Path::Avx2` exists only where the machine has AVX2, FMA and F16C.
                #[cfg(target_arch = "x86_64")]
                Path::Avx2 => unsafe { avx2::$name::<$($generic,)* C>(panel, x) },
                Path::Portable => portable::$name::<$($generic,)* C>(panel, x),
            }
        }
    };
}
tile_per_path!(tile32, Block32, BITS: u32, MIN: bool);
tile_per_path!(tile256, Block256, BITS: u32);
tile_per_path!(tile_float, f32, KIND: usize);

// === impl Activations ===

impl Activations<'_> {
    /// Bytes of one of `m` rows.
    fn row_bytes(&self, m: usize) -> usize {
        let all = match self {
            Self::Floats(x) => size_of_val(*x),
            Self::Blocks32(x) => size_of_val(*x),
            Self::Blocks256(x) => size_of_val(*x),
        };
        all / m
    }
}
