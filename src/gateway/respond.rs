//! The only place where a status is chosen: any error or panic below becomes one well-formed answer.

mod unparsed;

use super::body::Body;
use crate::api::openai::{ErrorBody, ErrorDetail};
use crate::call::{Error, Limited, Outcome, Record};
use crate::clock::Clock;
use crate::layer::Incoming;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};
use std::time::Duration;
use tower::{Layer, Service, layer::layer_fn};

pub(super) use unparsed::{instead_of, plain_text};

/// Turns errors and panics into answers and puts the headers on.
#[derive(Clone)]
pub(super) struct Respond<S> {
    inner: S,
    look: Look,
}

/// How answers look.
#[derive(Clone)]
pub(super) struct Look {
    /// Whether they name their backend.
    pub(super) show_backend: bool,
    pub(super) clock: Clock,
}

/// One row of the wire's error table.
struct Row<'a> {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<&'a str>,
    retry_after: Option<Duration>,
    /// Whether the same request can never pass, so that clients must not try again by themselves.
    hopeless: bool,
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");
const CONFIG: HeaderName = HeaderName::from_static("x-roundhouse-config");
const VARIANT: HeaderName = HeaderName::from_static("x-roundhouse-variant");
const BACKEND: HeaderName = HeaderName::from_static("x-roundhouse-backend");
const LIMIT_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-limit-requests");
const REMAINING_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-requests");
const RESET_REQUESTS: HeaderName = HeaderName::from_static("x-ratelimit-reset-requests");
const LIMIT_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-limit-tokens");
const REMAINING_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-remaining-tokens");
const RESET_TOKENS: HeaderName = HeaderName::from_static("x-ratelimit-reset-tokens");
const QUOTA_PASSED: HeaderName = HeaderName::from_static("x-roundhouse-quota-passed");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

// === impl Respond ===

impl<S> Respond<S> {
    pub(super) fn layer(look: Look) -> impl Layer<S, Service = Self> + Clone {
        layer_fn(move |inner| Self { inner, look: look.clone() })
    }
}

impl<S, B> Service<Incoming<B>> for Respond<S>
where
    S: Service<Incoming<B>, Response = Response<Body>, Error = Error> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, incoming: Incoming<B>) -> Self::Future {
        let (mut inner, look, record) = (self.inner.clone(), self.look.clone(), incoming.record.clone());
        Box::pin(async move {
            let below = AssertUnwindSafe(async move { inner.call(incoming).await }).catch_unwind().await;
            let mut response = match below {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => refuse(&error, &record),
                Err(_) => {
                    tracing::error!(id = record.lock().id, "a request panicked");
                    record.lock().outcome = Some(Outcome::Panic);
                    error(&Error::Internal)
                }
            };
            look.dress(&mut response, &record);
            Ok(response)
        })
    }
}

/// The answer to a request that ends with this error.
pub(super) fn refuse(refusal: &Error, record: &Record) -> Response<Body> {
    record.lock().outcome = Some(refusal.outcome());
    error(refusal)
}

// === impl Look ===

impl Look {
    /// Puts on what every answer carries.
    pub(super) fn dress(&self, response: &mut Response<Body>, record: &Record) {
        let notes = record.lock();
        let mut put = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        };
        put(REQUEST_ID, &notes.id);
        if let Some(variant) = &notes.variant {
            put(VARIANT, variant.as_str());
        }
        if let Some(backend) = notes.backend.as_ref().filter(|_| self.show_backend) {
            put(BACKEND, backend.as_str());
        }
        if let Some(level) = &notes.requests {
            put(RESET_REQUESTS, &spelled(level.reset));
        }
        if let Some(level) = &notes.tokens {
            put(RESET_TOKENS, &spelled(level.reset));
        }
        if !notes.passed_quotas.is_empty() {
            put(QUOTA_PASSED, &notes.passed_quotas.join(", "));
        }
        let headers = response.headers_mut();
        let taken = (self.clock.now() - notes.arrived).as_millis();
        headers.insert(PROCESSING_MS, u64::try_from(taken).unwrap_or(u64::MAX).into());
        headers.insert(CONFIG, notes.config_version.into());
        if let Some(level) = &notes.requests {
            headers.insert(LIMIT_REQUESTS, level.limit.into());
            headers.insert(REMAINING_REQUESTS, level.remaining.into());
        }
        if let Some(level) = &notes.tokens {
            headers.insert(LIMIT_TOKENS, level.limit.into());
            headers.insert(REMAINING_TOKENS, level.remaining.into());
        }
    }
}

