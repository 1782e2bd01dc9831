//! Writes GGUF files, version 3.

use super::value::Kind;
use crate::reference::Dtype;
use std::io::{self, Write};

/// A file in the making: first all keys and tensor descriptions, then the header, then each tensor's data.
#[derive(Debug)]
pub struct Writer {
    alignment: u64,
    keys: u64,
    metadata: Vec<u8>,
    tensors: u64,
    described: Vec<u8>,
    /// Bytes of tensor data so far, padding included.
    data: u64,
}

// === impl Writer ===

impl Writer {
    /// A file without keys and tensors. Tensors begin at multiples of `alignment`, a power of two; where that isn't 32, the
    /// key `general.alignment` must say so.
    pub fn new(alignment: u64) -> Self {
        Self { alignment, keys: 0, metadata: Vec::new(), tensors: 0, described: Vec::new(), data: 0 }
    }

    /// Adds a key with a 32-bit value.
    pub fn u32(&mut self, key: &str, value: u32) {
        string(&mut self.metadata, key);
        self.metadata.extend((Kind::U32 as u32).to_le_bytes());
        self.metadata.extend(value.to_le_bytes());
        self.keys += 1;
    }

    /// Adds a key as another file has it: key, kind and value.
    pub fn record(&mut self, record: &[u8]) {
        self.metadata.extend(record);
        self.keys += 1;
    }

    /// Describes the next tensor; `shape` is outermost first. Returns its size in bytes.
    pub fn tensor(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> u64 {
        string(&mut self.described, name);
        self.described.extend((shape.len() as u32).to_le_bytes());
        for length in shape.iter().rev() {
            self.described.extend((*length as u64).to_le_bytes());
        }
        self.described.extend(dtype.ggml().to_le_bytes());
        self.described.extend(self.data.to_le_bytes());
        self.tensors += 1;
        let columns = shape.last().copied().unwrap_or(1);
        let rows: usize = shape.iter().rev().skip(1).product();
        let bytes = (rows * dtype.row_bytes(columns)) as u64;
        self.data += bytes.next_multiple_of(self.alignment);
        bytes
    }

    /// Writes everything before the tensors' data.
    ///
    /// # Errors
    /// Whatever `out` says.
    pub fn header(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"GGUF")?;
        out.write_all(&3u32.to_le_bytes())?;
        out.write_all(&self.tensors.to_le_bytes())?;
        out.write_all(&self.keys.to_le_bytes())?;
        out.write_all(&self.metadata)?;
        out.write_all(&self.described)?;
        let length = 4 + 4 + 8 + 8 + self.metadata.len() + self.described.len();
        self.pad(length as u64, out)
    }

    /// Writes the padding behind a tensor of `bytes` bytes.
    ///
    /// # Errors
    /// Whatever `out` says.
    pub fn pad(&self, bytes: u64, out: &mut impl Write) -> io::Result<()> {
        let padding = bytes.next_multiple_of(self.alignment) - bytes;
        io::copy(&mut io::Read::take(io::repeat(0), padding), out).map(drop)
    }
}

/// Appends a string: its length and its bytes.
fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
