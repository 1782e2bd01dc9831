//! Writes requantized files.

use super::{QuantizeError, quantize, stored};
use crate::config::Quantize;
use crate::model::gguf::{Gguf, Tensor, Writer};
use crate::reference::Dtype;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// The key that says how most of a file's tensors are stored.
const FILE_TYPE: &str = "general.file_type";
/// About how many bytes of a tensor are converted at once.
const STEP: usize = 4 << 20;

/// Writes `gguf` to the file `out` with its weights quantized `to`. All metadata stays byte for byte as it is, apart from
/// `general.file_type`. The file is complete or not there: it's written beside its place and then renamed.
///
/// # Errors
/// The file can't be written.
pub fn write(gguf: &Gguf, to: Quantize, out: &Path) -> Result<(), QuantizeError> {
    let failed = |source: io::Error| QuantizeError::Write { path: out.to_owned(), source };
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // As other files of the user: readable for those the umask lets.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.prefix(".partial-").tempfile_in(folder).map_err(failed)?;
    content(gguf, to, &mut BufWriter::new(&mut file), &failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(out).map_err(|error| failed(error.error))?;
    Ok(())
}

fn content(gguf: &Gguf, to: Quantize, out: &mut impl Write, failed: &dyn Fn(io::Error) -> QuantizeError) -> Result<(), QuantizeError> {
    let mut writer = Writer::new(gguf.alignment());
    for (_, record) in gguf.records().filter(|(key, _)| *key != FILE_TYPE || to == Quantize::Keep) {
        writer.record(record);
    }
    if let Some(id) = file_type(to) {
        writer.u32(FILE_TYPE, id);
    }
    for tensor in gguf.tensors() {
        writer.tensor(tensor.name, stored(to, tensor.dtype, &tensor.shape), &tensor.shape);
    }
    writer.header(out).map_err(failed)?;
    for tensor in gguf.tensors() {
        let bytes = data(&tensor, stored(to, tensor.dtype, &tensor.shape), out, failed)?;
        writer.pad(bytes, out).map_err(failed)?;
        gguf.drop_pages(&tensor);
    }
    out.flush().map_err(failed)
}

/// Writes a tensor's data as `to`, some rows at a time; returns how many bytes that are.
fn data(tensor: &Tensor<'_>, to: Dtype, out: &mut impl Write, failed: &dyn Fn(io::Error) -> QuantizeError) -> Result<u64, QuantizeError> {
    let columns = tensor.shape.last().copied().unwrap_or(1);
    let row = tensor.dtype.row_bytes(columns);
    let mut written = 0;
    for rows in tensor.data.chunks((STEP / row).max(1) * row) {
        let converted = quantize(tensor.dtype, rows, columns, to)?;
        out.write_all(&converted).map_err(failed)?;
        written += converted.len() as u64;
    }
    Ok(written)
}

/// ggml's number for a file whose weights are mostly of this type.
fn file_type(to: Quantize) -> Option<u32> {
    match to {
        Quantize::Keep => None,
        Quantize::F32 => Some(0),
        Quantize::F16 => Some(1),
        Quantize::Q4_0 => Some(2),
        Quantize::Q8_0 => Some(7),
        Quantize::BF16 => Some(32),
    }
}
