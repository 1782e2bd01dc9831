//! Where bills are kept.

use super::units::SecretSource;
use super::{Name, Secret};
use serde::{Deserialize, Deserializer, Serialize};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// `[store]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Store {
    /// Where requests are billed.
    pub ledger: Ledger,
    /// Where limits and quotas are counted.
    pub limits: LimitStore,
    /// How many processes share limits and quotas; `None` where that isn't said.
    pub replicas: Option<NonZeroU32>,
    /// What a commit outlives.
    pub durability: Durability,
    /// What happens to requests while a store doesn't answer.
    pub on_store_loss: OnStoreLoss,
}

/// Where requests are billed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ledger {
    /// Nowhere.
    Off,
    /// An SQLite file, which one process owns.
    Sqlite(PathBuf),
    /// A Postgres URL, for several replicas. It may hold a password.
    Postgres(Secret),
}

/// Where limits and quotas are counted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitStore {
    /// In each process, for itself.
    Local,
    /// In a Redis server by its URL, for all replicas together. It may hold a password.
    Redis(Secret),
}

/// What a commit outlives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The death of the process.
    #[default]
    Process,
    /// The loss of power.
    Fsync,
}

/// What happens to requests while a store doesn't answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStoreLoss {
    /// They are refused.
    #[default]
    Deny,
    /// They pass, whatever their limits, where these are what is lost; bills wait in memory, and those beyond its bound
    /// are lost.
    Allow,
    /// They pass within this process's share of limits and quotas, where these are what is lost, and while bills find room
    /// in memory.
    Local,
}

/// `[billing]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Billing {
    /// The currency of all prices and quotas of cost, as bills and metrics name it.
    pub currency: Name,
}

// === impl Billing ===

impl Default for Billing {
    fn default() -> Self {
        Self { currency: Name::from("USD") }
    }
}

// === impl Store ===

impl Default for Store {
    fn default() -> Self {
        Self {
            ledger: Ledger::Sqlite("roundhouse.db".into()),
            limits: LimitStore::Local,
            replicas: None,
            durability: Durability::default(),
            on_store_loss: OnStoreLoss::default(),
        }
    }
}

/// A store's URL as the file has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StoreUrl {
    /// Without a password.
    Plain(String),
    /// Where it is.
    Secret(SecretSource),
}

impl<'de> Deserialize<'de> for StoreUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "write a URL, \"${NAME}\" of an environment variable or { file = \"PATH\" }")]
        enum Written {
            Text(String),
            File { file: std::path::PathBuf },
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::File { file } => StoreUrl::Secret(SecretSource::File(file)),
            Written::Text(text) => match text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
                Some(variable) => StoreUrl::Secret(SecretSource::Variable(variable.to_owned())),
                None => StoreUrl::Plain(text),
            },
        })
    }
}
