//! JSON Web Tokens (RFC 7519) in the place of keys: signed by an issuer that the configuration trusts, with a claim that
//! names the tenant.

mod fetch;
mod set;

use crate::clock::Clock;
use crate::config::{Auth, Issuer, Key, KeySource, Moment, Name};
use dashmap::DashMap;
use fetch::Remote;
use jsonwebtoken::{Validation, dangerous, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};
use set::KeySet;
use std::sync::Arc;
use std::time::Duration;

pub(super) use fetch::KeySets;

/// Verified tokens that are remembered, some hundred bytes each.
const MOST_SEEN: usize = 10_000;
/// Characters of what names a token's holder.
const MOST_NAME: usize = 128;

/// The tokens that one configuration takes.
pub(super) struct Tokens {
    issuers: Vec<Trusted>,
    /// By BLAKE3 of the token: checking a signature takes longer than everything else before the body is read.
    seen: DashMap<[u8; 32], Seen>,
    clock: Clock,
}

/// An issuer and where its keys are at hand.
struct Trusted {
    issuer: Issuer,
    keys: Keys,
}

enum Keys {
    Fixed(Arc<KeySet>),
    Remote(Arc<Remote>),
}

/// Whom a token stands for.
#[derive(Clone)]
pub(super) struct Bearer {
    pub(super) tenant: Name,
    /// Ends with the token.
    pub(super) key: Arc<Key>,
}

struct Seen {
    bearer: Bearer,
    /// The keys it was checked against; when the issuer changes them it is checked again.
    set: Arc<KeySet>,
    /// Index of its issuer.
    issuer: usize,
}

/// Only what decides which key to try: nothing in it is believed yet.
#[derive(Deserialize)]
struct Claimed {
    iss: String,
}

// === impl Tokens ===

impl Tokens {
    /// Tokens of these issuers. Keys that were never fetched are fetched now; that blocks for some seconds at most.
    pub(super) fn new(auth: &Auth, sets: &KeySets, clock: Clock) -> Self {
        let trusted = |issuer: &Issuer| {
            let keys = match &issuer.keys {
                KeySource::Url(url) => Keys::Remote(sets.remote(url)),
                KeySource::File { path, text } => {
                    let set = KeySet::parse(text).unwrap_or_default();
                    if set.is_empty() {
                        tracing::error!(issuer = issuer.issuer, file = %path.display(), "no key of this file can check a token");
                    }
                    Keys::Fixed(Arc::new(set))
                }
            };
            Trusted { issuer: issuer.clone(), keys }
        };
        Self { issuers: auth.jwt.iter().map(trusted).collect(), seen: DashMap::new(), clock }
    }

    /// Whom this token stands for, if it is one and valid. `hash` is its BLAKE3. It doesn't wait for anything: a token
    /// signed with a key nobody has seen makes the keys be fetched, and is refused until they are there.
    pub(super) fn identify(&self, token: &str, hash: &[u8; 32]) -> Option<Bearer> {
        if self.issuers.is_empty() || !token.starts_with("eyJ") || token.split('.').count() != 3 {
            return None;
        }
        if let Some(seen) = self.seen.get(hash)
            && Arc::ptr_eq(&seen.set, &self.issuers[seen.issuer].set())
        {
            return Some(seen.bearer.clone());
        }
        let (issuer, set, bearer) = self.verify(token, hash)?;
        if self.seen.len() >= MOST_SEEN {
            let now = self.clock.unix();
            self.seen.retain(|_, seen| seen.bearer.key.expires.is_some_and(|expires| expires.unix() > now));
            if self.seen.len() >= MOST_SEEN {
                self.seen.clear(); // rare, and costs each of them one check more
            }
        }
        self.seen.insert(*hash, Seen { bearer: bearer.clone(), set, issuer });
        Some(bearer)
    }

    fn verify(&self, token: &str, hash: &[u8; 32]) -> Option<(usize, Arc<KeySet>, Bearer)> {
        let header = decode_header(token).ok()?;
        let algorithm = set::algorithm(header.alg)?;
        let claimed: Claimed = dangerous::insecure_decode_claims(token).ok()?;
        let trusted = self.issuers.iter().enumerate();
        let mut trusted =
            trusted.filter(|(_, trusted)| trusted.issuer.issuer == claimed.iss && trusted.issuer.algorithms.contains(&algorithm));
        trusted.find_map(|(index, trusted)| {
            let set = trusted.set();
            let mut keys = set.fitting(algorithm, header.kid.as_deref()).peekable();
            if keys.peek().is_none() {
                trusted.want();
            }
            let validation = validation(&trusted.issuer, header.alg);
            let claims = keys.find_map(|key| decode::<Map<String, Value>>(token, key, &validation).ok())?.claims;
            let bearer = self.bearer(&trusted.issuer, &claims, hash)?;
            Some((index, set.clone(), bearer))
        })
    }

    /// The holder that verified claims speak of.
    fn bearer(&self, issuer: &Issuer, claims: &Map<String, Value>, hash: &[u8; 32]) -> Option<Bearer> {
        let now = self.clock.unix();
        let ends = seconds(claims.get("exp")?)?.saturating_add(issuer.leeway);
        let begins = claims.get("nbf").map_or(Some(Duration::ZERO), seconds)?;
        if now >= ends || begins > now.saturating_add(issuer.leeway) {
            return None;
        }
        let tenant = claims.get(&issuer.tenant_claim)?.as_str()?.parse().ok()?;
        let name = match claims.get(&issuer.key_claim) {
            None => Name::from("jwt"),
            Some(value) => {
                let text = value.as_str()?;
                let fits = (1..=MOST_NAME).contains(&text.len()) && !text.chars().any(char::is_control);
                // Marked, so that a bill never takes it for a key of that name.
                fits.then(|| Name::from(format!("jwt:{text}")))?
            }
        };
        let key = Key { expires: Some(Moment::from_unix(ends)), ..Key::new(name, *hash) };
        Some(Bearer { tenant, key: Arc::new(key) })
    }
}

/// A NumericDate (RFC 7519, 2): seconds since 1970, with a fraction or without. Those before count as 1970.
fn seconds(value: &Value) -> Option<Duration> {
    let seconds = value.as_f64()?;
    Duration::try_from_secs_f64(seconds.max(0.0)).ok()
}

// === impl Trusted ===

impl Trusted {
    fn set(&self) -> Arc<KeySet> {
        match &self.keys {
            Keys::Fixed(set) => set.clone(),
            Keys::Remote(remote) => remote.set(),
        }
    }

    /// A key is missing: it may be new.
    fn want(&self) {
        if let Keys::Remote(remote) = &self.keys {
            remote.want();
        }
    }
}

/// What is checked beside the signature; the times are checked by our own clock.
fn validation(issuer: &Issuer, algorithm: jsonwebtoken::Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.set_issuer(&[&issuer.issuer]);
    validation.set_audience(&[&issuer.audience]);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    validation.validate_exp = false;
    validation
}

#[cfg(test)]
mod tests;
