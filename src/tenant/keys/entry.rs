//! A key of the store, as a row of its table, and what a new one is made with.

use crate::config::{Endpoint, Key, Limits, Moment, Name, Network, Scope};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a new key is made with; what isn't given isn't confined.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grant {
    /// The models it may ask for.
    pub models: Option<Vec<Name>>,
    /// The endpoints it may use.
    pub endpoints: Option<Vec<Endpoint>>,
    /// The networks it may come from.
    pub networks: Option<Vec<Network>>,
    /// From then on it is refused.
    pub expires: Option<Moment>,
    /// Limits on it alone.
    pub limits: Limits,
}

/// One secret that the store knows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// BLAKE3 of the secret.
    pub(super) hash: [u8; 32],
    pub(super) tenant: Name,
    pub(super) name: Name,
    /// `None` stands for the file's key of this name: such an entry gives it another secret, or takes one from it.
    pub(super) key: Option<Arc<Key>>,
    pub(super) created: Moment,
    /// From then on it is refused, whatever the file says; in the future while a rotation overlaps.
    pub(super) revoked: Option<Moment>,
}

/// A key as operators see it: never its secret, nor its hash.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// Whose it is.
    pub tenant: Name,
    /// Its name.
    pub name: Name,
    /// Where it is kept.
    pub source: Source,
    /// Whether it is taken now.
    pub state: KeyState,
    /// What it may be used for.
    #[serde(flatten)]
    pub scope: Scope,
    /// From then on it is refused.
    pub expires: Option<Moment>,
    /// When it was made; of a key of the file nobody knows.
    pub created: Option<Moment>,
    /// From then on it is refused; in the future while a rotation overlaps.
    pub revoked: Option<Moment>,
    /// Limits on it alone.
    pub limits: Limits,
}

/// Where a key is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// In the configuration file.
    File,
    /// In the store.
    Store,
}

/// Whether a key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// It is.
    Active,
    /// Its time is over.
    Expired,
    /// It was revoked.
    Revoked,
    /// Its tenant, or the file's key that it stands for, is no longer configured.
    Orphaned,
}

// === impl Grant ===

impl Grant {
    /// What this key was made with.
    pub(super) fn of(key: &Key) -> Self {
        let Scope { models, endpoints, networks } = key.scope.clone();
        Self { models, endpoints, networks, expires: key.expires, limits: key.limits.clone() }
    }

    /// The key that was made with it.
    pub(super) fn key(self, name: Name, hash: [u8; 32]) -> Key {
        let Self { models, endpoints, networks, expires, limits } = self;
        Key { scope: Scope { models, endpoints, networks }, expires, limits, ..Key::new(name, hash) }
    }
}

// === impl Entry ===

impl Entry {
    pub(super) fn is_revoked(&self, now: Moment) -> bool {
        self.revoked.is_some_and(|revoked| revoked <= now)
    }
}

// === impl Source ===

impl Source {
    /// As lists show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::File => "file",
            Source::Store => "store",
        }
    }
}

// === impl KeyState ===

impl KeyState {
    /// As lists show it.
    pub fn as_str(self) -> &'static str {
        match self {
            KeyState::Active => "active",
            KeyState::Expired => "expired",
            KeyState::Revoked => "revoked",
            KeyState::Orphaned => "orphaned",
        }
    }
}
