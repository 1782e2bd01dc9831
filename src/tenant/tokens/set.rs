//! An issuer's public keys, a JSON Web Key Set (RFC 7517).

use crate::config::Algorithm;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use serde::Deserialize;
use serde_json::Value;

/// Characters of an RSA modulus of 2048 bits in base64; shorter ones are too weak.
const LEAST_MODULUS: usize = 342;

/// The keys of a set that can check tokens.
#[derive(Default)]
pub(super) struct KeySet {
    keys: Vec<PublicKey>,
    /// What it was read from.
    text: String,
}

struct PublicKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// A set as written: one strange key doesn't spoil the others.
#[derive(Deserialize)]
struct Written {
    keys: Vec<Value>,
}

/// How a token says it is signed, if that is a way that could be trusted.
pub(super) fn algorithm(algorithm: jsonwebtoken::Algorithm) -> Option<Algorithm> {
    match algorithm {
        jsonwebtoken::Algorithm::RS256 => Some(Algorithm::RS256),
        jsonwebtoken::Algorithm::ES256 => Some(Algorithm::ES256),
        jsonwebtoken::Algorithm::EdDSA => Some(Algorithm::EdDsa),
        _ => None,
    }
}

// === impl KeySet ===

impl KeySet {
    /// Reads a set; keys for other purposes, and those that are too weak, are left out.
    ///
    /// # Errors
    /// It isn't JSON with `keys`.
    pub(super) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let written: Written = serde_json::from_str(text)?;
        Ok(Self { keys: written.keys.into_iter().filter_map(PublicKey::read).collect(), text: text.to_owned() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether it was read from this text.
    pub(super) fn says(&self, text: &str) -> bool {
        self.text == text
    }

    /// The keys that a token with this header may be signed with. A key's type decides what it checks, never the token.
    pub(super) fn fitting(&self, algorithm: Algorithm, id: Option<&str>) -> impl Iterator<Item = &DecodingKey> {
        let fits = move |key: &&PublicKey| key.algorithm == algorithm && (id.is_none() || key.id.is_none() || key.id.as_deref() == id);
        self.keys.iter().filter(fits).map(|key| &key.key)
    }
}

// === impl PublicKey ===

impl PublicKey {
    fn read(value: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
            return None;
        }
        let (algorithm, named) = match &jwk.algorithm {
            AlgorithmParameters::RSA(rsa) if rsa.n.len() >= LEAST_MODULUS => (Algorithm::RS256, KeyAlgorithm::RS256),
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => (Algorithm::ES256, KeyAlgorithm::ES256),
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => (Algorithm::EdDsa, KeyAlgorithm::EdDSA),
            _ => return None,
        };
        if jwk.common.key_algorithm.is_some_and(|own| own != named) {
            return None;
        }
        Some(Self { key: DecodingKey::from_jwk(&jwk).ok()?, id: jwk.common.key_id, algorithm })
    }
}
