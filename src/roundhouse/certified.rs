//! The certificates of the ports.

use crate::config::{self, Config};
use crate::gateway::tls::{Identity, Tls, TlsError};
use std::sync::Arc;

/// TLS of those ports that have it.
pub(super) struct Certified {
    pub(super) public: Option<Arc<Tls>>,
    pub(super) admin: Option<Arc<Tls>>,
}

// === impl Certified ===

impl Certified {
    /// Reads the certificates of both ports.
    ///
    /// # Errors
    /// A certificate can't be used.
    pub(super) fn read(config: &Config) -> Result<Self, TlsError> {
        let port = |tls: &Option<config::Tls>, path| tls.as_ref().map(|tls| Identity::read(tls, path).map(Tls::new)).transpose();
        Ok(Self { public: port(&config.server.tls, "server.tls")?, admin: port(&config.admin.tls, "admin.tls")? })
    }
}
