//! `exp` in plain arithmetic, so that every instruction set gives the same bits and vectors of it are easy to make.

/// 1.5 · 2^23, see [`super::activation`].
const ROUND: f32 = 12_582_912.0;

/// ln 2 in two parts; the first has few enough bits that n · `LN_2_HIGH` is exact for every n here.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Where e^x leaves the normal numbers; below it is 0 and above it is infinite.
const LOWEST: f32 = -87.3;
const HIGHEST: f32 = 88.3;

/// e^x with a relative error below 2e-7: x = n · ln 2 + f with |f| ≤ ln 2 / 2, e^f by a polynomial, 2^n by its exponent
/// bits. NaN gives 0.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let inside = if x > LOWEST { x } else { LOWEST };
    let inside = if inside < HIGHEST { inside } else { HIGHEST };
    let rounded = inside * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let f = inside - n * LN_2_HIGH - n * LN_2_LOW;
    // The Taylor series to f^7: what is left out is below 2^-24 · e^f at |f| = ln 2 / 2.
    let p = 1.0 / 5_040.0;
    let p = p * f + 1.0 / 720.0;
    let p = p * f + 1.0 / 120.0;
    let p = p * f + 1.0 / 24.0;
    let p = p * f + 1.0 / 6.0;
    let p = p * f + 0.5;
    let p = p * f + 1.0;
    let p = p * f + 1.0;
    // The low bits of `rounded` are n: added to the exponent they multiply by 2^n.
    let e = f32::from_bits(p.to_bits().wrapping_add(rounded.to_bits().wrapping_sub(ROUND.to_bits()) << 23));
    let e = if x > LOWEST { e } else { 0.0 };
    if x > HIGHEST { f32::INFINITY } else { e }
}

/// `x / (1 + e^−x)`.
#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}
