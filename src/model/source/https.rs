//! Downloads over HTTPS.

use super::Progress;
use super::cache::Arriving;
use super::error::{SourceError, chain};
use crate::config::Secret;
use crate::outbound::{self, redacted};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, LOCATION, TRANSFER_ENCODING, USER_AGENT};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::path::Path;
use std::time::Duration;

/// Most redirects that are followed; the hub needs one or two.
const MOST_REDIRECTS: usize = 8;
/// How long a connection, an answer or the next bytes may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client that speaks TLS only.
type Https = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Downloads `url` and follows redirects, to HTTPS only. The token goes to the first server and no other. Trusted are the
/// web's root certificates and those in the PEM file `certificates`.
pub(super) fn download(
    url: &str,
    token: Option<&Secret>,
    certificates: Option<&Path>,
    arriving: &mut Arriving<'_>,
    progress: &dyn Progress,
) -> Result<(), SourceError> {
    let client = client(certificates)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| network(url, &error))?;
    runtime.block_on(async {
        let (url, mut answer) = open(&client, url, token).await?;
        let total = length(&url, &answer)?;
        progress.start(total, &redacted::address(&url));
        while let Some(frame) = in_time(&url, answer.body_mut().frame()).await? {
            let frame = frame.map_err(|error| network(&url, &error))?;
            if let Some(bytes) = frame.data_ref() {
                arriving.write(bytes)?;
                progress.advance(bytes.len() as u64);
            }
        }
        progress.done();
        Ok(())
    })
}

/// The path with everything escaped that means something else in an address.
pub(super) fn escaped(path: &str) -> String {
    path.bytes().fold(String::with_capacity(path.len()), |mut text, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => text.push(byte.into()),
            _ => {
                text.push('%');
                text.push_str(&super::error::hex(&[byte]).to_uppercase());
            }
        }
        text
    })
}

fn client(certificates: Option<&Path>) -> Result<Https, SourceError> {
    let mut roots = outbound::web();
    if let Some(path) = certificates {
        outbound::add(&mut roots, path).map_err(|error| SourceError::Certificates { path: path.to_owned(), problem: error.to_string() })?;
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(PATIENCE));
    let connector = HttpsConnectorBuilder::new().with_tls_config(outbound::trusting(roots)).https_only().enable_http1().wrap_connector(tcp);
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// Asks for `url` until an answer is no redirect; returns where that is and the answer, its body not yet read.
async fn open(client: &Https, url: &str, token: Option<&Secret>) -> Result<(String, Response<Incoming>), SourceError> {
    let mut at = parse(url)?;
    let first = at.authority().cloned();
    for _ in 0..=MOST_REDIRECTS {
        let url = at.to_string();
        let mut request = Request::get(&at).header(USER_AGENT, concat!("roundhouse/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = token.filter(|_| at.authority() == first.as_ref()) {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        let request = request.body(Empty::new()).map_err(|error| address(&url, &error.to_string()))?;
        let answer = in_time(&url, client.request(request)).await?.map_err(|error| network(&url, &error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok((url, answer));
        }
        let location = answer.headers().get(LOCATION).filter(|_| status.is_redirection());
        let Some(location) = location else { return Err(SourceError::Status { url: redacted::address(&url), status: status.as_u16() }) };
        let location = location.to_str().map_err(|_| address(&url, "it redirects to what is no address"))?;
        at = parse(&resolved(&at, location))?;
    }
    Err(address(url, &format!("it redirects more than {MOST_REDIRECTS} times")))
}

/// The size the server announces. A body without one must be chunked: otherwise its end and a broken connection look alike.
fn length(url: &str, answer: &Response<Incoming>) -> Result<Option<u64>, SourceError> {
    let headers = answer.headers();
    let total = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if total.is_none() && !headers.contains_key(TRANSFER_ENCODING) {
        return Err(address(url, "the server doesn't say how long the file is"));
    }
    Ok(total)
}

/// Where a `Location` header leads from `base`.
fn resolved(base: &Uri, location: &str) -> String {
    let authority = base.authority().map_or("", |authority| authority.as_str());
    let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("https:{location}")
    } else if location.starts_with('/') {
        format!("https://{authority}{location}")
    } else {
        format!("https://{authority}{folder}/{location}")
    }
}

fn parse(url: &str) -> Result<Uri, SourceError> {
    // A fragment is for the reader of a page, never for the server.
    let uri: Uri = url.split('#').next().unwrap_or(url).parse().map_err(|error: http::uri::InvalidUri| address(url, &error.to_string()))?;
    if uri.scheme_str() != Some("https") || uri.authority().is_none() {
        return Err(address(url, "it isn't an https:// address"));
    }
    Ok(uri)
}

async fn in_time<T>(url: &str, work: impl Future<Output = T>) -> Result<T, SourceError> {
    let late = |_| SourceError::Network { url: redacted::address(url), problem: format!("nothing came for {} s", PATIENCE.as_secs()) };
    tokio::time::timeout(PATIENCE, work).await.map_err(late)
}

fn network(url: &str, error: &dyn std::error::Error) -> SourceError {
    SourceError::Network { url: redacted::address(url), problem: chain(error) }
}

fn address(url: &str, problem: &str) -> SourceError {
    SourceError::Address { url: redacted::address(url), problem: problem.to_owned() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved_against_where_they_come_from() {
        let base: Uri = "https://hub.example:8443/a/b/c?x=1".parse().unwrap();
        assert_eq!(resolved(&base, "https://cdn.example/f?s=1"), "https://cdn.example/f?s=1");
        assert_eq!(resolved(&base, "//cdn.example/f"), "https://cdn.example/f");
        assert_eq!(resolved(&base, "/f"), "https://hub.example:8443/f");
        assert_eq!(resolved(&base, "f"), "https://hub.example:8443/a/b/f");
    }

    #[test]
    fn only_https_addresses_are_taken() {
        for url in ["http://a/b", "https:///b", "ftp://a", "a b", "https://a b/"] {
            assert!(matches!(parse(url), Err(SourceError::Address { .. })), "{url}");
        }
        assert_eq!(parse("https://a/b#c").unwrap().to_string(), "https://a/b");
    }

    #[test]
    fn a_path_is_escaped_for_an_address() {
        assert_eq!(escaped("sub/Model-Q4_1.gguf"), "sub/Model-Q4_1.gguf");
        assert_eq!(escaped("a b?#%é"), "a%20b%3F%23%25%C3%A9");
    }
}
