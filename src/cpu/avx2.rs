//! The tiles of [`super::portable`] with AVX2: twice 8 rows a vector, 4 columns of a row a lane, the same bits.
//!
//! `maddubs` multiplies unsigned levels by signed activations and adds pairs into 16 bits, saturating there. With
//! |activation| ≤ 127 a pair of 4-bit levels adds at most 3,810, so all 8 groups of a block fit; 5 bits (7,874) allow 4
//! groups. A pair of 6-bit levels adds up to 16,002: four of them may wrap, but with the offset's share taken off again
//! the true sum, |Σ (level − 32) · a| over 8 elements, is at most 32,512, and wrapping additions get it right. 8-bit levels
//! are made signed, then their sign moves to the activation: 128 · 127 · 2 = 32,512 fits, and each pair is widened at once.

use super::activation::{Block32, Block256};
use super::matrix::{PANEL, Panel};
use super::portable::{Sums, sizes32, sizes256};
use std::arch::x86_64::*;

/// The two vectors of a panel's rows.
type Pair<V> = [V; 2];

/// How far ahead quants are asked for while a panel is read for the first time.
const AHEAD: usize = 4_096;

/// 32 bytes from byte `at` on.
#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8], at: usize) -> __m256i {
    debug_assert!(at + 32 <= bytes.len());
    // SAFETY: callers read inside one block's quants, whose size `chunks_exact` has checked against the format's.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) }
}

/// 16 bytes from byte `at` on.
#[target_feature(enable = "avx2")]
#[inline]
fn load16(bytes: &[u8], at: usize) -> __m128i {
    let bytes: &[u8; 16] = bytes[at..].first_chunk().expect("invariant: a head holds all its parts");
    // SAFETY: 16 bytes are there.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Eight halves from byte `at` on, as floats.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load_halves(bytes: &[u8], at: usize) -> __m256 {
    _mm256_cvtph_ps(load16(bytes, at))
}

/// Four activation levels in every lane.
#[target_feature(enable = "avx2")]
#[inline]
fn broadcast4(q: &[i8], at: usize) -> __m256i {
    debug_assert!(at + 4 <= q.len());
    // SAFETY: callers stay inside the block's fixed number of levels.
    _mm256_set1_epi32(unsafe { q.as_ptr().add(at).cast::<i32>().read_unaligned() })
}

/// Two 16-bit sums in every lane.
#[target_feature(enable = "avx2")]
#[inline]
fn broadcast2(low: i16, high: i16) -> __m256i {
    _mm256_set1_epi32(i32::from(low.cast_unsigned()) | i32::from(high) << 16)
}

/// Asks for what comes `AHEAD` bytes after these quants, which are about to be read.
#[target_feature(enable = "avx2")]
#[inline]
fn prefetch(quants: &[u8]) {
    for line in (0..quants.len()).step_by(64) {
        // A prefetch may name any address; it never faults.
        _mm_prefetch::<_MM_HINT_T0>(quants.as_ptr().wrapping_add(AHEAD + line).cast());
    }
}

/// Adds adjacent 16-bit sums.
#[target_feature(enable = "avx2")]
#[inline]
fn widen(sums: __m256i) -> __m256i {
    _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
}

/// A nibble of each byte.
#[target_feature(enable = "avx2")]
#[inline]
fn nibble(bytes: __m256i, high: bool) -> __m256i {
    let bytes = if high { _mm256_srli_epi16::<4>(bytes) } else { bytes };
    _mm256_and_si256(bytes, _mm256_set1_epi8(15))
}

/// Bits `from..` of each byte, `mask` of them, moved up to bit 4.
#[target_feature(enable = "avx2")]
#[inline]
fn high_bits(bytes: __m256i, from: usize, mask: i8) -> __m256i {
    let bits = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(from as i32));
    _mm256_slli_epi16::<4>(_mm256_and_si256(bits, _mm256_set1_epi8(mask)))
}

/// Group `v` of a block of 32, rows `8 · half..`: levels, signed for 8 bits.
#[target_feature(enable = "avx2")]
#[inline]
fn group32<const BITS: u32>(quants: &[u8], v: usize, half: usize) -> __m256i {
    match BITS {
        8 => _mm256_xor_si256(load(quants, v * 64 + half * 32), _mm256_set1_epi8(-128)),
        _ => {
            let low = nibble(load(quants, v % 4 * 64 + half * 32), v >= 4);
            if BITS == 4 { low } else { _mm256_or_si256(low, high_bits(load(quants, 256 + half * 32), v, 1)) }
        }
    }
}

