//! Answers to what never became a request.

use super::{Body, REQUEST_ID, error};
use crate::call::Error;
use crate::layer::trace::random_id;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

/// What the parser's own answers have in common: no body. Ours to errors always have one.
const EMPTY: &[u8] = b"content-length: 0\r\n";

/// What is sent instead of the parser's own answer to a request that it refused; `None` where `bytes` aren't one.
/// `max_head` is the size of the largest head.
pub(in crate::gateway) fn instead_of(bytes: &[u8], max_head: u64) -> Option<Bytes> {
    let code = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    if code[0] != b'4' || !bytes.ends_with(b"\r\n\r\n") || !bytes.windows(EMPTY.len()).any(|part| part == EMPTY) {
        return None;
    }
    match StatusCode::from_bytes(code).ok()? {
        StatusCode::BAD_REQUEST => Some(malformed("This is no HTTP request.")),
        StatusCode::URI_TOO_LONG | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            Some(spelled_out(&Error::HeadersTooLarge { limit: max_head }))
        }
        _ => None,
    }
}

/// The answer to a request in plain text on a port that speaks TLS.
pub(in crate::gateway) fn plain_text() -> Bytes {
    malformed("This port speaks TLS. Use https:// instead of http://.")
}

fn malformed(message: &str) -> Bytes {
    spelled_out(&Error::Invalid { param: None, message: message.to_owned() })
}

/// A whole answer as HTTP/1.1 writes it.
fn spelled_out(refusal: &Error) -> Bytes {
    let mut response = error(refusal);
    let body = match std::mem::replace(response.body_mut(), Body::empty()) {
        Body::Full(Some(body)) => body,
        _ => Bytes::new(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, body.len().into());
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if let Ok(id) = HeaderValue::from_str(&random_id("req_")) {
        headers.insert(REQUEST_ID, id);
    }
    let mut out = format!("HTTP/1.1 {}\r\n", response.status()).into_bytes();
    for (name, value) in response.headers() {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&body);
    out.into()
}
