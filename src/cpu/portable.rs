//! The products of one panel of 16 rows with a few activation rows, in plain Rust, and reading packed weights back.
//!
//! This is the definition of the quantized products' bits: integer sums inside a block, then f32 fused multiply-adds over
//! the blocks in ascending order, one lane a row. Float weights are summed over ascending columns with a multiplication and
//! an addition of their own, which any machine does fast and equally.

use super::activation::{Block32, Block256};
use super::matrix::{PANEL, Panel};
use half::f16;

/// One sum for each row of a panel.
pub(super) type Sums = [f32; PANEL];

/// The level of byte `byte` (row · 4 + column) in group `v` of a block of 32.
#[inline(always)]
fn level32<const BITS: u32>(quants: &[u8], v: usize, byte: usize) -> u8 {
    let nibble = |q: u8| if v < 4 { q & 15 } else { q >> 4 };
    match BITS {
        4 => nibble(quants[v % 4 * 64 + byte]),
        5 => nibble(quants[v % 4 * 64 + byte]) | (quants[256 + byte] >> v & 1) << 4,
        _ => quants[v * 64 + byte],
    }
}

/// The level of byte `byte` (row · 4 + column) in group `v` of sub-block `s` of a block of 256.
#[inline(always)]
fn level256<const BITS: u32>(quants: &[u8], s: usize, v: usize, byte: usize) -> u8 {
    let nibble = |high: bool, q: u8| if high { q >> 4 } else { q & 15 };
    match BITS {
        4 => nibble(s % 2 == 1, quants[(s / 2 * 8 + v) * 64 + byte]),
        5 => nibble(s % 2 == 1, quants[(s / 2 * 8 + v) * 64 + byte]) | (quants[2048 + v * 64 + byte] >> s & 1) << 4,
        _ => {
            let (half, quarter) = (s / 4, s % 4);
            let low = nibble(quarter >= 2, quants[(half * 16 + quarter % 2 * 8 + v) * 64 + byte]);
            low | (quants[2048 + (half * 8 + v) * 64 + byte] >> (quarter * 2) & 3) << 4
        }
    }
}

/// Bytes of a 32-block's head and quants for 16 rows, as `Layout` has them.
pub(super) const fn sizes32(bits: u32, minimum: bool) -> (usize, usize) {
    (if minimum { 64 } else { 32 }, bits as usize * 64)
}

/// Bytes of a 256-block's head and quants for 16 rows, as `Layout` has them.
pub(super) const fn sizes256(bits: u32) -> (usize, usize) {
    (if bits == 6 { 288 } else { 320 }, bits as usize * 512)
}

/// What is subtracted from a level to get the weight's integer.
const fn offset(bits: u32, minimum: bool) -> i32 {
    if minimum { 0 } else { 1 << (bits - 1) }
}

fn half_at(bytes: &[u8], lane: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]).to_f32()
}

fn halves(bytes: &[u8]) -> Sums {
    std::array::from_fn(|lane| half_at(bytes, lane))
}

/// `sums[lane] += Σ levels[lane][i] · a[i]`; all of it stays far below 2^31.
#[inline(always)]
fn add_group(levels: &[u8; 64], a: &[i8], sums: &mut [i32; PANEL]) {
    for (lane, sum) in sums.iter_mut().enumerate() {
        for i in 0..4 {
            *sum = sum.wrapping_add(i32::from(levels[lane * 4 + i]).wrapping_mul(i32::from(a[i])));
        }
    }
}

/// The products of a panel in a format of 32-blocks (`BITS` a level, with a minimum or an offset) with `C` rows.
pub(super) fn tile32<const BITS: u32, const MIN: bool, const C: usize>(panel: Panel<'_>, x: [&[Block32]; C]) -> [Sums; C] {
    let (head, quants) = sizes32(BITS, MIN);
    let mut out = [[0f32; PANEL]; C];
    for (b, (head, quants)) in panel.heads.chunks_exact(head).zip(panel.quants.chunks_exact(quants)).enumerate() {
        let mut sums: [[i32; PANEL]; C] = std::array::from_fn(|c| [-offset(BITS, MIN) * x[c][b].sum; PANEL]);
        for v in 0..8 {
            let levels: [u8; 64] = std::array::from_fn(|byte| level32::<BITS>(quants, v, byte));
            for c in 0..C {
                add_group(&levels, &x[c][b].q[4 * v..4 * v + 4], &mut sums[c]);
            }
        }
        let d = halves(head);
        let minimum = if MIN { halves(&head[32..]) } else { [0.0; PANEL] };
        for c in 0..C {
            let x = &x[c][b];
            for lane in 0..PANEL {
                if MIN {
                    out[c][lane] = minimum[lane].mul_add(x.scaled_sum, out[c][lane]);
                }
                out[c][lane] = (sums[c][lane] as f32).mul_add(d[lane] * x.scale, out[c][lane]);
            }
        }
    }
    out
}

