//! What can go wrong with a remote.

use crate::api::sse::TooLong;
use crate::call::{Error, Record};
use crate::config::Name;
use crate::outbound::RootsError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why an upstream can't be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// Its root certificates can't be read.
    #[error("upstreams.{upstream}.tls.ca: {}: {error}", file.display())]
    Roots {
        /// The upstream.
        upstream: Name,
        /// The file.
        file: PathBuf,
        /// Why.
        error: RootsError,
    },
    /// Something of its configuration can't be sent.
    #[error("upstreams.{upstream}.{key} can't be sent to it: {message}")]
    Unsendable {
        /// The upstream.
        upstream: Name,
        /// Which key.
        key: &'static str,
        /// Why.
        message: String,
    },
    /// No thread for its health checks.
    #[error("can't start the thread of the upstreams' health checks: {0}")]
    Thread(io::Error),
}

/// What a remote did. It reads as the end of a sentence that begins with its name, and shows nothing of what was asked
/// or said.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("can't be reached")]
    Connect(#[source] io::Error),
    #[error("took no connection within {}s", .0.as_secs_f64())]
    ConnectTimeout(Duration),
    #[error("broke the connection off")]
    Broke(#[source] hyper::Error),
    #[error("said nothing for {}s", .0.as_secs_f64())]
    Silent(Duration),
    #[error("answered with status {0}")]
    Status(u16),
    #[error("refused the gateway's credentials")]
    Credentials(u16),
    #[error("answered with something that isn't an event stream")]
    NotAStream,
    #[error("sent what is no part of an answer")]
    Garbage { line: usize, column: usize },
    #[error("sent an event of more than {0} bytes")]
    TooLong(usize),
    #[error("reported an error of its own")]
    Reported,
    #[error("ended its answer before it was complete")]
    Incomplete,
}

/// Why a call has no answer from a remote.
#[derive(Debug)]
pub(super) enum Ended {
    /// The remote failed: somebody else may do better.
    Failed(Failure),
    /// It said no, and why.
    Refused(Error),
}

// === impl Failure ===

impl Failure {
    /// As the caller hears it; what is only for operators goes to the log.
    pub(super) fn error(&self, backend: &Name, record: &Record) -> Error {
        let id = record.lock().id.clone();
        match self {
            Failure::Connect(error) => tracing::warn!(id, %backend, %error, "an upstream {self}"),
            Failure::Broke(error) => tracing::warn!(id, %backend, %error, "an upstream {self}"),
            Failure::Credentials(status) => tracing::error!(id, %backend, status, "an upstream {self}: check its api_key"),
            Failure::Garbage { line, column } => tracing::warn!(id, %backend, line, column, "an upstream {self}"),
            _ => tracing::warn!(id, %backend, "an upstream {self}"),
        }
        Error::UpstreamFailed { backend: backend.to_string(), failure: self.to_string() }
    }
}

impl From<TooLong> for Failure {
    fn from(error: TooLong) -> Self {
        Failure::TooLong(error.limit)
    }
}

impl From<serde_json::Error> for Failure {
    /// The message itself could repeat what was said, so only its place is kept.
    fn from(error: serde_json::Error) -> Self {
        Failure::Garbage { line: error.line(), column: error.column() }
    }
}

impl From<TooLong> for Ended {
    fn from(error: TooLong) -> Self {
        Ended::Failed(error.into())
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Ended::Failed(failure)
    }
}
