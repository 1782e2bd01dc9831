//! Files mapped into memory for reading.

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// A file mapped into memory, read-only. Pages are read when they are touched and can be given back.
#[derive(Debug)]
pub struct MappedFile(Mmap);

// === impl MappedFile ===

impl MappedFile {
    /// Maps the whole file at `path`. It must not be truncated or written to while mapped: replace weights by renaming a
    /// new file over the old one.
    ///
    /// # Errors
    /// Whatever opening or mapping the file says; a folder can't be mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        // SAFETY: the map is private and read-only. Nothing in this process writes to a weights file in place (downloads and
        // requantized files are renamed into position when complete), and callers are told that others mustn't either.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self(map))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Gives back the memory of the pages in `range` (bytes, cut to the file). Touched again, they are read from the file
    /// again. This is advice: a system that can't follow it changes nothing but memory use.
    pub fn drop_pages(&self, range: Range<usize>) {
        let end = range.end.min(self.0.len());
        if range.start >= end {
            return;
        }
        #[cfg(unix)]
        {
            // SAFETY: the range lies in the map, and dropping pages of a read-only file mapping doesn't change what its
            // bytes are: the next read brings the same bytes back from the file.
            let advised = unsafe { self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, end - range.start) };
            if let Err(error) = advised {
                tracing::debug!(%error, "pages of a mapped file were not given back");
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn dropped_pages_come_back_with_the_same_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(file.path(), &content).unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        assert_eq!(mapped.bytes(), content);
        mapped.drop_pages(10..90_000);
        mapped.drop_pages(50_000..usize::MAX);
        mapped.drop_pages(7..7);
        assert_eq!(mapped.bytes(), content);
    }

    #[test]
    fn an_empty_file_has_no_bytes_and_a_folder_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(MappedFile::open(file.path()).unwrap().bytes().is_empty());
        assert!(MappedFile::open(file.path().parent().unwrap()).is_err());
    }
}
