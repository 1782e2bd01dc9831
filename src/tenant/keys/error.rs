//! Why keys can't be changed.

use crate::config::Name;

/// Why a key can't be made, revoked or rotated.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Nothing is stored.
    #[error("`store.ledger` is off, so keys can be in the configuration only")]
    NoStore,
    /// The tenant isn't configured.
    #[error("there is no tenant `{0}` in the configuration")]
    NoTenant(Name),
    /// A model isn't configured.
    #[error("there is no model `{0}` in the configuration")]
    NoModel(Name),
    /// It can't be a name.
    #[error(transparent)]
    Name(#[from] crate::config::NameError),
    /// The name is taken.
    #[error("tenant `{tenant}` has a key `{name}` already: rotate it, or revoke it first")]
    Exists {
        /// Whose.
        tenant: Name,
        /// Its name.
        name: Name,
    },
    /// There is no such key.
    #[error("tenant `{tenant}` has no key `{name}`")]
    Unknown {
        /// Whose.
        tenant: Name,
        /// Its name.
        name: Name,
    },
    /// A revoked key gets no other secret.
    #[error("this key is revoked: make a new one")]
    Revoked,
    /// An expired key gets no other secret, which would be expired too.
    #[error("this key is expired: revoke it and make a new one")]
    Expired,
    /// The store says no.
    #[error("the store of keys: {0}")]
    Store(#[from] sqlx::Error),
    /// The store doesn't answer; the change may have happened.
    #[error("the store of keys doesn't answer; look at the list before you try again")]
    Late,
    /// The process is ending.
    #[error("the store of keys is closed")]
    Closed,
    /// The system has no randomness to give.
    #[error("the system has no randomness to make a key from: {0}")]
    Random(#[from] getrandom::Error),
}
