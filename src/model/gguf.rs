//! Weights files in the GGUF format, versions 2 and 3.
//!
//! A GGUF file is untrusted input. One walk over its header (`header.rs`) checks every count, length, offset, type and
//! string against the file's size before anything is taken from it, so what follows only slices the mapped file. That walk
//! is the whole parser; candle's reader isn't used because it turns every metadata value into an object, dozens of times
//! the file's bytes, before anybody asks for it. Nothing is copied here but strings that are asked for.

mod error;
mod header;
mod value;
mod vocabulary;
mod writer;

pub use error::GgufError;
pub use vocabulary::{chat_template, vocabulary};
pub use writer::Writer;

use crate::cpu::MappedFile;
use crate::reference::Dtype;
use header::{Header, Record};
use std::path::Path;
use value::{Entry, Kind, Shape};

/// A GGUF file, mapped into memory, with its header checked.
#[derive(Debug)]
pub struct Gguf {
    file: MappedFile,
    header: Header,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    /// Its name, `blk.0.attn_q.weight`.
    pub name: &'a str,
    /// How its elements are stored.
    pub dtype: Dtype,
    /// Its dimensions, outermost first: a matrix is `[rows, columns]`. One to four, none of them 0.
    pub shape: Vec<usize>,
    /// Its rows, one after the other; exactly as many bytes as shape and type need.
    pub data: &'a [u8],
}

// === impl Gguf ===

impl Gguf {
    /// Maps the file at `path` and checks its header.
    ///
    /// # Errors
    /// The file can't be read, isn't GGUF 2 or 3, is cut or corrupt, or has a tensor of an unsupported type; the message
    /// names the key or tensor and the byte offset.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = MappedFile::open(path).map_err(|source| GgufError::Open { path: path.to_owned(), source })?;
        let header = Header::parse(file.bytes())?;
        Ok(Self { file, header })
    }

    /// The architecture of the model, `general.architecture`.
    ///
    /// # Errors
    /// It's missing or not a string.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.str("general.architecture")?.ok_or(GgufError::Missing { key: "general.architecture" })
    }

    /// The integer at `key`, whatever its width in the file.
    ///
    /// # Errors
    /// The value is something else or negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.read(key, "an integer of at least 0", |entry, bytes| u64::try_from(entry.one()?.integer(bytes)?).ok())
    }

    /// The floating-point number at `key`.
    ///
    /// # Errors
    /// The value is something else.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.read(key, "a floating-point number", |entry, bytes| entry.one()?.float(bytes))
    }

    /// The truth value at `key`.
    ///
    /// # Errors
    /// The value is something else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.read(key, "a truth value", |entry, bytes| (entry.shape == Shape::One(Kind::Bool)).then(|| bytes[0] == 1))
    }

    /// The string at `key`.
    ///
    /// # Errors
    /// The value is something else or not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.read(key, "a UTF-8 string", |entry, bytes| {
            (entry.shape == Shape::One(Kind::String))
                .then(|| value::strings(bytes).next().and_then(|text| std::str::from_utf8(text).ok()))?
        })
    }

    /// The list of strings at `key`.
    ///
    /// # Errors
    /// The value is something else or one of the strings is not UTF-8.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<String>>, GgufError> {
        self.read(key, "a list of UTF-8 strings", |entry, bytes| {
            entry.many(Kind::String)?;
            value::strings(bytes).map(|text| std::str::from_utf8(text).ok().map(str::to_owned)).collect()
        })
    }

    /// The list of integers at `key`, whatever their width in the file.
    ///
    /// # Errors
    /// The value is something else or one of them doesn't fit.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.read(key, "a list of 32-bit integers", |entry, bytes| {
            let kind = entry.elements()?;
            bytes.chunks_exact(kind.bytes()?).map(|one| i32::try_from(kind.integer(one)?).ok()).collect()
        })
    }

    /// The list of floating-point numbers at `key`.
    ///
    /// # Errors
    /// The value is something else.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        self.read(key, "a list of floating-point numbers", |entry, bytes| {
            let kind = entry.elements()?;
            bytes.chunks_exact(kind.bytes()?).map(|one| kind.float(one)).collect()
        })
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.header.tensors.iter().find(|record| record.name == name).map(|record| self.view(record))
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.header.tensors.iter().map(|record| self.view(record))
    }

    /// Identifies the content: a hash over the whole file. Reads all of it, and gives the pages back on the way.
    pub fn digest(&self) -> [u8; 16] {
        const STEP: usize = 16 << 20;
        let mut hasher = blake3::Hasher::new();
        for (step, bytes) in self.file.bytes().chunks(STEP).enumerate() {
            hasher.update(bytes);
            self.file.drop_pages(step * STEP..step * STEP + bytes.len());
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        digest
    }

    /// Gives back the memory of a tensor's pages, once its data has been packed. Read again, they come from the file again.
    pub fn drop_pages(&self, tensor: &Tensor<'_>) {
        if let Some(record) = self.header.tensors.iter().find(|record| record.name == tensor.name) {
            self.file.drop_pages(record.data.clone());
        }
    }

    /// The boundary, in bytes, that tensors begin on.
    pub(crate) fn alignment(&self) -> u64 {
        self.header.alignment
    }

    /// Every metadata record, in the file's order: its key, and key, kind and value as the file has them.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.header.metadata.iter().map(|entry| (entry.key.as_str(), &self.file.bytes()[entry.record.clone()]))
    }

    /// A tensor's description with its bytes.
    fn view<'a>(&'a self, record: &'a Record) -> Tensor<'a> {
        let data = &self.file.bytes()[record.data.clone()];
        Tensor { name: &record.name, dtype: record.dtype, shape: record.shape.clone(), data }
    }

    /// The value at `key` as `decode` reads it; where it can't, the error says what is there and what was `wanted`.
    fn read<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        decode: impl FnOnce(&Entry, &'a [u8]) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(entry) = self.header.metadata.iter().find(|entry| entry.key == key) else { return Ok(None) };
        let value = decode(entry, &self.file.bytes()[entry.value.clone()]);
        value.map(Some).ok_or_else(|| GgufError::Value {
            key: key.to_owned(),
            offset: entry.value.start,
            found: entry.shape.to_string(),
            wanted,
        })
    }
}

#[cfg(test)]
mod tests;
