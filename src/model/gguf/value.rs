//! Metadata values: where they lie in the file, and how numbers are read from their bytes.

use std::fmt;
use std::ops::Range;

/// The kind of a metadata value, by the number the format gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// 8 bits, unsigned.
    U8 = 0,
    /// 8 bits, signed.
    I8 = 1,
    /// 16 bits, unsigned.
    U16 = 2,
    /// 16 bits, signed.
    I16 = 3,
    /// 32 bits, unsigned.
    U32 = 4,
    /// 32 bits, signed.
    I32 = 5,
    /// 32-bit float.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// A length (64 bits) and that many bytes of UTF-8.
    String = 8,
    /// A kind, a count (64 bits) and that many values.
    Array = 9,
    /// 64 bits, unsigned.
    U64 = 10,
    /// 64 bits, signed.
    I64 = 11,
    /// 64-bit float.
    F64 = 12,
}

/// What a value is: one thing or a list of them. Lists of lists are refused, no model has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    One(Kind),
    Many(Kind, u64),
}

/// One metadata record: its key and where it lies in the file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) shape: Shape,
    /// The value alone: for a list its elements, without kind and count.
    pub(super) value: Range<usize>,
    /// Key, kind and value.
    pub(super) record: Range<usize>,
}

/// The strings of a value whose bytes were checked: each a length and its bytes.
pub(super) fn strings(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let (text, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        bytes = rest;
        Some(text)
    })
}

// === impl Kind ===

impl Kind {
    /// The kind of this number.
    pub(super) fn from_id(id: u32) -> Option<Self> {
        use Kind::{Array, Bool, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// Bytes of one value, where that is fixed.
    pub(super) fn bytes(self) -> Option<usize> {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::String | Kind::Array => None,
        }
    }

    /// The integer in `bytes`, if this is a kind of integer.
    pub(super) fn integer(self, bytes: &[u8]) -> Option<i128> {
        Some(match self {
            Kind::U8 => u8::from_le_bytes(bytes.try_into().ok()?).into(),
            Kind::I8 => i8::from_le_bytes(bytes.try_into().ok()?).into(),
            Kind::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
            Kind::I16 => i16::from_le_bytes(bytes.try_into().ok()?).into(),
            Kind::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
            Kind::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
            Kind::U64 => u64::from_le_bytes(bytes.try_into().ok()?).into(),
            Kind::I64 => i64::from_le_bytes(bytes.try_into().ok()?).into(),
            Kind::F32 | Kind::F64 | Kind::Bool | Kind::String | Kind::Array => return None,
        })
    }

    /// The floating-point number in `bytes`, if this is a kind of float.
    pub(super) fn float(self, bytes: &[u8]) -> Option<f32> {
        match self {
            Kind::F32 => Some(f32::from_le_bytes(bytes.try_into().ok()?)),
            Kind::F64 => Some(f64::from_le_bytes(bytes.try_into().ok()?) as f32),
            _ => None,
        }
    }
}

// === impl Shape ===

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::One(kind) => write!(f, "one {kind:?}"),
            Shape::Many(kind, count) => write!(f, "a list of {count} {kind:?}"),
        }
    }
}

// === impl Entry ===

impl Entry {
    /// The kind of a value that isn't a list.
    pub(super) fn one(&self) -> Option<Kind> {
        match self.shape {
            Shape::One(kind) => Some(kind),
            Shape::Many(..) => None,
        }
    }

    /// The kind of a list's elements.
    pub(super) fn elements(&self) -> Option<Kind> {
        match self.shape {
            Shape::Many(kind, _) => Some(kind),
            Shape::One(_) => None,
        }
    }

    /// Something if this is a list of `kind`.
    pub(super) fn many(&self, kind: Kind) -> Option<()> {
        (self.elements() == Some(kind)).then_some(())
    }
}
