//! Remote servers that answer calls, and how they are talked to.

use super::server::seconds;
use super::{Name, Secret, Weights};
use http::Uri;
use http::uri::{Authority, PathAndQuery};
use serde::{Serialize, Serializer};
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A remote server that speaks OpenAI's API.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Upstream {
    /// Its name.
    pub name: Name,
    /// Where its endpoints are.
    pub url: BaseUrl,
    /// What it wants as a bearer token.
    pub api_key: Option<Secret>,
    /// What the model is called there; `None`: as it is called here.
    pub model: Option<String>,
    /// Parameters that it takes beside those of the API: they are passed on as clients write them.
    pub parameters: Vec<String>,
    /// Tokens one sequence may have there, where that is known.
    pub context: Option<NonZeroU32>,
    /// How long it is waited for.
    pub timeouts: Timeouts,
    /// Most calls at once; one more goes elsewhere.
    pub max_connections: NonZeroU32,
    /// How it is asked whether it is there.
    pub health: Health,
    /// How often one call may be tried.
    pub retries: Retries,
    /// How its certificate is checked.
    pub tls: UpstreamTls,
}

/// The address in front of `/chat/completions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    secure: bool,
    authority: Authority,
    /// Without a slash at its end.
    path: String,
}

/// A text that is no such address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write an address such as \"http://10.0.0.5:8000/v1\", without a password and without a question mark")]
pub struct BaseUrlError;

/// How long an upstream is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timeouts {
    /// For a connection, its TLS handshake included.
    #[serde(serialize_with = "seconds")]
    pub connect: Duration,
    /// From a request to its answer's first content.
    #[serde(serialize_with = "seconds")]
    pub first_token: Duration,
    /// Between two events of an answer.
    #[serde(serialize_with = "seconds")]
    pub idle: Duration,
}

/// How an upstream is asked whether it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// What is asked for.
    #[serde(serialize_with = "text")]
    pub path: PathAndQuery,
    /// How often.
    #[serde(serialize_with = "seconds")]
    pub interval: Duration,
}

/// How often one call may be tried at a backend before its first content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Retries {
    /// Attempts, the first one included.
    pub attempts: NonZeroU32,
    /// After so long since the call's first attempt it isn't tried again.
    #[serde(serialize_with = "seconds")]
    pub time: Duration,
}

/// How an upstream's certificate is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UpstreamTls {
    /// A PEM file of the only roots that are trusted; without it the web's are.
    pub ca: Option<PathBuf>,
}

/// Which tokenizer counts the tokens of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tokenizer {
    /// A shard's.
    Shard(Name),
    /// That of a weights file.
    Weights(Weights),
}

// === impl Upstream ===

impl Upstream {
    /// Whether it is sent a request's parameter that engines of this process don't have: one that is `known` to the API, or
    /// that it is configured to take.
    pub fn takes(&self, parameter: &str, known: bool) -> bool {
        known || self.parameters.iter().any(|taken| taken == parameter)
    }
}

// === impl BaseUrl ===

impl BaseUrl {
    /// Whether it is spoken to over TLS.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Host and port as the `host` header has them.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The host alone; an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// The port, its scheme's own where none is written.
    pub fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.secure { 443 } else { 80 })
    }

    /// The path of an endpoint below it; `endpoint` begins with a slash.
    ///
    /// # Errors
    /// Both together are no path.
    pub fn path(&self, endpoint: &str) -> Result<PathAndQuery, http::uri::InvalidUri> {
        format!("{}{endpoint}", self.path).parse()
    }
}

impl FromStr for BaseUrl {
    type Err = BaseUrlError;

    fn from_str(given: &str) -> Result<Self, BaseUrlError> {
        let uri: Uri = given.parse().map_err(|_| BaseUrlError)?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(BaseUrlError),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or(BaseUrlError)?;
        if uri.query().is_some() || authority.host().is_empty() {
            return Err(BaseUrlError);
        }
        Ok(Self { secure, authority: authority.clone(), path: uri.path().trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.secure { "https" } else { "http" }, self.authority, self.path)
    }
}

impl Serialize for BaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl Retries ===

impl Retries {
    /// One attempt and no other.
    pub const NONE: Retries = Retries { attempts: NonZeroU32::MIN, time: Duration::ZERO };
}

fn text<S: Serializer>(text: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(text)
}