/// Group `v` of sub-block `s` of a block of 256, rows `8 · half..`.
#[target_feature(enable = "avx2")]
#[inline]
fn group256<const BITS: u32>(quants: &[u8], s: usize, v: usize, half: usize) -> __m256i {
    let at = |vector: usize| vector * 64 + half * 32;
    match BITS {
        4 => nibble(load(quants, at(s / 2 * 8 + v)), s % 2 == 1),
        5 => {
            let low = nibble(load(quants, at(s / 2 * 8 + v)), s % 2 == 1);
            _mm256_or_si256(low, high_bits(load(quants, at(32 + v)), s, 1))
        }
        _ => {
            let (part, quarter) = (s / 4, s % 4);
            let low = nibble(load(quants, at(part * 16 + quarter % 2 * 8 + v)), quarter >= 2);
            _mm256_or_si256(low, high_bits(load(quants, at(32 + part * 8 + v)), quarter * 2, 3))
        }
    }
}

/// As [`super::portable::tile32`].
#[target_feature(enable = "avx2,fma,f16c")]
#[expect(clippy::needless_range_loop, reason = "c is an activation row and h a vector of rows, everywhere")]
pub(super) fn tile32<const BITS: u32, const MIN: bool, const C: usize>(panel: Panel<'_>, x: [&[Block32]; C]) -> [Sums; C] {
    let (head, quants) = sizes32(BITS, MIN);
    let zero = _mm256_setzero_si256();
    let mut out: [Pair<__m256>; C] = [[_mm256_setzero_ps(); 2]; C];
    for (b, (head, quants)) in panel.heads.chunks_exact(head).zip(panel.quants.chunks_exact(quants)).enumerate() {
        let x: [&Block32; C] = x.map(|x| &x[b]);
        if C == 1 {
            prefetch(quants);
        }
        let mut sums: [Pair<__m256i>; C] = [[zero; 2]; C];
        if BITS == 8 {
            for v in 0..8 {
                let levels = [group32::<BITS>(quants, v, 0), group32::<BITS>(quants, v, 1)];
                for c in 0..C {
                    let a = broadcast4(&x[c].q, 4 * v);
                    for h in 0..2 {
                        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(levels[h]), _mm256_sign_epi8(a, levels[h]));
                        sums[c][h] = _mm256_add_epi32(sums[c][h], widen(pairs));
                    }
                }
            }
        } else {
            for run in 0..if BITS == 5 { 2 } else { 1 } {
                let mut pairs: [Pair<__m256i>; C] = [[zero; 2]; C];
                for v in run * 4..if BITS == 5 { run * 4 + 4 } else { 8 } {
                    let levels = [group32::<BITS>(quants, v, 0), group32::<BITS>(quants, v, 1)];
                    for c in 0..C {
                        let a = broadcast4(&x[c].q, 4 * v);
                        for h in 0..2 {
                            pairs[c][h] = _mm256_add_epi16(pairs[c][h], _mm256_maddubs_epi16(levels[h], a));
                        }
                    }
                }
                for c in 0..C {
                    for h in 0..2 {
                        sums[c][h] = _mm256_add_epi32(sums[c][h], widen(pairs[c][h]));
                    }
                }
            }
            if !MIN {
                for c in 0..C {
                    let offset = _mm256_set1_epi32(x[c].sum << (BITS - 1));
                    for h in 0..2 {
                        sums[c][h] = _mm256_sub_epi32(sums[c][h], offset);
                    }
                }
            }
        }
        for h in 0..2 {
            let d = load_halves(head, h * 16);
            for c in 0..C {
                if MIN {
                    out[c][h] = _mm256_fmadd_ps(load_halves(head, 32 + h * 16), _mm256_set1_ps(x[c].scaled_sum), out[c][h]);
                }
                let scale = _mm256_mul_ps(d, _mm256_set1_ps(x[c].scale));
                out[c][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[c][h]), scale, out[c][h]);
            }
        }
    }
    out.map(|sums| lanes(sums))
}

