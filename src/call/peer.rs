//! Who is at the other end of a connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// The other end of a connection. Its address is the socket's: no header can change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it came from.
    pub address: SocketAddr,
    /// The certificate it proved to be its own, where it was asked for one and had one.
    pub certificate: Option<Arc<Certificate>>,
}

/// A client's certificate, signed by one of `server.tls.client_ca`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The subject's distinguished name as RFC 4514 writes it: `CN=ci,OU=builds,O=Acme`; the most specific part first.
    pub subject: String,
    /// The subject's alternative names, each with its kind: `DNS:ci.acme.example`, `URI:spiffe://acme.example/ci`,
    /// `email:ci@acme.example`, `IP:10.0.0.7`.
    pub names: Vec<String>,
    /// SHA-256 of the certificate's DER.
    pub fingerprint: [u8; 32],
}

// === impl Peer ===

impl From<SocketAddr> for Peer {
    /// A peer that showed no certificate.
    fn from(address: SocketAddr) -> Self {
        Self { address, certificate: None }
    }
}

impl fmt::Display for Peer {
    /// What logs show: the address without the port, which says nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.ip().fmt(f)
    }
}
