//! The walk over a file's header that checks every count, length, offset and type before it is used.
//!
//! ```text
//! "GGUF" · version u32 · tensors u64 · keys u64
//! keys    × (key string · kind u32 · value)
//! tensors × (name string · dimensions u32 · dimensions × u64, innermost first · type u32 · offset u64)
//! padding to the alignment · tensor data, each tensor at its offset from here
//! ```
//! Memory is taken for what has been read only, never for what a count claims.

use super::error::GgufError;
use super::value::{Entry, Kind, Shape};
use crate::reference::Dtype;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

/// Most metadata keys, and most tensors, of one file; large mixtures of experts have a few thousand.
const MOST_ENTRIES: u64 = 1 << 16;
/// Longest key or tensor name in bytes, the format's own limit for keys.
const LONGEST_NAME: usize = u16::MAX as usize;
/// Most dimensions of a tensor, ggml's own limit.
const MOST_DIMENSIONS: u32 = 4;
/// The boundary tensors begin on where the file doesn't say, the format's default.
const ALIGNMENT: u64 = 32;

/// What the header says, checked.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) alignment: u64,
    pub(super) metadata: Vec<Entry>,
    pub(super) tensors: Vec<Record>,
}

/// A tensor's description.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    /// Outermost first.
    pub(super) shape: Vec<usize>,
    /// Where its data lies in the file.
    pub(super) data: Range<usize>,
}

/// The part of the file that is being read, for errors.
#[derive(Clone, Copy)]
enum Part<'a> {
    Header,
    Key(u64),
    Value(&'a str),
    Name(u64),
    Tensor(&'a str),
}

/// The bytes of a file and how far they have been read.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

// === impl Header ===

impl Header {
    /// Reads the header of the file whose bytes these are, and checks that all tensors lie in it.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor { bytes, at: 0 };
        let magic = bytes.get(..4).unwrap_or(bytes);
        if magic != b"GGUF" {
            return Err(GgufError::Magic { found: magic.to_vec() });
        }
        cursor.at = 4;
        match cursor.u32(Part::Header)? {
            2 | 3 => {}
            found if found != 0 && found & 0xffff == 0 => return Err(GgufError::BigEndian),
            found => return Err(GgufError::Version { found }),
        }
        let tensors = cursor.count("the number of tensors")?;
        let keys = cursor.count("the number of keys")?;
        let metadata = cursor.metadata(keys)?;
        let alignment = alignment(bytes, &metadata)?;
        let records = cursor.tensors(tensors)?;
        let tensors = place(records, cursor.at, alignment, bytes.len())?;
        Ok(Self { alignment, metadata, tensors })
    }
}

/// The alignment the file asks for.
fn alignment(bytes: &[u8], metadata: &[Entry]) -> Result<u64, GgufError> {
    let Some(entry) = metadata.iter().find(|entry| entry.key == "general.alignment") else { return Ok(ALIGNMENT) };
    let found = entry.one().and_then(|kind| kind.integer(&bytes[entry.value.clone()]));
    match found.and_then(|found| u32::try_from(found).ok()) {
        Some(found) if found.is_power_of_two() => Ok(found.into()),
        _ => Err(Part::Value(&entry.key).corrupt(entry.value.start, "isn't a power of two that fits 32 bits")),
    }
}

/// A tensor's description before its place in the file is known.
struct Described {
    record: Record,
    at: usize,
    offset: u64,
    bytes: u64,
}

/// Gives every tensor its place, behind a header that ends at `header_end`.
fn place(described: Vec<Described>, header_end: usize, alignment: u64, file: usize) -> Result<Vec<Record>, GgufError> {
    let start = (header_end as u64).next_multiple_of(alignment);
    let mut records = Vec::with_capacity(described.len());
    for Described { mut record, at, offset, bytes } in described {
        let part = Part::Tensor(&record.name);
        if offset % alignment != 0 {
            return Err(part.corrupt(at, format!("begins at {offset}, which is no multiple of the alignment {alignment}")));
        }
        let begin = start.checked_add(offset).ok_or_else(|| part.corrupt(at, "begins beyond any file"))?;
        let rest = (file as u64).saturating_sub(begin);
        if bytes > rest {
            let offset = usize::try_from(begin).unwrap_or(usize::MAX);
            return Err(GgufError::Cut { what: part.to_string(), offset, needs: bytes, rest: rest as usize });
        }
        record.data = begin as usize..(begin + bytes) as usize;
        records.push(record);
    }
    disjoint(&records)?;
    Ok(records)
}

