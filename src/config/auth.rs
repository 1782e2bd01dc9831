//! Whose tokens are taken besides keys.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// `[auth]`
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Auth {
    /// Issuers of JSON Web Tokens.
    pub jwt: Vec<Issuer>,
}

/// Someone whose signed tokens (RFC 7519) stand for a tenant's keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Issuer {
    /// What `iss` has to be.
    pub issuer: String,
    /// What `aud` has to be or to have.
    pub audience: String,
    /// How tokens may be signed.
    pub algorithms: Vec<Algorithm>,
    /// The keys they are signed with.
    pub keys: KeySource,
    /// The claim that names the tenant.
    pub tenant_claim: String,
    /// The claim that says who of the tenant it is.
    pub key_claim: String,
    /// How far its clock may be off.
    pub leeway: Duration,
}

/// How a token is signed. Symmetric ways are none: who can check such a token can make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// RSA, PKCS #1 v1.5 with SHA-256.
    RS256,
    /// ECDSA on P-256 with SHA-256.
    ES256,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// Where an issuer's public keys are, a JSON Web Key Set (RFC 7517).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeySource {
    /// They are fetched from there, and again while they are used.
    Url(String),
    /// They were read with the configuration.
    File {
        /// The file.
        path: PathBuf,
        /// What it says.
        #[serde(skip)]
        text: String,
    },
}
