//! A request's body: JSON, and no larger than it may be.

use crate::call::Error;
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body;
use http_body_util::BodyExt;
use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

/// How much of a body that is too large is read and dropped, so that its sender gets to read the answer: one who is
/// cut off while writing sees a broken connection instead.
const DROPPED: u64 = 64 << 20;

/// Whoever waits longer doesn't mind.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Refuses bodies that don't say they are JSON.
///
/// # Errors
/// `NotJson`.
pub fn check_content_type(headers: &HeaderMap) -> Result<(), Error> {
    let found = headers.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = found.as_deref().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let (family, kind) = essence.split_once('/').unwrap_or_default();
    let json =
        kind.eq_ignore_ascii_case("json") || kind.get(kind.len().saturating_sub(5)..).is_some_and(|end| end.eq_ignore_ascii_case("+json"));
    if family.eq_ignore_ascii_case("application") && json { Ok(()) } else { Err(Error::NotJson { found: found.map(Into::into) }) }
}

/// How long the client waits for a first sign of its answer: OpenAI's own clients tell the seconds. Others don't, and what
/// can't be read isn't a bound.
pub(super) fn patience(headers: &HeaderMap) -> Option<Duration> {
    // The one of Node and the one of Python.
    let told = ["x-stainless-timeout", "x-stainless-read-timeout"].into_iter().filter_map(|name| headers.get(name)?.to_str().ok());
    let seconds = told.filter_map(|seconds| Duration::try_from_secs_f64(seconds.trim().parse().ok()?).ok());
    seconds.filter(|time| !time.is_zero() && *time < LONGEST).min()
}

/// The whole body, in chunks or not.
///
/// # Errors
/// `BodyTooLarge` over `limit` bytes; `BodyTimeout` where it takes longer than `time`; `Invalid` where it breaks off.
pub async fn body<B>(headers: &HeaderMap, body: B, limit: u64, time: Duration) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes, Error: Display>,
{
    // Most bodies are there already; then no timer is set.
    tokio::time::timeout(time, whole(headers, body, limit)).await.unwrap_or(Err(Error::BodyTimeout { limit: time }))
}

async fn whole<B>(headers: &HeaderMap, body: B, limit: u64) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes, Error: Display>,
{
    let mut body = pin!(body);
    let announced = body.size_hint().lower();
    if announced > limit && headers.contains_key(header::EXPECT) {
        return Err(Error::BodyTooLarge { limit }); // its sender waits for our word before it sends
    }
    let (mut first, mut rest, mut read) = (Bytes::new(), BytesMut::new(), 0_u64);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() else { continue };
        read += data.remaining() as u64;
        if read > limit + DROPPED {
            break;
        }
        if announced > limit || read > limit {
            continue;
        }
        // Most bodies are one piece: that one isn't copied.
        match (first.is_empty(), rest.is_empty()) {
            (true, true) => first = data,
            (false, true) => {
                rest.reserve(first.len() + data.len());
                rest.extend_from_slice(&first);
                rest.extend_from_slice(&data);
            }
            (_, false) => rest.extend_from_slice(&data),
        }
    }
    if read > limit {
        return Err(Error::BodyTooLarge { limit });
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

fn broken(error: &impl Display) -> Error {
    Error::Invalid { param: None, message: format!("The request's body could not be read to its end: {error}.") }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may stop at a surprise")]

    use super::*;
    use futures_util::FutureExt;
    use futures_util::stream::iter;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use std::convert::Infallible;

    fn read(pieces: &[&'static str], limit: u64) -> Result<Bytes, Error> {
        let frames: Vec<_> = pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::from_static(piece.as_bytes())))).collect();
        whole(&HeaderMap::new(), StreamBody::new(iter(frames)), limit).now_or_never().unwrap()
    }

    #[test]
    fn a_body_in_chunks_is_put_together() {
        assert_eq!(read(&["{\"a\"", ":", "", "1}"], 7).unwrap(), "{\"a\":1}");
        assert_eq!(read(&["{}"], 2).unwrap(), "{}");
        assert_eq!(read(&[], 2).unwrap(), "");
    }

    #[test]
    fn a_body_over_the_limit_is_refused_whether_it_says_its_length_or_not() {
        assert_eq!(read(&["1234", "5678"], 7), Err(Error::BodyTooLarge { limit: 7 }));
        let known = http_body_util::Full::new(Bytes::from_static(b"12345678"));
        let answer = whole(&HeaderMap::new(), known, 7).now_or_never().unwrap();
        assert_eq!(answer, Err(Error::BodyTooLarge { limit: 7 }));
    }

    #[test]
    fn only_json_is_taken() {
        let check = |found: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(found) = found {
                headers.insert(header::CONTENT_TYPE, found.parse().unwrap());
            }
            check_content_type(&headers).is_ok()
        };
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
            assert!(check(Some(good)), "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "", "json", "application/jsonl", "text/json5"] {
            assert!(!check(Some(bad)), "{bad}");
        }
        assert!(!check(None));
    }
}