/// No two tensors share bytes, so all of them together are no larger than the file.
fn disjoint(records: &[Record]) -> Result<(), GgufError> {
    let mut order: Vec<&Record> = records.iter().collect();
    order.sort_by_key(|record| record.data.start);
    match order.windows(2).find(|pair| pair[0].data.end > pair[1].data.start) {
        Some(pair) => Err(Part::Tensor(&pair[1].name).corrupt(pair[1].data.start, format!("overlaps tensor `{}`", pair[0].name))),
        None => Ok(()),
    }
}

// === impl Cursor ===

impl<'a> Cursor<'a> {
    fn metadata(&mut self, keys: u64) -> Result<Vec<Entry>, GgufError> {
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        for index in 0..keys {
            let begin = self.at;
            let key = self.name(Part::Key(index))?;
            if !seen.insert(key) {
                return Err(Part::Value(key).corrupt(begin, "is there twice"));
            }
            let (shape, value) = self.value(Part::Value(key))?;
            entries.push(Entry { key: key.to_owned(), shape, value, record: begin..self.at });
        }
        Ok(entries)
    }

    /// The kind and place of the value that follows.
    fn value(&mut self, part: Part<'_>) -> Result<(Shape, Range<usize>), GgufError> {
        let kind = self.kind(part)?;
        if kind != Kind::Array {
            let begin = self.at;
            self.skip(kind, 1, part)?;
            if kind == Kind::Bool && self.bytes[begin] > 1 {
                return Err(part.corrupt(begin, "is a truth value that is neither 0 nor 1"));
            }
            return Ok((Shape::One(kind), begin..self.at));
        }
        let (at, kind) = (self.at, self.kind(part)?);
        if kind == Kind::Array {
            return Err(part.corrupt(at, "is a list of lists"));
        }
        let count = self.u64(part)?;
        let begin = self.at;
        self.skip(kind, count, part)?;
        Ok((Shape::Many(kind, count), begin..self.at))
    }

    /// Steps over `count` values of `kind`.
    fn skip(&mut self, kind: Kind, count: u64, part: Part<'_>) -> Result<(), GgufError> {
        match kind.bytes() {
            Some(bytes) => self.take(count.saturating_mul(bytes as u64), part).map(drop),
            // Each string takes a step of at least eight bytes, so the file's end ends this loop whatever `count` claims.
            None => (0..count).try_for_each(|_| self.string(part).map(drop)),
        }
    }

    fn tensors(&mut self, count: u64) -> Result<Vec<Described>, GgufError> {
        let mut tensors = Vec::new();
        let mut seen = HashSet::new();
        for index in 0..count {
            let at = self.at;
            let name = self.name(Part::Name(index))?;
            if !seen.insert(name) {
                return Err(Part::Tensor(name).corrupt(at, "is there twice"));
            }
            tensors.push(self.tensor(name, at)?);
        }
        Ok(tensors)
    }

