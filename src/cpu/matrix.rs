//! Weights in memory: still quantized, but laid out so that one vector lane is one row.
//!
//! Sixteen rows form a *panel*; rows are padded to whole panels with zero blocks. A panel is
//! `[heads of all blocks, padded to 64 bytes][quants of all blocks]`, so every 64-byte load is aligned, and a block's quants
//! are 64-byte vectors: 4 consecutive columns ("a group") of 16 rows, row-major, so that one multiply-add instruction adds 4
//! columns to 16 (or twice 8) row sums and nothing is ever added across lanes.
//!
//! | dtype | head of one block of 16 rows | quants of one block of 16 rows |
//! |---|---|---|
//! | q4_0 | 16 f16 d | 4 vectors: vector v has group v low, group v + 4 high: GGUF's own pairing |
//! | q4_1 | 16 f16 d, 16 f16 m | as q4_0 |
//! | q5_0, q5_1 | as q4_0, q4_1 | as q4_0, then 1 vector: bit v of a byte is the fifth bit of group v |
//! | q8_0 | 16 f16 d | 8 vectors of levels ^ 0x80, that is level + 128 |
//! | q4_k | 16 f16 d, 16 f16 dmin, scales `[8][16]` u8, minima `[4][16][2]` u8 | 32 vectors: vector 8j + v has group v of sub-block 2j low, of 2j + 1 high |
//! | q5_k | as q4_k | as q4_k, then 8 vectors: bit s of a byte of vector v is the fifth bit of group v of sub-block s |
//! | q6_k | 16 f16 d, scales `[16][16]` i8 | 32 vectors `[2 halves][2][8 groups]` of nibbles (quarters 0, 1 low, 2, 3 high), then 16 vectors `[2 halves][8 groups]` with 2 bits for each quarter |
//! | f32, f16, bf16 | none | column by column, 16 values |

use super::portable::{dequantize32, dequantize256, float_at};
use super::{CpuError, pack};
use crate::reference::Dtype;

/// Rows of a panel.
pub(super) const PANEL: usize = 16;

/// A weight matrix, packed while loading; `rows` are outputs, `columns` inputs.
pub struct Matrix {
    dtype: Dtype,
    rows: usize,
    columns: usize,
    lines: Vec<Line>,
}

/// What a vector load likes: 64 aligned bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// Sixteen rows of a matrix.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// The heads of all blocks, [`Layout::head`] bytes each, and padding.
    pub(super) heads: &'a [u8],
    /// The quants of all blocks, [`Layout::quants`] bytes each.
    pub(super) quants: &'a [u8],
}

/// The sizes of one block of 16 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) head: usize,
    pub(super) quants: usize,
}

// === impl Matrix ===

impl Matrix {
    /// Packs `rows` × `columns` weights from `raw`, a GGUF tensor's bytes. Packed row `i` is raw row `row_order(i)`, or `i`
    /// without an order.
    ///
    /// # Errors
    /// Rows aren't whole blocks, or `raw` has another size.
    ///
    /// # Panics
    /// If `row_order` names a row that doesn't exist.
    pub fn pack(
        dtype: Dtype,
        rows: usize,
        columns: usize,
        raw: &[u8],
        row_order: Option<&dyn Fn(usize) -> usize>,
    ) -> Result<Self, CpuError> {
        let wrong = |expected| CpuError::Matrix { dtype, rows, columns, bytes: raw.len(), expected };
        if !columns.is_multiple_of(dtype.block_elements()) {
            return Err(wrong(None));
        }
        let row_bytes = dtype.row_bytes(columns);
        let expected = row_bytes.checked_mul(rows);
        if expected != Some(raw.len()) {
            return Err(wrong(Some(expected.unwrap_or(usize::MAX))));
        }
        let lines = rows.div_ceil(PANEL) * panel_bytes(dtype, columns) / 64;
        let mut matrix = Self { dtype, rows, columns, lines: vec![Line([0; 64]); lines] };
        for row in 0..rows {
            let from = row_order.map_or(row, |order| order(row));
            let (panel, lane) = (row / PANEL, row % PANEL);
            let (heads, quants) = matrix.panel_mut(panel);
            pack::row(dtype, &raw[from * row_bytes..][..row_bytes], lane, heads, quants);
        }
        Ok(matrix)
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes in memory, padding included.
    pub fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub(super) fn panel(&self, panel: usize) -> Panel<'_> {
        let size = panel_bytes(self.dtype, self.columns);
        let (heads, quants) = bytes_of(&self.lines)[panel * size..][..size].split_at(head_bytes(self.dtype, self.columns));
        Panel { heads, quants: &quants[..self.columns / self.dtype.block_elements() * Layout::of(self.dtype).quants] }
    }

    fn panel_mut(&mut self, panel: usize) -> (&mut [u8], &mut [u8]) {
        let size = panel_bytes(self.dtype, self.columns);
        let head = head_bytes(self.dtype, self.columns);
        bytes_of_mut(&mut self.lines)[panel * size..][..size].split_at_mut(head)
    }

    /// Writes row `row` as floats to `out`, exactly as [`crate::reference::dequantize`] has it.
    pub(super) fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let (panel, lane) = (self.panel(row / PANEL), row % PANEL);
        match self.dtype {
            Dtype::F32 => float_at::<4>(panel.quants, lane, out),
            Dtype::F16 => float_at::<2>(panel.quants, lane, out),
            Dtype::BF16 => float_at::<0>(panel.quants, lane, out),
            Dtype::Q4_0 => dequantize32::<4, false>(panel, lane, out),
            Dtype::Q4_1 => dequantize32::<4, true>(panel, lane, out),
            Dtype::Q5_0 => dequantize32::<5, false>(panel, lane, out),
            Dtype::Q5_1 => dequantize32::<5, true>(panel, lane, out),
            Dtype::Q8_0 => dequantize32::<8, false>(panel, lane, out),
            Dtype::Q4K => dequantize256::<4>(panel, lane, out),
            Dtype::Q5K => dequantize256::<5>(panel, lane, out),
            Dtype::Q6K => dequantize256::<6>(panel, lane, out),
        }
    }
}

// === impl Layout ===

impl Layout {
    pub(super) const fn of(dtype: Dtype) -> Self {
        let (head, quants) = match dtype {
            Dtype::F32 => (0, 64),
            Dtype::F16 | Dtype::BF16 => (0, 32),
            Dtype::Q4_0 => (32, 256),
            Dtype::Q4_1 => (64, 256),
            Dtype::Q5_0 => (32, 320),
            Dtype::Q5_1 => (64, 320),
            Dtype::Q8_0 => (32, 512),
            Dtype::Q4K => (320, 2048),
            Dtype::Q5K => (320, 2560),
            Dtype::Q6K => (288, 3072),
        };
        Self { head, quants }
    }
}

fn head_bytes(dtype: Dtype, columns: usize) -> usize {
    (columns / dtype.block_elements() * Layout::of(dtype).head).next_multiple_of(64)
}

fn panel_bytes(dtype: Dtype, columns: usize) -> usize {
    head_bytes(dtype, columns) + (columns / dtype.block_elements() * Layout::of(dtype).quants).next_multiple_of(64)
}

fn bytes_of(lines: &[Line]) -> &[u8] {
    // SAFETY: a line is 64 bytes without padding, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

fn bytes_of_mut(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; every byte value is valid in a line.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}
