//! Stores weights in another type: every element read by `reference::dequantize`, then rounded by ggml's formulas.

mod write;

pub use write::write;

use crate::config::Quantize;
use crate::reference::{Dtype, dequantize};
use half::{bf16, f16};
use std::io;
use std::path::PathBuf;

/// What can go wrong while weights are requantized.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// Nothing here writes this type.
    #[error("weights can't be requantized to {to}, only to f32, f16, bf16, q8_0 and q4_0")]
    To {
        /// The type.
        to: Dtype,
    },
    /// Rows are no whole blocks of one of the types.
    #[error("rows of {columns} elements aren't whole blocks of {dtype}")]
    Columns {
        /// Elements of a row.
        columns: usize,
        /// The type.
        dtype: Dtype,
    },
    /// The data is no whole number of rows.
    #[error("{bytes} bytes are no whole rows of {columns} elements of {dtype}")]
    Rows {
        /// The data's length.
        bytes: usize,
        /// Elements of a row.
        columns: usize,
        /// The data's type.
        dtype: Dtype,
    },
    /// The new file can't be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// How a tensor of this type and shape (outermost first) is stored when weights are quantized `to`: vectors (norms, biases)
/// and rows that are no whole blocks stay as they are.
pub fn stored(to: Quantize, from: Dtype, shape: &[usize]) -> Dtype {
    let wanted = match to {
        Quantize::Keep => from,
        Quantize::F32 => Dtype::F32,
        Quantize::F16 => Dtype::F16,
        Quantize::BF16 => Dtype::BF16,
        Quantize::Q8_0 => Dtype::Q8_0,
        Quantize::Q4_0 => Dtype::Q4_0,
    };
    match *shape {
        [.., _, columns] if columns.is_multiple_of(wanted.block_elements()) => wanted,
        _ => from,
    }
}

/// Rows of `columns` elements of type `from` as rows of type `to`. Equal types give the same bytes.
///
/// # Errors
/// `to` is a type that nothing here writes, or data, columns and types don't fit each other.
pub fn quantize(from: Dtype, data: &[u8], columns: usize, to: Dtype) -> Result<Vec<u8>, QuantizeError> {
    for dtype in [from, to] {
        if columns == 0 || !columns.is_multiple_of(dtype.block_elements()) {
            return Err(QuantizeError::Columns { columns, dtype });
        }
    }
    let row = from.row_bytes(columns);
    if !data.len().is_multiple_of(row) {
        return Err(QuantizeError::Rows { bytes: data.len(), columns, dtype: from });
    }
    if from == to {
        return Ok(data.to_vec());
    }
    let block: fn(&[f32], &mut Vec<u8>) = match to {
        Dtype::F32 => |x, out| out.extend(x[0].to_le_bytes()),
        Dtype::F16 => |x, out| out.extend(f16::from_f32(x[0]).to_le_bytes()),
        Dtype::BF16 => |x, out| out.extend(bf16::from_f32(x[0]).to_le_bytes()),
        Dtype::Q8_0 => q8_0,
        Dtype::Q4_0 => q4_0,
        to => return Err(QuantizeError::To { to }),
    };
    let mut values = vec![0.0; columns];
    let mut out = Vec::with_capacity(data.len() / row * to.row_bytes(columns));
    for row in data.chunks_exact(row) {
        dequantize(from, row, &mut values);
        values.chunks_exact(to.block_elements()).for_each(|values| block(values, &mut out));
    }
    Ok(out)
}

/// d = max |x| / 127, q = x / d rounded half away from zero.
fn q8_0(x: &[f32], out: &mut Vec<u8>) {
    let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
    let d = most / 127.0;
    out.extend(f16::from_f32(d).to_le_bytes());
    let scale = inverse(d);
    out.extend(x.iter().map(|x| (x * scale).round() as i8 as u8));
}

/// d = m / −8 where m is the x furthest from zero, with its sign; q = min(15, ⌊x / d + 8.5⌋). Element i is the low nibble of
/// byte i, element i + 16 the high one.
fn q4_0(x: &[f32], out: &mut Vec<u8>) {
    let furthest = x.iter().fold(0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
    let d = furthest / -8.0;
    out.extend(f16::from_f32(d).to_le_bytes());
    let scale = inverse(d);
    let level = |x: f32| ((x * scale + 8.5) as u8).min(15);
    out.extend((0..16).map(|i| level(x[i]) | level(x[i + 16]) << 4));
}

/// 1/d, and 0 for the scale of a block of zeros.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

#[cfg(test)]
mod tests;