    /// The description that follows a tensor's name.
    fn tensor(&mut self, name: &str, at: usize) -> Result<Described, GgufError> {
        let part = Part::Tensor(name);
        let dimensions = self.u32(part)?;
        if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
            return Err(part.corrupt(at, format!("has {dimensions} dimensions, {MOST_DIMENSIONS} are the most")));
        }
        let mut shape = Vec::new();
        let mut elements = 1u64;
        for _ in 0..dimensions {
            let length = self.u64(part)?;
            let product = elements.checked_mul(length).filter(|product| *product > 0);
            elements = product.ok_or_else(|| part.corrupt(at, format!("has a dimension of {length}, which no tensor can have")))?;
            shape.push(usize::try_from(length).map_err(|_| part.corrupt(at, "doesn't fit this machine's memory"))?);
        }
        let id = self.u32(part)?;
        let dtype = Dtype::from_ggml(id).ok_or_else(|| unsupported(name, at, id))?;
        let columns = shape[0];
        if columns % dtype.block_elements() != 0 {
            let block = dtype.block_elements();
            return Err(
                part.corrupt(at, format!("has rows of {columns} elements, which {} can't store in blocks of {block}", dtype.as_str()))
            );
        }
        let bytes = (elements / dtype.block_elements() as u64).checked_mul(dtype.block_bytes() as u64);
        let bytes = bytes.ok_or_else(|| part.corrupt(at, "is larger than any file"))?;
        let offset = self.u64(part)?;
        shape.reverse();
        Ok(Described { record: Record { name: name.to_owned(), dtype, shape, data: 0..0 }, at, offset, bytes })
    }

    /// One of the two counts at the beginning.
    fn count(&mut self, what: &str) -> Result<u64, GgufError> {
        let offset = self.at;
        let count = self.u64(Part::Header)?;
        if count > MOST_ENTRIES {
            let problem = format!("is {count}, more than {MOST_ENTRIES}");
            return Err(GgufError::Corrupt { what: what.to_owned(), offset, problem });
        }
        Ok(count)
    }

    /// A key or a tensor's name.
    fn name(&mut self, part: Part<'_>) -> Result<&'a str, GgufError> {
        let at = self.at;
        let name = self.string(part)?;
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(part.corrupt(at, format!("has a name of {} bytes, 1 to {LONGEST_NAME} are allowed", name.len())));
        }
        std::str::from_utf8(name).map_err(|_| part.corrupt(at, "has a name that isn't UTF-8"))
    }

    fn kind(&mut self, part: Part<'_>) -> Result<Kind, GgufError> {
        let at = self.at;
        let id = self.u32(part)?;
        Kind::from_id(id).ok_or_else(|| part.corrupt(at, format!("has a value of unknown kind {id}")))
    }

    fn string(&mut self, part: Part<'_>) -> Result<&'a [u8], GgufError> {
        let length = self.u64(part)?;
        self.take(length, part)
    }

    fn u32(&mut self, part: Part<'_>) -> Result<u32, GgufError> {
        let bytes = self.take(4, part)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes were taken")))
    }

    fn u64(&mut self, part: Part<'_>) -> Result<u64, GgufError> {
        let bytes = self.take(8, part)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken")))
    }

    /// The next `count` bytes.
    fn take(&mut self, count: u64, part: Part<'_>) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(count).ok().and_then(|count| rest.get(..count));
        let cut = || GgufError::Cut { what: part.to_string(), offset: self.at, needs: count, rest: rest.len() };
        let taken = taken.ok_or_else(cut)?;
        self.at += taken.len();
        Ok(taken)
    }
}

/// The error for a tensor type that nothing here computes with, by its name where it has one.
fn unsupported(tensor: &str, offset: usize, id: u32) -> GgufError {
    let name = match id {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => "an unknown type",
    };
    let supported = Dtype::ALL.map(Dtype::as_str);
    GgufError::Dtype { tensor: tensor.to_owned(), offset, found: format!("{name} ({id})"), supported: supported.join(", ") }
}

// === impl Part ===

impl Part<'_> {
    fn corrupt(self, offset: usize, problem: impl Into<String>) -> GgufError {
        GgufError::Corrupt { what: self.to_string(), offset, problem: problem.into() }
    }
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Header => f.write_str("the header"),
            Part::Key(index) => write!(f, "the key with number {index}"),
            Part::Value(key) => write!(f, "key `{key}`"),
            Part::Name(index) => write!(f, "the tensor with number {index}"),
            Part::Tensor(name) => write!(f, "tensor `{name}`"),
        }
    }
}