/// The products of a panel of K-quants (`BITS` a level) with `C` rows: sub-block scales are integers inside the block.
#[expect(clippy::needless_range_loop, reason = "c is an activation row and lane a weight row, everywhere")]
pub(super) fn tile256<const BITS: u32, const C: usize>(panel: Panel<'_>, x: [&[Block256]; C]) -> [Sums; C] {
    let (head, quants) = sizes256(BITS);
    let mut out = [[0f32; PANEL]; C];
    for (b, (head, quants)) in panel.heads.chunks_exact(head).zip(panel.quants.chunks_exact(quants)).enumerate() {
        let mut sums = [[0i32; PANEL]; C];
        let mut minima = [[0i32; PANEL]; C];
        for s in 0..8 {
            for part in 0..2 {
                let mut inner: [[i32; PANEL]; C] = std::array::from_fn(|c| {
                    let [even, odd] = x[c][b].sums16[s * 2 + part];
                    [if BITS == 6 { -32 * (i32::from(even) + i32::from(odd)) } else { 0 }; PANEL]
                });
                for v in part * 4..part * 4 + 4 {
                    let levels: [u8; 64] = std::array::from_fn(|byte| level256::<BITS>(quants, s, v, byte));
                    for c in 0..C {
                        add_group(&levels, &x[c][b].q[s * 32 + 4 * v..][..4], &mut inner[c]);
                    }
                }
                for c in 0..C {
                    for lane in 0..PANEL {
                        sums[c][lane] += scale256::<BITS>(head, s, part, lane) * inner[c][lane];
                    }
                }
            }
        }
        if BITS != 6 {
            for c in 0..C {
                for lane in 0..PANEL {
                    minima[c][lane] = (0..8).map(|s| minimum256(head, s, lane) * i32::from(x[c][b].sums32[s])).sum();
                }
            }
        }
        let d = halves(head);
        let dmin = if BITS == 6 { [0.0; PANEL] } else { halves(&head[32..]) };
        for c in 0..C {
            let scale = x[c][b].scale;
            for lane in 0..PANEL {
                out[c][lane] = (sums[c][lane] as f32).mul_add(d[lane] * scale, out[c][lane]);
                if BITS != 6 {
                    out[c][lane] = (minima[c][lane] as f32).mul_add(-(dmin[lane] * scale), out[c][lane]);
                }
            }
        }
    }
    out
}

/// The integer scale of 16-element part `part` of sub-block `s`.
#[inline(always)]
fn scale256<const BITS: u32>(head: &[u8], s: usize, part: usize, lane: usize) -> i32 {
    if BITS == 6 { i32::from(head[32 + (s * 2 + part) * PANEL + lane].cast_signed()) } else { i32::from(head[64 + s * PANEL + lane]) }
}

/// The integer minimum of sub-block `s`.
#[inline(always)]
fn minimum256(head: &[u8], s: usize, lane: usize) -> i32 {
    i32::from(head[192 + s / 2 * 2 * PANEL + lane * 2 + s % 2])
}

/// Value `lane` of a column of floats: `KIND` 4 is f32, 2 f16, 0 bf16.
#[inline(always)]
fn float<const KIND: usize>(column: &[u8], lane: usize) -> f32 {
    match KIND {
        4 => f32::from_le_bytes([column[lane * 4], column[lane * 4 + 1], column[lane * 4 + 2], column[lane * 4 + 3]]),
        2 => half_at(column, lane),
        _ => half::bf16::from_le_bytes([column[lane * 2], column[lane * 2 + 1]]).to_f32(),
    }
}

/// The products of a panel of float weights (`KIND` as in [`float_at`]) with `C` rows.
pub(super) fn tile_float<const KIND: usize, const C: usize>(panel: Panel<'_>, x: [&[f32]; C]) -> [Sums; C] {
    let mut out = [[0f32; PANEL]; C];
    for (k, column) in panel.quants.chunks_exact(PANEL * KIND.max(2)).enumerate() {
        let weights: Sums = std::array::from_fn(|lane| float::<KIND>(column, lane));
        for c in 0..C {
            for (out, weight) in out[c].iter_mut().zip(weights) {
                *out += weight * x[c][k];
            }
        }
    }
    out
}

/// Reads one row of float weights back: `KIND` 4 is f32, 2 f16, 0 bf16.
pub(super) fn float_at<const KIND: usize>(quants: &[u8], lane: usize, out: &mut [f32]) {
    for (column, out) in quants.chunks_exact(PANEL * KIND.max(2)).zip(out) {
        *out = float::<KIND>(column, lane);
    }
}

/// Reads one row of a format of 32-blocks back.
pub(super) fn dequantize32<const BITS: u32, const MIN: bool>(panel: Panel<'_>, lane: usize, out: &mut [f32]) {
    let (head, quants) = sizes32(BITS, MIN);
    let blocks = panel.heads.chunks_exact(head).zip(panel.quants.chunks_exact(quants));
    for ((head, quants), out) in blocks.zip(out.chunks_exact_mut(32)) {
        let (d, m) = (half_at(head, lane), if MIN { half_at(&head[32..], lane) } else { 0.0 });
        for (e, out) in out.iter_mut().enumerate() {
            let level = i32::from(level32::<BITS>(quants, e / 4, lane * 4 + e % 4)) - offset(BITS, MIN);
            *out = if MIN { level as f32 * d + m } else { level as f32 * d };
        }
    }
}

/// Reads one row of K-quants back.
pub(super) fn dequantize256<const BITS: u32>(panel: Panel<'_>, lane: usize, out: &mut [f32]) {
    let (head, quants) = sizes256(BITS);
    let blocks = panel.heads.chunks_exact(head).zip(panel.quants.chunks_exact(quants));
    for ((head, quants), out) in blocks.zip(out.chunks_exact_mut(256)) {
        let d = half_at(head, lane);
        let dmin = if BITS == 6 { 0.0 } else { half_at(&head[32..], lane) };
        for (e, out) in out.iter_mut().enumerate() {
            let (s, part, v) = (e / 32, e / 16 % 2, e / 4 % 8);
            let level = f32::from(level256::<BITS>(quants, s, v, lane * 4 + e % 4));
            let scale = d * scale256::<BITS>(head, s, part, lane) as f32;
            *out = if BITS == 6 { scale * (level - 32.0) } else { scale * level - dmin * minimum256(head, s, lane) as f32 };
        }
    }
}
