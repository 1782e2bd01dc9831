//! Someone who signs tokens that the server takes in the place of keys.

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

const ISSUER: &str = "https://login.test/";

/// An issuer with an Ed25519 key of its own.
pub(crate) struct Issuer(EncodingKey);

// === impl Issuer ===

impl Issuer {
    pub(crate) fn new() -> Self {
        // PKCS #8 of an Ed25519 key (RFC 8410, 7): a fixed beginning and the seed.
        let mut der = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        der.extend(getrandom::u64().expect("there is randomness").to_le_bytes().repeat(4));
        Self(EncodingKey::from_ed_der(&der))
    }

    /// Its public keys.
    pub(crate) fn set(&self) -> String {
        let mut jwk = Jwk::from_encoding_key(&self.0, Algorithm::EdDSA).expect("the key is sound");
        jwk.common.key_id = Some("one".to_owned());
        json!({ "keys": [jwk] }).to_string()
    }

    /// What the configuration says of it, with its keys in `jwks.json`.
    pub(crate) fn toml() -> String {
        format!("[[auth.jwt]]\nissuer = \"{ISSUER}\"\naudience = \"roundhouse\"\nfile = \"jwks.json\"\n")
    }

    /// A token for this user of this tenant that ends so many seconds from now.
    pub(crate) fn sign(&self, tenant: &str, user: &str, ends_in: i64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs().cast_signed();
        let claims: Value = json!({ "iss": ISSUER, "aud": "roundhouse", "exp": now + ends_in, "tenant": tenant, "sub": user });
        let header = Header { kid: Some("one".to_owned()), ..Header::new(Algorithm::EdDSA) };
        encode(&header, &claims, &self.0).expect("claims can be signed")
    }
}
