//! The sockets of a server, bound before anything else starts: a port that is taken should not cost a download.

use super::StartError;
use crate::config::Config;
use crate::gateway::listener::bind;
use std::net::{SocketAddr, TcpListener};

/// Bound sockets: one per serving thread for clients, one for operators.
#[derive(Debug)]
pub struct Listeners {
    pub(super) public: Vec<TcpListener>,
    pub(super) admin: TcpListener,
}

// === impl Listeners ===

impl Listeners {
    /// Binds what the configuration says; a port of 0 lets the system choose one.
    ///
    /// # Errors
    /// An address is taken or not this machine's.
    pub fn bind(config: &Config) -> Result<Self, StartError> {
        let bind = |address: SocketAddr, threads| bind(address, threads).map_err(|error| StartError::Listen { address, error });
        let public = bind(config.server.listen, config.server.threads)?;
        let admin = bind(config.admin.listen, 1)?.pop().expect("one socket was asked for");
        Ok(Self { public, admin })
    }
}
