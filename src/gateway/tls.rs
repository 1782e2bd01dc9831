//! TLS: what a port proves itself with, and what its clients have to.

mod subject;

use crate::call::Certificate;
use crate::config::{self, ClientAuth};
use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientCertVerifierBuilder, ServerConfig, WebPkiClientVerifier};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How a port's connections are encrypted. What it holds is replaced as a whole; open connections keep theirs.
pub struct Tls(ArcSwap<ServerConfig>);

/// A port's certificate, its key and the roots of its clients, read and found to fit together.
pub struct Identity(Arc<ServerConfig>);

/// Why a port's certificates can't be used. Names the key of the configuration and the file, never what is in it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("{key}: {}: {error}", file.display())]
    Read {
        /// The key that names the file.
        key: String,
        /// The file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file isn't PEM, or has nothing of what is looked for.
    #[error("{key}: {}: there is no {what} in PEM in this file", file.display())]
    Missing {
        /// The key that names the file.
        key: String,
        /// The file.
        file: PathBuf,
        /// What is looked for.
        what: &'static str,
    },
    /// A certificate or key is there and can't be used.
    #[error("{key}: {}: {error}", file.display())]
    Unusable {
        /// The key that names the file.
        key: String,
        /// The file.
        file: PathBuf,
        /// Why.
        error: rustls::Error,
    },
}

const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

// === impl Tls ===

impl Tls {
    /// TLS with this identity.
    pub fn new(identity: Identity) -> Arc<Self> {
        Arc::new(Self(ArcSwap::new(identity.0)))
    }

    /// Takes another identity for the connections to come. A session begun under the old one can't be resumed, so a
    /// client that is no longer trusted has to show its certificate again.
    pub fn replace(&self, identity: Identity) {
        self.0.store(identity.0);
    }

    /// Shakes hands over `stream`; returns the client's certificate too, if it was asked for one and had one.
    ///
    /// # Errors
    /// The client hung up, doesn't speak TLS, or isn't trusted.
    pub(super) async fn accept<S>(&self, stream: S) -> io::Result<(TlsStream<S>, Option<Arc<Certificate>>)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = TlsAcceptor::from(self.0.load_full()).accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = shown.map(|shown| subject::certificate(shown)).transpose()?;
        Ok((stream, certificate.map(Arc::new)))
    }
}

// === impl Identity ===

impl Identity {
    /// Reads the files of `tls`, which is the table `path` of the configuration.
    ///
    /// # Errors
    /// A file can't be read, isn't what it should be, or doesn't fit the others.
    pub fn read(tls: &config::Tls, path: &str) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(&format!("{path}.cert"), &tls.cert)?;
        let key = private_key(&format!("{path}.key"), &tls.key)?;
        let unusable = |key: &str, file: &Path| {
            let (key, file) = (format!("{path}.{key}"), file.to_owned());
            move |error| TlsError::Unusable { key, file, error }
        };
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.map_err(unusable("cert", &tls.cert))?;
        let builder = match &tls.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let roots = roots(&format!("{path}.client_ca"), file)?;
                let verifier = verifier(roots, &provider, tls.client_auth);
                let verifier = verifier.build().map_err(|error| rustls::Error::General(error.to_string()));
                builder.with_client_cert_verifier(verifier.map_err(unusable("client_ca", file))?)
            }
        };
        let mut server = builder.with_single_cert(chain, key).map_err(unusable("cert", &tls.cert))?;
        server.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
        Ok(Self(Arc::new(server)))
    }
}

fn verifier(roots: RootCertStore, provider: &Arc<CryptoProvider>, auth: ClientAuth) -> ClientCertVerifierBuilder {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    match auth {
        ClientAuth::Required => verifier,
        ClientAuth::Optional => verifier.allow_unauthenticated(),
    }
}

fn read(key: &str, file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|error| TlsError::Read { key: key.to_owned(), file: file.to_owned(), error })
}

fn certificates(key: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&read(key, file)?).collect();
    // What PEM's errors say may be a line of the file.
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| TlsError::Missing { key: key.to_owned(), file: file.to_owned(), what: "certificate" })
}

fn private_key(key: &str, file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let found = PrivateKeyDer::from_pem_slice(&read(key, file)?);
    found.map_err(|_| TlsError::Missing { key: key.to_owned(), file: file.to_owned(), what: "private key" })
}

fn roots(key: &str, file: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for root in certificates(key, file)? {
        let unusable = |error| TlsError::Unusable { key: key.to_owned(), file: file.to_owned(), error };
        roots.add(root).map_err(unusable)?;
    }
    Ok(roots)
}
