//! Why a server doesn't start.

use crate::config::Name;
use crate::cpu::CpuError;
use crate::engine::DeviceError;
use crate::gateway::tls::TlsError;
use crate::model::{LoadError, source::SourceError};
use crate::tenant::{AccountsError, LedgerError};
use crate::upstream::UpstreamError;
use std::net::SocketAddr;

/// Why a server doesn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address can't be listened on.
    #[error("can't listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// A port's certificate can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The ledger can't be used.
    #[error("store.ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// The stores of bills and limits can't be used.
    #[error(transparent)]
    Accounts(#[from] AccountsError),
    /// A device can't be used as configured.
    #[error("devices.{device}: {error}")]
    Device {
        /// The device.
        device: Name,
        /// Why.
        error: CpuError,
    },
    /// A shard's weights can't be had.
    #[error("shards.{shard}.weights: {error}")]
    Weights {
        /// The shard.
        shard: Name,
        /// Why.
        error: SourceError,
    },
    /// A shard's model can't be loaded.
    #[error("shards.{shard}: {error}")]
    Model {
        /// The shard.
        shard: Name,
        /// Why.
        error: LoadError,
    },
    /// An upstream can't be used as configured.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// A model's tokenizer can't be had.
    #[error("models.{model}.tokenizer: {error}")]
    TokenizerSource {
        /// The model.
        model: Name,
        /// Why.
        error: SourceError,
    },
    /// A model's tokenizer can't be used.
    #[error("models.{model}.tokenizer: {error}")]
    Tokenizer {
        /// The model.
        model: Name,
        /// Why.
        error: LoadError,
    },
    /// A shard's thread doesn't come up.
    #[error("shards.{shard}: {error}")]
    Shard {
        /// The shard.
        shard: Name,
        /// Why.
        error: DeviceError,
    },
    /// A model's replicas don't read text the same way, so no request could go to either.
    #[error("models.{model}: `{first}` and `{second}` have different tokenizers")]
    Tokenizers {
        /// The model.
        model: Name,
        /// A backend.
        first: Name,
        /// Another one.
        second: Name,
    },
    /// The system has no randomness to give.
    #[error("the system gives no random bytes: {0}")]
    Random(String),
    /// A thread or runtime can't be started.
    #[error("can't start {what}: {error}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        error: std::io::Error,
    },
}
