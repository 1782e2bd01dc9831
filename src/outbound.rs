//! What all connections that this program makes have in common: whom they trust, and how their addresses are shown.

pub mod redacted;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// Why a file of root certificates can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// It can't be read, or isn't PEM.
    #[error("{0}")]
    Read(#[from] pem::Error),
    /// A certificate in it is none.
    #[error("{0}")]
    Certificate(#[from] rustls::Error),
    /// It has none.
    #[error("there is no certificate in it")]
    Empty,
}

/// The web's root certificates.
pub fn web() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}

/// Adds the certificates of a PEM file to `roots`.
///
/// # Errors
/// The file can't be read, or there is none in it, or one that can't be used.
pub fn add(roots: &mut RootCertStore, file: &Path) -> Result<(), RootsError> {
    let before = roots.len();
    for certificate in CertificateDer::pem_file_iter(file)? {
        roots.add(certificate?)?;
    }
    if roots.len() == before { Err(RootsError::Empty) } else { Ok(()) }
}

/// A client that believes servers with a certificate of these roots, and has none itself.
pub fn trusting(roots: RootCertStore) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    versions.expect("invariant: the provider supports TLS 1.2 and 1.3").with_root_certificates(roots).with_no_client_auth()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

    use super::*;

    #[test]
    fn a_file_that_has_no_certificate_says_so_and_a_missing_one_why() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "nothing").unwrap();
        assert!(matches!(add(&mut web(), file.path()), Err(RootsError::Empty)));
        assert!(matches!(add(&mut web(), Path::new("/none/there.pem")), Err(RootsError::Read(_))));
        let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert;
        std::fs::write(file.path(), certificate.pem()).unwrap();
        let mut roots = RootCertStore::empty();
        add(&mut roots, file.path()).unwrap();
        assert_eq!(roots.len(), 1);
    }
}
