//! What can be wrong with a GGUF file.

use std::path::PathBuf;

/// What can be wrong with a GGUF file; offsets are bytes from its beginning.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file can't be opened or mapped.
    #[error("can't open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file doesn't begin as GGUF files do.
    #[error("not a GGUF file: it begins with {found:02x?} instead of `GGUF`")]
    Magic {
        /// Its first bytes, at most four.
        found: Vec<u8>,
    },
    /// The format's version isn't 2 or 3.
    #[error("GGUF version {found} isn't supported, only 2 and 3 are")]
    Version {
        /// The file's version.
        found: u32,
    },
    /// The file is written for machines of the other byte order.
    #[error("the GGUF file is big-endian; only little-endian files are supported")]
    BigEndian,
    /// The file ends, or claims more than it has.
    #[error("{what} at byte {offset} needs {needs} bytes, but the file has {rest} left: it is cut or corrupt")]
    Cut {
        /// The part of the file.
        what: String,
        /// Where.
        offset: usize,
        /// What it would take.
        needs: u64,
        /// What is there.
        rest: usize,
    },
    /// Something in the header contradicts the format.
    #[error("{what} at byte {offset} {problem}: the file is corrupt")]
    Corrupt {
        /// The part of the file.
        what: String,
        /// Where.
        offset: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor is stored in a way nothing here computes with.
    #[error("tensor `{tensor}` (byte {offset}) is stored as {found}, which isn't supported; supported are {supported}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Where its description is.
        offset: usize,
        /// Its type.
        found: String,
        /// The types that are.
        supported: String,
    },
    /// A key has a value of another kind than it should.
    #[error("key `{key}` (byte {offset}) is {found} and can't be read as {wanted}")]
    Value {
        /// The key.
        key: String,
        /// Where its value is.
        offset: usize,
        /// What the file has.
        found: String,
        /// What is needed.
        wanted: &'static str,
    },
    /// A key that is needed isn't there.
    #[error("the file has no key `{key}`")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A list has another length than the list it belongs to.
    #[error("key `{key}` has {found} elements for {tokens} tokens")]
    Length {
        /// The key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The vocabulary's size.
        tokens: usize,
    },
    /// A token id lies outside the vocabulary.
    #[error("key `{key}` names token {id}, but the vocabulary has {tokens} tokens")]
    Token {
        /// The key.
        key: &'static str,
        /// Its value.
        id: i64,
        /// The vocabulary's size.
        tokens: usize,
    },
}
