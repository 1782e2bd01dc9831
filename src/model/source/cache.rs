//! The folder that downloaded weights are kept in.
//!
//! A file is called `SOURCE-SHA256-NAME`: a digest of the source's spelling, the hash of the content, and a name for people.
//! It gets that name when it's complete and checked, so the name proves the content and nothing is hashed again.

use super::error::{SourceError, check, hex};
use crate::outbound::redacted;
use sha2::{Digest, Sha256};
use std::fs::{self, DirEntry};
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tempfile::{NamedTempFile, TempDir};

/// What incomplete files and folders are called.
const PARTIAL: &str = ".partial-";
/// After this time without a write, an incomplete download belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// The cache folder; made when it's first needed.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: PathBuf,
}

/// A file that is being downloaded into the cache; dropped, it's gone.
pub(super) struct Arriving<'a> {
    cache: &'a Cache,
    file: NamedTempFile,
    hasher: Sha256,
}

// === impl Cache ===

impl Cache {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The newest file from this source, with this hash if one is given.
    pub(super) fn find(&self, source: &str, sha256: Option<&[u8; 32]>) -> Result<Option<PathBuf>, SourceError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(|error| self.error(error))?,
        };
        let prefix = match sha256 {
            Some(hash) => format!("{}-{}-", digest(source), hex(hash)),
            None => format!("{}-", digest(source)),
        };
        let mut newest = None;
        for entry in entries {
            let entry = entry.map_err(|error| self.error(error))?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                newest = newest.max(Some((modified(&entry), entry.path())));
            }
        }
        Ok(newest.map(|(_, path)| path))
    }

    /// A file to download into.
    pub(super) fn arriving(&self) -> Result<Arriving<'_>, SourceError> {
        self.make()?;
        // As other files of the user: readable for those the umask lets.
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.prefix(PARTIAL).tempfile_in(&self.folder).map_err(|error| self.error(error))?;
        Ok(Arriving { cache: self, file, hasher: Sha256::new() })
    }

    /// A folder for what is needed on the way; gone with the value.
    pub(super) fn scratch(&self) -> Result<TempDir, SourceError> {
        self.make()?;
        tempfile::Builder::new().prefix(PARTIAL).tempdir_in(&self.folder).map_err(|error| self.error(error))
    }

    /// Makes the folder, and removes what killed processes have left in it.
    fn make(&self) -> Result<(), SourceError> {
        fs::create_dir_all(&self.folder).map_err(|error| self.error(error))?;
        for entry in fs::read_dir(&self.folder).map_err(|error| self.error(error))?.flatten() {
            let old = modified(&entry).elapsed().is_ok_and(|age| age > ABANDONED);
            if old && entry.file_name().to_string_lossy().starts_with(PARTIAL) {
                let path = entry.path();
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                if let Err(error) = removed {
                    tracing::debug!(path = %path.display(), %error, "an abandoned download was not removed");
                }
            }
        }
        Ok(())
    }

    fn error(&self, source: io::Error) -> SourceError {
        SourceError::Cache { folder: self.folder.clone(), source }
    }
}

/// When a file was last written; long ago where the system doesn't say.
fn modified(entry: &DirEntry) -> SystemTime {
    entry.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// What a source's files begin with.
fn digest(source: &str) -> String {
    hex(&blake3::hash(source.as_bytes()).as_bytes()[..8])
}

/// `base` with nothing in it that file systems or terminals take amiss, at most 80 characters from its end.
fn plain(base: &str) -> String {
    let name: Vec<char> = base.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    name[name.len().saturating_sub(80)..].iter().collect()
}

// === impl Arriving ===

impl Arriving<'_> {
    /// Takes the next bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.hasher.update(bytes);
        self.file.write_all(bytes).map_err(|error| self.cache.error(error))
    }

    /// Gives the complete file its place, if it's a GGUF file and has the hash that is `expected`.
    pub(super) fn keep(mut self, source: &str, base: &str, expected: Option<&[u8; 32]>) -> Result<PathBuf, SourceError> {
        let found: [u8; 32] = self.hasher.finalize().into();
        let failed = |error| self.cache.error(error);
        let mut magic = Vec::new();
        self.file.rewind().map_err(failed)?;
        self.file.as_file_mut().take(4).read_to_end(&mut magic).map_err(failed)?;
        let shown = redacted::address(source);
        if let Some(expected) = expected {
            check(&shown, expected, &found)?;
        }
        if magic != b"GGUF" {
            return Err(SourceError::NotGguf { weights: shown });
        }
        self.file.as_file().sync_all().map_err(failed)?;
        let path = self.cache.folder.join(format!("{}-{}-{}", digest(source), hex(&found), plain(base)));
        match self.file.persist(&path) {
            Ok(_) => Ok(path),
            Err(error) => Err(self.cache.error(error.error)),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::path::Path;

    fn listing(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn put(cache: &Cache, source: &str, content: &[u8]) -> Result<PathBuf, SourceError> {
        let mut arriving = cache.arriving().unwrap();
        arriving.write(content).unwrap();
        arriving.keep(source, "model.gguf", None)
    }

    #[test]
    fn a_kept_file_is_found_by_its_source_and_by_its_hash_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("not/yet"));
        assert!(cache.find("hf:a/b/c", None).unwrap().is_none());
        let path = put(&cache, "hf:a/b/c", b"GGUF 1").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"GGUF 1");
        assert_eq!(cache.find("hf:a/b/c", None).unwrap(), Some(path.clone()));
        assert_eq!(cache.find("hf:a/b/c", Some(&Sha256::digest(b"GGUF 1").into())).unwrap(), Some(path));
        assert!(cache.find("hf:a/b/c", Some(&[0; 32])).unwrap().is_none());
        assert!(cache.find("hf:a/b/d", None).unwrap().is_none());
    }

    #[test]
    fn two_downloads_of_the_same_end_with_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_owned());
        let mut first = cache.arriving().unwrap();
        first.write(b"GGUF").unwrap();
        let second = put(&cache, "hf:a/b/c", b"GGUF").unwrap();
        assert_eq!(first.keep("hf:a/b/c", "model.gguf", None).unwrap(), second);
        assert_eq!(listing(folder.path()).len(), 1);
    }

    #[test]
    fn what_is_wrong_or_unfinished_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_owned());
        assert!(matches!(put(&cache, "https://a", b"<html>"), Err(SourceError::NotGguf { .. })));
        let mut arriving = cache.arriving().unwrap();
        arriving.write(b"GGUF").unwrap();
        assert!(matches!(arriving.keep("https://a", "a", Some(&[7; 32])), Err(SourceError::Sha256 { .. })));
        drop((cache.arriving().unwrap(), cache.scratch().unwrap()));
        assert!(listing(folder.path()).is_empty());
    }

    #[test]
    fn what_a_killed_process_left_is_removed_after_a_day() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join(".partial-old"), folder.path().join(".partial-new"));
        fs::write(&old, "").unwrap();
        fs::write(&new, "").unwrap();
        let long_ago = SystemTime::now() - ABANDONED - Duration::from_secs(60);
        fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
        drop(Cache::new(folder.path().to_owned()).arriving().unwrap());
        assert_eq!(listing(folder.path()), [".partial-new"]);
    }

    #[test]
    fn names_from_outside_become_plain() {
        assert_eq!(plain("SmolLM2 135M/é.gguf"), "SmolLM2_135M__.gguf");
        assert_eq!(plain(&"x".repeat(300)).len(), 80);
    }
}
