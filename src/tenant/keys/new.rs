//! Keys nobody has yet, made from the system's randomness.

use crate::config::Secret;

/// What every made key begins with, so that scanners for leaked secrets find it.
const PREFIX: &str = "rh_";
/// 62^43 is a little more than 2^256.
const CHARACTERS: usize = 43;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A key nobody has yet.
#[derive(Debug)]
pub struct NewKey {
    /// What a client sends. It is shown once and kept nowhere.
    pub secret: Secret,
    /// BLAKE3 of the secret, for the configuration.
    pub hash: [u8; 32],
}

/// Makes a key of 256 random bits: `rh_` and 43 characters, each of the 62 equally likely.
///
/// # Errors
/// The system has no randomness to give.
pub fn new_key() -> Result<NewKey, getrandom::Error> {
    let mut secret = String::from(PREFIX);
    let mut random = [0; 64];
    while secret.len() < PREFIX.len() + CHARACTERS {
        getrandom::fill(&mut random)?;
        // 248 = 4 × 62: above it some characters would be likelier than others.
        let unbiased = random.iter().filter(|byte| **byte < 248).map(|byte| char::from(BASE62[usize::from(byte % 62)]));
        secret.extend(unbiased.take(PREFIX.len() + CHARACTERS - secret.len()));
    }
    let hash = blake3::hash(secret.as_bytes()).into();
    Ok(NewKey { secret: Secret::new(secret), hash })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_new_key_has_its_form_its_hash_and_no_twin() {
        let mut seen = BTreeSet::new();
        let mut characters = BTreeSet::new();
        for _ in 0..200 {
            let key = new_key().unwrap();
            let secret = key.secret.expose();
            let random = secret.strip_prefix("rh_").unwrap();
            assert!(random.len() == 43 && random.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{random}");
            assert_eq!(key.hash, *blake3::hash(secret.as_bytes()).as_bytes());
            characters.extend(random.chars());
            assert!(seen.insert(secret.to_owned()));
            assert!(!format!("{key:?}").contains(random));
        }
        // 8,600 draws miss one of 62 characters with a probability below 1e-58.
        assert_eq!(characters.len(), 62);
    }
}
