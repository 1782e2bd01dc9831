//! cpu

mod mapped;

pub use mapped::MappedFile;