/// As [`super::portable::tile256`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile256<const BITS: u32, const C: usize>(panel: Panel<'_>, x: [&[Block256]; C]) -> [Sums; C] {
    let (head, quants) = sizes256(BITS);
    let zero = _mm256_setzero_si256();
    let mut out: [Pair<__m256>; C] = [[_mm256_setzero_ps(); 2]; C];
    for (b, (head, quants)) in panel.heads.chunks_exact(head).zip(panel.quants.chunks_exact(quants)).enumerate() {
        let x: [&Block256; C] = x.map(|x| &x[b]);
        let mut sums: [Pair<__m256i>; C] = [[zero; 2]; C];
        for s in 0..8 {
            if C == 1 {
                prefetch(&quants[s * quants.len() / 8..(s + 1) * quants.len() / 8]);
            }
            // Four bits: all 8 groups in one run of 16-bit sums; else two runs of 4.
            for run in 0..if BITS == 4 { 1 } else { 2 } {
                let mut pairs: [Pair<__m256i>; C] = [[zero; 2]; C];
                for v in run * 4..if BITS == 4 { 8 } else { run * 4 + 4 } {
                    let levels = [group256::<BITS>(quants, s, v, 0), group256::<BITS>(quants, s, v, 1)];
                    for c in 0..C {
                        let a = broadcast4(&x[c].q, s * 32 + 4 * v);
                        for h in 0..2 {
                            pairs[c][h] = _mm256_add_epi16(pairs[c][h], _mm256_maddubs_epi16(levels[h], a));
                        }
                    }
                }
                for h in 0..2 {
                    let scale = scale256::<BITS>(head, s, run, h);
                    for c in 0..C {
                        if BITS == 6 {
                            let [even, odd] = x[c].sums16[s * 2 + run];
                            pairs[c][h] = _mm256_sub_epi16(pairs[c][h], _mm256_slli_epi16::<5>(broadcast2(even, odd)));
                        }
                        sums[c][h] = _mm256_add_epi32(sums[c][h], _mm256_madd_epi16(pairs[c][h], scale));
                    }
                }
            }
        }
        for h in 0..2 {
            let d = load_halves(head, h * 16);
            for c in 0..C {
                let scale = _mm256_set1_ps(x[c].scale);
                out[c][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[c][h]), _mm256_mul_ps(d, scale), out[c][h]);
                if BITS != 6 {
                    let dmin = _mm256_mul_ps(load_halves(head, 32 + h * 16), scale);
                    out[c][h] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(minima(head, x[c], h)), dmin, out[c][h]);
                }
            }
        }
    }
    out.map(|sums| lanes(sums))
}

/// The integer scales of rows `8 · half..` in run `run` of sub-block `s`, each twice in its lane.
#[target_feature(enable = "avx2")]
#[inline]
fn scale256<const BITS: u32>(head: &[u8], s: usize, run: usize, half: usize) -> __m256i {
    let at = if BITS == 6 { 32 + (s * 2 + run) * PANEL } else { 64 + s * PANEL };
    let bytes: &[u8; 8] = head[at + half * 8..].first_chunk().expect("invariant: a head holds all its scales");
    let bytes = _mm_cvtsi64_si128(i64::from_le_bytes(*bytes));
    let scales = if BITS == 6 { _mm256_cvtepi8_epi32(bytes) } else { _mm256_cvtepu8_epi32(bytes) };
    _mm256_blend_epi16::<0b1010_1010>(scales, _mm256_slli_epi32::<16>(scales))
}

/// Σ over sub-blocks of minimum × sum of levels, for rows `8 · half..`.
#[target_feature(enable = "avx2")]
#[inline]
fn minima(head: &[u8], x: &Block256, half: usize) -> __m256i {
    (0..4).fold(_mm256_setzero_si256(), |sum, pair| {
        let minima = _mm256_cvtepu8_epi16(load16(head, 192 + pair * 32 + half * 16));
        let levels = broadcast2(x.sums32[pair * 2], x.sums32[pair * 2 + 1]);
        _mm256_add_epi32(sum, _mm256_madd_epi16(minima, levels))
    })
}

/// As [`super::portable::tile_float`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile_float<const KIND: usize, const C: usize>(panel: Panel<'_>, x: [&[f32]; C]) -> [Sums; C] {
    let mut out: [Pair<__m256>; C] = [[_mm256_setzero_ps(); 2]; C];
    for (k, column) in panel.quants.chunks_exact(PANEL * KIND.max(2)).enumerate() {
        let weights: Pair<__m256> = match KIND {
            4 => [_mm256_castsi256_ps(load(column, 0)), _mm256_castsi256_ps(load(column, 32))],
            2 => [load_halves(column, 0), load_halves(column, 16)],
            _ => [0, 16].map(|at| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load16(column, at))))),
        };
        for c in 0..C {
            let a = _mm256_set1_ps(x[c][k]);
            for h in 0..2 {
                // Not fused: see `portable`.
                out[c][h] = _mm256_add_ps(out[c][h], _mm256_mul_ps(weights[h], a));
            }
        }
    }
    out.map(|sums| lanes(sums))
}

/// Both vectors' lanes.
#[target_feature(enable = "avx2")]
#[inline]
fn lanes(sums: Pair<__m256>) -> Sums {
    let mut out = [0.0; PANEL];
    // SAFETY: there is room for two vectors of 8.
    unsafe {
        _mm256_storeu_ps(out.as_mut_ptr(), sums[0]);
        _mm256_storeu_ps(out.as_mut_ptr().add(8), sums[1]);
    }
    out
}
