//! From GGUF blocks to panels (see [`super::matrix`]): bytes move, levels stay as they are.

use super::matrix::{Layout, PANEL};
use crate::reference::Dtype;

/// Writes one row's raw blocks into lane `lane` of a panel.
pub(super) fn row(dtype: Dtype, raw: &[u8], lane: usize, heads: &mut [u8], quants: &mut [u8]) {
    let layout = Layout::of(dtype);
    for (b, raw) in raw.chunks_exact(dtype.block_bytes()).enumerate() {
        let head = &mut heads[b * layout.head..][..layout.head];
        let quants = &mut quants[b * layout.quants..][..layout.quants];
        match dtype {
            Dtype::F32 => pieces::<4>(raw, lane, quants),
            Dtype::F16 | Dtype::BF16 => pieces::<2>(raw, lane, quants),
            Dtype::Q4_0 => {
                pieces::<2>(&raw[..2], lane, head);
                pieces::<4>(&raw[2..], lane, quants);
            }
            Dtype::Q4_1 => {
                pieces::<2>(&raw[..4], lane, head);
                pieces::<4>(&raw[4..], lane, quants);
            }
            Dtype::Q5_0 => {
                pieces::<2>(&raw[..2], lane, head);
                pieces::<4>(&raw[6..], lane, quants);
                pieces::<4>(&fifth_bits(&raw[2..6]), lane, &mut quants[256..]);
            }
            Dtype::Q5_1 => {
                pieces::<2>(&raw[..4], lane, head);
                pieces::<4>(&raw[8..], lane, quants);
                pieces::<4>(&fifth_bits(&raw[4..8]), lane, &mut quants[256..]);
            }
            Dtype::Q8_0 => {
                pieces::<2>(&raw[..2], lane, head);
                let levels: [u8; 32] = std::array::from_fn(|i| raw[2 + i] ^ 0x80);
                pieces::<4>(&levels, lane, quants);
            }
            Dtype::Q4K => {
                k_head(&raw[..16], lane, head);
                pieces::<4>(&raw[16..], lane, quants);
            }
            Dtype::Q5K => {
                k_head(&raw[..16], lane, head);
                pieces::<4>(&raw[48..], lane, quants);
                pieces::<4>(&raw[16..48], lane, &mut quants[2048..]);
            }
            Dtype::Q6K => {
                pieces::<2>(&raw[208..], lane, head);
                pieces::<1>(&raw[192..208], lane, &mut head[32..]);
                pieces::<4>(&raw[..192], lane, quants);
            }
        }
    }
}

/// Spreads consecutive pieces of `N` bytes, 16 lanes apart.
fn pieces<const N: usize>(raw: &[u8], lane: usize, to: &mut [u8]) {
    for (piece, to) in raw.chunks_exact(N).zip(to.chunks_exact_mut(PANEL * N)) {
        to[lane * N..][..N].copy_from_slice(piece);
    }
}

/// Bit `4v + i` of `high` becomes bit `v` of byte `i`.
fn fifth_bits(high: &[u8]) -> [u8; 4] {
    let bit = |e: usize| high[e / 8] >> (e % 8) & 1;
    std::array::from_fn(|i| (0..8).map(|v| bit(4 * v + i) << v).fold(0, |byte, bit| byte | bit))
}

/// The head of a q4_k or q5_k block: its 6-bit scales and minima become whole bytes.
fn k_head(raw: &[u8], lane: usize, head: &mut [u8]) {
    pieces::<2>(&raw[..4], lane, head);
    let packed = &raw[4..];
    let mut scales = [0; 8];
    let mut minima = [0; 8];
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        minima[j] = packed[4 + j] & 63;
        scales[4 + j] = packed[8 + j] & 15 | packed[j] >> 6 << 4;
        minima[4 + j] = packed[8 + j] >> 4 | packed[4 + j] >> 6 << 4;
    }
    pieces::<1>(&scales, lane, &mut head[64..192]);
    pieces::<2>(&minima, lane, &mut head[192..]);
}
