//! The certificates of the ports.

use crate::config::{self, Config};
use crate::gateway::tls::{Identity, Tls, TlsError};
use std::sync::Arc;

/// TLS of those ports that have it.
pub(super) struct Certified {
    pub(super) public: Option<Arc<Tls>>,
    pub(super) admin: Option<Arc<Tls>>,
}

/// Certificates that were read and found to fit, and are not served yet.
pub(super) struct Renewed(Vec<(Arc<Tls>, Identity)>);

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

    /// Reads the certificates of both ports again, as this configuration says.
    ///
    /// # Errors
    /// A certificate can't be used; then all stay as they are.
    pub(super) fn read_again(&self, config: &Config) -> Result<Renewed, TlsError> {
        let ports = [(&self.public, &config.server.tls, "server.tls"), (&self.admin, &config.admin.tls, "admin.tls")];
        let both = ports.into_iter().filter_map(|(tls, config, path)| Some((tls.clone()?, config.as_ref()?, path)));
        both.map(|(tls, config, path)| Ok((tls, Identity::read(config, path)?))).collect::<Result<_, _>>().map(Renewed)
    }
}

// === impl Renewed ===

impl Renewed {
    /// New connections get these from now on.
    pub(super) fn serve(self) {
        for (tls, identity) in self.0 {
            tls.replace(identity);
        }
    }
}