/// A duration as OpenAI spells it: `120ms`, `1s`, `8.64s`, `6m0s`.
fn spelled(duration: Duration) -> String {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    let (minutes, seconds, rest) = (ms / 60_000, ms / 1000 % 60, ms % 1000);
    let fraction = if rest == 0 { String::new() } else { format!(".{rest:03}").trim_end_matches('0').to_owned() };
    match (minutes, seconds) {
        (0, 0) if rest > 0 => format!("{rest}ms"),
        (0, _) => format!("{seconds}{fraction}s"),
        _ => format!("{minutes}m{seconds}{fraction}s"),
    }
}

/// The error table: every case, its status, type and code.
fn row(error: &Error) -> Row<'_> {
    const INVALID: &str = "invalid_request_error";
    const SERVER: &str = "server_error";
    let row = |status, kind, code| Row { status, kind, code, param: None, retry_after: None, hopeless: false };
    match error {
        Error::Unauthenticated { .. } => row(StatusCode::UNAUTHORIZED, INVALID, "invalid_api_key"),
        Error::OutOfScope { .. } => row(StatusCode::FORBIDDEN, INVALID, "insufficient_permissions"),
        Error::ModelNotFound { .. } => Row { param: Some("model"), ..row(StatusCode::NOT_FOUND, INVALID, "model_not_found") },
        Error::Invalid { param, .. } => Row { param: param.as_deref(), ..row(StatusCode::BAD_REQUEST, INVALID, "invalid_value") },
        Error::Unsupported { param, .. } => Row { param: Some(param), ..row(StatusCode::BAD_REQUEST, INVALID, "unsupported_parameter") },
        Error::ContextLength { param, .. } => {
            Row { param: Some(param), ..row(StatusCode::BAD_REQUEST, INVALID, "context_length_exceeded") }
        }
        Error::ShardNotFound { .. } => row(StatusCode::NOT_FOUND, INVALID, "shard_not_found"),
        Error::ExperimentNotFound { .. } => row(StatusCode::NOT_FOUND, INVALID, "experiment_not_found"),
        Error::UnknownUrl { .. } => row(StatusCode::NOT_FOUND, INVALID, "unknown_url"),
        Error::MethodNotAllowed { .. } => row(StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed"),
        Error::HeadersTooLarge { .. } => row(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, INVALID, "headers_too_large"),
        Error::BodyTooLarge { .. } => row(StatusCode::PAYLOAD_TOO_LARGE, INVALID, "request_too_large"),
        Error::BodyTimeout { .. } => row(StatusCode::REQUEST_TIMEOUT, INVALID, "request_timeout"),
        Error::NotJson { .. } => row(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_media_type"),
        Error::RateLimited { limited, limit, retry_after, .. } => {
            let retry_after = Some(*retry_after);
            Row { retry_after, hopeless: *limit == 0, ..row(StatusCode::TOO_MANY_REQUESTS, kind(*limited), "rate_limit_exceeded") }
        }
        Error::TooLargeForLimit { limited, .. } => {
            Row { hopeless: true, ..row(StatusCode::BAD_REQUEST, kind(*limited), "request_too_large_for_limit") }
        }
        Error::QuotaSpent { .. } => {
            Row { hopeless: true, ..row(StatusCode::TOO_MANY_REQUESTS, "insufficient_quota", "insufficient_quota") }
        }
        Error::QuotaReserved { retry_after, .. } => {
            Row { retry_after: Some(*retry_after), ..row(StatusCode::TOO_MANY_REQUESTS, "tokens", "rate_limit_exceeded") }
        }
        Error::StoreLost { retry_after } => {
            Row { retry_after: Some(*retry_after), ..row(StatusCode::SERVICE_UNAVAILABLE, SERVER, "store_unavailable") }
        }
        Error::Overloaded { retry_after, .. } => {
            Row { retry_after: Some(*retry_after), ..row(StatusCode::TOO_MANY_REQUESTS, SERVER, "overloaded") }
        }
        Error::NoCapacity { retry_after, .. } => {
            Row { retry_after: Some(*retry_after), ..row(StatusCode::SERVICE_UNAVAILABLE, SERVER, "no_capacity") }
        }
        Error::ShardLost { .. } => Row { retry_after: Some(LOST), ..row(StatusCode::SERVICE_UNAVAILABLE, SERVER, "backend_unavailable") },
        Error::UpstreamFailed { .. } => row(StatusCode::BAD_GATEWAY, SERVER, "backend_unavailable"),
        Error::DeadlinePassed { .. } => row(StatusCode::GATEWAY_TIMEOUT, SERVER, "timeout"),
        Error::Internal => row(StatusCode::INTERNAL_SERVER_ERROR, SERVER, "internal_error"),
    }
}

/// The `type` of an error by this limit.
fn kind(limited: Limited) -> &'static str {
    match limited {
        Limited::Requests => "requests",
        Limited::Tokens | Limited::Request => "tokens",
        Limited::Concurrency => "concurrency",
    }
}

