//! What the bytes of each element type mean. All numbers are little endian.

use super::Dtype;

/// Writes the values of `bytes`, whole blocks of `dtype`, to `out`.
///
/// # Panics
/// If `bytes` isn't exactly as long as `out.len()` elements take.
pub fn dequantize(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    assert!(out.len().is_multiple_of(dtype.block_elements()), "{} elements aren't whole blocks of {dtype}", out.len());
    assert_eq!(bytes.len(), dtype.row_bytes(out.len()), "bytes of {} elements of {dtype}", out.len());
    let block: fn(&[u8], &mut [f32]) = match dtype {
        Dtype::F32 => |b, out| out[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        Dtype::F16 => |b, out| out[0] = f16(b),
        Dtype::BF16 => |b, out| out[0] = half::bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        Dtype::Q4_0 => q4_0,
        Dtype::Q4_1 => q4_1,
        Dtype::Q5_0 => q5_0,
        Dtype::Q5_1 => q5_1,
        Dtype::Q8_0 => q8_0,
        Dtype::Q4K => q4_k,
        Dtype::Q5K => q5_k,
        Dtype::Q6K => q6_k,
    };
    for (bytes, out) in bytes.chunks_exact(dtype.block_bytes()).zip(out.chunks_exact_mut(dtype.block_elements())) {
        block(bytes, out);
    }
}

fn f16(bytes: &[u8]) -> f32 {
    half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// `{ f16 d; 16 bytes }`: element i is a low nibble, i + 16 the high nibble beside it.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = f16(block);
    for i in 0..16 {
        out[i] = (f32::from(block[2 + i] & 15) - 8.0) * d;
        out[i + 16] = (f32::from(block[2 + i] >> 4) - 8.0) * d;
    }
}

/// `{ f16 d, m; 16 bytes }`
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16(block), f16(&block[2..]));
    for i in 0..16 {
        out[i] = f32::from(block[4 + i] & 15) * d + m;
        out[i + 16] = f32::from(block[4 + i] >> 4) * d + m;
    }
}

/// The 5-bit level of element `i`: four bits from the nibbles, the fifth is bit `i` of `high`.
fn level5(high: &[u8], nibbles: &[u8], i: usize) -> u8 {
    let low = if i < 16 { nibbles[i] & 15 } else { nibbles[i - 16] >> 4 };
    low | (high[i / 8] >> (i % 8) & 1) << 4
}

/// `{ f16 d; 4 bytes of fifth bits; 16 bytes }`
fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = f16(block);
    for (i, out) in out.iter_mut().enumerate() {
        *out = (f32::from(level5(&block[2..6], &block[6..], i)) - 16.0) * d;
    }
}

/// `{ f16 d, m; 4 bytes of fifth bits; 16 bytes }`
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16(block), f16(&block[2..]));
    for (i, out) in out.iter_mut().enumerate() {
        *out = f32::from(level5(&block[4..8], &block[8..], i)) * d + m;
    }
}

/// `{ f16 d; 32 signed bytes }`
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = f16(block);
    for (i, out) in out.iter_mut().enumerate() {
        *out = f32::from(block[2 + i].cast_signed()) * d;
    }
}

/// The 6-bit scale and minimum of sub-block `j` out of 12 bytes: the first four of each lie whole in the low bits, the
/// others are split between a nibble and two top bits.
fn scale_and_minimum(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    }
}

/// `{ f16 d, dmin; 12 bytes of scales; 128 bytes }`: 32 bytes hold 64 elements, low nibbles first.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (f16(block), f16(&block[2..]));
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], j);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (i, out) in out.iter_mut().enumerate() {
            let level = block[16 + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            *out = scale * f32::from(level) - minimum;
        }
    }
}

/// `{ f16 d, dmin; 12 bytes of scales; 32 bytes of fifth bits; 128 bytes }`: bit j of fifth byte i is for sub-block j.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (f16(block), f16(&block[2..]));
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], j);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (i, out) in out.iter_mut().enumerate() {
            let level = block[48 + j / 2 * 32 + i] >> (j % 2 * 4) & 15 | (block[16 + i] >> j & 1) << 4;
            *out = scale * f32::from(level) - minimum;
        }
    }
}

/// `{ 128 bytes of low nibbles; 64 bytes of high bits; 16 signed scales; f16 d }`: each half of 128 elements takes 64
/// nibble bytes (its first 64 elements low, the others high) and 32 bytes with two high bits for each quarter.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = f16(&block[208..]);
    for (e, out) in out.iter_mut().enumerate() {
        let (half, quarter, i) = (e / 128, e / 32 % 4, e % 32);
        let low = block[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
        let high = block[128 + half * 32 + i] >> (quarter * 2) & 3;
        let scale = block[192 + e / 16].cast_signed();
        *out = d * f32::from(scale) * (f32::from(low | high << 4) - 32.0);
    }
}
