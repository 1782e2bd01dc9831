//! What clients may do to a port, and how they come in.

use super::resolved::UnknownParameters;
use serde::{Deserialize, Serialize, Serializer};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The public port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Server {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Serving threads, each with its own runtime and listener.
    pub threads: usize,
    /// How connections are encrypted; `None` serves plain HTTP.
    pub tls: Option<Tls>,
    /// Most connections at once on each port; one more is closed as soon as it is accepted.
    pub max_connections: usize,
    /// Largest request head in bytes of header names and values.
    pub max_head: u64,
    /// Largest request body in bytes.
    pub max_body: u64,
    /// From a connection's beginning to its first request's head, its TLS handshake included, and from the first byte of
    /// each further head to its last.
    #[serde(serialize_with = "seconds")]
    pub head_timeout: Duration,
    /// From a request's head to the last byte of its body.
    #[serde(serialize_with = "seconds")]
    pub body_timeout: Duration,
    /// From a request's head to the end of its answer, where its model says nothing else. OpenAI's own clients tell how long
    /// they wait (`x-stainless-timeout`, `x-stainless-read-timeout`): that bounds a whole answer and the first event of a
    /// stream, where it is sooner.
    #[serde(serialize_with = "seconds")]
    pub request_timeout: Duration,
    /// How long a client may take nothing of what is ready for it.
    #[serde(serialize_with = "seconds")]
    pub write_timeout: Duration,
    /// How long a connection may be idle between requests.
    #[serde(serialize_with = "seconds")]
    pub keep_alive: Duration,
    /// How long requests that are open at a stop may take to finish.
    #[serde(serialize_with = "seconds")]
    pub drain: Duration,
    /// What is peculiar to HTTP/2.
    pub http2: Http2,
    /// What happens to request parameters nobody knows.
    pub unknown_parameters: UnknownParameters,
    /// Whether answers name their backend (`x-roundhouse-backend`).
    pub show_backend: bool,
}

/// What is peculiar to HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Http2 {
    /// Most requests at once on one connection.
    pub max_streams: u32,
    /// How often a client is asked whether it is still there.
    #[serde(serialize_with = "seconds")]
    pub ping: Duration,
}

/// How a port's connections are encrypted. The files are PEM, and are read again at every reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tls {
    /// The certificate, followed by those between it and its root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Roots that sign clients' certificates; without them clients aren't asked for one.
    pub client_ca: Option<PathBuf>,
    /// Whether a client needs a certificate where there is `client_ca`.
    pub client_auth: ClientAuth,
}

/// Whether a client needs a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// Without one there is no connection.
    #[default]
    Required,
    /// A client may come without one; one that it shows must be valid.
    Optional,
}

pub(super) fn seconds_if_given<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(serializer)
}

pub(super) fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}
