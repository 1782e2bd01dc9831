//! Who it is: an API key, a token or a client's certificate becomes its holder.

mod entry;
mod error;
mod new;
mod operate;
mod store;
mod table;

use crate::call::{Certificate, Error, Peer};
use crate::clock::Clock;
use crate::config::{Config, Endpoint, Key, KeySource, Model, Moment, Name, Store, Tenant};
use std::collections::HashMap;
use std::sync::Arc;
use store::KeyStore;

pub use entry::{Grant, KeyState, Listed, Source};
pub use error::KeyError;
pub use new::{NewKey, new_key};

use super::ledger::LedgerError;
use super::tokens::{KeySets, Tokens};

/// What outlives a configuration of who may come in.
#[derive(Clone)]
pub struct Credentials {
    /// Keys that are kept in the store, where there is one.
    stored: Option<Arc<KeyStore>>,
    /// Public keys of those who sign tokens.
    sets: Arc<KeySets>,
    clock: Clock,
}

/// Everybody who may come in under one configuration.
pub struct Keys {
    config: Arc<Config>,
    /// The file's keys by their hashes.
    of_file: HashMap<[u8; 32], Holder>,
    /// Tenants by the subjects of their certificates.
    subjects: HashMap<String, Arc<Tenant>>,
    tokens: Tokens,
    credentials: Credentials,
}

/// Who holds a key.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The tenant.
    pub tenant: Arc<Tenant>,
    /// The key, with its own limits.
    pub key: Arc<Key>,
}

// === impl Credentials ===

impl Credentials {
    /// Opens what is kept in the store. Blocks until it has been read.
    ///
    /// # Errors
    /// The store can't be opened.
    pub fn open(store: &Store, clock: Clock) -> Result<Self, LedgerError> {
        Ok(Self { stored: KeyStore::open(store, clock.clone())?.map(Arc::new), sets: Arc::default(), clock })
    }
}

// === impl Keys ===

impl Keys {
    /// The keys of the configuration's tenants, in the file and in the store, and the tokens of its issuers. Blocks for
    /// some seconds at most where an issuer's keys have to be fetched.
    pub fn new(config: Arc<Config>, credentials: &Credentials) -> Self {
        let of_file = config
            .tenants
            .values()
            .flat_map(|tenant| tenant.keys.iter().map(|key| (key.hash, Holder { tenant: tenant.clone(), key: Arc::new(key.clone()) })));
        let subjects =
            config.tenants.values().flat_map(|tenant| tenant.certificates.iter().map(|subject| (subject.clone(), tenant.clone())));
        credentials.sets.keep(|url| config.auth.jwt.iter().any(|issuer| matches!(&issuer.keys, KeySource::Url(own) if own == url)));
        let tokens = Tokens::new(&config.auth, &credentials.sets, credentials.clock.clone());
        Self { of_file: of_file.collect(), subjects: subjects.collect(), tokens, credentials: credentials.clone(), config }
    }

    /// Who sent a request with this secret, if it had one, from this peer. A secret decides, whatever the certificate says.
    /// It doesn't wait for anything.
    ///
    /// # Errors
    /// Nobody who may come in, or not from there.
    pub fn identify(&self, sent: Option<&str>, peer: &Peer) -> Result<Holder, Error> {
        let holder = match (sent, &peer.certificate) {
            (Some(secret), _) => self.find(secret),
            (None, Some(certificate)) => self.certified(certificate),
            (None, None) => None,
        };
        let now = self.now();
        let holder =
            holder.filter(|holder| !is_expired(&holder.key, now)).ok_or_else(|| Error::Unauthenticated { shown: sent.map(shown) })?;
        let address = peer.address.ip();
        if !holder.tenant.may_come_from(address) || !holder.key.scope.has_address(address) {
            return Err(Error::OutOfScope { deed: format!("be used from {}", address.to_canonical()) });
        }
        Ok(holder)
    }

    /// Who holds the key with this secret, or sent this token, expired or not.
    ///
    /// Only hashes are compared: how long that takes tells something about a hash, and nothing about any secret.
    fn find(&self, secret: &str) -> Option<Holder> {
        let hash = blake3::hash(secret.as_bytes());
        if let Some(entry) = self.credentials.stored.as_ref().and_then(|stored| stored.entries().get(hash.as_bytes()).cloned()) {
            if entry.is_revoked(self.now()) {
                return None;
            }
            let tenant = self.config.tenants.get(&entry.tenant)?.clone();
            let key = match &entry.key {
                Some(key) => key.clone(),
                None => self.named(&entry.tenant, &entry.name)?.key.clone(),
            };
            return Some(Holder { tenant, key });
        }
        if let Some(holder) = self.of_file.get(hash.as_bytes()) {
            return Some(holder.clone());
        }
        let bearer = self.tokens.identify(secret, hash.as_bytes())?;
        Some(Holder { tenant: self.config.tenants.get(&bearer.tenant)?.clone(), key: bearer.key })
    }

    /// The file's key of this name.
    fn named(&self, tenant: &Name, name: &Name) -> Option<&Holder> {
        let key = self.config.tenants.get(tenant)?.keys.iter().find(|key| key.name == *name)?;
        self.of_file.get(&key.hash)
    }

    /// Whom a certificate stands for: its subject decides, then its alternative names in their order.
    fn certified(&self, certificate: &Certificate) -> Option<Holder> {
        let mut names = std::iter::once(&certificate.subject).chain(&certificate.names);
        let tenant = names.find_map(|name| self.subjects.get(name))?.clone();
        Some(Holder { tenant, key: Arc::new(Key::new("certificate".into(), certificate.fingerprint)) })
    }

    fn now(&self) -> Moment {
        Moment::from_unix(self.credentials.clock.unix())
    }
}

fn is_expired(key: &Key, now: Moment) -> bool {
    key.expires.is_some_and(|expires| expires <= now)
}

/// As much of a key as may be seen: `rh_abcd…`, and never more than a quarter of it.
fn shown(secret: &str) -> String {
    let start: String = secret.chars().take(7.min(secret.len() / 4)).collect();
    format!("{start}…")
}

// === impl Holder ===

impl Holder {
    /// Whether tenant and key may use this model.
    pub fn may_use(&self, model: &Model) -> bool {
        self.tenant.may_use(&model.name) && self.key.scope.has_model(&model.name)
    }

    /// Whether the key may use this endpoint.
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self, endpoint: Endpoint) -> Result<(), Error> {
        if self.key.scope.has_endpoint(endpoint) {
            return Ok(());
        }
        Err(Error::OutOfScope { deed: format!("be used for the endpoint `{endpoint}`") })
    }
}

#[cfg(test)]
mod tests;