/// When it is worth another try after a shard was lost at work.
const LOST: Duration = Duration::from_secs(1);

/// The answer to a request that ends with this error, without the headers every answer has.
pub fn error(error: &Error) -> Response<Body> {
    let row = row(error);
    let mut response = json_bytes(error_body(error));
    *response.status_mut() = row.status;
    let headers = response.headers_mut();
    if let Some(retry_after) = row.retry_after {
        let ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX).max(1);
        headers.insert(header::RETRY_AFTER, ms.div_ceil(1000).into());
        headers.insert(RETRY_AFTER_MS, ms.into());
    }
    if row.hopeless {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    match error {
        Error::Unauthenticated { .. } => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        Error::MethodNotAllowed { allow, .. } => {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        Error::BodyTimeout { .. } => {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close")); // the rest of the body may still come
        }
        _ => {}
    }
    response
}

/// The error as clients read it.
pub(super) fn error_body(error: &Error) -> Vec<u8> {
    let row = row(error);
    let detail = ErrorDetail { message: &error.to_string(), r#type: row.kind, param: row.param, code: row.code };
    serde_json::to_vec(&ErrorBody { error: detail }).expect("invariant: plain strings are JSON")
}

/// An answer of this value.
pub fn json(value: &impl Serialize) -> Response<Body> {
    json_bytes(serde_json::to_vec(value).expect("invariant: wire types are JSON"))
}

/// An answer of this JSON.
pub(super) fn json_bytes(json: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(json));
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// An answer whose events come one by one, and which nobody on the way may hold back.
pub(super) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// An answer in plain text, as Prometheus reads it.
pub fn text(text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text.into_bytes()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}

/// An answer as a table.
pub(super) fn csv(table: String) -> Response<Body> {
    let mut response = Response::new(Body::from(table.into_bytes()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8; header=present"));
    response
}

/// The process lives.
pub fn live() -> Response<Body> {
    json_bytes(br#"{"status":"ok"}"#.to_vec())
}

/// Whether requests can be served, and if not why.
pub(super) fn readiness(ready: Result<(), &'static str>) -> Response<Body> {
    let Err(reason) = ready else { return json_bytes(br#"{"status":"ready"}"#.to_vec()) };
    let mut response = json_bytes(format!(r#"{{"status":"not ready","reason":"{reason}"}}"#).into_bytes());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// Which methods a path knows.
pub(super) fn options(allow: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

#[cfg(test)]
mod tests;
